"""Fetch: the work of obtaining one subject, with all that is known of it.

A fetch has *waiters*, the requests that wait for its outcome, and *attempts*, its own requests to
peers that have no complete reply yet.

The *phase* of a fetch (``phases.py``) says what it waits for, and only ``move`` changes it. Five
values hold the rest: ``Timers`` the times of its events, ``Route`` the last route, ``AskPlan`` how
it asks for a chunk, ``Received`` the parts so far, and ``Witnesses`` the nodes that have seen an
error. They are replaced and never changed. A fact that holds from some time on is kept as that
time.

``INVARIANTS`` says what is true of a fetch in each phase, between two steps of the node.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from copperfs.model.types import BlobId, FetchId, NodeId
from copperfs.node.cache.error_cache import WITNESSES_ENOUGH
from copperfs.node.events import NodeRequest
from copperfs.node.fetch.phases import Phase, Trigger, after
from copperfs.node.limits_and_counters import FetchKind, Subject
from copperfs.node.peer.flow_control import OutgoingStream
from copperfs.node.peer.messages import ChunkAskMode
from copperfs.node.routing.route import SOURCE_ROUTE, Route


@dataclass(slots=True)
class Attempt:
    """A request to a peer that has no complete reply yet."""

    number: int
    parts_received: int = 0
    """For a listing; ``Fetch.received`` counts those of an object."""
    how: ChunkAskMode = ChunkAskMode.ANY
    """The mode of a request for a chunk."""


@dataclass(frozen=True, slots=True)
class Timers:
    began: float
    slow_at: float
    """When the time to answer ends for the asked peers."""
    fallback_at: float | None = None
    """When a delayed fallback queues."""
    silent_at: float | None = None
    """When the first peer of its route was found silent, or lost."""
    past_ask_deadline_at: float | None = None
    """When the fetch had waited for ``ask_deadline_s``."""
    pinged_next_at: float | None = None
    """When the fetch pinged the owners that it would ask next, which it does once."""
    asked_as_owner_at: float | None = None
    """When a peer first asked this node for a chunk of another owner, which the peer does not
    reach."""


@dataclass(frozen=True, slots=True)
class AskPlan:
    """How a fetch asks other nodes for a chunk."""

    hows: tuple[ChunkAskMode, ...] = (ChunkAskMode.ANY,)
    """The modes left to try: up the tree, then the owner."""
    redirected_to: NodeId | None = None
    """The owner has redirected the fetch to this peer."""

    @property
    def chunk_up_tree(self) -> bool:
        return self.hows[0] is ChunkAskMode.TREE

    @property
    def of_owner(self) -> ChunkAskMode:
        return self.hows[-1]

    def without_tree(self) -> "AskPlan":
        return AskPlan(self.hows[-1:], self.redirected_to)

    def redirected(self, other: NodeId) -> "AskPlan":
        return AskPlan(self.hows, other)

    def directly(self) -> "AskPlan":
        """The owner must give the chunk itself."""
        return AskPlan((*self.hows[:-1], ChunkAskMode.DIRECT), self.redirected_to)

    def not_redirected(self) -> "AskPlan":
        """The peer that the owner named does not give the chunk, so the owner must."""
        return AskPlan((*self.hows[:-1], ChunkAskMode.DIRECT))


@dataclass(frozen=True, slots=True)
class CopySearch:
    """What a fetch knows of a chunk of which there are copies."""

    likely: tuple[NodeId, ...] = ()
    """Nodes that have said that they keep it."""
    tried: frozenset[NodeId] = frozenset()
    """Nodes that do not have it, or cannot give it."""
    over_at: float | None = None
    """When no node was left that could give it."""
    not_on_disk_at: float | None = None
    """When this node's disk did not have it."""

    @property
    def is_over(self) -> bool:
        return self.over_at is not None

    @property
    def disk_lacks_it(self) -> bool:
        return self.not_on_disk_at is not None

    def without(self, *peers: NodeId) -> "CopySearch":
        return replace(self, tried=self.tried.union(peers))


@dataclass(frozen=True, slots=True)
class Received:
    """Parts of an object."""

    blob: BlobId | None = None
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Witnesses:
    count: int = 0
    """The nodes above, and this node, if it has tried."""
    own_error: int = 0
    """0: this node has not tried, or succeeded."""

    def and_this_node(self, error: int) -> "Witnesses":
        count = self.count if self.own_error else min(self.count + 1, WITNESSES_ENOUGH)
        return Witnesses(count, error)

    def at_least(self, count: int) -> "Witnesses":
        return Witnesses(min(max(self.count, count), WITNESSES_ENOUGH), self.own_error)


@dataclass(slots=True, eq=False)
class Fetch:
    number: FetchId
    subject: Subject
    deadline: float
    waiters: list[NodeRequest]
    """The requests that wait for its outcome."""
    timers: Timers
    reserved_bytes: int = 0
    room: int = 0
    """The index of its room, a share of the memory (``FetchTable``)."""
    tree: int = 0
    phase: Phase = Phase.NEW
    plan: AskPlan = AskPlan()
    route: Route = SOURCE_ROUTE
    """The last one."""
    attempts: dict[NodeId, Attempt] = field(default_factory=dict)
    """Its outstanding requests, by the peer that has to reply."""
    skipped: set[NodeId] = field(default_factory=set)
    """Not asked again: peers that live, but did not answer in time, or refused."""
    copies: CopySearch = CopySearch()
    received: Received = Received()
    spoiled: int = 0
    witnesses: Witnesses = Witnesses()
    streams: list[tuple[NodeId, OutgoingStream]] = field(default_factory=list)
    """The peers that get parts as they arrive."""

    def move(self, trigger: Trigger) -> None:
        self.phase = after(self.phase, trigger)

    def check_invariants(self) -> None:
        for what, holds in INVARIANTS[self.phase]:
            assert holds(self), f"in {self.phase.name}: {what}: {self}"


Invariant = tuple[str, Callable[[Fetch], bool]]

_HAS_ATTEMPTS: Invariant = ("it has asked a peer", lambda fetch: bool(fetch.attempts))
_HAS_NO_ATTEMPTS: Invariant = ("it waits for no peer", lambda fetch: not fetch.attempts)
_IS_DELAYED: Invariant = ("a delay is set", lambda fetch: fetch.timers.fallback_at is not None)
_NO_TURN: Invariant = ("no delay is set", lambda fetch: fetch.timers.fallback_at is None)
_IS_CHUNK: Invariant = ("it is after a chunk", lambda fetch: fetch.subject[0] is FetchKind.CHUNK)
_OF_OTHERS: Invariant = (
    "others can have it",
    lambda fetch: fetch.subject[0] is not FetchKind.HANDLE,
)
_HAS_NO_ROOM: Invariant = ("it takes no memory", lambda fetch: not fetch.reserved_bytes)
_IS_NEVER: Invariant = ("no step ends so", lambda _: False)

INVARIANTS: dict[Phase, tuple[Invariant, ...]] = {
    Phase.NEW: (_IS_NEVER,),
    Phase.ASKING: (_OF_OTHERS, _HAS_ATTEMPTS, _NO_TURN),
    Phase.CONNECTING: (_OF_OTHERS, _NO_TURN),
    Phase.DOUBTING: (_OF_OTHERS, _NO_TURN),
    Phase.WAITING: (_OF_OTHERS, _NO_TURN),
    Phase.ASKING_COPIES: (_IS_CHUNK, _NO_TURN),
    Phase.FALLBACK_DELAYED: (_OF_OTHERS, _IS_DELAYED),
    Phase.FALLBACK_QUEUED: (_OF_OTHERS, _NO_TURN),
    Phase.FALLBACK_READING_DISK: (_IS_CHUNK, _NO_TURN),
    Phase.FALLBACK_READING_SOURCE: (_OF_OTHERS, _NO_TURN),
    Phase.READING_DISK: (_IS_CHUNK, _NO_TURN),
    Phase.WAITING_FOR_DISK: (_IS_CHUNK, _NO_TURN, _HAS_NO_ROOM),
    Phase.READING_SOURCE: (_NO_TURN,),
    Phase.DONE: (_HAS_NO_ATTEMPTS,),
}
