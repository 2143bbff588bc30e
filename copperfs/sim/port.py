"""One node's transport: whom it keeps a connection to, and which connection is used for what.

It does for the simulator what ``net/zeromq.py`` does for the daemon: ``connect`` keeps a connection
to a peer and renews it, at once and then with growing pauses; what comes is said to the host one at
a time, never in the middle of something else (``_say``).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from copperfs.core.messages import Message
from copperfs.sim.connection import End, Greeting, Links
from copperfs.sim.pieces import Piece
from copperfs.sim.process import Process, State
from copperfs.types import NodeId

if TYPE_CHECKING:
    from copperfs.sim.network import Network


class Host(Protocol):
    """To whom it is said what arrives."""

    def connected(self, peer: NodeId) -> None: ...
    def lost(self, peer: NodeId) -> None: ...
    def received(self, peer: NodeId, message: Message, pieces: tuple[Piece, ...]) -> None: ...
    def corrupt(self, peer: NodeId, message: Message) -> None: ...


@dataclass(slots=True, eq=False)
class _Keeper:
    """Keeps a connection to one peer."""

    peer: NodeId
    pause_s: float = 0.0
    began: float = 0.0
    end: End | None = None


@dataclass(slots=True, eq=False, repr=False)
class Port:
    me: NodeId
    network: "Network"
    process: Process
    random: Random
    host: Host
    ends: dict[End, None] = field(default_factory=dict)
    """The open ones, in the order in which they came."""
    links: Links = field(init=False)
    unsendable: int = 0
    slowness: float = 1.0
    """Its processor takes so many times as long as others."""
    weight: int = 1
    """It stands for so many nodes that do the same at the same time. What passes between them and
    one that stands for fewer costs that one as often as there are more of them."""
    _keepers: dict[NodeId, _Keeper] = field(default_factory=dict)
    _to_say: deque[tuple[Callable[..., None], tuple[object, ...]]] = field(default_factory=deque)
    _speaking: bool = False
    _sending_free: float = 0.0
    _nic_out_free: float = 0.0
    _nic_in_free: float = 0.0
    _receiving_free: float = 0.0

    def __post_init__(self) -> None:
        self.links = Links(
            lambda peer: self._say(self.host.connected, peer),
            lambda peer: self._say(self.host.lost, peer),
            self._cut,
        )

    # --- the seam --------------------------------------------------------------------------------

    def connect(self, peer: NodeId) -> None:
        assert peer != self.me
        if peer not in self._keepers:
            keeper = self._keepers[peer] = _Keeper(peer)
            self.process.after(0.0, self._begin, keeper)

    def disconnect(self, peer: NodeId) -> None:
        keeper = self._keepers.pop(peer, None)
        if keeper is not None and keeper.end is not None:
            self.links.down(keeper.end)
            self.network.close(keeper.end)
            self._rouse()

    def send(self, peer: NodeId, message: Message, pieces: tuple[Piece, ...] = ()) -> bool:
        end = self.links.current(peer)
        if end is None:
            self.unsendable += 1
            return False
        self.network.send(end, message, pieces)
        return True

    def probe(self, peer: NodeId, done: Callable[[bool], None]) -> None:
        """Try a bare TCP connection; *done* is told whether it was refused."""
        network = self.network
        if not network.joins(self.me, peer):
            self.process.after(network.timeouts.probe_s, done, False)
        else:
            self.process.after(self._round_trip_s(peer), self._probed, peer, done)

    def _probed(self, peer: NodeId, done: Callable[[bool], None]) -> None:
        done(not self.network.listens(peer))

    # --- what a message takes --------------------------------------------------------------------

    def reserve_sending(self, size: int, times: int) -> float:
        """When it has left this machine; the last one, if it goes to several."""
        costs = self.network.costs
        ready, now = self._sending_free, self.network.clock.now
        if ready < now:
            ready = now
        took = (costs.send_s + size * costs.send_byte_s) * self.slowness
        if times > 1:
            took, size = took * times, size * times
        self._sending_free = ready = ready + took
        if self._receiving_free > now:
            self._receiving_free += took
        if self._nic_out_free > ready:
            ready = self._nic_out_free
        self._nic_out_free = ready = ready + size / costs.bytes_per_s
        return ready

    def reserve_receiving(self, size: int, comes: float, times: int) -> float:
        """When it was taken in; *comes* is when its last byte could be here."""
        costs = self.network.costs
        work = (costs.receive_s + size * costs.receive_byte_s) * self.slowness
        if times > 1:
            work, size = work * times, size * times
        took = size / costs.bytes_per_s
        if comes - took < self._nic_in_free:
            comes = self._nic_in_free + took
        self._nic_in_free = comes
        if comes < self._receiving_free:
            comes = self._receiving_free
        self._receiving_free = comes = comes + work
        return comes

    def compute(self, seconds: float) -> float:
        """When the daemon has done something else for so long."""
        now = self.network.clock.now
        self._sending_free = ready = max(now, self._sending_free) + seconds
        if self._receiving_free > now:
            self._receiving_free += seconds
        return ready

    # --- connections that this node keeps --------------------------------------------------------

    def _begin(self, keeper: _Keeper) -> None:
        if self._keepers.get(keeper.peer) is not keeper:
            return
        keeper.began = self.network.clock.now
        keeper.end = None
        self._knock(keeper, self.network.timeouts.connect_s)

    def _knock(self, keeper: _Keeper, left_s: float) -> None:
        """A SYN; if nothing comes back, another one, until the time is up."""
        network, peer = self.network, keeper.peer
        if self._keepers.get(peer) is not keeper:
            return
        if not network.joins(self.me, peer):
            wait_s = min(network.timeouts.syn_again_s, left_s)
            if wait_s > 0:
                self.process.after(wait_s, self._knock, keeper, left_s - wait_s)
            else:
                self._begin_again(keeper)
        elif not network.listens(peer):
            self.process.after(self._round_trip_s(peer), self._begin_again, keeper)
        else:
            self._accepted(keeper)

    def _accepted(self, keeper: _Keeper) -> None:
        """The other kernel took it; whether the process greets back is another matter."""
        network, peer = self.network, keeper.peer
        serial = network.next_serial()
        mine = keeper.end = End(self, peer, serial, outgoing=True)
        other = network.ports[peer]
        theirs = End(other, self.me, serial, outgoing=False)
        mine.join(theirs)
        self.ends[mine] = other.ends[theirs] = None
        handshake_s = (network.timeouts.round_trips - 1) * self._round_trip_s(peer)
        network.clock.after(handshake_s, self._greet, mine)
        self.process.after(network.timeouts.handshake_s, self._turn_out, mine)

    def _greet(self, end: End) -> None:
        process = end.other.port.process
        if process.state is State.STOPPED:
            process.take(self._greet, end)  # its thread of ZeroMQ shakes no hands either
        elif end.is_open:
            self.network.send(end, Greeting(), ())

    def _turn_out(self, end: End) -> None:
        if end.is_open and not end.greeted:
            self._cut(end)
            self._rouse()

    def _begin_again(self, keeper: _Keeper) -> None:
        """The connection, or the attempt, is over."""
        timeouts = self.network.timeouts
        if self._keepers.get(keeper.peer) is not keeper:
            return
        keeper.end = None
        if self.network.clock.now - keeper.began > timeouts.backoff_last_s:
            keeper.pause_s = 0.0
        share = self.random.uniform(1 - timeouts.jitter, 1 + timeouts.jitter)
        self.process.after(keeper.pause_s * share, self._begin, keeper)
        longer = max(2 * keeper.pause_s, timeouts.backoff_first_s)
        keeper.pause_s = min(longer, timeouts.backoff_last_s)

    def _round_trip_s(self, peer: NodeId) -> float:
        network = self.network
        return network.latency_s(self.me, peer) + network.latency_s(peer, self.me)

    # --- what comes ------------------------------------------------------------------------------

    def deliver(self, end: End, message: Message | Greeting, pieces: tuple[Piece, ...]) -> None:
        if not end.is_open:
            return
        if isinstance(message, Greeting):
            self._greeted(end)
        elif self.links.hears(end):
            if pieces and not all(each.is_sound for each in pieces):
                self._say(self.host.corrupt, end.peer, message)
            elif self._to_say or self._speaking:
                self._say(self.host.received, end.peer, message, pieces)
            else:  # nearly always: at once
                self._speaking = True
                try:
                    self.host.received(end.peer, message, pieces)
                finally:
                    self._speaking = False
                if not self._to_say:
                    return
        self._flush()

    def _greeted(self, end: End) -> None:
        end.greeted = True
        if not end.outgoing:
            # Ahead of whatever is sent once this is said to be up.
            self.network.send(end, Greeting(), ())
        if not self.links.up(end):
            self.network.close(end)

    def broken(self, end: End) -> None:
        """The other end is gone, or this one gives it up for silent."""
        if end.is_open:
            self._cut(end)
            self._flush()

    def _cut(self, end: End) -> None:
        self.network.close(end)
        self.links.down(end)
        keeper = self._keepers.get(end.peer)
        if keeper is not None and keeper.end is end:
            self._begin_again(keeper)

    # --- one at a time ---------------------------------------------------------------------------

    def _say(self, say: Callable[..., None], *arguments: object) -> None:
        """Soon: whoever calls this sees to it that ``_flush`` or ``_rouse`` comes next."""
        self._to_say.append((say, arguments))

    def _rouse(self) -> None:
        """Who sends or disconnects may be in the middle of a step of the core."""
        if self._to_say and not self._speaking:
            self.process.after(0.0, self._flush)

    def _flush(self) -> None:
        if self._speaking:
            return
        self._speaking = True
        try:
            while self._to_say and self.process.is_alive:
                say, arguments = self._to_say.popleft()
                say(*arguments)
        finally:
            self._speaking = False
