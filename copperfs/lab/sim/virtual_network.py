"""Virtual network: cables with latency, NICs with bandwidth, and the faults that break them.

A message is one entry on the clock. The send reserves its sender's CPU and NIC, and its receiver's
NIC and CPU, first come first served. The entry is for the time at which the receiver is done. A
daemon is one thread, so its sends delay its later receives. The reverse does not hold, since a
reservation for later must not delay an earlier send.

It simulates TCP under ZeroMQ, with measured times (``transport/zmq_sockets.py``):

* a process that dies closes its connections: its peers notice in milliseconds, and new connections
  to it are refused;
* a process that stops keeps its connections and answers nothing, and after ``silent_s`` its peers
  give them up. One whose event loop hangs keeps them without limit, as ZeroMQ's thread answers;
* where nothing passes (*cut*, in one direction or both) frames wait and are sent again, so a cut
  that heals in time loses nothing. After ``silent_s`` the end that receives nothing gives the
  connection up. Connecting there neither succeeds nor is refused;
* no message is lost, doubled or overtaken by another on a connection. A connection that breaks
  takes with it what was under way. Damage on the way is found by the digest.

Not simulated: that TCP soon stops in both directions when one is cut, a receiver that does not read
(the node's credit bounds that), and routers.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from copperfs.lab.sim.payload_pieces import Piece, size_of
from copperfs.lab.sim.process_state import State
from copperfs.lab.sim.scenario_message_names import word_of
from copperfs.lab.sim.sim_connection import End, SimulatedGreeting
from copperfs.lab.sim.sim_transport import Port
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.model.types import NodeId
from copperfs.node.peer.messages import Batch, Message, Offer


@dataclass(frozen=True, slots=True)
class NetworkCosts:
    """A 10 GbE cluster, and this daemon's Python; calibration replaces these."""

    latency_s: float = 50e-6
    bytes_per_s: float = 1.25e9
    """Of each NIC, in each direction."""
    send_s: float = 12e-6
    receive_s: float = 17e-6
    """CPU with the step of the node; with the send 29 us, as measured of a root for a request."""
    send_byte_s: float = 0.065e-9
    receive_byte_s: float = 0.065e-9
    """CPU for each byte. Measured without CURVE: round trips of 1 MiB and 64 B differ by 135 us."""
    header_bytes: int = 150
    """A message's size where it is not encoded."""
    item_bytes: int = 110
    """The same for each item of a batch or an offer."""
    jitter_s: float = 0.0
    """A message is received up to this much later, at random: so that the order between connections
    varies where nothing else takes time."""


@dataclass(frozen=True, slots=True)
class CableTimeouts:
    """The transport's (``SocketLimits`` in ``transport/zmq_sockets.py``)."""

    handshake_s: float = 10.0
    connect_s: float = 2.0
    syn_again_s: float = 1.0
    """The kernel's: a second attempt within ``connect_s``."""
    silent_s: float = 10.0
    heartbeat_s: float = 2.0
    backoff_first_s: float = 0.05
    backoff_last_s: float = 1.0
    jitter: float = 0.25
    probe_s: float = 1.0
    retransmit_s: float = 0.2
    """The kernel's first wait before it sends again; it doubles each time. 0: it sends again
    as soon as the cable is whole."""
    noticed_s: tuple[float, float] = (0.002, 0.006)
    """From a peer's death to its report, measured for SIGKILL."""
    round_trips: int = 3
    """Until a connection is greeted on."""


@dataclass(slots=True, repr=False)
class VirtualNetwork:
    clock: VirtualClock
    random: Random
    costs: NetworkCosts = field(default_factory=NetworkCosts)
    timeouts: CableTimeouts = field(default_factory=CableTimeouts)
    transcode: Callable[[Message, Sequence[Piece]], tuple[Message, int]] | None = None
    watch: Callable[[str, NodeId, NodeId, object], None] | None = None
    """Called with "sends" or "takes", the node, its peer, the message."""
    _sent: Counter[type] = field(default_factory=Counter)
    sent_bytes: int = 0
    ports: dict[NodeId, Port] = field(default_factory=dict)
    delays: dict[tuple[NodeId, NodeId], float] = field(default_factory=dict)
    """Extra seconds from one node to another."""
    _cuts: dict[tuple[NodeId, NodeId], float] = field(default_factory=dict)
    """Directions in which nothing passes, and since when."""
    _gone: dict[NodeId, float] = field(default_factory=dict)
    _spoil: Counter[tuple[NodeId, NodeId]] = field(default_factory=Counter)

    # --- nodes -----------------------------------------------------------------------------------

    def attach(self, port: Port) -> None:
        assert port.me not in self.ports or not self.ports[port.me].process.is_alive
        self.ports[port.me] = port
        if self._gone.pop(port.me, None) is None:
            return
        # Its next heartbeat is refused on connections that its peers still believe to be up.
        for other in self.ports.values():
            for end in other.ends:
                if end.peer == port.me and not end.other.is_open:
                    wait_s = self.random.uniform(0, self.timeouts.heartbeat_s)
                    self.clock.after(wait_s, self._break, end)

    def listens(self, node: NodeId) -> bool:
        """Whether the kernel of a node accepts connections."""
        port = self.ports.get(node)
        return port is not None and port.process.is_alive

    def passes(self, sender: NodeId, receiver: NodeId) -> bool:
        if not self._cuts and not self._gone:
            return True
        gone = sender in self._gone or receiver in self._gone
        return not gone and (sender, receiver) not in self._cuts

    def joins(self, one: NodeId, other: NodeId) -> bool:
        return self.passes(one, other) and self.passes(other, one)

    def latency_s(self, sender: NodeId, receiver: NodeId) -> float:
        if not self.delays:
            return self.costs.latency_s
        return self.costs.latency_s + self.delays.get((sender, receiver), 0.0)

    @property
    def sent(self) -> Counter[str]:
        return Counter({word_of(kind): count for kind, count in self._sent.items()})

    # --- frames ----------------------------------------------------------------------------------

    def send(
        self, end: End, message: Message | SimulatedGreeting, pieces: tuple[Piece, ...]
    ) -> None:
        port, other = end.port, end.other
        size = self.costs.header_bytes
        if not isinstance(message, SimulatedGreeting):
            if self.transcode is not None:
                message, size = self.transcode(message, pieces)
            elif pieces:
                size += self.payload_and_items_bytes(message, pieces)
            times = max(port.weight, other.port.weight)
            self._sent[type(message)] += times
            self.sent_bytes += times * size
            if self.watch is not None:
                self.watch("sends", port.me, end.peer, message)
            if self._spoil and pieces:
                pieces = self._spoiled(port.me, end.peer, pieces)
        mine, theirs = port.weight, other.port.weight
        left = port.reserve_sending(size, theirs // mine)
        reaches = left + self.latency_s(port.me, end.peer)
        arrives = other.port.reserve_receiving(size, reaches, mine // theirs)
        if arrives < other.last:
            arrives = other.last
        if self.costs.jitter_s:
            arrives += self.random.uniform(0, self.costs.jitter_s)
        other.last = arrives
        self.clock.at(arrives, self._arrive, other, left, message, pieces)

    def payload_and_items_bytes(self, message: Message, pieces: Sequence[Piece]) -> int:
        items = len(message.items) if isinstance(message, Offer | Batch) else 0
        return size_of(pieces) + items * self.costs.item_bytes

    def _spoiled(
        self, sender: NodeId, receiver: NodeId, pieces: tuple[Piece, ...]
    ) -> tuple[Piece, ...]:
        if not self._spoil[sender, receiver]:
            return pieces
        self._spoil[sender, receiver] -= 1
        return (pieces[0].spoiled(), *pieces[1:]) if pieces[0].size else pieces

    def _arrive(
        self, end: End, left: float, message: Message | SimulatedGreeting, pieces: tuple[Piece, ...]
    ) -> None:
        if not end.is_open:
            return
        sender = end.other.port.process
        if sender.state is not State.RUNS and left > sender.since:
            # A dead sender's machine had not sent it; a stopped one's has not yet.
            if sender.state is State.STOPPED:
                self._hold(end, left, message, pieces)
                return
            if sender.state is State.DEAD:
                return
        if end.held or not self.passes(end.peer, end.port.me):
            self._hold(end, left, message, pieces)
            return
        if self.watch is not None and not isinstance(message, SimulatedGreeting):
            self.watch("takes", end.port.me, end.peer, message)
        end.port.process.take(end.port.deliver, end, message, pieces)

    def _hold(
        self, end: End, left: float, message: Message | SimulatedGreeting, pieces: tuple[Piece, ...]
    ) -> None:
        if not end.held:
            end.held_since = self.clock.now
        end.held.append((left, message, pieces))

    def _let_through(self, end: End) -> None:
        """Deliver held frames in order, unless another fault holds them."""
        held = list(end.held)
        end.held.clear()
        for _, message, pieces in held:
            self._arrive(end, 0.0, message, pieces)

    # --- ends ------------------------------------------------------------------------------------

    def close(self, end: End) -> None:
        """*end* gives the connection up; its peer learns it, if anything passes."""
        if not end.is_open:
            return
        end.is_open = False
        end.held.clear()
        end.port.ends.pop(end, None)
        other = end.other
        if other.is_open and self.passes(end.port.me, end.peer):
            after = self.latency_s(end.port.me, end.peer)
            if not end.port.process.is_alive:
                after += self.random.uniform(*self.timeouts.noticed_s)
            self.clock.after(after, self._break, other)

    def _break(self, end: End) -> None:
        if end.is_open:
            end.port.process.take(end.port.broken, end)

    def _fall_silent(self, end: End, is_still_so: Callable[[], bool]) -> None:
        """Stop all that comes to *end*, which notices after a while."""
        wait_s = self.timeouts.silent_s + self.random.uniform(0, self.timeouts.heartbeat_s)
        self.clock.after(wait_s, self._give_up_silent, end, is_still_so)

    def _give_up_silent(self, end: End, is_still_so: Callable[[], bool]) -> None:
        if end.is_open and is_still_so():
            self._break(end)

    # --- processes -------------------------------------------------------------------------------

    def died(self, node: NodeId) -> None:
        """As the kernel does for a dead process."""
        for end in list(self.ports[node].ends):
            self.close(end)

    def stopped(self, node: NodeId) -> None:
        process = self.ports[node].process
        since = process.since
        for end in list(self.ports[node].ends):
            self._fall_silent(
                end.other, lambda: process.state is State.STOPPED and process.since == since
            )

    def went_on(self, node: NodeId) -> None:
        for end in list(self.ports[node].ends):
            if end.other.held and self.passes(node, end.peer):
                self.clock.after(self.latency_s(node, end.peer), self._let_through, end.other)

    def lost_power(self, node: NodeId) -> None:
        """No kernel reports it. The process is dead already."""
        self._gone[node] = self.clock.now
        for end in list(self.ports[node].ends):
            end.is_open = False
            self._fall_silent(end.other, lambda: True)
        self.ports[node].ends.clear()

    # --- faults of cables ------------------------------------------------------------------------

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        if (sender, receiver) in self._cuts:
            return
        self._cuts[sender, receiver] = now = self.clock.now
        for end in self._ends_between(receiver, sender):
            self._fall_silent(end, lambda: self._cuts.get((sender, receiver)) == now)

    def heal(self, sender: NodeId, receiver: NodeId) -> None:
        if self._cuts.pop((sender, receiver), None) is None:
            return
        for end in self._ends_between(receiver, sender):
            if not end.other.is_open:
                self.clock.after(self.latency_s(sender, receiver), self._break, end)
            elif end.held:
                self.clock.at(self._sent_again(end.held_since), self._let_through, end)

    def heal_all(self) -> None:
        for sender, receiver in list(self._cuts):
            self.heal(sender, receiver)
        self.delays.clear()

    def break_connections(self, one: NodeId, other: NodeId) -> None:
        """As a restarted router does: both ends notice, what was under way is lost."""
        for end in self._ends_between(one, other):
            self._break(end)
            self._break(end.other)

    def renew_connections(self, one: NodeId, other: NodeId, noticed_after_s: float) -> None:
        """A connection is lost, and neither end notices that before there is another one, unless it
        takes longer than *noticed_after_s*."""
        for end in self._ends_between(one, other):
            begun = end if end.outgoing else end.other
            begun.port.renew(begun, noticed_after_s)

    def lose_held(self, sender: NodeId, receiver: NodeId) -> None:
        """Frames that a cut holds back do not come, although the connections stay."""
        for end in self._ends_between(receiver, sender):
            end.held.clear()

    def spoil_next(self, sender: NodeId, receiver: NodeId) -> None:
        self._spoil[sender, receiver] += 1

    def _ends_between(self, one: NodeId, other: NodeId) -> list[End]:
        port = self.ports.get(one)
        return [] if port is None else [end for end in port.ends if end.peer == other]

    def _sent_again(self, held_since: float) -> float:
        """TCP's next retransmission."""
        wait = self.timeouts.retransmit_s
        if not wait:
            return self.clock.now
        at = held_since + wait
        while at < self.clock.now:
            wait *= 2
            at += wait
        return at
