"""Simulated source: a tree of files behind metadata servers and one pipe, in virtual time.

An operation keeps the first free metadata server for its time. Bytes then queue for the shared
bandwidth. Both are first-come reservations: the end of an operation is known when it begins, unless
it is held. Each node sees the source through a client of its own (``source_client.py``).

A file's content follows from its path and version. A file that is written twice within one tick of
the server's clock has one version and two contents: a reader of the first has wrong bytes from then
on.
"""

import errno
import stat
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.lab.sim.payload_pieces import Piece, chunk_of, content_of
from copperfs.lab.sim.source_client import SimulatedClient, wall_ns
from copperfs.lab.sim.virtual_clock import VirtualClock
from copperfs.model.listing import Listing, pack_listing
from copperfs.model.types import (
    FILESYSTEM,
    ROOT,
    Attributes,
    Entry,
    FetchId,
    Path,
    Version,
    is_below,
    join,
    split,
)
from copperfs.node.actions import (
    ListSource,
    LookupSource,
    OpenForBypass,
    ReadChunk,
    ReadSource,
    SourceAction,
)
from copperfs.node.events import Failed, SourceListed, SourceLookedUp

LEFT_AFTER_S, LEFT_MAX = 1.0, 4
"""A scan leaves out a name that hangs for the first, and stats no more names after the second
(``native/source/hung_threads.c``)."""
WRITTEN_AGAIN_S = 300e-6
"""A young file's bytes have been read by then, unless the reader waits."""
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class SourceCosts:
    """Defaults: a filesystem that is neither fast nor overloaded. Calibration replaces these."""

    servers: int = 4
    operation_s: float = 100e-6
    """The time for which one operation keeps a metadata server."""
    name_s: float = 10e-6
    latency_s: float = 300e-6
    bytes_per_s: float = 2e9
    client_bytes_per_s: float = 2e9


@dataclass(frozen=True, slots=True)
class ContentRead:
    """The receiver keeps the bytes, and gives the node a handle to them."""

    fetch: FetchId
    content: tuple[Piece, ...]
    mentions: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class FileOpened:
    fetch: FetchId


Arrived = SourceListed | SourceLookedUp | Failed | ContentRead | FileOpened


@dataclass(slots=True)
class Operation:
    fetch: SourceAction
    done: Callable[[Arrived], None]
    times: int
    client: SimulatedClient
    was: Entry | None
    written: int | None = None
    """How often the file had been written in its version when its bytes were read; None: all
    writes."""


def kind_of(fetch: SourceAction) -> str:
    match fetch:
        case ListSource():
            return "scan"
        case LookupSource():
            return "look"
        case ReadSource():
            return "read"
        case OpenForBypass():
            return "open"
        case ReadChunk():
            return "chunk"


@dataclass(slots=True, repr=False)
class SimulatedSource:
    clock: VirtualClock
    costs: SourceCosts = field(default_factory=SourceCosts)
    with_bytes: bool = True
    counts: Counter[tuple[str, Path]] = field(default_factory=Counter)
    """Operations by kind (scan, look, read, open, chunk) and path."""
    chunk_counts: Counter[tuple[Path, int]] = field(default_factory=Counter)
    only_searched: bool = False
    """Its directories may be searched, not listed."""
    streamed_bytes: int = 0
    failing: dict[Path, int] = field(default_factory=dict)
    """The errno of every operation on a path. A listing has the name without attributes."""
    slow: dict[Path, float] = field(default_factory=dict)
    """Extra seconds of every operation on a path."""
    hanging: dict[Path, float] = field(default_factory=dict)
    """Until when operations on a path hang. A scan of its directory leaves it out."""
    file_servers: int = 1
    sick_server: tuple[int, float] | None = None
    """The server that does not answer, and until when."""
    filesystems: dict[Path, int] = field(default_factory=dict)
    """The tags of filesystems mounted below the root."""
    tick_s: float = 0.004
    """Of the server's clock: writes within one tick give one version."""
    rewritten: Path | None = None
    """A file that is written when its directory is listed next, and again when it is read then."""
    times_written: Counter[tuple[Path, Version]] = field(default_factory=Counter)
    """Further writes within one version."""
    mentions: dict[Path, frozenset[bytes]] = field(default_factory=dict)
    stalled_until: float = 0.0
    _files: dict[Path, Entry] = field(default_factory=dict)
    _directories: dict[Path, dict[bytes, None]] = field(default_factory=lambda: {ROOT: {}})
    _inode: int = 1
    _contents: dict[tuple[Path, Version], tuple[Piece, ...]] = field(default_factory=dict)
    _listings: dict[Path, Listing] = field(default_factory=dict)
    _server: SimulatedClient = field(default_factory=SimulatedClient)
    scan_deadline_s: float = 60.0
    _held: list[Operation] = field(default_factory=list)
    _servers_free: list[float] = field(init=False)
    _pipe_free: float = 0.0

    def __post_init__(self) -> None:
        self._servers_free = [0.0] * self.costs.servers

    # --- files -----------------------------------------------------------------------------------

    def add(self, path: Path, size: int, changed_s: int = 0) -> Version:
        """Add a file and the directories above it, or another version of it."""
        return self._add(path, size, changed_s * 1_000_000_000)

    def _add(self, path: Path, size: int, changed_ns: int) -> Version:
        directory, name = split(path)
        self._add_name(directory, name)
        before = self._files.get(path)
        if before is None:
            self._inode += 1
        inode = self._inode if before is None else before.attributes.inode
        entry = _entry(stat.S_IFREG | 0o644, size, inode, changed_ns, self._tag(path))
        self._files[path] = entry
        self._listings.pop(directory, None)
        return entry.attributes.version

    def add_directory(self, path: Path) -> None:
        if path not in self._directories:
            self._add_name(path, b"")

    def change(self, path: Path) -> Version:
        """Give the file other bytes of the same size."""
        old = self._files[path].attributes.version
        return self.add(path, old.size, old.mtime_ns // 1_000_000_000 + 1)

    def write(self, path: Path) -> Version:
        """Write other bytes of the same size now, at the server's time."""
        tick_ns = int(self.tick_s * 1e9)
        at_ns = wall_ns(self.clock.now) // tick_ns * tick_ns
        old = self._files[path].attributes.version
        if old.mtime_ns == at_ns:
            self.times_written[path, old] += 1
            return old
        new = self._add(path, old.size, at_ns)
        self.times_written[path, new] = 0
        return new

    def remove(self, path: Path) -> None:
        directory, name = split(path)
        del self._files[path], self._directories[directory][name]
        self._listings.pop(directory, None)

    def _tag(self, path: Path) -> int:
        return next((tag for top, tag in self.filesystems.items() if is_below(path, top)), 0)

    def entry(self, path: Path) -> Entry | None:
        if path in self._directories:
            return _entry(stat.S_IFDIR | 0o755, 4096, 1, 0, self._tag(path))
        return self._files.get(path)

    def size(self, path: Path) -> int:
        return self._files[path].attributes.version.size

    def files(self) -> list[Path]:
        return list(self._files)

    def listing(self, path: Path) -> Listing:
        """All nodes share one, until it changes."""
        found = self._listings.get(path)
        if found is None:
            rows = [(name, self.entry(join(path, name))) for name in self._directories[path]]
            found = pack_listing([(name, entry) for name, entry in rows if entry is not None])
            self._listings[path] = found
        sick = {split(each)[1] for each in self.failing if split(each)[0] == path}
        sick.update(self._left_behind(path))
        if not sick:
            return found
        shown = [(name, _unknown(entry) if name in sick else entry) for name, entry in found.rows()]
        return pack_listing(shown)

    def content(
        self, path: Path, version: Version, written: int | None = None
    ) -> tuple[Piece, ...]:
        """The bytes of a file in this version after *written* further writes. The inode number may
        be any client's."""
        name, version = self._named(path, version, written)
        found = self._contents.get((name, version))
        if found is None:
            found = content_of(name, version, with_bytes=self.with_bytes)
            self._contents[name, version] = found
        return found

    def chunk(
        self, path: Path, version: Version, offset: int, length: int, written: int | None = None
    ) -> Piece:
        name, version = self._named(path, version, written)
        return chunk_of(name, version, offset, length, with_bytes=self.with_bytes)

    def _named(self, path: Path, version: Version, written: int | None) -> tuple[Path, Version]:
        """The seed of the bytes, with the server's inode number and the number of the write."""
        entry = self._files.get(path)
        if entry is not None:
            version = version._replace(inode=entry.attributes.inode)
        if written is None:
            written = self.times_written[path, version]
        return Path(path + b"\0%d" % written) if written else path, version

    def _add_name(self, directory: Path, name: bytes) -> None:
        is_new = True
        while is_new:
            is_new = directory not in self._directories
            names = self._directories.setdefault(directory, {})
            if name:
                names[name] = None
            self._listings.pop(directory, None)
            directory, name = split(directory)

    # --- operations ------------------------------------------------------------------------------

    def begin(
        self,
        fetch: SourceAction,
        done: Callable[[Arrived], None],
        times: int = 1,
        client: SimulatedClient | None = None,
    ) -> None:
        """Call *done* with the outcome of the fetch. *times* nodes do it at once; it ends with the
        last."""
        path = fetch.path
        self.counts[kind_of(fetch), path] += times
        ends = self._serve(path, isinstance(fetch, ListSource), times)
        if isinstance(fetch, ReadChunk):
            self.chunk_counts[path, fetch.offset] += 1
        if self.rewritten is not None:
            self._write_meanwhile(fetch, self.rewritten)
        was = self._files.get(path)
        operation = Operation(fetch, done, times, client or self._server, was)
        is_young = was is not None and (path, was.attributes.version) in self.times_written
        if is_young and isinstance(fetch, ReadSource | OpenForBypass | ReadChunk):
            ends += operation.client.settles_s(ends, fetch.version)
            self.clock.at(ends, self._read_young, operation)
            return
        self._read(operation, ends)

    def _write_meanwhile(self, fetch: SourceAction, path: Path) -> None:
        if isinstance(fetch, ListSource) and fetch.path == split(path)[0]:
            self.write(path)
        elif isinstance(fetch, ReadSource | ReadChunk) and fetch.path == path:
            self.rewritten = None
            self.clock.after(WRITTEN_AGAIN_S, self.write, path)

    def _read_young(self, operation: Operation) -> None:
        """Give a file that was written a moment ago the bytes that it has now."""
        assert operation.was is not None
        version = operation.was.attributes.version
        operation.written = self.times_written[operation.fetch.path, version]
        self._read(operation, self.clock.now)

    def _read(self, operation: Operation, ends: float) -> None:
        fetch, size = operation.fetch, 0
        if isinstance(fetch, ReadSource):
            size = fetch.version.size
        elif isinstance(fetch, ReadChunk):
            size = fetch.length
        if size:
            begins = max(ends, self._pipe_free)
            ends = self._pipe_free = begins + operation.times * size / self.costs.bytes_per_s
        ends += self.costs.latency_s + self.slow.get(fetch.path, 0.0)
        if isinstance(fetch, ListSource):
            ends += self._waits_for_names_s(fetch.path)
        self.clock.at(ends, self._end, operation)

    def stream(self, size: int, done: Callable[[], None], times: int = 1) -> None:
        self.streamed_bytes += times * size
        took = times * size / self.costs.bytes_per_s
        self._pipe_free = max(self.clock.now, self._pipe_free) + took
        least = self.clock.now + size / self.costs.client_bytes_per_s
        self.clock.at(max(self._pipe_free, least) + self.costs.latency_s, done)

    def _serve(self, path: Path, scan: bool, times: int) -> float:
        """Reserve a metadata server, or all of them for many operations; returns the end."""
        took = self.costs.operation_s
        if scan:
            took += self.costs.name_s * len(self._directories.get(path, ()))
        free = self._servers_free
        if times > 1:
            share_s = took * (times - 1) / len(free)
            free[:] = [max(self.clock.now, each, self.stalled_until) + share_s for each in free]
        server = free.index(min(free))
        free[server] = max(self.clock.now, free[server], self.stalled_until) + took
        return free[server]

    # --- hangs -----------------------------------------------------------------------------------

    def server_of(self, path: Path) -> int:
        return sum(path) % self.file_servers

    def held_until(self, path: Path) -> float:
        held = max(self.stalled_until, self.hanging.get(path, 0.0))
        if self.sick_server is not None and path in self._files:
            server, until = self.sick_server
            if self.server_of(path) == server:
                held = max(held, until)
        return held

    def _hanging_in(self, directory: Path) -> list[bytes]:
        if not self.hanging and self.sick_server is None:
            return []
        names = self._directories.get(directory, ())
        return [name for name in names if self.held_until(join(directory, name)) > self.clock.now]

    def _left_behind(self, directory: Path) -> list[bytes]:
        """The names that a scan which ends now leaves out."""
        hanging = self._hanging_in(directory)
        if len(hanging) < LEFT_MAX:
            return hanging
        names = list(self._directories[directory])
        return names[names.index(hanging[LEFT_MAX - 1]) :]

    def _waits_for_names_s(self, directory: Path) -> float:
        """How long a scan waits for names that hang: for half of its deadline if no other name
        answers, since it then cannot know how long one may take."""
        hanging = self._hanging_in(directory)
        if not hanging:
            return 0.0
        first = next(iter(self._directories[directory])) in hanging
        begins_s = self.scan_deadline_s / 2 if first else LEFT_AFTER_S
        return begins_s + LEFT_AFTER_S * (min(len(hanging), LEFT_MAX) - 1)

    def heal(self) -> None:
        self.failing.clear()
        self.slow.clear()
        self.hanging.clear()
        self.sick_server = self.rewritten = None
        self.stalled_until = 0.0
        held, self._held = self._held, []
        for operation in held:
            self._end(operation)

    def _end(self, operation: Operation) -> None:
        held_until = self.held_until(operation.fetch.path)
        if self.clock.now < held_until:  # it hangs, or began to
            if held_until < FOREVER:
                self.clock.at(held_until, self._end, operation)
            else:
                self._held.append(operation)
            return
        operation.done(self._outcome(operation))

    def _outcome(self, operation: Operation) -> Arrived:
        fetch, client, was = operation.fetch, operation.client, operation.was
        path, written = fetch.path, operation.written
        if path in self.failing:
            return Failed(fetch.fetch, self.failing[path])
        found = self.entry(path)
        match fetch:
            case LookupSource():
                return SourceLookedUp(fetch.fetch, None if found is None else client.entry(found))
            case _ if found is None:
                return Failed(fetch.fetch, errno.ENOENT)
            case ListSource():
                if path not in self._directories:
                    return Failed(fetch.fetch, errno.ENOTDIR)
                if self.only_searched:
                    return Failed(fetch.fetch, errno.EACCES)
                return SourceListed(fetch.fetch, client.listing(path, self.listing(path)))
            case (
                ReadSource(_, _, version) | OpenForBypass(_, _, version) | ReadChunk(_, _, version)
            ):
                # the same before and after, as the real source checks
                if was is None or not (client.shows(version, was) and client.shows(version, found)):
                    return Failed(fetch.fetch, errno.ESTALE)
                if isinstance(fetch, OpenForBypass):
                    return FileOpened(fetch.fetch)
                if isinstance(fetch, ReadChunk):
                    piece = self.chunk(path, version, fetch.offset, fetch.length, written)
                    return ContentRead(fetch.fetch, (piece,))
                mentions = self.mentions.get(path, frozenset())
                return ContentRead(fetch.fetch, self.content(path, version, written), mentions)
        raise AssertionError("unreachable")


def _unknown(entry: Entry) -> Entry:
    attributes = entry.attributes
    return Entry(Attributes.bare(attributes.inode, stat.S_IFMT(attributes.mode)), unknown=True)


def _entry(mode: int, size: int, inode: int, changed_ns: int, filesystem: int = 0) -> Entry:
    changed_s, rest_ns = divmod(changed_ns, 1_000_000_000)
    packed = struct.pack(
        "<6Q10I",
        *(inode, size, 0, 0, changed_s, changed_s),
        *(0, rest_ns, rest_ns, mode, 1, 0, 0, 0, 4096, filesystem & FILESYSTEM),
    )
    return Entry(Attributes(packed))
