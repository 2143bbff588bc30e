"""ZeroMQ sockets as this project sets them up, and what has to be done by hand around them.

Nothing here knows of nodes or messages. What each option is for:

======================  ==========================================================================
ROUTER_MANDATORY        a message for a peer that is gone is refused (EHOSTUNREACH), not lost
SNDHWM                  bounds what waits for a peer that does not read: past it EAGAIN, and the
                        peer counts as lost. Flow control proper is the core's credit
RCVHWM                  bounds what a peer can have us keep before it was looked at; beyond it TCP
                        holds the peer back
MAXMSGSIZE              a frame that says that it is longer ends its connection; how many frames a
                        message has is bounded by no option (``endless.py``)
HANDSHAKE_IVL           who does not finish the handshake is disconnected
CONNECT_TIMEOUT         otherwise the kernel retries for minutes where packets are dropped
RECONNECT_IVL -1        a DEALER that reconnects by itself delivers what was queued for the dead
                        peer to its successor: here every connection has a socket of its own
LINGER 0                closing waits for nobody
HEARTBEAT_*             frees connections whose other end has vanished without a FIN
======================  ==========================================================================

No routing ids are set: the ROUTER then draws one for each *connection*. With names chosen by the
peers, whoever connects under somebody else's takes its place (ROUTER_HANDOVER) or is kept, unread
and growing (without). One that is drawn cannot be taken, and tells an old connection of a peer
from its new one.
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

from copperfs.roster import Member
from copperfs.wire.codec import FRAME_BYTES_MAX

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
ZAP_DOMAIN: Final = b"copperfs"
ZMQ_SOCKETS_MAX: Final = 16_384
"""Of one context: three for each peer that this node connects to; 1,023 would be the default."""
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
class Limits:
    """What the transport puts up with. The defaults are for jobs; tests take others."""

    handshake_s: float = 10.0
    """Until a connection is encrypted and greeted on, from either end's view. 4,000 peers that
    connect at once with CURVE take 4 s."""
    connect_s: float = 2.0
    heartbeat_s: float = 2.0
    silent_s: float = 10.0
    """Without any answer to heartbeats; ZeroMQ's own thread answers them, so this says only that
    the other end is there. A loaded node's were seen to be 1.4 s late."""
    unread: int = 16_384
    """Messages that wait for a peer; of those ahead of the credit, 100 to 300 bytes each."""
    untaken: int = 256
    """Messages of one peer that wait for this node."""
    descriptors: int | None = None
    """That this process may have; None: what the system says (``crowd.py``)."""
    look_s: float = 0.25
    """Between two looks for connections that give no message (``endless.py``); a millisecond more
    for each connection, so that looking (10 us each) takes at most a hundredth of the time."""
    backoff_first_s: float = 0.05
    backoff_last_s: float = 1.0
    """A lost connection is renewed at once, then after the first, and after twice as long each
    time up to the last."""


def new_context() -> "zmq.Context[zmq.Socket[bytes]]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, ZMQ_SOCKETS_MAX)
    return context


def _set_up(plain: "zmq.Socket[bytes]", limits: Limits) -> None:
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
    context: "zmq.Context[zmq.Socket[bytes]]", limits: Limits, secret_key: str | None
) -> "zmq.Socket[bytes]":
    """For whoever connects here."""
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
    limits: Limits,
    secret_key: str | None,
    member: Member,
) -> "zmq.Socket[bytes]":
    """For one connection to this node."""
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
    """Take over a socket that listens already (it is the router's from now on), or bind. A second
    descriptor of the socket, if it is known."""
    if isinstance(listener, str):
        router.bind(listener)
        return None
    host, port, *_ = listener.getsockname()
    if listener.family == socket.AF_INET6:
        host = f"[{host}]"
        router.set(zmq.IPV6, 1)
    # ZeroMQ accepts in its own thread, and would wait there for a client that has gone again.
    listener.setblocking(False)
    other = listener.dup()
    router.set(zmq.USE_FD, listener.detach())
    router.bind(f"tcp://{host}:{port}")  # the address is not used, but has to be one
    return other


def endpoint_of(router: "zmq.Socket[bytes]") -> str:
    """Where it listens."""
    endpoint = router.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


def new_monitor(watched: "zmq.Socket[bytes]", events: int) -> "zmq.Socket[bytes]":
    """Tells of the connections of a socket; to be closed with ``close_watched``."""
    monitor = watched.get_monitor_socket(events)
    monitor.set(zmq.LINGER, 0)
    monitor.set(zmq.RCVHWM, 0)
    _lens()  # while there are descriptors
    return monitor


def receive_event(monitor: "zmq.Socket[bytes]") -> tuple[int, int]:
    """Kind and value, which is mostly a descriptor; zmq.Again if there is none."""
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
    """A descriptor that is kept, and made a second name of the connection that is looked at. ZeroMQ
    may close the first meanwhile, and no other one may be free. For trio's thread only."""

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
    """Of the connection that has this descriptor; None if there is none any more."""
    with suppress(OSError), _lens().on(descriptor) as connection:
        return tuple(connection.getpeername())
    return None


def read_bytes(descriptor: int) -> int | None:
    """How much was read from the connection with this descriptor since it began; None if it is
    gone, or the kernel does not count."""
    with suppress(OSError), _lens().on(descriptor) as connection:
        # In this order, what comes in between counts as not read.
        waiting = array("i", (0,))
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        fcntl.ioctl(connection, termios.FIONREAD, waiting)
        if len(info) >= _BYTES_RECEIVED_AT + 8:
            (came,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED_AT)
            return max(0, int(came) - waiting[0])
    return None


def shut_down(descriptor: int, address: Address) -> None:
    """End the connection with this descriptor, if it is still the one to this address. ZeroMQ
    notices, tells its monitor, closes the descriptor and frees what waited."""
    with suppress(OSError), _lens().on(descriptor) as connection:
        if tuple(connection.getpeername()) == address:
            connection.shutdown(socket.SHUT_RDWR)


async def is_refused(endpoint: str) -> bool:
    """Whether the host at *endpoint* says that nobody listens there. ZeroMQ tells only that a
    connection failed, which may as well be this end's fault."""
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
