"""Application of a node: the processes of one node that carry out a workload, with the kernel and
the front between them and the daemon.

An answer of the node stays in the front's tables or in the kernel, and so does what the node
*publishes*. All processes of a node want the same in the same order, and the front keeps one
request pending for all. They advance together, and are one application here, which costs one entry
on the clock for each wait.

A file that is too large to hold is read from the source as far as it is touched, or chunk by chunk
through the data tier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from copperfs.lab.sim.costs import NodeCosts
from copperfs.lab.sim.host import Answered, ChunkGiven, Host
from copperfs.lab.sim.sim_source import SimulatedSource
from copperfs.lab.sim.workload import NAME, Want, Workload
from copperfs.model.types import ChunkKey, Path, join
from copperfs.node.actions import AnswerError, AnswerHandle, ListingKey, ObjectKey
from copperfs.node.events import LookupRequest, ReadRequest
from copperfs.node.requests.chunk_layout import ChunkLayout


class ApplicationFailed(AssertionError):
    """An application got an error."""


@dataclass(slots=True, repr=False)
class ApplicationPlan:
    workload: Workload
    source: SimulatedSource
    node_costs: NodeCosts
    number_of: dict[Path, int] = field(default_factory=dict)
    number_of_listing: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, want in enumerate(self.workload.wants):
            if want.size == NAME:
                continue  # it is not published
            numbers = self.number_of_listing if want.size is None else self.number_of
            numbers[want.path] = number

    def number(self, key: ListingKey | ObjectKey) -> int | None:
        numbers = self.number_of if isinstance(key, ObjectKey) else self.number_of_listing
        return numbers.get(key.path)


@dataclass(slots=True, eq=False, repr=False)
class NodeApplication:
    host: Host
    plan: ApplicationPlan
    order: Sequence[int] | None
    ended: Callable[["NodeApplication"], None]
    began_at: float = 0.0
    ended_at: float | None = None
    misses: int = 0
    _there: bytearray = field(init=False)
    """Whether the node's processes have each want."""
    _think_s: float = field(init=False)
    _next: int = 0

    def __post_init__(self) -> None:
        wants = self.plan.workload.wants
        self._there = bytearray(len(wants))
        count = len(wants) if self.order is None else len(self.order)
        self._think_s = self.plan.workload.compute_s / max(1, count)
        self.host.front = self

    def start(self) -> None:
        self.began_at, self.ended_at, self._next = self.host.clock.now, None, 0
        self._go_on()

    def mark(self, path: Path) -> None:
        """The node was pushed this file, which is in the front's tables from then on."""
        self._there[self.plan.number_of[path]] = True

    # --- publications ----------------------------------------------------------------------------

    def publish(self, key: ListingKey | ObjectKey) -> None:
        number = self.plan.number(key)
        if number is not None:
            self._there[number] = True

    def forget(self, key: ListingKey | ObjectKey | ChunkKey) -> None:
        if not isinstance(key, ChunkKey):
            number = self.plan.number(key)
            if number is not None:
                self._there[number] = False

    # --- steps -----------------------------------------------------------------------------------

    def _number(self, at: int) -> int:
        return at if self.order is None else self.order[at]

    def _go_on(self) -> None:
        end = len(self._there) if self.order is None else len(self.order)
        at, there = self._next, self._there
        while at < end and there[self._number(at)]:
            at += 1
        passed, self._next = at - self._next, at
        if passed:
            # It may be there by then, and more with it.
            self.host.process.after(passed * self._think_s, self._go_on)
        elif at == end:
            self.ended_at = self.host.clock.now
            self.ended(self)
        else:
            self.misses += 1
            costs = self.plan.node_costs
            begun = self.host.port.compute(costs.miss_cpu_s)
            wait_s = begun - self.host.clock.now + costs.miss_s - costs.miss_cpu_s
            self.host.process.after(wait_s, self._ask, self.plan.workload.wants[self._number(at)])

    def _ask(self, want: Want) -> None:
        if want.size == NAME:
            self.host.ask(lambda request: LookupRequest(request, want.path), self._answered)
        elif want.size is None:
            self.host.ask(
                lambda request: LookupRequest(request, join(want.path, b"?")), self._answered
            )
        else:
            self._read(want, 0)

    def _read(self, want: Want, offset: int) -> None:
        entry = self.plan.source.entry(want.path)
        assert entry is not None
        version = entry.attributes.version
        self.host.ask(
            lambda request: ReadRequest(request, want.path, version, offset=offset), self._answered
        )

    def _answered(self, answer: Answered) -> None:
        """Take an answer, in the middle of the node's step; the application continues after it."""
        later, want = self.host.process.after, self.plan.workload.wants[self._number(self._next)]
        if isinstance(answer, AnswerError):
            raise ApplicationFailed(
                f"node {self.host.me} was told {answer.error} for {want.path!r}"
            )
        if isinstance(answer, AnswerHandle):
            size = round((want.size or 0) * self.plan.workload.touched)
            self.plan.source.stream(
                size, lambda: self.host.process.take(self._have, want), self.host.hands.times
            )
        elif isinstance(answer, ChunkGiven):
            later(self.plan.node_costs.byte_s * answer.chunk_bytes, self._chunk_read, want, answer)
        else:
            later(self.plan.node_costs.byte_s * max(0, want.size or 0), self._have, want)

    def _chunk_read(self, want: Want, chunk: ChunkGiven) -> None:
        """The touched chunks are spread evenly over the file."""
        assert want.size is not None
        step = max(1, round(1 / self.plan.workload.chunks))
        layout = ChunkLayout(want.size, chunk.chunk_bytes)
        following = chunk.key.index + step
        if following <= layout.last:
            self._read(want, layout.offset_of(following))
        else:
            self._have(want)

    def _have(self, want: Want) -> None:
        number = self._number(self._next)
        # A large file stays in the kernel's pages, small ones until they are evicted.
        self._there[number] = True
        self._go_on()
