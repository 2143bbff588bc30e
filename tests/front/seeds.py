"""Seeds of the fuzzers: sound listings, and steps at random."""

import random
import struct
from pathlib import Path

from copperfs.model.listing import pack_listing
from copperfs.model.types import ATTRIBUTES_BYTES, Attributes, Entry

_UNIQUE_RETRY = 1 | 2 | 8  # see fuzz_replies.c
_UNIQUE_SUCCESS = 1 | 2 | 4


# Random bytes hardly ever find these steps of world.c.
_ROOM_FOR_MANY = bytes([3])
_PUBLISH_ROOT = bytes([14, 1, 0, 1, 0, 0, 1, 3])  # with a directory, granted with all below it
_LOOK_UP_DIRECTORY = bytes([0, 0, 1])
_LOOK_INTO_IT = bytes([0, 1, 2])
_CLEAR, _REVOKE = bytes([19, 0]), bytes([19, 4])
_LISTED, _NOT_LISTED = bytes([23, 16 | 32, 0, 1, 1, 1]), bytes([23, 16])
_LISTED_BARE, _LISTED_LINKS = bytes([23, 16 | 32, 1, 1, 1, 1]), bytes([23, 16 | 32, 128, 1, 1, 1])
_BEGIN_TO_LIST = _ROOM_FOR_MANY + _PUBLISH_ROOT + _LOOK_UP_DIRECTORY + _LOOK_INTO_IT
_LISTINGS = [
    _BEGIN_TO_LIST + _LOOK_INTO_IT + _LISTED + _LOOK_INTO_IT,
    _BEGIN_TO_LIST + _LOOK_INTO_IT + _NOT_LISTED + _LOOK_INTO_IT,
    _BEGIN_TO_LIST + _CLEAR + _PUBLISH_ROOT + _LOOK_UP_DIRECTORY + _LISTED + _LOOK_INTO_IT,
    _BEGIN_TO_LIST + _REVOKE + _LISTED + _LOOK_INTO_IT,
    _BEGIN_TO_LIST + _LISTED_BARE + _LOOK_INTO_IT,
    _BEGIN_TO_LIST + _LISTED_LINKS + _LOOK_INTO_IT,
    _BEGIN_TO_LIST + bytes([6, 0, 5, 1, 2]) + _LISTED,  # READDIRPLUS joins
    # with rows without attributes: looked up, and listed with READDIRPLUS
    _ROOM_FOR_MANY
    + bytes([14, 1, 4, 8, 0, 0, 1, 1, 2, 1, 3, 0, 1, 3])
    + bytes([0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 6, 0, 5, 1, 2]),
]


_NAME_LARGE_FILE = bytes([15, 1, 0, 1, 182, 1])
_LOOK_IT_UP = bytes([0, 0, 1])
_READ_ALL, _READ_SOME = bytes([19, 7, 0, 0, 255, 2]), bytes([19, 7, 31, 240, 40, 2])
_CHUNKS = b"".join(bytes([19, 5, index, 1, 2]) for index in range(13))
_LARGER_CHUNKS = b"".join(bytes([19, 5, index, 6, 2]) for index in range(5))
_NO_CHUNKS = bytes([19, 5, 13, 1, 2, 19, 5, 0, 0, 2, 19, 5, 1, 250, 2])
_WITHDRAW_CHUNK, _TAKE_TOUCHED = bytes([19, 6, 1, 2, 8]), bytes([19, 6, 0])
_WITHDRAW, _FORGET = bytes([18, 2]), bytes([12, 3, 2, 1])
_RETRY, _IN_FULL = bytes([20, 0, 0]), bytes([20, 0, 210])
_BEGIN_CHUNKS = _ROOM_FOR_MANY + _NAME_LARGE_FILE + _LOOK_IT_UP
_CHUNKED = [
    _BEGIN_CHUNKS + _READ_ALL + _CHUNKS + _RETRY + _READ_SOME + _TAKE_TOUCHED * 4 + _READ_ALL,
    _BEGIN_CHUNKS + _CHUNKS + _READ_ALL + _WITHDRAW_CHUNK + _READ_ALL + _RETRY + _IN_FULL,
    _BEGIN_CHUNKS + _CHUNKS + _READ_ALL + _CHUNKS + _LARGER_CHUNKS + _READ_SOME + _WITHDRAW,
    _BEGIN_CHUNKS + _NO_CHUNKS + _READ_ALL + _CHUNKS + _FORGET + _READ_ALL + _WITHDRAW_CHUNK,
    _BEGIN_CHUNKS + _CHUNKS + _READ_ALL + _CLEAR + _READ_ALL + _RETRY + _CHUNKS + _IN_FULL,
]

# The same file, and where it has data.
_SEEK_DATA, _SEEK_HOLE = bytes([11, 1, 2, 0, 10, 2]), bytes([11, 1, 1, 0, 10, 2])
_SEEK_FURTHER = bytes([11, 1, 2, 9, 0, 2])
_IN_A_HOLE = bytes([11, 1, 2, 3, 0, 2, 11, 1, 1, 3, 0, 2])
_FOUND, _NOT_FOUND, _QUICK = bytes([23, 64 | 32]), bytes([23, 64]), bytes([23, 8])
_SPARSE = [
    _BEGIN_CHUNKS + _SEEK_DATA + _FOUND + _IN_A_HOLE + _SEEK_FURTHER + _FOUND + _SEEK_HOLE,
    _BEGIN_CHUNKS + _SEEK_HOLE + _NOT_FOUND + _SEEK_DATA + _FORGET + _FOUND + _SEEK_DATA,
    _BEGIN_CHUNKS + _SEEK_HOLE + _SEEK_DATA + _CLEAR + _FOUND + _FOUND + _SEEK_HOLE + _WITHDRAW,
    _BEGIN_CHUNKS + _QUICK + (_SEEK_DATA + _SEEK_HOLE + _SEEK_FURTHER) * 3 + _CLEAR + _SEEK_HOLE,
]


def write_seeds(fuzzer: str, directory: Path) -> None:
    directory.mkdir()
    makers = {"requests": _steps, "replies": _replies, "listing": _listing, "collisions": _listing}
    for number in range(40):
        content = makers[fuzzer](random.Random(number))
        (directory / f"seed-{number:02}").write_bytes(content)
    if fuzzer == "requests":
        for number, content in enumerate(_LISTINGS):
            (directory / f"listing-{number}").write_bytes(content)
        for number, content in enumerate(_CHUNKED):
            (directory / f"chunks-{number}").write_bytes(content)
        for number, content in enumerate(_SPARSE):
            (directory / f"sparse-{number}").write_bytes(content)


def _steps(rng: random.Random) -> bytes:
    """Small ones are frequent: low inode numbers, the first names."""
    return bytes(rng.choice((rng.randrange(24), rng.randrange(256))) for _ in range(600))


def _replies(rng: random.Random) -> bytes:
    # a sound answer to INIT, which comes first, with every flag
    init = struct.pack("<IIQ", 80, 0, 0) + struct.pack("<IIII", 7, 38, 0, 0xFFFFFFFF)
    replies = [bytes([_UNIQUE_SUCCESS, 64]) + init + rng.randbytes(48)]
    for _ in range(rng.randrange(1, 12)):
        size = rng.choice((0, 16, 64, 80, 200))
        header = struct.pack("<IiQ", 16 + size, -rng.randrange(140), rng.randrange(12))
        how = rng.choice((_UNIQUE_RETRY, _UNIQUE_SUCCESS, rng.randrange(64)))
        replies.append(bytes([how & ~32, size]) + header + rng.randbytes(size))
    return b"".join(replies)


def _listing(rng: random.Random) -> bytes:
    rows = []
    for number in range(rng.randrange(20)):
        name = b"%d" % number + b"n" * rng.randrange(250)
        target = b"t" * rng.choice((0, 0, 5, 4095))
        rows.append((name, Entry(Attributes(rng.randbytes(ATTRIBUTES_BYTES)), target)))
        if rng.random() < 0.1:
            rows[-1] = name, Entry(Attributes.bare(number, 0o100000), unknown=True)
    return pack_listing(rows, bare=rng.random() < 0.2).packed
