"""Job member: one node's part in a job, and the requests that address all nodes together.

A single node is a job of one. Every result carries the numbers of its nodes, and the others are
reported as missing. A node that is cut off from the first tree cuts off its subtree, too.

A clear is two collectives, so that two concurrent clears do what both ask for. The first reads the
latest epoch of all nodes, the second starts the next epoch on all of them. A node that has started
that epoch meanwhile did so after this clear was requested, which is enough. No node ends in a later
epoch than the others, which would clear them again.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from copperfs.config.settings import Settings
from copperfs.daemon.agreement import agreement_of
from copperfs.daemon.collective_ops import CollectiveOperations, Result, numbers_in
from copperfs.daemon.engine import Engine
from copperfs.daemon.inode_comparison import Comparison
from copperfs.daemon.peers import Peers
from copperfs.daemon.readiness import Readiness
from copperfs.daemon.ring_report import Ownership
from copperfs.daemon.scrubber import SCRUB_KEYS, Scrubbing
from copperfs.daemon.takeover_history import TakeoverHistory
from copperfs.daemon.tree_report import places_of, way_between
from copperfs.daemon.warmup_coordinator import WarmupCoordinator
from copperfs.daemon.warmup_progress import Members
from copperfs.daemon.warmup_push import PushWarmup
from copperfs.daemon.warmup_walk import path_of
from copperfs.fuse.ioctl import Asked
from copperfs.launch.launch_method import Launch
from copperfs.launch.node_identity import own_name
from copperfs.model.errors import ControlError
from copperfs.model.roster import Roster
from copperfs.model.types import NodeId, Path
from copperfs.node.peer.messages import EPOCH_LEAP_MAX
from copperfs.node.routing.trees import Trees
from copperfs.transport.interface import Transport

VERSION = 1
"""Later versions of the documents only add keys."""
# A node that has not replied by then is missing. The control server waits longer than for a clear,
# which is two collectives. So does the front, unless the source deadline is short: then these are
# shortened.
CALL_WITHIN_S = 10.0
EPOCH_WITHIN_S = 5.0
CLEAR_WITHIN_S = 15.0
# The front's deadline is that of the source plus this.
FRONT_GRACE_S = 5.0
# A larger job is shown as sums only.
NODES_SHOWN_MAX = 256
SUMMED = (
    "hits",
    "misses",
    "negative",
    "bytes",
    "source",
    "cache",
    "node",
    "tier",
    "members",
    "transport",
    "process",
)


def transport_of(launch: Launch) -> Transport:
    from copperfs.transport.zeromq import ZeroTransport  # a single node does not load ZeroMQ

    return ZeroTransport(
        launch.roster,
        launch.me,
        secret_key=launch.secret_key or None,
        listener=launch.listener.dup(),  # the transport takes it, and a successor needs it
    )


def join_job(
    settings: Settings,
    launch: Launch,
    engine: Engine,
    transport: Transport,
    prefixes: tuple[Path, ...],
) -> None:
    """Make *engine* a member of the job; it connects when it runs. *prefixes*: the directories in
    which nodes compare inode numbers."""
    peers = engine.peers = Peers(
        transport,
        engine.node,
        engine.blobs,
        engine.post,
    )
    peers.session.agreement = agreement_of(
        launch.roster.job, settings, engine.node.policy, engine.node.domains
    )
    numbers = engine.node.inode_numbers
    assert numbers is not None, "the job has other nodes"
    numbers.all_have_met = settings.hostfile is None
    numbers.is_wanted = settings.inodes == "auto"
    peers.comparison = Comparison(engine.node, engine.fetcher.ignore_inodes, engine.post, prefixes)
    engine.driver.ports.inode_comparison = peers.comparison


@dataclass(slots=True)
class JobMember:
    engine: Engine
    settings: Settings
    document: Callable[[], Result]
    reset: Callable[[], object]
    roster: Roster | None = None
    takeovers: TakeoverHistory = field(default_factory=TakeoverHistory)

    warmup_coordinator: WarmupCoordinator = field(init=False)
    scrubbing: Scrubbing = field(init=False)
    ownership: Ownership = field(init=False)
    readiness: Readiness = field(init=False)

    def __post_init__(self) -> None:
        warmup = PushWarmup(self.engine)
        self.warmup_coordinator = WarmupCoordinator(self.engine, warmup, Members(self.roster))
        self.scrubbing, self.ownership = Scrubbing(self.engine), Ownership(self.engine)
        self.readiness = Readiness(self.engine, self.settings, self.roster)
        self.engine.calls.operations = CollectiveOperations(
            {
                **self.warmup_coordinator.operations(),
                **self.readiness.operations(),
                "epoch": self._epoch,
                "clear": self._clear,
                "reset": self._reset,
                "statistics": self._statistics,
                "tree": self._tree,
                "ring": self._ring,
                "scrub": self._scrub,
                "scrub state": self._scrub_state,
            }
        )

    async def _call(self, operation: str, within_s: float, **argument: object) -> Result:
        front_waits_s = self.settings.source_deadline_s + FRONT_GRACE_S - 1
        share = min(1.0, front_waits_s / (EPOCH_WITHIN_S + CLEAR_WITHIN_S))
        return await self.engine.call(operation, argument, within_s * share)

    async def clear(self) -> Result:
        before = await self._call("epoch", EPOCH_WITHIN_S)
        epoch = max(before.get("max_epoch", 0), self._own_epoch()) + 1
        cleared = await self._call("clear", CLEAR_WITHIN_S, epoch=epoch)
        # A node that missed the first collective may have started this epoch long ago.
        answered = self._answered(before) & self._answered(cleared)
        names = cleared.get("names_invalidated", 0)
        return await self._head(answered) | {"epoch": epoch, "names_invalidated": names}

    async def clear_local(self) -> Result:
        """Drop this node's caches. With peers it stays in their epoch, or they would clear, too."""
        told = await self.engine.clear(None if self.roster is None else self._own_epoch())
        return {"epoch": self._own_epoch(), "names_invalidated": told}

    async def reset_all(self) -> Result:
        answered = self._answered(await self._call("reset", CALL_WITHIN_S))
        return {"reset": True} | await self._head(answered)

    async def all_statistics(self) -> Result:
        result = await self._call("statistics", CALL_WITHIN_S)
        head = await self._head(self._answered(result))
        document = head | {"total": result.get("total", {})}
        if "by_node" in result:
            document["by_node"] = sorted(result["by_node"], key=lambda each: each["number"])
        return document

    async def tree(self) -> Result:
        result = await self._call("tree", CALL_WITHIN_S)
        answered = self._answered(result)
        links = {each["number"]: each["parents"] for each in result.get("links", [])}
        takeovers = {each.pop("node"): each for each in result.get("takeovers", [])}
        trees, gone = self.engine.node.trees or Trees(1, NodeId(0)), self.engine.node.gone()
        suspects: dict[int, list[int]] = {}
        for each in result.get("suspects", []):
            suspects.setdefault(each["number"], []).append(each["by"])

        def place_all() -> list[Result]:
            return [
                self._member(NodeId(number))
                | {
                    "answered": number in answered,
                    "gone": number in gone,
                    "places": places_of(trees, number, gone, links.get(number)),
                    "takeovers": takeovers.get(number),
                }
                for number in range(trees.nodes)
            ]

        # With thousands of nodes this would block trio, and peers would suspect this node.
        members = await trio.to_thread.run_sync(place_all)
        return await self._head(answered) | {
            "asked": trees.me,
            "trees": trees.count,
            "fanout": trees.fanout,
            "push_fanout": trees.push_fanout,
            "suspects": [
                self._member(NodeId(number)) | {"by": sorted(by)}
                for number, by in sorted(suspects.items())
                if 0 <= number < trees.nodes
            ],
            "members": members,
        }

    async def scrub(self, asked: Asked) -> Result:
        return await self._ask_scrubs("scrub", asked.data)

    async def scrub_state(self, asked: Asked) -> Result:
        return await self._ask_scrubs("scrub state", asked.data)

    async def _ask_scrubs(self, operation: str, request: bytes) -> Result:
        try:
            wanted = json.loads(request or b"{}")
            rate, of_all = max(0, int(wanted.get("rate", 0))), bool(wanted.get("all"))
        except (ValueError, TypeError, AttributeError):
            return {"error": "the request is not what a scrub takes"}
        if not of_all and operation == "scrub":
            return self.scrubbing.begin(rate)
        if not of_all:
            return self.scrubbing.state()
        result = await self._call(operation, CALL_WITHIN_S, rate=rate)
        answered = self._answered(result)
        return await self._head(answered) | {key: result.get(key, 0) for key in SCRUB_KEYS}

    async def ring(self, asked: Asked) -> Result:
        """Each owner's share and chunks; or the owners of one file's chunks."""
        try:
            shown = json.loads(asked.data or b"{}").get("path")
            path = None if shown is None else path_of(shown)
        except (ValueError, TypeError, AttributeError):
            return {"error": "the request is not what ring takes"}
        if path is not None:
            try:
                return await self.ownership.of_file(path)
            except ControlError as error:
                return {"error": str(error)}
        result = await self._call("ring", CALL_WITHIN_S)
        answered, gone = self._answered(result), self.engine.node.gone()
        held = {each["number"]: each for each in result.get("held", [])}
        shares = await self.ownership.shares()
        return await self._head(answered) | {
            "placement": None if self.ownership.placement is None else "ring",
            "chunk_bytes": self.engine.node.limits.chunk_bytes,
            "protect": list(self.settings.protect),
            "members": [
                self._member(NodeId(each))
                | {"gone": each in gone, "share": shares.get(NodeId(each), 0.0)}
                | held.get(each, {})
                for each in range(self._count())
            ],
        }

    async def warm_up(self, asked: Asked) -> Result:
        assert self.engine.nursery is not None, "asked of an engine that runs"
        try:
            file = json.loads(asked.data)["file"]
            return await self.warmup_coordinator.start(self.engine.nursery, str(file))
        except (ValueError, KeyError, TypeError):
            return {"error": "the request names no file"}
        except ControlError as error:
            return {"error": str(error)}

    async def warm_up_state(self) -> Result:
        return self.warmup_coordinator.state()

    def _answered(self, result: Result) -> set[int]:
        return numbers_in(result, "answered").intersection(range(self._count()))

    async def _head(self, answered: set[int]) -> Result:
        """The beginning of every document about all nodes."""
        trees, gone = self.engine.node.trees, self.engine.node.gone()

        def behind(number: int) -> int | None:
            """The nearest node that cut *number* off from the collective."""
            if trees is None:
                return None
            way = way_between(trees, trees.me, number, gone)
            return next((each for each in way if each not in answered), None)

        def find_missing() -> list[Result]:
            return [
                self._member(NodeId(each)) | {"behind": behind(each)}
                for each in range(self._count())
                if each not in answered
            ]

        # As in tree().
        missing = await trio.to_thread.run_sync(find_missing)
        return {
            "version": VERSION,
            "nodes": len(answered),
            "roster": self._count(),
            "missing": missing,
        }

    def _count(self) -> int:
        return 1 if self.roster is None else len(self.roster)

    def _member(self, number: NodeId) -> Result:
        if self.roster is None:
            return {"number": 0, "name": own_name(self.settings), "endpoint": None}
        member = self.roster.member(number)
        return {"number": number, "name": member.name, "endpoint": member.endpoint}

    async def _epoch(self, _: Result) -> Result:
        return self._here() | {"max_epoch": self._own_epoch()}

    async def _clear(self, argument: Result) -> Result:
        # A larger leap would leave no room for later epochs.
        epoch = min(int(argument["epoch"]), self._own_epoch() + EPOCH_LEAP_MAX)
        told = await self.engine.clear(max(epoch, self._own_epoch()))
        return self._here() | {"names_invalidated": told}

    async def _reset(self, _: Result) -> Result:
        self.reset()
        return self._here()

    async def _statistics(self, _: Result) -> Result:
        document = self.document()
        total = {key: document[key] for key in SUMMED} | {"takeovers": self.takeovers.of_a_sum()}
        result = self._here() | {"total": total}
        if self._count() <= NODES_SHOWN_MAX:
            result["by_node"] = [self._member(self.engine.node.me) | total]
        return result

    async def _scrub(self, argument: Result) -> Result:
        return self._here() | self.scrubbing.begin(max(0, int(argument["rate"])))

    async def _scrub_state(self, _: Result) -> Result:
        return self._here() | self.scrubbing.state()

    async def _ring(self, _: Result) -> Result:
        held = {"number": self.engine.node.me} | self.ownership.held_here()
        return self._here() | {"held": [held]}

    async def _tree(self, _: Result) -> Result:
        membership, peers = self.engine.node.membership, self.engine.peers
        here = self._here()
        if (takeovers := self.takeovers.of_a_node()) is not None:
            here["takeovers"] = [{"node": self.engine.node.me} | takeovers]
        if membership is None or peers is None:
            return here
        parents = list(membership.parents)
        found = await peers.round_trips({each for each in parents if each is not None})
        shown = [
            None
            if each is None
            else {
                "parent": each,
                "connected": each in peers.session.connected,
                "rtt_us": _us(found[each]),
            }
            for each in parents
        ]
        return here | {
            "links": [{"number": self.engine.node.me, "parents": shown}],
            "suspects": [
                {"number": each, "by": self.engine.node.me} for each in membership.suspects()
            ],
        }

    def _here(self) -> Result:
        return {"answered": [self.engine.node.me]}

    def _own_epoch(self) -> int:
        return self.engine.node.epoch


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
