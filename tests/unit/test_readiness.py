"""Readiness: when all nodes of a job are ready. A hundred engines wait for each other, over a
transport that loses only what a test cuts."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from copperfs.config.settings import Settings
from copperfs.daemon.collective_ops import CollectiveOperations, Operation, Result
from copperfs.daemon.engine import Engine
from copperfs.daemon.job_requests import JobMember
from copperfs.daemon.peers import Peers
from copperfs.model.errors import MountError
from copperfs.model.roster import Member, Roster
from copperfs.model.types import NodeId
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.collectives import CALLS_MAX
from copperfs.node.peer.hello_exchange import Agreement
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees
from tests.net.memory_network import MemoryNetwork
from tests.unit.test_engine import FakeFetcher, FakePublications

MANY = 2 * CALLS_MAX
TIMEOUT_S = 30.0
Scene = Callable[["Waiting"], Awaitable[None]]


class Clocked(Engine):
    """Its node takes its time from trio's clock, so a test need not wait."""

    _now = staticmethod(trio.current_time)


class Waiting:
    def __init__(self, network: MemoryNetwork, jobs: list[JobMember]) -> None:
        self.network = network
        self.jobs = jobs
        self.outcomes: dict[int, str | None] = {}
        self.asked = [0] * len(jobs)
        for number, job in enumerate(jobs):
            of = job.engine.calls.operations.by_name
            job.engine.calls.operations = CollectiveOperations(
                {name: self._counted(number, operation) for name, operation in of.items()}
            )

    def _counted(self, number: int, operation: Operation) -> Operation:
        async def counted(argument: Result) -> Result:
            self.asked[number] += 1
            return await operation(argument)

        return counted

    async def wait(self, number: int) -> None:
        try:
            await self.jobs[number].readiness.wait()
            self.outcomes[number] = None
        except MountError as error:
            self.outcomes[number] = str(error)


@asynccontextmanager
async def engines(nodes: int, agreements: dict[int, bytes]) -> AsyncIterator[Waiting]:
    settings = Settings(
        mountpoint="/mnt", memory_bytes=1 << 20, wait_all=True, launch_timeout_s=TIMEOUT_S
    )
    members = tuple(Member(f"n{each}", f"tcp://127.0.0.1:{each + 1}") for each in range(nodes))
    network, jobs = MemoryNetwork(), []
    for number in range(nodes):
        node = Node(
            Policy(source=b"/src", mountpoint=b"/mnt"),
            Limits(1 << 20, 1 << 19, None, 30.0),
            Trees(nodes, NodeId(number), fanout=4),
        )
        engine = Clocked(node, FakeFetcher(), FakePublications())
        transport, agreement = network.transport(NodeId(number)), agreements.get(number, b"same")
        engine.peers = peers = Peers(transport, node, engine.blobs, engine.post)
        peers.session.agreement = Agreement("job", agreement)
        jobs.append(
            JobMember(engine, settings, dict, node.reset_statistics, Roster("job", members))
        )
    waiting = Waiting(network, jobs)
    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(job.engine.run)
        yield waiting
        nursery.cancel_scope.cancel()


def run(nodes: int, scene: Scene, agreements: dict[int, bytes] | None = None) -> None:
    async def main() -> None:
        async with engines(nodes, agreements or {}) as waiting:
            await scene(waiting)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def all_wait(waiting: Waiting, but: int | None = None) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(len(waiting.jobs)):
            if number != but:
                nursery.start_soon(waiting.wait, number)


def test_more_nodes_than_calls_may_be_under_way_wait_for_all_and_are_asked_a_few_times() -> None:
    async def scene(waiting: Waiting) -> None:
        await all_wait(waiting)
        assert waiting.outcomes == dict.fromkeys(range(MANY), None)
        assert max(waiting.asked) <= 4, "by node 0 alone, not by each"

    run(MANY, scene)


def test_nobody_goes_on_before_the_last_one_can_be_reached() -> None:
    last = MANY - 1

    async def scene(waiting: Waiting) -> None:
        trees = waiting.jobs[last].engine.node.trees
        assert trees is not None
        for parent in trees.parents():
            waiting.network.sever(NodeId(last), parent)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(all_wait, waiting)
            await trio.sleep(TIMEOUT_S / 2)
            assert not waiting.outcomes
            for parent in trees.parents():
                waiting.network.heal(NodeId(last), parent)
        assert waiting.outcomes == dict.fromkeys(range(MANY), None)

    run(MANY, scene)


def test_a_connection_that_is_renewed_while_all_go_on_costs_nobody_its_mount() -> None:
    async def scene(waiting: Waiting) -> None:
        async def hurt() -> None:
            while len(waiting.outcomes) < len(waiting.jobs):
                waiting.network.break_connection(NodeId(0), NodeId(1))
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hurt)
            await all_wait(waiting)
        assert waiting.outcomes == dict.fromkeys(range(8), None)

    run(8, scene)


def test_all_say_which_node_is_missing_or_why(expected_warnings: Callable[[str], None]) -> None:
    expected_warnings("was started with other settings")

    async def scene(waiting: Waiting) -> None:
        await all_wait(waiting)
        told = [str(waiting.outcomes[each]) for each in range(8)]
        other = "was started with other settings"
        assert other in told[7]
        assert other in told[1], "node 7 asks it, so it has heard the reason"
        for each in told[:7]:
            assert each.startswith(f"node 7 {other}") or each == (
                "1 of 8 nodes were not ready within 30 s: n7; their logs say why (--log-file)"
            )

    run(8, scene, {7: b"another"})


def test_who_hears_nothing_of_node_0_says_so() -> None:
    async def scene(waiting: Waiting) -> None:
        await all_wait(waiting, but=0)  # as if node 0 had not been given --wait-all
        assert set(waiting.outcomes) == {1, 2, 3}
        for said in waiting.outcomes.values():
            assert said is not None
            assert said.startswith("node n0 at tcp://127.0.0.1:1, which asks all nodes")
            assert "was not heard of within 30 s" in said

    run(4, scene)


@pytest.mark.parametrize("told", [{"missing": "x"}, {"missing": 3, "some": [[1], "n", 10**9, 2]}])
def test_what_a_peer_makes_up_is_no_end_of_the_daemon(told: Result) -> None:
    async def scene(waiting: Waiting) -> None:
        operations = waiting.jobs[2].engine.calls.operations.by_name
        assert await operations["all-ready"](told) == {"answered": [2]}
        await waiting.wait(2)
        assert waiting.outcomes == {2: None}

    run(4, scene)
