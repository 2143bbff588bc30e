"""Every request is answered with what was published for it, also if the tables cannot keep that.

The kernel and the handlers are the other ends of sockets. A small budget or other requests may
remove published answers.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from copperfs.model.listing import pack_listing
from copperfs.model.types import Attributes, Entry
from copperfs.native import RETRY, Front
from copperfs.native.blob import adopted
from tests.front.kernel import GETATTR, LOOKUP, READDIRPLUS, ROOT_NODE, Kernel
from tests.mount.helpers import eventually

WITHIN_S = 20.0
NODES_MAX = 8
NAME = b"name"
TRIES_MAX = 2
"""The kernel gets the published answer at the second try."""

Publish = Callable[[Front], object]
WALK = struct.pack("<QQIIQII", 0, 0, 4096, 0, 0, 0, 0)


class Lab:
    def __init__(self, stack: ExitStack, directory: Path) -> None:
        ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        for each in (end for pair in ends for end in pair):
            stack.callback(each.close)
            each.settimeout(WITHIN_S)
        (fuse, self.kernel_end), (miss, self.handlers), (control, _) = ends
        for each in (fuse, miss, control):
            each.setblocking(True)
        self.front = Front(
            fuse.fileno(), miss.fileno(), control.fileno(), 1, inodes_max=NODES_MAX,
            deadline_s=WITHIN_S, kernel_cache=True,
        )  # fmt: skip
        self.front.start()
        stack.callback(self.front.stop)
        stack.callback(self.kernel_end.shutdown, socket.SHUT_RDWR)
        self.kernel = Kernel(self.kernel_end)
        self.attributes = Attributes.from_stat(os.stat(directory))
        self.packed = pack_listing([(NAME, Entry(self.attributes))]).packed

    def publish_listing(self, fresh_s: float = -1.0) -> None:
        assert self.front.publish_listing(ROOT_NODE, self.packed, fresh_s, False, False, False)

    def publish_entry(self, name: bytes = NAME, fresh_s: float = -1.0) -> None:
        assert self.front.publish_entry(ROOT_NODE, name, self.attributes.packed, b"", fresh_s)

    def tries(self, publish: Callable[[], object]) -> int:
        """Publish at each request to the handlers, until the kernel has a reply."""
        tries = 0
        while True:
            ready, _, _ = select.select([self.kernel_end, self.handlers], [], [], WITHIN_S)
            assert ready, "nothing has happened"
            if self.kernel_end in ready:
                return tries
            request = self.handlers.recv(1 << 16)
            unique = struct.unpack_from("<Q", request, 8)[0]
            tries += 1
            publish()
            self.handlers.send(struct.pack("<IiQ", 16, -RETRY, unique))

    def error(self) -> int:
        error: int = struct.unpack_from("<IiQ", self.kernel_end.recv(1 << 20))[1]
        return -error

    def known(self) -> int:
        self.publish_entry()
        return self.kernel.look_up(os.fsdecode(NAME))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(stack, tmp_path)


def test_name_of_a_listing_that_is_evicted_at_once_is_found(lab: Lab) -> None:
    def publish() -> None:
        lab.publish_listing()
        lab.front.withdraw(ROOT_NODE)

    lab.kernel.begin(LOOKUP, ROOT_NODE, NAME + b"\0")
    assert lab.tries(publish) <= TRIES_MAX
    assert lab.error() == 0


def test_name_that_is_missing_in_a_listing_that_is_evicted_at_once_is_missing(lab: Lab) -> None:
    def publish() -> None:
        lab.publish_listing()
        lab.front.withdraw(ROOT_NODE)

    lab.kernel.begin(LOOKUP, ROOT_NODE, b"other\0")
    assert lab.tries(publish) <= TRIES_MAX
    error, number = struct.unpack_from("<4xi8xQ", lab.kernel_end.recv(1 << 16))
    assert (error, number) == (0, 0), "so the kernel may remember it"


def test_directory_whose_listing_is_evicted_at_once_is_walked(lab: Lab) -> None:
    def publish() -> None:
        lab.publish_listing()
        lab.front.withdraw(ROOT_NODE)

    lab.kernel.begin(READDIRPLUS, ROOT_NODE, WALK)
    assert lab.tries(publish) <= TRIES_MAX
    assert lab.error() == 0


def test_entry_that_others_displace_at_once_is_found(lab: Lab) -> None:
    def publish() -> None:
        lab.publish_entry()
        for number in range(2 * NODES_MAX):
            lab.publish_entry(b"%d" % number)

    lab.kernel.begin(LOOKUP, ROOT_NODE, NAME + b"\0")
    assert lab.tries(publish) <= TRIES_MAX
    assert lab.error() == 0


@pytest.mark.parametrize("kind", ["entry", "listing"])
def test_what_is_old_as_soon_as_it_is_published_answers_who_asked_before(
    lab: Lab, kind: str
) -> None:
    def publish() -> None:
        if kind == "entry":
            lab.publish_entry(fresh_s=0.0)
        else:
            lab.publish_listing(fresh_s=0.0)

    for _ in range(2):  # it answers no later request
        lab.kernel.begin(LOOKUP, ROOT_NODE, NAME + b"\0")
        assert lab.tries(publish) == 1
        reply = lab.kernel_end.recv(1 << 16)
        error, entry_valid_s = struct.unpack_from("<4xi8x16xQ", reply)
        assert (error, entry_valid_s) == (0, 0)


def test_attributes_that_are_old_as_soon_as_they_are_published_are_given(lab: Lab) -> None:
    directory = lab.known()
    lab.front.clear(2)

    def publish() -> None:
        lab.front.publish_attributes(directory, lab.attributes.packed, 0.0)

    lab.kernel.begin(GETATTR, directory, struct.pack("<IIQ", 0, 0, 0))
    assert lab.tries(publish) == 1
    assert lab.error() == 0


def test_kernel_may_know_of_any_number_of_directories(lab: Lab) -> None:
    names = [b"%d" % number for number in range(100_000)]
    numbers = []
    for name in names:
        lab.publish_entry(name)
        numbers.append(lab.kernel.look_up(name.decode()))
    assert len(set(numbers)) == len(names)
    for name, number in zip(names[::1000], numbers[::1000], strict=True):
        assert lab.front.inode(number) == (name, lab.attributes.packed)
        assert lab.front.find(name) == number


def test_front_says_when_there_are_too_many_names_and_when_there_are_no_longer(lab: Lab) -> None:
    def is_told() -> bool:
        return bool(select.select([lab.front.crowded_fileno()], [], [], 0)[0])

    numbers = []
    for number in range(NODES_MAX):
        assert not is_told()
        lab.publish_entry(b"%d" % number)
        numbers.append(lab.kernel.look_up(f"{number}"))
    assert is_told()
    assert lab.front.crowded() == 1, "the root is one, too"
    assert not is_told()
    lab.kernel_end.send(struct.pack("<IIQQIIIIQ", 48, 2, 1 << 20, numbers[0], 0, 0, 0, 0, 1))
    assert lab.kernel.look_up("1") == numbers[1]
    assert lab.front.crowded() == 0
    assert not is_told()


def test_what_cannot_be_answered_fails_and_is_counted(lab: Lab) -> None:
    lab.kernel.begin(LOOKUP, ROOT_NODE, NAME + b"\0")
    assert lab.tries(lambda: None) > TRIES_MAX
    assert lab.error() == errno.EIO
    assert lab.front.own_errors() == (1, 0, 0, 0)


def test_front_thread_that_ends_late_leaves_descriptors_of_others_alone(tmp_path: Path) -> None:
    """A front thread left read() after front_stop() and shut down the descriptor that had the
    number of the control socket by then. Once that was trio's own socket, and the event loop span
    without end."""
    for _ in range(20):
        end_late()


def end_late() -> None:
    with ExitStack() as stack:
        ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        for each in (end for pair in ends for end in pair):
            stack.callback(each.close)
        (fuse, kernel), (miss, handlers), (control, heard) = ends
        front = Front(
            fuse.fileno(), miss.fileno(), control.fileno(), 2, inodes_max=NODES_MAX,
            deadline_s=WITHIN_S, kernel_cache=True,
        )  # fmt: skip
        before = threads()
        front.start()
        started = threads() - before
        front.stop()
        heard.settimeout(WITHIN_S)
        assert heard.recv(1) == b"", "the control socket has ended"
        os.dup2(miss.fileno(), control.fileno())  # as if it was closed and its number used
        kernel.shutdown(socket.SHUT_RDWR)  # only now the front threads leave read()
        eventually(lambda: not started & threads(), "the front threads have ended", WITHIN_S)
        handlers.send(b"x")
        assert miss.recv(1) == b"x", "the other socket still works"


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_a_reader_that_has_its_bytes_finds_them_counted(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    lab.attributes = Attributes.from_stat(os.stat(file))
    node = lab.known()
    assert lab.front.publish_object(node, adopted(memoryview(b"content")))
    for number in range(1, 10_001):
        assert lab.kernel.read(node) == b"content"
        assert lab.front.statistics()["hit_bytes"] == number * len(b"content")
