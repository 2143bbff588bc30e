"""The tables that the front builds from what the handlers publish, without a kernel."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from copperfs.model.listing import pack_listing
from copperfs.model.types import OWN_INODE, Attributes, Entry
from copperfs.native import Front
from copperfs.native.blob import new_blob

ROOT_NODE = 1
CONTENT = b"content"

whoever = pytest.mark.parametrize("begins", [True, False], ids=["left out now", "left out before"])


@pytest.fixture
def descriptors() -> Iterator[tuple[int, int, int]]:
    with ExitStack() as stack:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        for each in (end for pair in pairs for end in pair):
            stack.callback(each.close)
        (fuse, _), (miss, _), (control, _) = pairs
        yield fuse.fileno(), miss.fileno(), control.fileno()


def front_of(descriptors: tuple[int, int, int]) -> Front:
    return Front(*descriptors, 1, inodes_max=1000, deadline_s=1.0, kernel_cache=True)


def both(path: Path, begins: bool) -> tuple[Attributes, Attributes]:
    """The attributes of *path* before and after its job began to ignore inode numbers, or the other
    way round."""
    counted = Attributes.from_stat(os.stat(path))
    ignored = Attributes.from_stat(os.stat(path), OWN_INODE)
    return (counted, ignored) if begins else (ignored, counted)


@whoever
@pytest.mark.parametrize("is_directory", [True, False], ids=["directory", "file"])
def test_who_leaves_inode_numbers_out_finds_no_other_file(
    descriptors: tuple[int, int, int], tmp_path: Path, is_directory: bool, begins: bool
) -> None:
    path = tmp_path / "name"
    path.mkdir() if is_directory else path.write_bytes(CONTENT)
    front = front_of(descriptors)
    numbers = []
    for attributes in both(path, begins):
        assert front.publish_entry(ROOT_NODE, b"name", attributes.packed, b"", -1.0)
        numbers.append(front.find(b"name"))
    assert numbers[0] is not None
    assert numbers[0] == numbers[1]


@whoever
def test_bytes_are_published_whichever_side_leaves_the_number_out(
    descriptors: tuple[int, int, int], tmp_path: Path, begins: bool
) -> None:
    (tmp_path / "name").write_bytes(CONTENT)
    known, asked = both(tmp_path / "name", begins)
    front = front_of(descriptors)
    packed = pack_listing([(b"name", Entry(known))]).packed
    assert front.publish_listing(ROOT_NODE, packed, -1.0, False, False, False)
    blob = new_blob(len(CONTENT))
    blob.view[:] = CONTENT
    blob.seal(len(CONTENT))
    assert front.publish_file(b"name", asked.version, blob) is not None


def test_a_front_without_descriptors_leaves_none_open(descriptors: tuple[int, int, int]) -> None:
    free = os.dup(descriptors[0])
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # one is left, two are needed
    try:
        with pytest.raises(MemoryError):
            front_of(descriptors)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    again = os.dup(descriptors[0])
    os.close(again)
    assert again == free
