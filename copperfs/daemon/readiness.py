"""Readiness: decides when a node of a job is ready, and when all are.

A node is ready when its parents and its pushers answer. With ``--wait-all`` its mount waits until
all nodes are. Node 0 repeats a collective over all nodes, which names the nodes that the last one
missed. When none is missing, the collective ``all-ready`` releases all. If each node asked all
others, they would refuse each other beyond ``CALLS_MAX`` collectives.

Where the nodes have met before (by MPI, or at a rendezvous), a node that refuses a connection has
ended since, and is handled like any other dead node. With a hostfile it may not have started yet.
"""

from contextlib import suppress
from dataclasses import dataclass, field

import trio

from copperfs.config.settings import Settings
from copperfs.daemon.collective_ops import Operation, Result, numbers_in
from copperfs.daemon.engine import Engine
from copperfs.daemon.peers import Peers
from copperfs.model.errors import MountError
from copperfs.model.roster import Roster
from copperfs.model.types import NodeId
from copperfs.node.events import Probed

ASKS_ALL = NodeId(0)
"""The root of the first tree, in which collectives travel."""
# For a node whose parents do not answer yet.
READY_WITHIN_S = 5.0
PAUSE_S = 0.2
LOOKS_EACH_S = 1.0
# A node whose settings disagree stays for this time, so that others notice, too.
LINGERS_S = 2.0
NAMES_MAX = 16


@dataclass(frozen=True, slots=True)
class _Missing:
    count: int
    some: tuple[int, ...]


@dataclass(slots=True)
class Readiness:
    engine: Engine
    settings: Settings
    roster: Roster | None
    _missing: _Missing | None = None
    """None until node 0 has reported."""
    _all_are: trio.Event = field(default_factory=trio.Event)

    def operations(self) -> dict[str, Operation]:
        return {"ready": self._ready, "all-ready": self._go_on}

    async def wait(self) -> None:
        peers, trees = self.engine.peers, self.engine.node.trees
        if peers is None or trees is None or self.roster is None:
            return
        parents = list(trees.parents())
        with trio.move_on_after(self.settings.launch_timeout_s):
            await self._wait_in_touch(peers)
            if self.settings.wait_all:
                await self._wait_all(peers, trees.me, len(self.roster))
            return
        unreached = [each for each in parents if each not in peers.session.connected]
        raise MountError(self._why_not(self.roster, unreached))

    async def _wait_in_touch(self, peers: Peers) -> None:
        wrong: MountError | None = None
        async with trio.open_nursery() as nursery:
            if self.settings.hostfile is None:
                nursery.start_soon(self._find_ended, peers)
            try:
                await peers.wait_in_touch()
            except MountError as error:
                wrong = error
            nursery.cancel_scope.cancel()
        if wrong is not None:
            await trio.sleep(LINGERS_S)
            raise wrong

    async def _find_ended(self, peers: Peers) -> None:
        """Tell the node of awaited peers that refuse a connection."""
        while True:
            await trio.sleep(LOOKS_EACH_S)
            membership = self.engine.node.membership
            assert membership is not None, "a job of one waits for nobody"
            for peer in sorted(membership.waited_for()):
                if await peers.transport.refuses(peer):
                    self.engine.post(Probed(peer, refused=True))

    async def _wait_all(self, peers: Peers, me: NodeId, count: int) -> None:
        """Wait until all are ready, or until this node learns that it was declared dead: then the
        job started long ago. MountError if settings disagree."""
        wrong: str | None = None
        async with trio.open_nursery() as nursery:

            async def wait_to_be_back() -> None:
                await self.engine.wait_until(self.engine.node.is_back)
                nursery.cancel_scope.cancel()

            async def wait_disagreement() -> None:
                nonlocal wrong
                wrong = await peers.wait_disagreement()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_to_be_back)
            nursery.start_soon(wait_disagreement)
            if me == ASKS_ALL:
                await self._call_until_all_answer("ready", count)
                await self._call_until_all_answer("all-ready", count)
            else:
                await self._all_are.wait()
            nursery.cancel_scope.cancel()
        if wrong is not None:
            await trio.sleep(LINGERS_S)
            raise MountError(wrong)

    async def _call_until_all_answer(self, operation: str, count: int) -> None:
        while True:
            told: Result = {}
            if self._missing is not None:
                told = {"missing": self._missing.count, "some": list(self._missing.some)}
            result = await self.engine.call(operation, told, READY_WITHIN_S)
            missing = sorted(set(range(count)) - numbers_in(result, "answered"))
            if not missing:
                return
            self._missing = _Missing(len(missing), tuple(missing[:NAMES_MAX]))
            await trio.sleep(PAUSE_S)

    def _why_not(self, roster: Roster, unreached: list[NodeId]) -> str:
        within = f"within {self.settings.launch_timeout_s:g} s"
        if unreached:
            member = roster.member(unreached[0])
            return (
                f"node {member.name} at {member.endpoint} could not be reached {within}; is its "
                "daemon up, and does a firewall let the port through? --listen chooses another "
                "network"
            )
        if self._missing is None:
            member = roster.member(ASKS_ALL)
            return (
                f"node {member.name} at {member.endpoint}, which asks all nodes whether they are "
                f"ready, was not heard of {within}; is its daemon up, and was it given --wait-all "
                "as well?"
            )
        named = ", ".join(roster.member(NodeId(each)).name for each in self._missing.some)
        more = ", ..." if self._missing.count > len(self._missing.some) else ""
        return (
            f"{self._missing.count} of {len(roster)} nodes were not ready {within}: {named}{more}; "
            "their logs say why (--log-file)"
        )

    async def _ready(self, told: Result) -> Result:
        self._hear(told)
        # Node 0 asks again; a node that disagrees with its parents never becomes ready.
        with trio.move_on_after(READY_WITHIN_S), suppress(MountError):
            if self.engine.peers is not None:
                await self.engine.peers.wait_in_touch()
            return {"answered": [self.engine.node.me]}
        return {}

    async def _go_on(self, told: Result) -> Result:
        self._hear(told)
        self._all_are.set()
        return {"answered": [self.engine.node.me]}

    def _hear(self, told: Result) -> None:
        """Any peer may have sent this."""
        count = told.get("missing")
        if self.roster is None or not isinstance(count, int):
            return
        known = sorted(numbers_in(told, "some") & set(range(len(self.roster))))
        self._missing = _Missing(count, tuple(known[:NAMES_MAX]))
