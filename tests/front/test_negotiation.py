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

INIT, OPEN, OPENDIR = 26, 14, 27
MAX_PAGES, NO_OPENDIR, INIT_EXT = 1 << 22, 1 << 24, 1 << 30
NO_OPEN = 1 << 17
WITHIN_S = 20.0
ALL = 0xFFFFFFFF


@dataclass(frozen=True)
class Offer:
    minor: int
    flags: int
    body_bytes: int = 64  # 16 before 7.36


OFFERS = {
    "3.16": Offer(23, 0x3FFFF, 16),
    "4.19": Offer(27, 0x3FFFFF, 16),
    "5.4": Offer(31, 0x3FFFFFB, 16),
    "5.10": Offer(32, 0xFFFFFFB, 16),
    "6.1": Offer(38, 0x73FFFFFB),
    "nothing": Offer(38, 0),
    "everything": Offer(45, ALL),
}


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

    def negotiate(self, offer: Offer) -> tuple[int, int, int, int]:
        """The flags that libfuse sees, then those of the answer, its max_pages and flags2."""
        words = struct.pack("<IIIII", 7, offer.minor, 1 << 17, offer.flags, ALL)
        self._ask(INIT, words[: offer.body_bytes].ljust(offer.body_bytes, b"\0"))
        request = self.handlers.recv(1 << 16)
        shown: int = struct.unpack_from("<I", request, 40 + 12)[0]
        answer = struct.pack("<IIIIHHIIHHI28x", 7, 38, 1 << 17, ALL, 12, 9, 1 << 17, 1, 256, 0, ALL)
        self.handlers.send(struct.pack("<IiQ", 16 + len(answer), 0, self._unique) + answer)
        error, reply = self._reply()
        assert error == 0
        flags: int = struct.unpack_from("<I", reply, 12)[0]
        max_pages, _, flags2 = struct.unpack_from("<HHI", reply, 28)
        return shown, flags, max_pages, flags2

    def outcome_of_open(self, opcode: int) -> int:
        self._ask(opcode, struct.pack("<II", os.O_RDONLY, 0))
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
    shown, flags, max_pages, flags2 = ends.negotiate(offer)
    assert not shown & ~offer.flags
    assert not flags & ~offer.flags
    assert not flags & INIT_EXT
    assert flags2 == 0
    if offer.flags & MAX_PAGES:
        assert flags & MAX_PAGES
        assert max_pages > 0
    else:
        assert max_pages == 0


@pytest.mark.parametrize("opcode", [OPEN, OPENDIR])
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
def test_opens_are_refused_for_good_only_where_the_kernel_understands_it(
    ends: Ends, offer: Offer, opcode: int
) -> None:
    ends.negotiate(offer)
    understands = offer.flags & NO_OPEN and offer.flags & NO_OPENDIR
    assert ends.outcome_of_open(opcode) == (errno.ENOSYS if understands else 0)
