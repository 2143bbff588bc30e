"""The simulated resolver; ``tests/net/test_names.py`` tests the real one."""

import pytest

from copperfs.lab.sim.process_state import Process
from copperfs.lab.sim.sim_resolver import PATIENCE_S, THREADS_MAX, SimulatedResolver
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.model.types import NodeId

PEER = NodeId(1)


class Lab:
    def __init__(self, takes_s: float, fails_until: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.names = SimulatedResolver(Process(self.clock), takes_s, fails_until)
        self.told: list[tuple[float, bool]] = []

    def find(self, peer: NodeId = PEER) -> None:
        self.names.find(peer, lambda is_known: self.told.append((self.clock.now, is_known)))


def test_a_name_is_waited_for_the_first_time_and_not_again() -> None:
    lab = Lab(3.0)
    lab.find()
    lab.clock.run(10.0)
    assert lab.told == [(3.0, True)]
    lab.find()
    lab.clock.run(20.0)
    assert lab.told[1:] == [(10.0 + PATIENCE_S, True)]


def test_a_resolver_that_fails_keeps_an_address_that_was_good() -> None:
    lab = Lab(0.1)
    lab.find()
    lab.clock.run(1.0)
    lab.names.fails_until = 100.0
    lab.find()
    lab.find(NodeId(2))
    lab.clock.run(2.0)
    assert lab.told == [(0.1, True), (1.1, True), (1.1, False)]


def test_those_who_want_one_name_wait_for_one_lookup() -> None:
    lab = Lab(1.0)
    lab.find()
    lab.clock.run(0.5)
    lab.find()
    lab.clock.run(5.0)
    assert lab.told == [(1.0, True), (1.0, True)]


def test_only_so_many_names_are_looked_up_at_a_time() -> None:
    lab = Lab(1.0)
    for peer in range(THREADS_MAX + 1):
        lab.find(NodeId(peer))
    lab.clock.run(10.0)
    assert [at for at, _ in lab.told] == [pytest.approx(1.0)] * THREADS_MAX + [pytest.approx(2.0)]
