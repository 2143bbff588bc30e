"""Warmup coordinator: plans, checks and pushes a working set, for ``copperfs warmup``.

The request comes in a file, because an ioctl has no room for thousands of paths. The daemon runs as
the requesting user, and only that user may request it. Planning lists directories over the tree, as
a reader would. Pushes and checks name files by directory, so that the list fits in a few messages,
and each node resolves it by its own listings.

A node holds the set if it needs neither the network nor the source for it: it has the listings of
the set, those on the way to it, and its files in the versions of these listings.
"""

import errno
import json
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import trio

from copperfs.daemon.collective_ops import Operation, Result, numbers_in, pack
from copperfs.daemon.engine import Engine
from copperfs.daemon.warmup_push import (
    Directories,
    Warmup,
    files_in,
    is_readable,
    list_directory,
    octets,
    path_of,
    text,
)
from copperfs.daemon.warmup_ring import RingState, RingWarmup
from copperfs.fuse.node_port import SourceError
from copperfs.model.errors import ControlError
from copperfs.model.listing import Listing
from copperfs.model.roster import Roster
from copperfs.model.types import ROOT, NodeId, Path, RequestId, Version, join, split
from copperfs.node.events import LookupRequest
from copperfs.node.peer.messages import PATH_BYTES_MAX
from copperfs.node.peer.push import Push
from copperfs.node.requests.path_policy import Place
from copperfs.node.state import OBJECT_OVERHEAD_BYTES

log = logging.getLogger(__name__)

# A collective carries 64 KiB, packed; some of it is left for other fields. The unpacked size is
# bounded as well, because similar names pack a thousandfold.
ARGUMENT_BYTES_MAX = 48 << 10
UNPACKED_BYTES_MAX = 4 << 20
LISTS_AT_ONCE = 16
CHECK_WITHIN_S = 30.0
# A push slower than these rates is abandoned.
BYTES_PER_SECOND_MIN = 1 << 20
FILES_PER_SECOND_MIN = 100
PUSH_WITHIN_MIN_S, PUSH_WITHIN_MAX_S = 60.0, 3600.0
NAMES_SHOWN_MAX = 16
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


@dataclass(slots=True)
class Part:
    """The wanted files of one directory."""

    names: set[bytes] | None
    """None means all of its files; its listing is wanted in any case."""
    files: int = 0
    bytes: int = 0
    listing_bytes: int = 0
    too_large: int = 0
    unreadable: int = 0
    unlisted: int = 0
    """Files whose version is not in the listing."""


@dataclass(slots=True)
class Plan:
    """The files of a set, by directory."""

    is_whole: Callable[[Path, Version], bool]
    """Whether a file is small enough to be pushed."""
    parts: dict[Path, Part] = field(default_factory=dict)
    apart: list[Path] = field(default_factory=list)
    """Directories on the way that are in no listing of the set."""
    missing: list[str] = field(default_factory=list)
    """Paths that do not exist, in the form for display."""
    unreadable: int = 0
    """Unreadable directories."""
    failed: int = 0

    def add(self, directory: Path, listing: Listing, names: set[bytes] | None) -> None:
        """Add these files of a directory to the set."""
        before = self.parts.get(directory)
        if before is not None:
            names = None if names is None or before.names is None else before.names | names
        part = self.parts[directory] = Part(names, listing_bytes=2 * len(listing.packed))
        for name, entry in listing.rows():
            if not entry.attributes.is_file() or (names is not None and name not in names):
                continue
            if listing.bare or entry.unknown:
                part.unlisted += 1
            elif not is_readable(entry.attributes):
                part.unreadable += 1
        shown = None if names is None else [text(name) for name in names]
        for path, version in files_in(directory, listing, shown):
            if not self.is_whole(path, version):
                part.too_large += 1
            else:
                part.files += 1
                part.bytes += version.size

    def sum_of(self, key: str) -> int:
        return sum(getattr(part, key) for part in self.parts.values())

    @property
    def room_bytes(self) -> int:
        files = self.sum_of("bytes") + self.sum_of("files") * OBJECT_OVERHEAD_BYTES
        return files + self.sum_of("listing_bytes")

    def directories(self) -> Directories:
        return {
            text(path): None if part.names is None else sorted(map(text, part.names))
            for path, part in self.parts.items()
        }


@dataclass(slots=True)
class WarmupState:
    """The progress of a warmup; ``copperfs warmup`` shows it while it waits."""

    number: int = 0
    """The number of this warmup, so that a client does not mistake the end of another for its
    own."""
    phase: str = "idle"
    """idle, planning, checking, pushing, done or failed"""
    objects: int = 0
    total_bytes: int = 0
    done_bytes: int = 0
    """The bytes that passed this node; the others are about as far."""
    too_large: int = 0
    unreadable: int = 0
    unlisted: int = 0
    missing: int = 0
    """Files of a manifest that no longer exist."""
    failed: int = 0
    roster: int = 1
    nodes: int = 0
    """How many nodes reported what they hold ..."""
    nodes_complete: int = 0
    """... and how many of them hold all of it."""
    lacking: list[str] = field(default_factory=list)
    """The names of some that do not, or did not report."""
    least_objects: int = 0
    """Each node that reported holds at least this many."""
    unread: list[str] = field(default_factory=list)
    """The names of roots whose push failed, or which could not be called."""
    error: str = ""


@dataclass(slots=True)
class WorkingSets:
    engine: Engine
    warmup: Warmup
    roster: Roster | None = None
    ring: RingWarmup = field(init=False)
    _state: WarmupState | RingState = field(default_factory=WarmupState)
    _pushes: list[Push] = field(default_factory=list)
    """The pushes of the running warmup."""
    _busy: bool = False

    def __post_init__(self) -> None:
        self.ring = RingWarmup(self.engine, self.roster)

    def operations(self) -> dict[str, Operation]:
        return {
            **self.ring.operations(),
            "push": self.warmup.push,
            "look": self._look,
            "room": self._room,
            "holds": self._holds,
        }

    async def start(self, nursery: trio.Nursery, request_file: str) -> Result:
        """Start what the file requests, or stop it; ``state`` shows the progress."""
        request = await trio.to_thread.run_sync(_read_request, request_file)
        if "stop" in request:
            if request["stop"] == self._state.number:
                self.ring.stop()
            return self.state()
        if self._busy:
            raise ControlError("a warm-up is under way already; wait for it")
        self._busy = True
        kind = RingState if request.get("ring") else WarmupState
        self._state = kind(self._state.number + 1, "planning", roster=self._nodes)
        self._pushes.clear()
        nursery.start_soon(self._run, request)
        return self.state()

    def state(self) -> Result:
        state = self._state
        if isinstance(state, RingState):
            self.ring.asked()
        elif self._pushes:
            state.done_bytes = min(state.total_bytes, sum(push.bytes for push in self._pushes))
        return asdict(state)

    @property
    def _nodes(self) -> int:
        return 1 if self.roster is None else len(self.roster)

    async def _run(self, request: dict[str, Any]) -> None:
        state = self._state
        try:
            if isinstance(state, RingState):
                await self.ring.run(state, request)
            else:
                await self._warm_up(state, request)
            state.phase = "done"
        except ControlError as error:
            state.phase, state.error = "failed", str(error)
        except Exception:
            log.exception("a bug: a warm-up failed")
            state.phase, state.error = "failed", "a bug of the daemon; its log has the traceback"
        finally:
            self._busy = False

    async def _warm_up(self, state: WarmupState, request: dict[str, Any]) -> None:
        plan = await self._plan(request)
        state.objects, state.total_bytes = plan.sum_of("files"), plan.sum_of("bytes")
        state.too_large, state.unlisted = plan.sum_of("too_large"), plan.sum_of("unlisted")
        state.unreadable = plan.unreadable + plan.sum_of("unreadable")
        state.missing, state.failed = len(plan.missing), plan.failed
        state.phase = "checking"
        held_bytes = await self._count_holders(state, plan)
        if request.get("check") or state.nodes_complete == self._nodes:
            return
        await self._check_room(plan, held_bytes, evict=bool(request.get("evict")))
        state.phase = "pushing"
        await self._push_all(state, plan)
        state.phase = "checking"
        for some in in_messages(dict.fromkeys(map(text, plan.apart))):
            await self.engine.call("look", {"paths": list(some)}, CHECK_WITHIN_S)
        await self._count_holders(state, plan)
        if state.nodes_complete == self._nodes:
            state.unread.clear()  # only its reply was lost

    # --- planning --------------------------------------------------------------------------------

    async def _plan(self, request: dict[str, Any]) -> Plan:
        """A named path that does not exist is an error; files of a manifest may be gone."""
        plan = Plan(self.engine.node.is_whole)
        limiter = trio.CapacityLimiter(LISTS_AT_ONCE)
        await self._plan_files(plan, request["paths"], limiter, below=True)
        if plan.missing:
            shown = ", ".join(plan.missing[:3])
            raise ControlError(f"not a file or directory there: {shown}; nothing was warmed up")
        await self._plan_files(plan, request.get("files", []), limiter, below=False)
        async with trio.open_nursery() as nursery:
            for shown in request.get("listings", []):
                nursery.start_soon(self._plan_listing, plan, _path(shown), limiter)
        if not plan.parts and plan.missing:
            raise ControlError("nothing of what the manifest names is there any more")
        await self._plan_way(plan, limiter)
        return plan

    async def _plan_files(
        self, plan: Plan, paths: list[str], limiter: trio.CapacityLimiter, *, below: bool
    ) -> None:
        by_directory: dict[Path, set[bytes]] = {}
        for path in map(_path, paths):
            directory, name = split(path)
            if path == ROOT and below:
                await self._plan_below(plan, ROOT, limiter)
            else:
                by_directory.setdefault(directory, set()).add(name)
        async with trio.open_nursery() as nursery:
            for directory, names in by_directory.items():
                nursery.start_soon(self._plan_names, plan, directory, names, limiter, below)

    async def _plan_names(
        self,
        plan: Plan,
        directory: Path,
        names: set[bytes],
        limiter: trio.CapacityLimiter,
        below: bool,
    ) -> None:
        """Some names of one directory; with *below* a subdirectory is taken with its whole
        subtree."""
        listing = await self._list(plan, directory, limiter)
        files = set()
        for name in names:
            entry = None if listing is None else listing.find(name)
            if entry is not None and entry.attributes.is_file():
                files.add(name)
            elif entry is not None and entry.attributes.is_directory() and below:
                await self._plan_below(plan, join(directory, name), limiter)
            else:
                plan.missing.append(join(directory, name).decode("utf-8", "backslashreplace"))
        if listing is not None and files and self._is_shared(directory):
            plan.add(directory, listing, files)

    async def _plan_below(self, plan: Plan, top: Path, limiter: trio.CapacityLimiter) -> None:
        async def visit(directory: Path) -> None:
            listing = await self._list(plan, directory, limiter)
            if listing is None:
                return
            if self._is_shared(directory):
                plan.add(directory, listing, None)
            for name, entry in listing.rows():
                if entry.attributes.is_directory():
                    nursery.start_soon(visit, join(directory, name))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(visit, top)

    async def _plan_listing(
        self, plan: Plan, directory: Path, limiter: trio.CapacityLimiter
    ) -> None:
        if not self._is_shared(directory):
            return
        listing = await self._list(plan, directory, limiter)
        if listing is not None:
            plan.add(directory, listing, set())

    async def _plan_way(self, plan: Plan, limiter: trio.CapacityLimiter) -> None:
        """A lookup of a path needs each name on the way: from the parent's listing, or by its own
        lookup where no listing is available."""
        way = set(plan.parts)
        for directory in plan.parts:
            while directory:
                directory, _ = split(directory)
                way.add(directory)
        async with trio.open_nursery() as nursery:
            for directory in way - set(plan.parts):
                if self._is_shared(directory):
                    nursery.start_soon(self._plan_on_the_way, plan, directory, limiter)
        apart = (path for path in way if not path or split(path)[0] not in plan.parts)
        plan.apart = sorted(path for path in apart if self._is_shared(path))

    async def _plan_on_the_way(
        self, plan: Plan, directory: Path, limiter: trio.CapacityLimiter
    ) -> None:
        try:
            async with limiter:
                listing = await list_directory(self.engine, directory)
        except SourceError:
            return  # the directory permits lookups only
        plan.add(directory, listing, set())

    async def _list(
        self, plan: Plan, directory: Path, limiter: trio.CapacityLimiter
    ) -> Listing | None:
        if len(directory) > PATH_BYTES_MAX or self._is_refused(directory):
            return None
        try:
            async with limiter:
                return await list_directory(self.engine, directory)
        except SourceError as error:
            plan.unreadable += error.errno in _FORBIDDEN
            plan.failed += error.errno not in (*_FORBIDDEN, *_NOT_THERE)
            return None

    def _is_shared(self, path: Path) -> bool:
        return self.engine.node.policy.place(path) is Place.SHARED

    def _is_refused(self, path: Path) -> bool:
        return self.engine.node.policy.place(path) is Place.REFUSED

    # --- pushing ---------------------------------------------------------------------------------

    async def _check_room(self, plan: Plan, held_bytes: int, *, evict: bool) -> None:
        room = await self.engine.call("room", {}, CHECK_WITHIN_S)
        # A node that already holds much of the set has little room left. If another node holds the
        # least, this check asks for too much; --evict is in order then anyway.
        needed = plan.room_bytes if evict else plan.room_bytes - held_bytes
        free = room.get("min_budget_bytes" if evict else "min_free_bytes")
        if free is None:
            raise ControlError("no node said how much room it has; try again")
        if needed > free:
            advice = "give the mount a larger --memory, or warm up less"
            if not evict and plan.room_bytes <= room["min_budget_bytes"]:
                advice = "give --evict to let older things go, or the mount a larger --memory"
            raise ControlError(
                f"the set takes {_mib(needed)}, and a node has room for {_mib(free)}; {advice}"
            )

    async def _push_all(self, state: WarmupState, plan: Plan) -> None:
        within_s = PUSH_WITHIN_MIN_S + state.total_bytes / BYTES_PER_SECOND_MIN
        within_s += state.objects / FILES_PER_SECOND_MIN
        until = trio.current_time() + min(PUSH_WITHIN_MAX_S, within_s)
        trees = self.engine.node.trees
        directories = plan.directories()
        async with trio.open_nursery() as nursery:
            for tree in range(1 if trees is None else trees.count):
                mine = {
                    shown: names
                    for shown, names in directories.items()
                    if trees is None or trees.tree_of(Path(octets(shown))) == tree
                }
                nursery.start_soon(self._push_tree, state, tree, mine, until)

    async def _push_tree(
        self, state: WarmupState, tree: int, directories: Directories, until: float
    ) -> None:
        for some in in_messages(directories):
            left = until - trio.current_time()
            if left <= 0:
                return  # what is held is counted later
            number = random.getrandbits(62)
            self._pushes.append(self.warmup.watch(number))
            argument = {"push": number, "tree": tree, "directories": some}
            done = await self.engine.call("push", argument, left)
            state.failed += done.get("failed", 0)
            if not done.get("read"):
                # The remaining messages would fail in the same way.
                trees = self.engine.node.trees
                state.unread.append(self._name(NodeId(0) if trees is None else trees.root(tree)))
                return

    async def _count_holders(self, state: WarmupState, plan: Plan) -> int:
        """Ask all nodes what they hold of the set; returns the bytes that each holds at least."""
        answered, complete = set(range(self._nodes)), set(range(self._nodes))
        least_objects = least_bytes = 0
        for some in in_messages(plan.directories()):
            held = await self.engine.call("holds", {"directories": some}, CHECK_WITHIN_S)
            answered.intersection_update(numbers_in(held, "answered"))
            complete.difference_update(numbers_in(held, "lacking"))
            least_objects += held.get("min_objects", 0)
            least_bytes += held.get("min_bytes", 0)
        complete &= answered
        state.nodes, state.nodes_complete = len(answered), len(complete)
        state.least_objects = least_objects
        lacking = sorted(set(range(self._nodes)) - complete)
        state.lacking = [self._name(NodeId(each)) for each in lacking[:NAMES_SHOWN_MAX]]
        return least_bytes

    def _name(self, number: NodeId) -> str:
        return "this node" if self.roster is None else self.roster.member(number).name

    # --- on each node ----------------------------------------------------------------------------

    async def _room(self, _: Result) -> Result:
        stats = self.engine.node.statistics()
        free = stats.budget_bytes - stats.held_bytes - stats.reserved_bytes
        budget = stats.budget_bytes - self.engine.node.limits.credit_bytes
        return {"min_free_bytes": max(0, free), "min_budget_bytes": budget}

    async def _look(self, argument: Result) -> Result:
        """Look these paths up, so that this node has their entries."""
        for path in map(_path, argument["paths"]):
            try:
                await self.engine.ask(partial(_lookup_of, path), _nothing)
            except SourceError:
                continue
        return {}

    async def _holds(self, argument: Result) -> Result:
        """What this node holds of these directories, in the versions of its own listings."""
        node = self.engine.node
        lacks, objects, held_bytes = False, 0, 0
        for shown, names in argument["directories"].items():
            directory = path_of(shown)
            found = node.held_listing(directory)
            if found is None:
                lacks = True
                continue
            held_bytes += 2 * len(found[0].packed)
            for path, version in files_in(directory, found[0], names):
                if not node.is_whole(path, version):
                    continue
                if node.holds(path, version):
                    objects += 1
                    held_bytes += version.size + OBJECT_OVERHEAD_BYTES
                else:
                    lacks = True
        me = 0 if node.trees is None else int(node.trees.me)
        return {
            "answered": [me],
            "lacking": [me] if lacks else [],
            "min_objects": objects,
            "min_bytes": held_bytes,
        }


def in_messages(directories: Directories) -> Iterator[Directories]:
    """Split *directories* into pieces that fit into a collective."""
    if not directories:
        return
    unpacked = len(json.dumps(directories))
    if unpacked <= UNPACKED_BYTES_MAX and len(pack(directories)) <= ARGUMENT_BYTES_MAX:
        yield directories
        return
    items = list(directories.items())
    if len(items) > 1:
        half = len(items) // 2
        yield from in_messages(dict(items[:half]))
        yield from in_messages(dict(items[half:]))
        return
    (directory, names) = items[0]
    assert names is not None, "one directory alone always fits"
    half = len(names) // 2
    yield from in_messages({directory: names[:half]})
    yield from in_messages({directory: names[half:]})


def _read_request(file: str) -> dict[str, Any]:
    try:
        with open(file, encoding="ascii") as opened:
            request = json.load(opened)
        for key in ("paths", "files", "listings"):
            if not all(isinstance(path, str) for path in request.get(key, [])):
                raise TypeError("paths are strings")
        for path in request.get("listings", []):
            _path(path)
        request["paths"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ControlError(f"the request {file} cannot be read: {error}") from None
    assert isinstance(request, dict)
    return request


def _path(shown: str) -> Path:
    return path_of(shown.strip("/"))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _lookup_of(path: Path, request: RequestId) -> LookupRequest:
    return LookupRequest(request, path)


def _nothing(*_: object) -> None:
    """Ignores the content of a reply."""
