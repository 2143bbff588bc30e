"""Core dumps: a daemon's dump holds neither cached files nor keys."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

HEAP, SMALL, LARGE = b"in the heap of Python ", b"in a small blob ", b"in a mapping of its own "

# The script assembles the markers at run time: its code contains none.
SCRIPT = """if True:
    import ctypes, os, sys
    from copperfs.native.blob import new_blob
    from copperfs.daemon.core_dump import leave_out_memory
    def holding(word, size):
        blob = new_blob(size)
        blob.view[: len(word)] = word
        blob.view[len(word) : len(word) + 4] = b"2026"
        return blob
    words = [bytes.fromhex(each) for each in sys.argv[2:5]]
    heap = bytearray(words[0])
    heap += b"2026"
    held = holding(words[1], 1000), holding(words[2], 1 << 20)
    if sys.argv[1] == "left out":
        leave_out_memory()
    address = ctypes.addressof(ctypes.c_char.from_buffer(held[1].view))
    found = []
    for line in open("/proc/self/smaps"):
        if "-" in line.split(" ")[0]:
            first, end = (int(each, 16) for each in line.split(" ")[0].split("-"))
        elif line.startswith("VmFlags") and first <= address < end:
            print("dd" in line.split())
    print(open("/proc/self/coredump_filter").read(), flush=True)
    os.abort()
"""


def crash(how: str, directory: Path) -> tuple[list[str], bytes | None]:
    def allow() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)

    words = [each.hex() for each in (HEAP, SMALL, LARGE)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how, *words],
        capture_output=True, text=True, check=False, cwd=directory, preexec_fn=allow, timeout=60,
    )  # fmt: skip
    assert done.returncode < 0, done.stderr
    cores = list(directory.glob("*core*"))
    return done.stdout.split(), cores[0].read_bytes() if cores else None


@pytest.mark.parametrize("how", ["left out", "as usual"])
def test_a_core_holds_no_memory_and_a_usual_one_no_mapping_of_a_blob(
    how: str, tmp_path: Path
) -> None:
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core dumps are forbidden here for good")
    (is_left_out, filtered), core = crash(how, tmp_path)
    assert is_left_out == "True"
    assert (int(filtered, 16) == 0x10) is (how == "left out")
    if core is None:  # core_pattern writes them elsewhere
        return
    held = [each + b"2026" in core for each in (HEAP, SMALL, LARGE)]
    assert held == ([False] * 3 if how == "left out" else [True, True, False])
