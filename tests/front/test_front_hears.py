"""The front reports each file that it has read by itself to the handlers once, with its credit,
also if memory runs out meanwhile. The kernel is a socket here."""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]  # CPython's own, without types
import gc
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from copperfs.model.listing import pack_listing
from copperfs.model.types import Attributes, Entry
from copperfs.native import Front
from copperfs.native.blob import Blob  # before the front, which takes functions from its module
from copperfs.source.source_pool import PoolFetcher
from tests.front.kernel import LOOKUP, ROOT_NODE, Kernel
from tests.mount.helpers import eventually

INVALIDATE_INODE, INVALIDATE_ENTRY, NEXT_EPOCH = 2, 3, 8
FILES = 60
SIZE = 100
WITHIN_S = 20.0


def bytes_of(content: Blob | bytes) -> bytes:
    return content if isinstance(content, bytes) else bytes(content.view)


@pytest.fixture
def front(source_of_files: Path) -> Iterator[tuple[Front, Kernel]]:
    with ExitStack() as stack:
        fetcher = PoolFetcher(
            bytes(source_of_files),
            listing_max=1000,
            concurrency=2,
            deadline_s=WITHIN_S,
            untouchable=frozenset,
        )
        stack.callback(fetcher.close)
        ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        for each in (end for pair in ends for end in pair):
            stack.callback(each.close)
        (fuse, kernel), (miss, _), (control, _) = ends
        kernel.settimeout(WITHIN_S)
        front = Front(
            fuse.fileno(), miss.fileno(), control.fileno(), 1, inodes_max=1000,
            deadline_s=WITHIN_S, kernel_cache=True,
        )  # fmt: skip
        front.set_reader(fetcher.reader(0), 1 << 20, FILES * SIZE, 0, False)
        front.start()
        stack.callback(front.stop)
        stack.callback(kernel.shutdown, socket.SHUT_RDWR)  # ends what waits for a request
        rows = [
            (os.fsencode(each.name), Entry(Attributes.from_stat(os.stat(each))))
            for each in os.scandir(source_of_files)
        ]
        assert front.publish_listing(ROOT_NODE, pack_listing(rows).packed, -1.0, True, False, False)
        yield front, Kernel(kernel)


@pytest.fixture
def source_of_files(tmp_path: Path) -> Path:
    for number in range(FILES):
        (tmp_path / f"{number}").write_bytes(b"%d" % (number % 10) * SIZE)
    return tmp_path


@contextmanager
def only_this_thread_allocates() -> Iterator[None]:
    """Neither the garbage collector nor another thread meets the missing memory."""
    interval = sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(60.0)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()


def test_what_was_read_is_heard_of_once_though_memory_runs_out(
    front: tuple[Front, Kernel],
) -> None:
    the_front, kernel = front
    for number in range(FILES):
        assert kernel.read(kernel.look_up(f"{number}")) == b"%d" % (number % 10) * SIZE
    heard = []
    failures = 0
    for allocation in range(200):
        some = []
        with only_this_thread_allocates():
            _testcapi.set_nomemory(allocation, allocation + 1)
            try:
                some = the_front.fetched()
            except MemoryError:
                failures += 1
            finally:
                _testcapi.remove_mem_hooks()
        heard += some
    heard += the_front.fetched()
    assert failures
    assert sorted(int(path) for _, path, *_ in heard) == list(range(FILES))
    assert sum(each[5] for each in heard) == FILES * SIZE
    assert {bytes_of(each[3]) for each in heard} == {b"%d" % digit * SIZE for digit in range(10)}


def test_names_beside_a_lookup_that_hangs_are_left_for_later(front: tuple[Front, Kernel]) -> None:
    the_front, kernel = front
    kernel.look_up("1")
    the_front.clear(2)
    kernel.begin(LOOKUP, ROOT_NODE, b"2\0")  # and gets no reply
    eventually(lambda: the_front.statistics()["pending"] == 1, "it is looked up")
    told, left = the_front.invalidate_all()
    assert (told, [kernel.hear()[0] for _ in range(2)]) == (0, [NEXT_EPOCH, INVALIDATE_INODE])
    assert left is not None
    assert the_front.invalidate_later(left) == 1
    code, said = kernel.hear()
    assert code == INVALIDATE_ENTRY
    assert said.endswith(b"1\0")


def test_only_what_was_left_is_told_later(front: tuple[Front, Kernel]) -> None:
    the_front, _ = front
    with pytest.raises(ValueError, match="not what"):
        the_front.invalidate_later(b"short")
    assert the_front.invalidate_all() == (0, None)
