"""The front sets no flag that a kernel did not offer, and serves a kernel without a feature without
it.

Kernel and handlers are sockets. The handlers answer INIT with all flags set, the worst of libfuse.
The offers are those of Linux (tests/kernels/probe.py shows them), and an empty one.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from copperfs.native import Front
from copperfs.native.blob import Blob  # noqa: F401 - before the front, which takes functions from its module

INIT, OPEN, OPENDIR, WRITE = 26, 14, 27, 16
MAX_PAGES, NO_OPENDIR, INIT_EXT = 1 << 22, 1 << 24, 1 << 30
NO_OPEN = 1 << 17
REQUEST_TIMEOUT = 1 << 10  # in flags2
PAGE = 4096
WITHIN_S = 20.0
ALL = 0xFFFFFFFF


@dataclass(frozen=True)
class Offer:
    minor: int
    flags: int
    body_bytes: int = 64  # 16 before 7.36
    flags2: int = 0x3FF


OFFERS = {
    "3.16": Offer(23, 0x3FFFF, 16),
    "4.19": Offer(27, 0x3FFFFF, 16),
    "5.4": Offer(31, 0x3FFFFFB, 16),
    "5.10": Offer(32, 0xFFFFFFB, 16),
    "6.1": Offer(38, 0x73FFFFFB),
    "6.18": Offer(44, 0x73FFFFFB, flags2=0x5FF),
    "nothing": Offer(38, 0),
    "everything": Offer(45, ALL, flags2=ALL),
}


@dataclass(frozen=True)
class Agreed:
    shown: int
    """The flags that libfuse sees."""
    flags: int
    max_pages: int
    flags2: int
    max_write: int
    timeout_s: int


class Ends:
    def __init__(self, kernel: socket.socket, handlers: socket.socket, front: Front) -> None:
        self.kernel, self.handlers, self.front = kernel, handlers, front
        self._unique = 0

    def _ask(self, opcode: int, body: bytes) -> None:
        self._unique += 2
        header = struct.pack(
            "<IIQQIIII", 40 + len(body), opcode, self._unique, 1, 0, 0, os.getpid(), 0
        )
        self.kernel.send(header + body)

    def negotiate(self, offer: Offer) -> Agreed:
        words = struct.pack("<IIIII", 7, offer.minor, 1 << 17, offer.flags, offer.flags2)
        self._ask(INIT, words[: offer.body_bytes].ljust(offer.body_bytes, b"\0"))
        request = self.handlers.recv(1 << 16)
        shown: int = struct.unpack_from("<I", request, 40 + 12)[0]
        answer = struct.pack("<IIIIHHIIHHI28x", 7, 38, 1 << 17, ALL, 12, 9, 1 << 17, 1, 256, 0, ALL)
        self.handlers.send(struct.pack("<IiQ", 16 + len(answer), 0, self._unique) + answer)
        error, reply = self._reply()
        assert error == 0
        flags: int = struct.unpack_from("<I", reply, 12)[0]
        max_write: int = struct.unpack_from("<I", reply, 20)[0]
        max_pages, _, flags2, _, timeout = struct.unpack_from("<HHIIH", reply, 28)
        return Agreed(shown, flags, max_pages, flags2, max_write, timeout)

    def outcome_of_open(self, opcode: int) -> int:
        return self.outcome_of(opcode, struct.pack("<II", os.O_RDONLY, 0))

    def outcome_of(self, opcode: int, body: bytes) -> int:
        self._ask(opcode, body)
        return self._reply()[0]

    def _reply(self) -> tuple[int, bytes]:
        reply = self.kernel.recv(1 << 16)
        _, error, unique = struct.unpack_from("<IiQ", reply)
        assert unique == self._unique
        return -error, reply[16:]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        for each in (end for pair in pairs for end in pair):
            stack.callback(each.close)
        (fuse, kernel), (miss, handlers), (control, _) = pairs
        kernel.settimeout(WITHIN_S)
        handlers.settimeout(WITHIN_S)
        front = Front(
            fuse.fileno(), miss.fileno(), control.fileno(), 1, inodes_max=1000,
            deadline_s=WITHIN_S, kernel_cache=True,
        )  # fmt: skip
        front.start()
        stack.callback(front.stop)
        stack.callback(kernel.shutdown, socket.SHUT_RDWR)  # ends what waits for a request
        yield Ends(kernel, handlers, front)


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
def test_nothing_is_set_that_the_kernel_did_not_offer(ends: Ends, offer: Offer) -> None:
    agreed = ends.negotiate(offer)
    assert not agreed.shown & ~offer.flags
    assert not agreed.flags & ~offer.flags
    assert not agreed.flags2 & ~(offer.flags2 & REQUEST_TIMEOUT)
    assert bool(agreed.flags & INIT_EXT) == bool(agreed.flags2)
    if offer.flags & MAX_PAGES:
        assert agreed.flags & MAX_PAGES
        assert agreed.max_write == agreed.max_pages * PAGE > 0
    else:
        assert (agreed.max_pages, agreed.max_write) == (0, 32 * PAGE)


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
def test_the_kernel_ends_a_hung_mount_long_after_each_deadline(ends: Ends, offer: Offer) -> None:
    offered = offer.flags & INIT_EXT and offer.body_bytes == 64 and offer.flags2 & REQUEST_TIMEOUT
    agreed = ends.negotiate(offer)
    assert agreed.timeout_s == (0xFFFF if offered else 0)


def test_a_request_as_long_as_max_write_is_taken_in_and_refused(ends: Ends) -> None:
    """None comes on a read-only mount; the kernel still wants a buffer that large."""
    ends.negotiate(OFFERS["6.18"])
    assert ends.outcome_of(WRITE, bytes(100_000)) == errno.EROFS


@pytest.mark.parametrize("opcode", [OPEN, OPENDIR])
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
def test_opens_are_refused_for_good_only_where_the_kernel_understands_it(
    ends: Ends, offer: Offer, opcode: int
) -> None:
    ends.negotiate(offer)
    understands = offer.flags & NO_OPEN and offer.flags & NO_OPENDIR
    assert ends.outcome_of_open(opcode) == (errno.ENOSYS if understands else 0)
