"""``copperfs warmup`` as its daemon does it: plan, check, push, and say how far it is.

The request comes in a file, because an ioctl has no room for thousands of paths: the daemon runs as
the user who asked, and only he may ask. Planning lists directories over the tree, as a reader
would. What is pushed is said by directory, so that the list travels in a few messages."""

import errno
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import trio

from copperfs.core.actions import AnswerListing
from copperfs.core.events import List
from copperfs.core.listing import Listing
from copperfs.core.policy import Place
from copperfs.core.state import OBJECT_OVERHEAD_BYTES
from copperfs.errors import ControlError
from copperfs.fuse.answers import Answered, Content, SourceError
from copperfs.runtime.engine import Engine
from copperfs.runtime.operations import Operation, Result, pack
from copperfs.runtime.warmup import Directories, Warmup, files_in
from copperfs.types import ROOT, Path, Version, join, split

# What a call may carry is 64 KiB; some of it is left for the rest.
ARGUMENT_BYTES_MAX = 48 << 10
LISTS_AT_ONCE = 16
CHECK_WITHIN_S = 30.0
# A push that does not even reach this rate is given up on.
BYTES_PER_SECOND_MIN = 1 << 20
PUSH_WITHIN_MIN_S, PUSH_WITHIN_MAX_S = 120.0, 3600.0


@dataclass(slots=True)
class Plan:
    """The files of a set, by directory."""

    directories: dict[Path, set[str] | None] = field(default_factory=dict)
    """None is all files of the directory."""
    files: dict[Path, Version] = field(default_factory=dict)
    too_large: int = 0
    missing: list[str] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        return sum(version.size for version in self.files.values())

    @property
    def room_bytes(self) -> int:
        return self.total_bytes + len(self.files) * OBJECT_OVERHEAD_BYTES


@dataclass(slots=True)
class State:
    """How far a warm-up is; ``copperfs warmup`` shows it while it waits."""

    phase: str = "idle"
    """idle, planning, pushing, done or failed"""
    objects: int = 0
    total_bytes: int = 0
    done_bytes: int = 0
    """Of what this node has; the others are about as far."""
    too_large: int = 0
    missing: int = 0
    failed: int = 0
    nodes: int = 0
    nodes_complete: int = 0
    """How many nodes hold all of it, at least of each piece in which they were asked."""
    roster: int = 1
    least_objects: int = 0
    """What the node that holds least has."""
    error: str = ""


@dataclass(slots=True)
class WorkingSets:
    engine: Engine
    warmup: Warmup
    nodes: int
    state: State = field(default_factory=State)
    _busy: bool = False

    def operations(self) -> dict[str, Operation]:
        return {
            "push": self.warmup.push,
            "room": self._room,
            "holds": self._holds,
        }

    async def start(self, nursery: trio.Nursery, request_file: str) -> Result:
        """Begin what the file asks for; ``state`` tells how it goes."""
        if self._busy:
            raise ControlError("a warm-up is under way already; wait for it")
        request = await trio.to_thread.run_sync(_read_request, request_file)
        self._busy, self.state = True, State("planning", roster=self.nodes)
        nursery.start_soon(self._run, request)
        return asdict(self.state)

    async def _run(self, request: dict[str, Any]) -> None:
        try:
            await self._warm_up(request)
        except ControlError as error:
            self.state.phase, self.state.error = "failed", str(error)
        except SourceError as error:
            self.state.phase = "failed"
            self.state.error = f"the source could not be listed: {errno.errorcode[error.errno]}"
        finally:
            self._busy = False

    async def _warm_up(self, request: dict[str, Any]) -> None:
        state = self.state
        plan = await self._plan(request["paths"], request.get("listings", []))
        if plan.missing:
            shown = ", ".join(plan.missing[:3])
            raise ControlError(f"not on this mount: {shown}; nothing was warmed up")
        state.objects, state.total_bytes = len(plan.files), plan.total_bytes
        state.too_large = plan.too_large
        if not request.get("check"):
            await self._check_room(plan, evict=bool(request.get("evict")))
            state.phase = "pushing"
            await self._push_all(plan)
        await self._count_holders(plan)
        state.phase = "done"

    # --- planning --------------------------------------------------------------------------------

    async def _plan(self, paths: list[str], listings: list[str]) -> Plan:
        plan, limiter = Plan(), trio.CapacityLimiter(LISTS_AT_ONCE)
        for shown in listings:
            plan.directories[Path(shown.strip("/").encode("utf-8", "surrogateescape"))] = set()
        by_directory: dict[Path, set[str]] = {}
        for shown in paths:
            path = Path(shown.strip("/").encode("utf-8", "surrogateescape"))
            if path == ROOT:
                await self._plan_below(plan, path, limiter)
                continue
            directory, name = split(path)
            by_directory.setdefault(directory, set()).add(_text(name))
        async with trio.open_nursery() as nursery:
            for directory, names in by_directory.items():
                nursery.start_soon(self._plan_names, plan, directory, names, limiter)
        for directory in list(plan.directories):
            # whoever goes there looks for each name on the way
            above = directory
            while above:
                above, _ = split(above)
                if self._is_shared(above):
                    plan.directories.setdefault(above, set())
        return plan

    async def _plan_names(
        self, plan: Plan, directory: Path, names: set[str], limiter: trio.CapacityLimiter
    ) -> None:
        """Some names of one directory; what is a directory itself is taken with all below it."""
        try:
            async with limiter:
                listing = await self._list(directory)
        except SourceError:
            plan.missing += [_shown(directory, name) for name in names]
            return
        self._add_files(plan, directory, listing, names)
        for name in names:
            entry = listing.find(name.encode("utf-8", "surrogateescape"))
            if entry is None:
                plan.missing.append(_shown(directory, name))
            elif entry.attributes.is_directory():
                below = join(directory, name.encode("utf-8", "surrogateescape"))
                await self._plan_below(plan, below, limiter)

    async def _plan_below(self, plan: Plan, top: Path, limiter: trio.CapacityLimiter) -> None:
        async def visit(directory: Path) -> None:
            try:
                async with limiter:
                    listing = await self._list(directory)
            except SourceError:
                return  # not to be read: nobody will
            self._add_files(plan, directory, listing, None)
            for name, entry in listing.rows():
                below = join(directory, name)
                if entry.attributes.is_directory() and self._is_shared(below):
                    nursery.start_soon(visit, below)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(visit, top)

    def _add_files(
        self, plan: Plan, directory: Path, listing: Listing, names: set[str] | None
    ) -> None:
        if not self._is_shared(directory):
            return
        before = plan.directories.get(directory, set())
        plan.directories[directory] = None if names is None or before is None else before | names
        whole_max = self.engine.node.limits.whole_max_bytes
        for path, version in files_in(directory, listing, names):
            if version.size > whole_max:
                plan.too_large += 1
            elif version.size:
                plan.files[path] = version

    def _is_shared(self, path: Path) -> bool:
        return self.engine.node.policy.place(path) is Place.SHARED

    async def _list(self, directory: Path) -> Listing:
        def take(answer: Answered, _: Content, __: object) -> Listing:
            assert isinstance(answer, AnswerListing)
            return answer.listing

        return await self.engine.ask(lambda request: List(request, directory), take)

    # --- pushing ---------------------------------------------------------------------------------

    async def _check_room(self, plan: Plan, *, evict: bool) -> None:
        room = await self.engine.call("room", {}, CHECK_WITHIN_S)
        free = room["min_budget_bytes" if evict else "min_free_bytes"]
        if plan.room_bytes > free:
            advice = "give the mount a larger --memory, or warm up less"
            if not evict:
                advice = "give --evict to let older things go, or the mount a larger --memory"
            raise ControlError(
                f"the set takes {plan.room_bytes >> 20} MiB, and a node has room for "
                f"{free >> 20} MiB; {advice}"
            )

    async def _push_all(self, plan: Plan) -> None:
        within_s = plan.total_bytes / BYTES_PER_SECOND_MIN
        within_s = min(PUSH_WITHIN_MAX_S, max(PUSH_WITHIN_MIN_S, within_s))
        trees = self.engine.node.trees
        async with trio.open_nursery() as nursery:
            for tree in range(1 if trees is None else trees.count):
                mine: Directories = {
                    _text(path): None if names is None else sorted(names)
                    for path, names in plan.directories.items()
                    if trees is None or trees.tree_of(path) == tree
                }
                nursery.start_soon(self._push_tree, tree, mine, within_s)

    async def _push_tree(self, tree: int, directories: Directories, within_s: float) -> None:
        for some in in_messages(directories):
            argument = {"push": random.getrandbits(62), "tree": tree, "directories": some}
            done = await self.engine.call("push", argument, within_s)
            self.state.failed += done.get("failed", 0)
            self.state.done_bytes += done.get("bytes", 0) // max(1, done.get("nodes", 1))

    async def _count_holders(self, plan: Plan) -> None:
        """Ask all nodes what they hold of it now."""
        by_directory: Directories = {}
        for path in plan.files:
            directory, name = split(path)
            names = by_directory.setdefault(_text(directory), [])
            assert names is not None
            names.append(_text(name))
        state = self.state
        state.nodes = state.nodes_complete = self.nodes
        for some in in_messages(by_directory):
            held = await self.engine.call("holds", {"directories": some}, CHECK_WITHIN_S)
            state.nodes = min(state.nodes, held.get("nodes", 0))
            state.nodes_complete = min(state.nodes_complete, held.get("complete", 0))
            state.least_objects += held.get("min_objects", 0)

    # --- on each node ----------------------------------------------------------------------------

    async def _room(self, _: Result) -> Result:
        stats = self.engine.node.statistics()
        free = stats.budget_bytes - stats.held_bytes - stats.reserved_bytes
        budget = stats.budget_bytes - self.engine.node.limits.credit_bytes
        return {"nodes": 1, "min_free_bytes": max(0, free), "min_budget_bytes": budget}

    async def _holds(self, argument: Result) -> Result:
        """How many of these files this node has in memory, in the version of its listing."""
        held = wanted = 0
        for shown, names in argument["directories"].items():
            directory = Path(shown.encode("utf-8", "surrogateescape"))
            wanted += len(names)
            found = self.engine.node.held_listing(directory)
            if found is None:
                continue
            for path, version in files_in(directory, found[0], set(names)):
                held += self.engine.node.holds(path, version)
        return {"nodes": 1, "min_objects": held, "complete": int(held == wanted)}


def in_messages(directories: Directories) -> Iterator[Directories]:
    """The same, in pieces that fit into a call."""
    if not directories:
        return
    if len(pack(directories)) <= ARGUMENT_BYTES_MAX:
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
        if not all(isinstance(path, str) for path in request["paths"]):
            raise TypeError("paths are strings")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ControlError(f"the request {file} cannot be read: {error}") from None
    assert isinstance(request, dict)
    return request


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _shown(directory: Path, name: str) -> str:
    return "/".join(filter(None, (directory.decode("utf-8", "backslashreplace"), name)))
