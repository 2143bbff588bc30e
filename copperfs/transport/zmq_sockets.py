"""ZeroMQ sockets: sets their options, and does by hand what ZeroMQ has no call for.

======================  ==========================================================================
ROUTER_MANDATORY        a message for a peer that is gone is refused (EHOSTUNREACH), not lost
SNDHWM                  bounds what waits for a peer that does not read: past it EAGAIN, and the
                        peer counts as lost
RCVHWM                  bounds what a peer can have us keep unread; beyond it TCP waits
MAXMSGSIZE              a frame that announces more ends its connection
HANDSHAKE_IVL           a peer that does not finish the handshake is disconnected
CONNECT_TIMEOUT         otherwise the kernel retries for minutes where packets are dropped
RECONNECT_IVL -1        every connection has a socket of its own (``outgoing.py``)
LINGER 0                closing does not wait for messages to leave
HEARTBEAT_*             frees connections whose other end has vanished without a FIN
======================  ==========================================================================

No routing ids are set, so the ROUTER draws one for each *connection*, and no peer takes another's.
"""

import fcntl
import os
import socket
import struct
import termios
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Final

import trio
import zmq

from copperfs.model.roster import Member
from copperfs.wire.codec import FRAME_BYTES_MAX

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
ZAP_DOMAIN: Final = b"copperfs"
ZMQ_SOCKETS_MAX: Final = 16_384
"""Three for each peer that this node connects to; the default is 1,023."""
BACKLOG: Final = 4096
REFUSED_WITHIN_S: Final = 1.0

_EVENT = struct.Struct("=HI")
_BYTES_RECEIVED_AT = 128
"""In Linux's ``struct tcp_info``, from 4.1 on."""

FAILED_TO_CONNECT: Final = zmq.Event.CLOSED
DISCONNECTED: Final = zmq.Event.DISCONNECTED
ACCEPTED: Final = zmq.Event.ACCEPTED
REFUSED: Final = zmq.Event.HANDSHAKE_FAILED_AUTH | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
"""The other end's fault: a key outside the roster, no CURVE, or no ZeroMQ at all."""
ROUTER_EVENTS: Final = ACCEPTED | DISCONNECTED | REFUSED
CONNECTED: Final = zmq.Event.CONNECTED
DEALER_EVENTS: Final = CONNECTED | FAILED_TO_CONNECT | DISCONNECTED


@dataclass(frozen=True, slots=True)
class SocketLimits:
    handshake_s: float = 10.0
    """Until both ends have greeted. 4,000 peers that connect at once with CURVE take 4 s."""
    connect_s: float = 2.0
    heartbeat_s: float = 2.0
    silent_s: float = 10.0
    """ZeroMQ's own thread answers heartbeats; a loaded node's were up to 1.4 s late."""
    unread: int = 16_384
    """Messages that may wait for a peer; of those ahead of the credit, 100 to 300 bytes each."""
    untaken: int = 256
    """Messages of one peer that may wait for this node."""
    descriptors: int | None = None
    """None: the system's limit (``descriptor_limits.py``)."""
    look_s: float = 0.25
    """Between two checks for endless messages, plus a millisecond for each connection, as a check
    takes 10 us."""
    backoff_first_s: float = 0.05
    backoff_last_s: float = 1.0
    """A lost connection is renewed at once, then after pauses that double."""


def new_context() -> "zmq.Context[zmq.Socket[bytes]]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, ZMQ_SOCKETS_MAX)
    return context


def _set_up(plain: "zmq.Socket[bytes]", limits: SocketLimits) -> None:
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, limits.unread),
        (zmq.RCVHWM, limits.untaken),
        (zmq.MAXMSGSIZE, FRAME_BYTES_MAX),
        (zmq.HANDSHAKE_IVL, _ms(limits.handshake_s)),
        (zmq.CONNECT_TIMEOUT, _ms(limits.connect_s)),
        (zmq.HEARTBEAT_IVL, _ms(limits.heartbeat_s)),
        (zmq.HEARTBEAT_TIMEOUT, _ms(limits.silent_s)),
        (zmq.HEARTBEAT_TTL, _ms(limits.silent_s)),
    ):
        plain.set(option, value)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def new_router(
    context: "zmq.Context[zmq.Socket[bytes]]", limits: SocketLimits, secret_key: str | None
) -> "zmq.Socket[bytes]":
    router = context.socket(zmq.ROUTER)
    _set_up(router, limits)
    router.set(zmq.ROUTER_MANDATORY, 1)
    router.set(zmq.BACKLOG, BACKLOG)
    if secret_key is not None:
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, secret_key.encode())
        router.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    return router


def new_dealer(
    context: "zmq.Context[zmq.Socket[bytes]]",
    limits: SocketLimits,
    secret_key: str | None,
    member: Member,
) -> "zmq.Socket[bytes]":
    dealer = context.socket(zmq.DEALER)
    _set_up(dealer, limits)
    dealer.set(zmq.RECONNECT_IVL, -1)
    if "[" in member.endpoint:
        dealer.set(zmq.IPV6, 1)
    if secret_key is not None:
        dealer.set(zmq.CURVE_SERVERKEY, member.public_key.encode())
        dealer.set(zmq.CURVE_SECRETKEY, secret_key.encode())
        dealer.set(zmq.CURVE_PUBLICKEY, zmq.curve_public(secret_key.encode()))
    return dealer


def listen(router: "zmq.Socket[bytes]", listener: socket.socket | str) -> socket.socket | None:
    """Take over a listening socket, of which it returns a second descriptor, or bind an address."""
    if isinstance(listener, str):
        router.bind(listener)
        return None
    host, port, *_ = listener.getsockname()
    if listener.family == socket.AF_INET6:
        host = f"[{host}]"
        router.set(zmq.IPV6, 1)
    # ZeroMQ's own thread would block on a client that has gone again.
    listener.setblocking(False)
    other = listener.dup()
    router.set(zmq.USE_FD, listener.detach())
    router.bind(f"tcp://{host}:{port}")  # the address is not used, but has to be one
    return other


def endpoint_of(router: "zmq.Socket[bytes]") -> str:
    endpoint = router.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


def new_monitor(watched: "zmq.Socket[bytes]", events: int) -> "zmq.Socket[bytes]":
    """Reports the connections of a socket; to be closed with ``close_watched``."""
    monitor = watched.get_monitor_socket(events)
    monitor.set(zmq.LINGER, 0)
    monitor.set(zmq.RCVHWM, 0)
    _lens()  # while there are descriptors
    return monitor


def receive_event(monitor: "zmq.Socket[bytes]") -> tuple[int, int]:
    """The value is mostly a descriptor; zmq.Again if there is no event."""
    first, _ = monitor.recv_multipart(zmq.NOBLOCK)
    event, value = _EVENT.unpack(first)
    return event, value


def close_watched(watched: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]") -> None:
    if not watched.closed:
        watched.disable_monitor()
        watched.close(0)
    monitor.close(0)


# ---- TCP connections, which ZeroMQ has no call for -----------------------------------------------

Address = tuple[object, ...]


class _Lens:
    """A spare descriptor, made a duplicate of the connection to inspect: ZeroMQ may close the
    connection's own, and no other may be free. For trio's thread only."""

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptor = os.dup(self._nothing)

    @contextmanager
    def on(self, descriptor: int) -> Iterator[socket.socket]:
        """OSError if it is no connection any more."""
        os.dup2(descriptor, self._descriptor, inheritable=False)
        try:
            connection = socket.socket(fileno=self._descriptor)
            try:
                yield connection
            finally:
                connection.detach()
        finally:
            os.dup2(self._nothing, self._descriptor, inheritable=False)


@cache
def _lens() -> _Lens:
    return _Lens()


def remote_address(descriptor: int) -> Address | None:
    """None if it is gone."""
    with suppress(OSError), _lens().on(descriptor) as connection:
        return tuple(connection.getpeername())
    return None


def read_bytes(descriptor: int) -> int | None:
    """How much was read from the connection; None if it is gone, or the kernel does not count."""
    with suppress(OSError), _lens().on(descriptor) as connection:
        # In this order, bytes that arrive in between count as not read.
        waiting = array("i", (0,))
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        fcntl.ioctl(connection, termios.FIONREAD, waiting)
        if len(info) >= _BYTES_RECEIVED_AT + 8:
            (came,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED_AT)
            return max(0, int(came) - waiting[0])
    return None


def shut_down(descriptor: int, address: Address) -> None:
    """End the connection, if it is still the one to this address. ZeroMQ closes the descriptor."""
    with suppress(OSError), _lens().on(descriptor) as connection:
        if tuple(connection.getpeername()) == address:
            connection.shutdown(socket.SHUT_RDWR)


async def is_refused(endpoint: str) -> bool:
    """ZeroMQ reports only a failure, which may be this end's fault."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with trio.move_on_after(REFUSED_WITHIN_S):
        try:
            stream = await trio.open_tcp_stream(host.strip("[]"), int(port))
        except OSError as error:
            return _is_refusal(error)
        await trio.aclose_forcefully(stream)
    return False


def _is_refusal(error: BaseException) -> bool:
    causes = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else [error]
    return all(isinstance(each, ConnectionRefusedError) for each in causes)
