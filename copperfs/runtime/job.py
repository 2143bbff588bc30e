"""One node's part in a job of several: who it talks to, and what all nodes can be asked together.

``join_job`` makes the node's place in the trees and its transport from the launch. ``Job`` has the
operations behind ``copperfs clear``, ``stats --all``, ``tree`` and ``--wait-all``; alone, a node is
a job of one and answers them just so."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from copperfs.bootstrap.launch import Launch
from copperfs.config import Settings
from copperfs.core.trees import Trees, copper_fanout
from copperfs.errors import ControlError, MountError
from copperfs.net.transport import Transport
from copperfs.roster import Roster
from copperfs.runtime.engine import Engine
from copperfs.runtime.operations import Operation, Operations, Result
from copperfs.runtime.peers import Peers
from copperfs.runtime.warmup import Warmup
from copperfs.runtime.workingset import WorkingSets

CALL_WITHIN_S = 20.0
READY_WITHIN_S = 5.0
# Node by node only up to here; beyond, sums tell more.
NODES_SHOWN_MAX = 256


def trees_of(settings: Settings, launch: Launch) -> Trees:
    """This node's place among the others."""
    nodes = len(launch.roster)
    fanout = copper_fanout(nodes) if settings.fanout == "copper" else int(settings.fanout)
    return Trees(nodes, launch.me, fanout, settings.push_fanout, settings.trees)


def agreement_of(settings: Settings) -> bytes:
    """Digest of what has to be the same on all nodes, or they would answer each other wrongly."""
    agreed = [settings.source, settings.revalidate_s]
    agreed += [settings.trees, settings.fanout, settings.push_fanout]
    return hashlib.blake2b(json.dumps(agreed).encode(), digest_size=16).digest()


def transport_of(launch: Launch) -> Transport:
    from copperfs.net.zeromq import ZeroTransport  # a node alone does not load ZeroMQ

    return ZeroTransport(
        launch.roster,
        launch.me,
        secret_key=launch.secret_key or None,
        listener=launch.listener,
    )


def join_job(settings: Settings, launch: Launch, engine: Engine, transport: Transport) -> None:
    """Make *engine* take part; it connects when it runs."""
    engine.peers = Peers(
        transport,
        engine.node,
        engine.blobs,
        engine.post,
        launch.roster.job,
        agreement_of(settings),
    )


@dataclass(slots=True)
class Job:
    """What can be asked of all nodes at once."""

    engine: Engine
    settings: Settings
    statistics: Callable[[], Result]
    roster: Roster | None = None

    working_sets: WorkingSets = field(init=False)

    def __post_init__(self) -> None:
        warmup = Warmup(self.engine)
        self.working_sets = WorkingSets(self.engine, warmup, self.roster)
        if self.engine.peers is not None:
            self.engine.peers.take_batch = warmup.take_batch
        self.engine.operations = Operations(
            {
                **self.working_sets.operations(),
                "ready": Operation(self._ready),
                "clear": Operation(self._clear),
                "statistics": Operation(self._statistics),
                "tree": Operation(self._tree),
            }
        )

    # --- asked here ------------------------------------------------------------------------------

    async def clear(self) -> Result:
        """A new epoch on every node."""
        return self._complete(await self.engine.call("clear", {}, CALL_WITHIN_S))

    async def all_statistics(self) -> Result:
        return self._complete(await self.engine.call("statistics", {}, CALL_WITHIN_S))

    async def tree(self) -> Result:
        found = self._complete(await self.engine.call("tree", {}, CALL_WITHIN_S))
        found["tree"] = sorted(found.get("tree", []), key=lambda each: each["node"])
        trees = self.engine.node.trees
        found["asked"] = 0 if trees is None else trees.me
        found["trees"] = 1 if trees is None else trees.count
        found["fanout"] = 0 if trees is None else trees.fanout
        found["push_fanout"] = 0 if trees is None else trees.push_fanout
        return found

    async def warm_up(self, request: bytes) -> Result:
        """Begin what the file named in *request* asks for."""
        assert self.engine.nursery is not None, "asked of an engine that runs"
        try:
            file = json.loads(request)["file"]
            return await self.working_sets.start(self.engine.nursery, str(file))
        except (ValueError, KeyError, TypeError):
            return {"error": "the request names no file"}
        except ControlError as error:
            return {"error": str(error)}

    async def warm_up_state(self) -> Result:
        return self.working_sets.state()

    async def wait_ready(self) -> None:
        """Until this node's parents answer, or with ``--wait-all`` all nodes."""
        peers, trees = self.engine.peers, self.engine.node.trees
        if peers is None or trees is None or self.roster is None:
            return
        parents = list(trees.parents())
        with trio.move_on_after(self.settings.launch_timeout_s):
            await peers.wait_connected(parents)
            while self.settings.wait_all:
                answered = await self.engine.call("ready", {}, READY_WITHIN_S)
                if answered.get("nodes") == len(self.roster):
                    return
                await trio.sleep(0.2)
            return
        missing = [each for each in parents if each not in peers.connected]
        if not missing:
            raise MountError(
                f"not all {len(self.roster)} nodes answered within "
                f"{self.settings.launch_timeout_s:g} s; 'copperfs tree' on a node that was mounted "
                "shows who did"
            )
        member = self.roster.member(missing[0])
        raise MountError(
            f"node {member.name} at {member.endpoint} could not be reached within "
            f"{self.settings.launch_timeout_s:g} s; is its daemon up, and does a firewall let "
            "the port through? --listen chooses another network"
        )

    def _complete(self, result: Result) -> Result:
        """With what the asker knows: of how many nodes it should be."""
        return {"nodes": 0} | result | {"roster": 1 if self.roster is None else len(self.roster)}

    # --- done on each node -----------------------------------------------------------------------

    async def _ready(self, _: Result) -> Result:
        peers, trees = self.engine.peers, self.engine.node.trees
        if peers is not None and trees is not None:
            await peers.wait_connected(list(trees.parents()))
        return {"nodes": 1}

    async def _clear(self, _: Result) -> Result:
        told = await self.engine.clear()
        epoch = self.engine.node.statistics().epoch
        return {"nodes": 1, "max_epoch": epoch, "names_invalidated": told}

    async def _statistics(self, _: Result) -> Result:
        document = self.statistics()
        keys = ("hits", "misses", "bytes", "source", "cache", "node", "transport")
        total = {key: document[key] for key in keys if key in document}
        result: Result = {"nodes": 1, "total": total}
        if self.roster is None or len(self.roster) <= NODES_SHOWN_MAX:
            result["by_node"] = [{"node": self._me(), "name": self._name()} | total]
        return result

    async def _tree(self, _: Result) -> Result:
        trees, peers = self.engine.node.trees, self.engine.peers
        shown: Result = {"node": self._me(), "name": self._name()}
        if trees is None or peers is None or self.roster is None:
            return {"nodes": 1, "tree": [shown]}
        shown["endpoint"] = self.roster.member(trees.me).endpoint
        rtt_s = {each: await peers.ping(each) for each in trees.parents()}
        shown["parents"] = [
            None
            if (parent := trees.parent(tree)) is None
            else {"node": parent, "up": parent in peers.connected, "rtt_us": _us(rtt_s[parent])}
            for tree in range(trees.count)
        ]
        shown["depths"] = [trees.depth(tree) for tree in range(trees.count)]
        return {"nodes": 1, "tree": [shown]}

    def _me(self) -> int:
        return 0 if self.engine.node.trees is None else self.engine.node.trees.me

    def _name(self) -> str:
        if self.roster is None or self.engine.node.trees is None:
            return "this node"
        return self.roster.member(self.engine.node.trees.me).name


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
