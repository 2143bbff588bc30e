"""Blob pool: chunk-sized blobs reuse the memory of released ones, and the pool keeps little of
it."""

import resource
import threading
import weakref
from pathlib import Path

import pytest

from copperfs.native.blob import adopted, new_blob

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


class Lender(bytearray):
    """It supports weak references, to see whether it still exists."""


def test_an_adopted_blob_has_the_bytes_of_another_object_and_keeps_it() -> None:
    lender = Lender(bytes([5]) * MIB)
    gone = weakref.ref(lender)
    blob = adopted(memoryview(lender))
    lender[3] = 6
    assert blob.view[:5].tolist() == [5, 5, 5, 6, 5], "not copied"
    del lender
    assert gone() is not None
    assert (len(blob), blob.view.readonly) == (MIB, True)
    with pytest.raises(ValueError, match="sealed once"):
        blob.seal(1)
    view = blob.view
    del blob
    assert view[MIB - 1] == 5, "as long as it is looked at"
    del view
    assert gone() is None


def test_adopted_blobs_that_threads_let_go_of_are_gone_with_the_next_one() -> None:
    lenders = [Lender(1000) for _ in range(200)]
    gone = [weakref.ref(each) for each in lenders]
    views = [adopted(memoryview(each)).view for each in lenders]
    lenders.clear()
    threads = [threading.Thread(target=lambda: [views.pop() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    new_blob(1)
    assert not any(each() for each in gone)
