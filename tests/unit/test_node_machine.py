"""Node against a simulated source: events come in any order at any time, and every answer is right.

The source ends fetches in any order, fails at will, and delivers after all requests have timed out.
It shows the tree as it was when the fetch began.
"""

import errno
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from copperfs.model.listing import Listing, pack_listing
from copperfs.model.types import (
    BlobId,
    ChunkKey,
    Entry,
    FetchId,
    HandleId,
    Path,
    PeerRequest,
    RequestId,
    split,
)
from copperfs.node.actions import (
    Answer,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    CacheKey,
    ListingKey,
    ListSource,
    LogEvent,
    LookupSource,
    ObjectKey,
    OpenForBypass,
    ReadChunk,
    ReadSource,
    SourceAction,
)
from copperfs.node.events import (
    Clear,
    Event,
    Failed,
    FrontListed,
    FrontRead,
    ListRequest,
    LookupRequest,
    NodeRequest,
    ReadRequest,
    SourceListed,
    SourceLookedUp,
    SourceOpened,
    SourceRead,
    Tick,
    Used,
)
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.requests.path_policy import Policy
from tests.unit.node_lab import DEADLINE_S, directory, file
from tests.unit.ports_lab import NoPorts

BIG, SEARCH_ONLY, MOUNT = Path(b"big"), Path(b"search"), Path(b"mnt")
SIZES = {b"empty": 0, b"small": 10, b"middle": 700, b"large": 2000}
DIRECTORIES = [Path(b""), Path(b"d"), BIG, SEARCH_ONLY]
NAMES = [b"empty", b"small", b"middle", b"large", b"sometimes"]
PATHS = [
    *DIRECTORIES,
    MOUNT,
    Path(b"mnt/small"),
    *(Path(b"/".join((each, name))) for each in (Path(b"d"), BIG) for name in NAMES),
    Path(b"search/small"),
    Path(b"search/never"),
]
FILES = [path for path in PATHS if split(path)[1] in SIZES]


@dataclass(frozen=True)
class Tree:
    """*turn* changes the versions, and makes a name come and go."""

    turn: int = 0

    def entry(self, path: Path) -> Entry | None:
        if path in (*DIRECTORIES, MOUNT):
            return directory()
        _, name = split(path)
        if name in SIZES:
            return file(SIZES[name], changed_s=self.turn)
        return file(changed_s=self.turn) if name == b"sometimes" and self.turn % 2 else None

    def listing(self, path: Path) -> Listing:
        names = [*DIRECTORIES[1:], MOUNT] if not path else NAMES
        below = [(name, self.entry(Path(path + b"/" + name if path else name))) for name in names]
        rows = [(name, each) for name, each in below if each is not None]
        return pack_listing(rows, bare=path == BIG)


@dataclass(frozen=True)
class Began:
    fetch: SourceAction
    tree: Tree


class Surroundings(NoPorts):
    def __init__(self, machine: "NodeMachine") -> None:
        self.machine = machine

    def now(self) -> float:
        return self.machine.now

    def start(self, fetch: SourceAction, names_to_find: tuple[bytes, ...]) -> None:
        assert fetch.fetch not in self.machine.began
        self.machine.began[fetch.fetch] = Began(fetch, self.machine.tree)

    def close_handle(self, handle: HandleId) -> None:
        del self.machine.handles[handle]

    def release(self, blob: BlobId) -> None:
        del self.machine.blobs[blob]

    def withdraw(self, key: ListingKey | ObjectKey | ChunkKey) -> None:
        assert not isinstance(key, ChunkKey), "it has no data tier"
        self.machine.published.discard(key)

    def look_again(self, path: Path) -> None: ...
    def begin_epoch(self, epoch: int) -> None: ...
    def note(self, happened: LogEvent) -> None: ...

    def answer(self, request: RequestId, answer: AnswerEntry | AnswerListing) -> None:
        self._answered(answer)

    def answer_object(self, answer: AnswerObject, content: object) -> None:
        self._answered(answer)

    def answer_handle(self, answer: AnswerHandle) -> None:
        self._answered(answer)

    def answer_error(self, request: RequestId, error: int) -> None:
        self._answered(AnswerError(request, error))

    def _answered(self, answer: Answer) -> None:
        self.machine.check(self.machine.asked.pop(answer.request), answer)


class NodeMachine(RuleBasedStateMachine):
    @initialize(
        memory=st.sampled_from([0, 600, 1500, 3000, 6000, 100_000]),
        tree_max=st.sampled_from([0, 10, 1000, 10_000]),
        revalidate_s=st.sampled_from([None, 0.0, 3.0]),
        credit=st.booleans(),
    )
    def begin(self, memory: int, tree_max: int, revalidate_s: float | None, credit: bool) -> None:
        policy = Policy(
            source=b"/src",
            mountpoint=b"/src/mnt",
            refused=frozenset({MOUNT}),
            revalidate_s=revalidate_s,
        )
        self.node = Node(policy, Limits(memory, tree_max, None, DEADLINE_S, memory // 4 * credit))
        self.driver = Surroundings(self).drive(self.node)
        self.now = 0.0
        self.number = 0
        self.tree = Tree()
        self.began: dict[FetchId, Began] = {}
        self.asked: dict[RequestId, NodeRequest] = {}
        self.blobs: dict[BlobId, ReadSource] = {}
        self.handles: dict[HandleId, OpenForBypass] = {}
        self.published: set[CacheKey] = set()

    # --- events ----------------------------------------------------------------------------------

    @rule(path=st.sampled_from(PATHS))
    def look(self, path: Path) -> None:
        self.ask(LookupRequest(RequestId(self.next()), path))

    @rule(path=st.sampled_from(DIRECTORIES))
    def list_names(self, path: Path) -> None:
        self.ask(ListRequest(RequestId(self.next()), path))

    @rule(path=st.sampled_from(FILES), turns_ago=st.integers(0, 1))
    def read(self, path: Path, turns_ago: int) -> None:
        entry = Tree(max(0, self.tree.turn - turns_ago)).entry(path)
        assert entry is not None
        self.ask(ReadRequest(RequestId(self.next()), path, entry.attributes.version))

    @rule(path=st.sampled_from(FILES))
    def the_front_reads_on_credit(self, path: Path) -> None:
        entry = self.tree.entry(path)
        assert entry is not None
        version = entry.attributes.version
        if version.size <= self.node.limits.allowance_bytes:
            blob = BlobId(self.next())
            self.blobs[blob] = ReadSource(FetchId(0), path, version)
            self.happen(FrontRead(path, version, blob))

    @rule(path=st.sampled_from(DIRECTORIES), epochs_ago=st.integers(0, 1))
    def the_front_lists_on_credit(self, path: Path, epochs_ago: int) -> None:
        if not self.node.limits.allowance_bytes:
            return
        tree = Tree(max(0, self.tree.turn - epochs_ago))
        epoch = self.node.statistics().epoch - epochs_ago
        held_before = set(self.node.held())
        self.happen(FrontListed(path, tree.listing(path), epoch))
        if epochs_ago:
            assert set(self.node.held()) == held_before
        elif self.is_cached(path):
            self.published.add(ListingKey(path))

    def is_cached(self, path: Path) -> bool:
        return ListingKey(path) in {key for key, _ in self.node.held()}

    @precondition(lambda self: self.began)
    @rule(data=st.data())
    def end_a_fetch(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.began))))

    @precondition(lambda self: self.began)
    @rule(data=st.data(), error=st.sampled_from([errno.EIO, errno.EACCES, errno.ESTALE]))
    def fail_a_fetch(self, data: st.DataObject, error: int) -> None:
        fetch = data.draw(st.sampled_from(sorted(self.began)))
        del self.began[fetch]
        self.happen(Failed(fetch, error))

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, DEADLINE_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.happen(Tick())
        deadline = self.node.deadline()
        assert deadline is None or deadline > self.now

    @rule()
    def the_tree_changes_and_is_cleared(self) -> None:
        self.tree = Tree(self.tree.turn + 1)
        self.happen(Clear())

    @rule(data=st.data())
    def something_is_used(self, data: st.DataObject) -> None:
        known: list[CacheKey] = [ListingKey(Path(b"d")), ListingKey(Path(b"unknown"))]
        known += [key for key, _ in self.node.held()]
        keys = data.draw(st.lists(st.sampled_from(known)))
        self.happen(Used(tuple(keys)))

    # --- invariants ------------------------------------------------------------------------------

    @invariant()
    def the_node_is_sound(self) -> None:
        if hasattr(self, "node"):
            self.node.check_invariants()

    @invariant()
    def every_blob_is_held_or_was_released(self) -> None:
        if hasattr(self, "node"):
            held = {key for key, _ in self.node.held() if isinstance(key, ObjectKey)}
            assert {ObjectKey(r.path, r.version) for r in self.blobs.values()} == held
            assert len(self.blobs) == len(held)

    @invariant()
    def what_is_published_is_held(self) -> None:
        if hasattr(self, "node"):
            assert self.published <= {key for key, _ in self.node.held()}

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        while self.began:
            self.end(min(self.began))
        assert not self.asked
        assert not self.handles
        assert self.node.deadline() is None
        self.happen(Clear())
        assert not self.blobs
        assert self.node.statistics().held_bytes == 0
        assert self.node.statistics().reserved_bytes == self.node.limits.allowance_bytes

    # --- the source ------------------------------------------------------------------------------

    def end(self, number: FetchId) -> None:
        began = self.began.pop(number)
        self.happen(self.outcome(began.fetch, began.tree))

    def outcome(self, fetch: SourceAction, tree: Tree) -> Event:
        match fetch:
            case ListSource(number, path) if path == SEARCH_ONLY:
                return Failed(number, errno.EACCES)
            case ListSource(number, path):
                return SourceListed(number, tree.listing(path))
            case LookupSource(number, path):
                return SourceLookedUp(number, tree.entry(path))
            case ReadSource(number, path, version) | OpenForBypass(number, path, version):
                entry = tree.entry(path)
                if entry is None or entry.attributes.version != version:
                    return Failed(number, errno.ESTALE)
                if isinstance(fetch, ReadSource):
                    blob = BlobId(self.next())
                    self.blobs[blob] = fetch
                    return SourceRead(number, blob)
                handle = HandleId(self.next())
                self.handles[handle] = fetch
                return SourceOpened(number, handle)
            case ReadChunk():
                raise AssertionError("it has no data tier")

    # --- driving ---------------------------------------------------------------------------------

    def next(self) -> int:
        self.number += 1
        return self.number

    def ask(self, request: NodeRequest) -> None:
        assert not isinstance(request.request, PeerRequest)
        self.asked[request.request] = request
        self.happen(request)

    def happen(self, event: Event) -> None:
        self.driver.post(event)

    def check(self, request: NodeRequest, answer: Answer) -> None:
        path = request.path
        match request, answer:
            case _, AnswerError(_, error):
                assert error in self.errors(request)
            case LookupRequest(), AnswerEntry(_, entry, fresh_until):
                assert entry == self.tree.entry(path)
                assert fresh_until is None or fresh_until >= self.now
            case LookupRequest(), AnswerListing(_, above, listing, _):
                assert above == split(path)[0]
                self.check_listing(above, listing)
                expected = self.tree.entry(path)
                assert listing.find(split(path)[1]) == expected
                assert expected is None or not listing.bare
            case ListRequest(), AnswerListing(_, above, listing, _):
                assert above == path
                self.check_listing(above, listing)
            case ReadRequest(_, _, version), AnswerObject(_, key, blob):
                assert key == ObjectKey(path, version)
                assert (self.blobs[blob].path, self.blobs[blob].version) == (path, version)
                self.published.add(key)
            case ReadRequest(_, _, version), AnswerHandle(_, handle):
                opened = self.handles.pop(handle)
                assert (opened.path, opened.version) == (path, version)
            case _:
                raise AssertionError(f"{answer} is no answer to {request}")

    def check_listing(self, path: Path, listing: Listing) -> None:
        assert listing == self.tree.listing(path)
        self.published.add(ListingKey(path))

    @staticmethod
    def errors(request: NodeRequest) -> set[int]:
        if request.path.startswith(b"mnt/"):
            return {errno.ELOOP}
        return {errno.EIO, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT}


NodeMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestNode = NodeMachine.TestCase
