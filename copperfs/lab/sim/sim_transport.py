"""Simulated transport of one node, the counterpart of ``transport/zeromq.py``.

A connection is renewed at once and then with growing pauses. The host gets arrivals one at a time,
never in the middle of another call (``_say``).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from copperfs.lab.sim.payload_pieces import Piece
from copperfs.lab.sim.process_state import Process, State
from copperfs.lab.sim.sim_connection import End, SimulatedGreeting
from copperfs.lab.sim.sim_resolver import SimulatedResolver
from copperfs.lab.sim.source_client import wall_ns
from copperfs.model.types import NodeId
from copperfs.node.peer.connection_choice import ConnectionChoice
from copperfs.node.peer.connection_limits import Room, room_within
from copperfs.node.peer.messages import Message

if TYPE_CHECKING:
    from copperfs.lab.sim.virtual_network import VirtualNetwork


OWN_DESCRIPTORS = 24
"""A process without connections has logs, libraries and control sockets open."""


class TransportHost(Protocol):
    def connected(self, peer: NodeId) -> None: ...
    def lost(self, peer: NodeId) -> None: ...
    def received(self, peer: NodeId, message: Message, pieces: tuple[Piece, ...]) -> None: ...
    def corrupt(self, peer: NodeId, message: Message) -> None: ...


@dataclass(slots=True, eq=False)
class _Keeper:
    peer: NodeId
    pause_s: float = 0.0
    began: float = 0.0
    end: End | None = None


@dataclass(slots=True, eq=False, repr=False)
class Port:
    me: NodeId
    network: "VirtualNetwork"
    process: Process
    random: Random
    host: TransportHost
    ends: dict[End, None] = field(default_factory=dict)
    links: ConnectionChoice[End] = field(init=False)
    unsendable: int = 0
    slowness: float = 1.0
    """How much slower its processor is than others."""
    weight: int = 1
    """The number of nodes that it stands for. Messages between it and a node that stands for fewer
    cost that node a multiple, the ratio of the two."""
    ahead_s: float = 0.0
    """Its wall clock numbers the connections."""
    names: SimulatedResolver | None = None
    """None: all addresses are known."""
    descriptors: int | None = None
    """None: no limit."""
    others: Callable[[], int] = lambda: 0
    """Counts descriptors that are no connections."""
    strangers: deque[float] = field(default_factory=deque)
    """When each connection came that never greeted."""
    turned_away: int = 0
    _last_serial: int = 0
    _keepers: dict[NodeId, _Keeper] = field(default_factory=dict)
    _to_say: deque[tuple[Callable[..., None], tuple[object, ...]]] = field(default_factory=deque)
    _speaking: bool = False
    _sending_free: float = 0.0
    _nic_out_free: float = 0.0
    _nic_in_free: float = 0.0
    _receiving_free: float = 0.0

    def __post_init__(self) -> None:
        self.links = ConnectionChoice(
            lambda peer: self._say(self.host.connected, peer),
            lambda peer: self._say(self.host.lost, peer),
            self._cut,
        )

    # --- interface -------------------------------------------------------------------------------

    def connect(self, peer: NodeId) -> None:
        assert peer != self.me
        if peer not in self._keepers:
            keeper = self._keepers[peer] = _Keeper(peer)
            self.process.after(0.0, self._begin, keeper)

    def renew(self, end: End, noticed_after_s: float) -> None:
        """Replace a connection that it keeps, before either end has noticed that it is lost."""
        keeper = self._keepers.get(end.peer)
        if keeper is None or keeper.end is not end:
            return
        for each in (end, end.other):
            each.is_open = False
            each.port.ends.pop(each, None)
            each.port.process.after(noticed_after_s, each.port.notice_loss, each)
        self._begin(keeper)

    def notice_loss(self, end: End) -> None:
        self.links.down(end)
        self._flush()

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
        """*done* is told whether a bare TCP connection was refused."""
        network = self.network
        if not network.joins(self.me, peer):
            self.process.after(network.timeouts.probe_s, done, False)
        else:
            self.process.after(self._round_trip_s(peer), self._probed, peer, done)

    def _probed(self, peer: NodeId, done: Callable[[bool], None]) -> None:
        done(not self.network.listens(peer))

    # --- costs of a message ----------------------------------------------------------------------

    def reserve_sending(self, size: int, times: int) -> float:
        """When the message, or the last of several, has left."""
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
        """When it was received; its last byte comes at *comes* or later."""
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
        now = self.network.clock.now
        self._sending_free = ready = max(now, self._sending_free) + seconds
        if self._receiving_free > now:
            self._receiving_free += seconds
        return ready

    # --- connections -----------------------------------------------------------------------------

    def _begin(self, keeper: _Keeper) -> None:
        if self._keepers.get(keeper.peer) is not keeper:
            return
        keeper.began = self.network.clock.now
        keeper.end = None
        if self.names is None:
            self._knock(keeper, self.network.timeouts.connect_s)
        else:
            self.names.find(keeper.peer, lambda is_known: self._found(keeper, is_known))

    def _found(self, keeper: _Keeper, is_known: bool) -> None:
        if is_known:
            self._knock(keeper, self.network.timeouts.connect_s)
        else:
            self._begin_again(keeper)

    def _knock(self, keeper: _Keeper, left_s: float) -> None:
        """Send a SYN, and another one if no reply comes, until the time is up."""
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
        """The other kernel has accepted; the process may still not greet back."""
        network, peer = self.network, keeper.peer
        serial = self._last_serial = max(
            self._last_serial + 1, wall_ns(network.clock.now + self.ahead_s)
        )
        other = network.ports[peer]
        other.keep_room()
        if not other.has_descriptor():  # its admission closes what comes then
            other.turned_away += 1
            self.process.after(self._round_trip_s(peer), self._begin_again, keeper)
            return
        now = network.clock.now
        mine = keeper.end = End(self, peer, serial, outgoing=True, since=now)
        theirs = End(other, self.me, serial, outgoing=False, since=now)
        mine.join(theirs)
        self.ends[mine] = other.ends[theirs] = None
        other.keep_room()
        handshake_s = (network.timeouts.round_trips - 1) * self._round_trip_s(peer)
        network.clock.after(handshake_s, self._greet, mine)
        self.process.after(network.timeouts.handshake_s, self._turn_out, mine)

    def _greet(self, end: End) -> None:
        process = end.other.port.process
        if process.state is State.STOPPED:
            process.take(self._greet, end)  # its ZeroMQ thread makes no handshakes either
        elif end.is_open:
            self.network.send(end, SimulatedGreeting(), ())

    def _turn_out(self, end: End) -> None:
        if end.is_open and not end.greeted:
            self._cut(end)
            self._rouse()

    def _begin_again(self, keeper: _Keeper) -> None:
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

    # --- descriptors -----------------------------------------------------------------------------

    @property
    def taken(self) -> int:
        return OWN_DESCRIPTORS + len(self.ends) + len(self.strangers) + self.others()

    def has_descriptor(self) -> bool:
        return self.descriptors is None or self.taken < self.descriptors

    def stranger(self) -> None:
        """A stranger connects that sends nothing."""
        if self.has_descriptor():
            self.strangers.append(self.network.clock.now)
            self.keep_room()
        else:
            self.turned_away += 1

    def keep_room(self) -> None:
        """Close the oldest ungreeted connections while there are too many."""
        if self.descriptors is None or not self.strangers:
            return
        room = room_within(self.descriptors, len(self.network.ports))
        new = [end for end in self.ends if not (end.greeted or end.outgoing)]
        while self.strangers and self._is_exceeded(room, len(new)):
            if new and new[0].since < self.strangers[0]:
                self._cut(new.pop(0))
                self._rouse()
            else:
                self.strangers.popleft()
            self.turned_away += 1

    def _is_exceeded(self, room: Room, new: int) -> bool:
        return room.is_exceeded(len(self.strangers) + new, self.taken - 1)

    # --- arrivals --------------------------------------------------------------------------------

    def deliver(
        self, end: End, message: Message | SimulatedGreeting, pieces: tuple[Piece, ...]
    ) -> None:
        if not end.is_open:
            return
        if isinstance(message, SimulatedGreeting):
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
            # It goes ahead of whatever is sent once this connection is reported.
            self.network.send(end, SimulatedGreeting(), ())
        if not self.links.up(end):
            self.network.close(end)

    def broken(self, end: End) -> None:
        """The other end is gone, or this one gives it up as silent."""
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
        """Queue a call to the host; the caller sees to ``_flush`` or ``_rouse``."""
        self._to_say.append((say, arguments))

    def _rouse(self) -> None:
        """Deliver later: a send or a disconnect may come in the middle of a step of the node."""
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
