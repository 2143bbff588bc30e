"""Blobs of the size of chunks use the memory of those that were let go of, and not much of it."""

import resource
import threading
from pathlib import Path

import pytest

from copperfs.blob import BLOBS_ARE_SHARED, new_blob

pytestmark = pytest.mark.skipif(not BLOBS_ARE_SHARED, reason="the C extension is not there")

MIB = 1 << 20
POOL_BYTES = 16 * MIB


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def filled(size: int, byte: int) -> memoryview:
    blob = new_blob(size)
    blob.view[:] = bytes([byte]) * size
    blob.seal(size)
    return blob.view


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


@pytest.mark.parametrize("size", [MIB, 256 << 10, 300_001])
def test_a_blob_that_follows_another_of_its_size_costs_no_page_faults(size: int) -> None:
    content = bytes(size)
    for _ in range(3):
        new_blob(size).view[:] = content
    before = faults()
    for _ in range(100):
        new_blob(size).view[:] = content
    assert faults() - before < 100 * size // 4096 // 10


def test_what_is_let_go_of_goes_back_to_the_system_but_for_a_little() -> None:
    many = [filled(size, 1) for size in (MIB, 700_000, 128 << 10) for _ in range(64)]
    before = resident_bytes()
    held = sum(map(len, many))
    many.clear()
    assert before - resident_bytes() > held - POOL_BYTES - 8 * MIB


def test_a_blob_that_is_held_is_nobody_elses() -> None:
    held = filled(MIB, 7)
    for _ in range(40):
        filled(MIB, 9)
    assert bytes(held) == b"\x07" * MIB


def test_threads_that_take_and_let_go_never_share_one() -> None:
    wrong: list[int] = []

    def work(byte: int) -> None:
        for turn in range(200):
            views = [filled(size, byte) for size in (MIB, 200_000 + 4096 * (turn % 7))]
            wrong.extend(
                1 for view in views if bytes(view[::4099]) != bytes([byte]) * len(view[::4099])
            )

    threads = [threading.Thread(target=work, args=(byte,)) for byte in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
