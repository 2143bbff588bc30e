"""Warmup coordinator: starts warm-ups for ``copperfs warmup``; plans, checks and pushes a working
set.

The request comes in a file, because an ioctl has no room for thousands of paths. Only the daemon's
user may request a warm-up. Pushes and checks name files by directory, and each node resolves them
by its own listings.

A node holds the set if it has the listings of the set, those on the way to it, and its files in the
versions of these listings.
"""

import errno
import json
import logging
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import trio

from copperfs.daemon.collective_ops import Operation, Result, numbers_in
from copperfs.daemon.engine import Engine
from copperfs.daemon.warmup_checks import WarmupChecks
from copperfs.daemon.warmup_fill_all import RingWarmup
from copperfs.daemon.warmup_progress import Members, PushState, RingState
from copperfs.daemon.warmup_push import PushWarmup
from copperfs.daemon.warmup_walk import (
    LISTS_AT_ONCE,
    DatasetWalk,
    Directories,
    Wanted,
    by_directory,
    directories_above,
    files_in,
    in_messages,
    left_out,
    list_directory,
    octets,
    path_of,
    text,
    where_to_walk,
)
from copperfs.fuse.node_port import SourceError
from copperfs.model.errors import ControlError
from copperfs.model.listing import Listing
from copperfs.model.types import NodeId, Path, Version, join, split
from copperfs.node.limits_and_counters import OBJECT_OVERHEAD_BYTES
from copperfs.node.peer.push_receiver import Push
from copperfs.node.requests.path_policy import Place

log = logging.getLogger(__name__)

CHECK_WITHIN_S = 30.0
# A push slower than these rates is abandoned.
BYTES_PER_SECOND_MIN = 1 << 20
FILES_PER_SECOND_MIN = 100
PUSH_WITHIN_MIN_S, PUSH_WITHIN_MAX_S = 60.0, 3600.0
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


@dataclass(slots=True)
class Part:
    names: set[bytes] | None
    """None means all files; the listing is wanted in any case."""
    files: int = 0
    bytes: int = 0
    listing_bytes: int = 0
    too_large: int = 0
    unreadable: int = 0
    unlisted: int = 0
    """Files whose version is not in the listing."""


@dataclass(slots=True)
class Plan:
    is_whole: Callable[[Path, Version], bool]
    """Whether a file is small enough to be pushed."""
    parts: dict[Path, Part] = field(default_factory=dict)
    apart: list[Path] = field(default_factory=list)
    """Directories on the way that are in no listing of the set."""
    missing: int = 0
    """Files of a manifest that do not exist."""
    unreadable: int = 0
    failed: int = 0

    def add(self, directory: Path, listing: Listing, names: set[bytes] | None) -> None:
        before = self.parts.get(directory)
        if before is not None:
            names = None if names is None or before.names is None else before.names | names
        part = self.parts[directory] = Part(names, listing_bytes=2 * len(listing.packed))
        part.unlisted, part.unreadable = left_out(listing, names)
        for path, version in files_in(directory, listing, names):
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
class WarmupCoordinator:
    engine: Engine
    warmup: PushWarmup
    members: Members
    ring: RingWarmup = field(init=False)
    _state: PushState | RingState = field(default_factory=PushState)
    _pushes: list[Push] = field(default_factory=list)
    _busy: bool = False

    def __post_init__(self) -> None:
        self.ring = RingWarmup(self.engine, self.members)

    def operations(self) -> dict[str, Operation]:
        return {
            **self.ring.operations(),
            "push": self.warmup.push,
            **WarmupChecks(self.engine).operations(),
        }

    async def start(self, nursery: trio.Nursery, request_file: str) -> Result:
        """Start what the file requests, or stop it."""
        request = await trio.to_thread.run_sync(_read_request, request_file)
        if "stop" in request:
            if request["stop"] == self._state.number:
                self.ring.stop()
            return self.state()
        if self._busy:
            raise ControlError("a warm-up is under way already; wait for it")
        self._busy = True
        kind = RingState if request.get("ring") else PushState
        self._state = kind(self._state.number + 1, "planning", roster=len(self.members))
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

    async def _run(self, request: dict[str, Any]) -> None:
        state = self._state
        try:
            check = partial(self._check_there, [*map(_path, request["paths"])])
            if isinstance(state, RingState):
                await self.ring.run(state, request, check)
            else:
                await check()
                await self._warm_up(state, request)
            state.phase = "done"
        except ControlError as error:
            state.phase, state.error = "failed", str(error)
        except Exception:
            log.exception("a bug: a warm-up failed")
            state.phase, state.error = "failed", "a bug of the daemon; its log has the traceback"
        finally:
            self._busy = False

    async def _warm_up(self, state: PushState, request: dict[str, Any]) -> None:
        plan = await self._plan(request)
        state.objects, state.total_bytes = plan.sum_of("files"), plan.sum_of("bytes")
        state.too_large, state.unlisted = plan.sum_of("too_large"), plan.sum_of("unlisted")
        state.unreadable = plan.unreadable + plan.sum_of("unreadable")
        state.missing, state.failed = plan.missing, plan.failed
        state.phase = "checking"
        held_bytes = await self._count_holders(state, plan)
        if request.get("check") or state.nodes_complete == len(self.members):
            return
        await self._check_room(plan, held_bytes, evict=bool(request.get("evict")))
        state.phase = "pushing"
        await self._push_all(state, plan)
        state.phase = "checking"
        for some in in_messages(dict.fromkeys(map(text, plan.apart))):
            await self.engine.call("look", {"paths": list(some)}, CHECK_WITHIN_S)
        await self._count_holders(state, plan)
        if state.nodes_complete == len(self.members):
            state.unread.clear()  # only its reply was lost

    async def _check_there(self, paths: Iterable[Path]) -> None:
        """A path that was named has to exist; files of a manifest may be gone."""
        missing: list[str] = []
        limit = trio.CapacityLimiter(LISTS_AT_ONCE)

        async def check(directory: Path, names: Iterable[bytes]) -> None:
            listing = None
            async with limit:
                with suppress(SourceError):
                    listing = await list_directory(self.engine, directory)
            for name in names:
                entry = None if listing is None else listing.find(name)
                attributes = None if entry is None else entry.attributes
                if attributes is None or not (attributes.is_file() or attributes.is_directory()):
                    missing.append(join(directory, name).decode("utf-8", "backslashreplace"))

        async with trio.open_nursery() as nursery:
            for directory, names in by_directory(filter(None, paths)).items():
                nursery.start_soon(check, directory, names or ())
        if missing:
            shown = ", ".join(sorted(missing)[:3])
            raise ControlError(f"not a file or directory there: {shown}; nothing was warmed up")

    async def _plan(self, request: dict[str, Any]) -> Plan:
        plan = Plan(self.engine.node.is_whole)
        walk = DatasetWalk(self.engine)
        await self._add(plan, walk, where_to_walk([*map(_path, request["paths"])]))
        walk.below, walk.missing = False, 0
        await self._add(plan, walk, by_directory(map(_path, request.get("files", []))))
        plan.missing = walk.missing
        listings = filter(self._is_shared, map(_path, request.get("listings", [])))
        await self._add(plan, walk, {directory: set() for directory in listings})
        if not plan.parts and plan.missing:
            raise ControlError("nothing of what the manifest names is there any more")
        for error, count in walk.errors.items():
            plan.unreadable += count * (error in _FORBIDDEN)
            plan.failed += count * (error not in (*_FORBIDDEN, *_NOT_THERE))
        await self._plan_way(plan)
        return plan

    async def _add(self, plan: Plan, walk: DatasetWalk, wanted: Wanted) -> None:
        async with walk.over(wanted) as found:
            async for directory, listing, names in found:
                if self._is_shared(directory):
                    plan.add(directory, listing, names)

    async def _plan_way(self, plan: Plan) -> None:
        """Lookups need each name on the way: from the parent's listing, or by its own lookup where
        a directory permits lookups only."""
        way = set(plan.parts)
        for directory in plan.parts:
            way.update(directories_above(directory))
        way = set(filter(self._is_shared, way))
        between: Wanted = {directory: set() for directory in way.difference(plan.parts)}
        await self._add(plan, DatasetWalk(self.engine), between)
        plan.apart = sorted(path for path in way if not path or split(path)[0] not in plan.parts)

    def _is_shared(self, path: Path) -> bool:
        return self.engine.node.policy.place(path) is Place.SHARED

    async def _check_room(self, plan: Plan, held_bytes: int, *, evict: bool) -> None:
        room = await self.engine.call("room", {}, CHECK_WITHIN_S)
        # If another node holds the least of the set, this check asks for too much; --evict is in
        # order then anyway.
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

    async def _push_all(self, state: PushState, plan: Plan) -> None:
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
        self, state: PushState, tree: int, directories: Directories, until: float
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
                root = NodeId(0) if trees is None else trees.root(tree)
                state.unread.append(self.members.name(root))
                return

    async def _count_holders(self, state: PushState, plan: Plan) -> int:
        """Returns the bytes that each node holds at least."""
        answered, complete = self.members.numbers, self.members.numbers
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
        state.lacking = self.members.names(self.members.numbers - complete)
        return least_bytes


def _read_request(file: str) -> dict[str, Any]:
    try:
        with open(file, encoding="ascii") as opened:
            request = json.load(opened)
        for path in (*request["paths"], *request.get("files", ()), *request.get("listings", ())):
            _path(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ControlError(f"the request {file} cannot be read: {error}") from None
    assert isinstance(request, dict)
    return request


def _path(shown: str) -> Path:
    return path_of(shown.strip("/"))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
