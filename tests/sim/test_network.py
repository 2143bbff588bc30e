"""Simulated failures as peers observe them: the times and signals measured of the real transport.

Two ports have no node that would react.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from copperfs.lab.sim.payload_pieces import Piece, content_of
from copperfs.lab.sim.process_state import Process, State
from copperfs.lab.sim.sim_transport import Port
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.lab.sim.virtual_network import VirtualNetwork
from copperfs.model.types import NodeId, Path, Version
from copperfs.node.peer.messages import Echo, Message

A, B = NodeId(0), NodeId(1)
ONE_MIB = content_of(Path(b"f"), Version(1 << 20, 0, 0, 1), with_bytes=True)


@dataclass
class Listener:
    clock: VirtualClock
    heard: list[tuple[float, str | int]] = field(default_factory=list)

    def connected(self, peer: NodeId) -> None:
        self.heard.append((self.clock.now, "connected"))

    def lost(self, peer: NodeId) -> None:
        self.heard.append((self.clock.now, "lost"))

    def received(self, peer: NodeId, message: Message, pieces: tuple[Piece, ...]) -> None:
        assert isinstance(message, Echo)
        self.heard.append((self.clock.now, message.number))

    def corrupt(self, peer: NodeId, message: Message) -> None:
        self.heard.append((self.clock.now, "corrupt"))

    def what(self) -> list[str | int]:
        return [what for _, what in self.heard]

    def when(self, wanted: str | int) -> float:
        return next(when for when, what in self.heard if what == wanted)


class Pair:
    """A has connected to B at second 1, and each will hear the other."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.network = VirtualNetwork(self.clock, Random(1))
        self.ports: list[Port] = []
        for me in (A, B):
            self.start(me)
        self.ports[A].connect(B)
        self.run(1.0)

    def start(self, me: NodeId) -> None:
        port = Port(me, self.network, Process(self.clock), Random(2), Listener(self.clock))
        self.network.attach(port)
        self.ports[me:] = [port, *self.ports[me + 1 :]]

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now + seconds)

    def heard_by(self, me: NodeId) -> Listener:
        listener = self.ports[me].host
        assert isinstance(listener, Listener)
        return listener

    def send(self, me: NodeId, number: int, pieces: tuple[Piece, ...] = ()) -> bool:
        return self.ports[me].send(NodeId(1 - me), Echo(number), pieces)

    def stop(self, me: NodeId, state: State) -> None:
        self.ports[me].process.stop(state)
        if state is State.STOPPED:
            self.network.stopped(me)

    def go_on(self, me: NodeId) -> None:
        was = self.ports[me].process.state
        self.ports[me].process.go_on()
        if was is State.STOPPED:
            self.network.went_on(me)

    def crash(self, me: NodeId) -> None:
        self.ports[me].process.end()
        self.network.died(me)

    def probe(self, me: NodeId) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = []
        began = self.clock.now
        peer = NodeId(1 - me)
        self.ports[me].probe(peer, lambda no: found.append((self.clock.now - began, no)))
        self.run(2.0)
        return found


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_both_ends_say_connected(pair: Pair) -> None:
    assert pair.heard_by(A).what() == pair.heard_by(B).what() == ["connected"]


def test_messages_keep_their_order_whatever_their_size(pair: Pair) -> None:
    for number in range(20):
        assert pair.send(A, number, ONE_MIB if number % 3 == 0 else ())
    pair.network.delays[A, B] = 0.5
    for number in range(20, 40):
        assert pair.send(A, number)
    pair.network.delays.clear()
    for number in range(40, 60):
        assert pair.send(A, number)
    pair.run(2.0)
    assert pair.heard_by(B).what() == ["connected", *range(60)]


def test_a_mebibyte_takes_its_time(pair: Pair) -> None:
    began = pair.clock.now
    for number in range(10):
        pair.send(A, number, ONE_MIB)
    pair.run(1.0)
    took = pair.heard_by(B).when(9) - began
    assert took == pytest.approx(10 * (1 << 20) / 1.25e9, rel=0.2)


def test_damaged_bytes_are_told_as_such(pair: Pair) -> None:
    pair.network.spoil_next(A, B)
    pair.send(A, 1)  # without a payload
    pair.send(A, 2, ONE_MIB)
    pair.send(A, 3, ONE_MIB)
    pair.run(1.0)
    assert pair.heard_by(B).what() == ["connected", 1, "corrupt", 3]


def test_death_is_noticed_in_milliseconds_and_refuses(pair: Pair) -> None:
    pair.crash(B)
    pair.run(0.02)
    assert 0.002 <= pair.heard_by(A).when("lost") - 1.0 <= 0.007
    assert not pair.send(A, 1)
    [(took_s, refused)] = pair.probe(A)
    assert refused
    assert took_s < 0.001
    pair.start(B)
    pair.run(3.0)
    assert pair.heard_by(A).what() == ["connected", "lost", "connected"]


def test_what_had_not_left_a_dead_node_never_comes(pair: Pair) -> None:
    for number in range(100):  # 84 ms for the NIC
        pair.send(A, number, ONE_MIB)
    pair.run(0.02)
    pair.crash(A)
    pair.run(1.0)
    *numbers, lost = pair.heard_by(B).what()[1:]
    assert lost == "lost"
    assert numbers == list(range(len(numbers)))
    assert 10 < len(numbers) < 40


def test_a_stopped_node_keeps_its_connections_for_ten_seconds(pair: Pair) -> None:
    pair.stop(B, State.STOPPED)
    pair.send(A, 1)
    pair.run(5.0)
    assert pair.heard_by(B).what() == ["connected"]
    assert pair.probe(A)[0][1] is False
    pair.run(10.0)
    assert 10.0 <= pair.heard_by(A).when("lost") - 1.0 <= 12.0
    pair.go_on(B)
    pair.run(15.0)
    assert pair.heard_by(B).what() == ["connected", 1, "lost", "connected"]
    assert pair.heard_by(A).what()[-1] == "connected"


def test_a_short_stop_loses_nothing(pair: Pair) -> None:
    for number in range(100):
        pair.send(A, number, ONE_MIB)
    pair.run(0.02)
    pair.stop(A, State.STOPPED)  # most of it is still in the process
    pair.run(3.0)
    came = pair.heard_by(B).what()[1:]
    assert 10 < len(came) < 40
    pair.go_on(A)
    pair.run(1.0)
    assert pair.heard_by(B).what() == ["connected", *range(100)]


def test_a_hung_node_keeps_its_connections_for_ever(pair: Pair) -> None:
    pair.stop(B, State.HUNG)
    pair.send(A, 1)
    pair.run(100.0)
    assert pair.heard_by(A).what() == ["connected"]
    pair.go_on(B)
    assert pair.heard_by(B).what() == ["connected", 1]


def test_who_connects_to_a_hung_node_waits_ten_seconds_at_a_time(pair: Pair) -> None:
    pair.stop(A, State.HUNG)
    pair.ports[B].connect(A)
    pair.run(35.0)
    assert pair.heard_by(B).what() == ["connected"], "by the connection of A alone"
    pair.go_on(A)
    pair.run(12.0)
    assert len([end for end in pair.ports[B].ends if end.greeted]) == 2


def test_a_short_cut_loses_nothing(pair: Pair) -> None:
    pair.network.cut(A, B)
    pair.send(A, 1)
    pair.run(3.0)
    pair.send(A, 2)
    pair.network.heal(A, B)
    pair.send(A, 3)
    pair.run(4.0)
    assert pair.heard_by(B).what() == ["connected", 1, 2, 3]
    assert pair.heard_by(B).when(1) == pytest.approx(4.0, abs=0.2), "sent again by TCP"


def test_a_cut_link_is_given_up_and_neither_taken_nor_refused(pair: Pair) -> None:
    for one, other in ((A, B), (B, A)):
        pair.network.cut(one, other)
    [(took_s, refused)] = pair.probe(A)
    assert not refused
    assert took_s == pytest.approx(1.0)
    pair.run(20.0)
    for me in (A, B):
        assert 10.0 <= pair.heard_by(me).when("lost") - 1.0 <= 12.0
    pair.network.heal_all()
    pair.run(4.0)
    assert pair.heard_by(A).what() == ["connected", "lost", "connected"]


def test_where_one_direction_passes_the_other_end_is_told(pair: Pair) -> None:
    pair.network.cut(A, B)
    assert pair.send(B, 1)
    pair.run(5.0)
    assert pair.heard_by(A).what() == ["connected", 1]
    pair.run(10.0)
    lost = pair.heard_by(B).when("lost")
    assert pair.heard_by(A).when("lost") == pytest.approx(lost, abs=0.01)


def test_a_machine_without_power_says_nothing(pair: Pair) -> None:
    pair.ports[B].process.end()
    pair.network.lost_power(B)
    assert pair.probe(A)[0][1] is False
    pair.run(12.0)
    assert 10.0 <= pair.heard_by(A).when("lost") - 1.0 <= 12.0
    pair.start(B)
    pair.run(4.0)
    assert pair.heard_by(B).what() == ["connected"]


def test_two_connections_are_one_peer(pair: Pair) -> None:
    pair.ports[B].connect(A)
    pair.run(1.0)
    assert pair.heard_by(A).what() == pair.heard_by(B).what() == ["connected"]
    pair.ports[A].disconnect(B)
    pair.run(1.0)
    assert pair.heard_by(A).what() == ["connected", "connected"], "by the other one"
    assert pair.send(A, 1)
    assert pair.send(B, 2)
    pair.run(1.0)
    assert pair.heard_by(B).what()[-1] == 1
    assert pair.heard_by(A).what()[-1] == 2


def test_a_broken_connection_takes_what_was_under_way_and_is_renewed(pair: Pair) -> None:
    pair.send(A, 1)
    pair.network.break_connections(A, B)
    pair.run(1.0)
    for me in (A, B):
        assert pair.heard_by(me).what() == ["connected", "lost", "connected"]
