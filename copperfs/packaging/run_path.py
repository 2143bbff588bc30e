"""Run path: directories in which the dynamic linker looks for the libraries that a shared library
needs. ``startup/elf_image.c`` takes it from the interpreter in the same way."""

import struct

MAGIC = b"\x7fELF"
OF_64_BITS, LITTLE_ENDIAN = 2, 1
PT_DYNAMIC = 2
DT_NULL, DT_RPATH, DT_RUNPATH = 0, 15, 29
DT_NOTHING = 0x6000000D
"""The first of the system's own tags. The dynamic linker leaves out those that it does not know."""


def without_run_path(library: bytes) -> bytes:
    if library[:6] != MAGIC + bytes([OF_64_BITS, LITTLE_ENDIAN]):
        return library
    changed = bytearray(library)
    (parts_at,) = struct.unpack_from("<Q", library, 32)
    part_size, parts = struct.unpack_from("<HH", library, 54)
    for at in range(parts_at, parts_at + parts * part_size, part_size):
        kind, begin, size = struct.unpack_from("<I4xQ16xQ", library, at)
        if kind != PT_DYNAMIC:
            continue
        for entry in range(begin, begin + size, 16):
            (tag,) = struct.unpack_from("<q", library, entry)
            if tag == DT_NULL:
                break
            if tag in (DT_RPATH, DT_RUNPATH):
                struct.pack_into("<q", changed, entry, DT_NOTHING)
    return bytes(changed)
