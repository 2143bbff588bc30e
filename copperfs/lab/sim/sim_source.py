"""Simulated source: a tree of files behind metadata servers and one pipe, in virtual time.

An operation waits for the first free metadata server and keeps it for the time of an operation.
Bytes then queue for the bandwidth that all nodes share. Servers and pipe are first-come
reservations: the end of an operation is known when it begins, unless it is held.

Faults are paths that fail, are slow or hang, one of the file servers, and a stall of everything. It
counts the operations on each path, which is what most promises of this project are about. Each node
sees it through a client of its own (``source_client.py``).

A file's content follows from its path and version, so bytes of another version show
(``payload_pieces.py``). A file that is written twice within one tick of the server's clock has one
version and two contents: a reader of the first has wrong bytes from then on.
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
    Fetch,
    LookSource,
    OpenSource,
    ReadChunk,
    ReadSource,
    ScanSource,
)
from copperfs.node.events import Failed, SourceListed, SourceLookedUp

LEFT_AFTER_S, LEFT_MAX = 1.0, 4
"""A scan leaves out a name that hangs for the first, and stats no more names after the second
(``native/source/watch.c``)."""
WRITTEN_AGAIN_S = 300e-6
"""Bytes have been read by then, unless the reader waits."""
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class SourceCosts:
    """Costs of operations at the source, by default of a filesystem that is neither fast nor
    overloaded. The calibration of a cluster replaces these."""

    servers: int = 4
    operation_s: float = 100e-6
    """The time for which one operation keeps a metadata server."""
    name_s: float = 10e-6
    """For each name of a directory that is scanned."""
    latency_s: float = 300e-6
    bytes_per_s: float = 2e9
    client_bytes_per_s: float = 2e9
    """The most that one node gets."""


@dataclass(frozen=True, slots=True)
class ContentRead:
    """A file was read. The receiver keeps the bytes and gives the core a handle to them."""

    fetch: FetchId
    content: tuple[Piece, ...]
    mentions: frozenset[bytes] = frozenset()
    """The names that a compiled file mentions."""


@dataclass(frozen=True, slots=True)
class FileOpened:
    fetch: FetchId


Arrived = SourceListed | SourceLookedUp | Failed | ContentRead | FileOpened


@dataclass(slots=True)
class Operation:
    """A fetch that is under way."""

    fetch: Fetch
    done: Callable[[Arrived], None]
    times: int
    client: SimulatedClient
    was: Entry | None
    """The entry at its path when it began."""
    written: int | None = None
    """How often the file had been written in its version when its bytes were read; None: as often
    as it is in the end."""


def kind_of(fetch: Fetch) -> str:
    match fetch:
        case ScanSource():
            return "scan"
        case LookSource():
            return "look"
        case ReadSource():
            return "read"
        case OpenSource():
            return "open"
        case ReadChunk():
            return "chunk"


@dataclass(slots=True, repr=False)
class SimulatedSource:
    clock: VirtualClock
    costs: SourceCosts = field(default_factory=SourceCosts)
    with_bytes: bool = True
    counts: Counter[tuple[str, Path]] = field(default_factory=Counter)
    """Operations by kind and path: scan, look, read, open, chunk."""
    chunk_counts: Counter[tuple[Path, int]] = field(default_factory=Counter)
    """The same for chunks, by offset as well."""
    only_searched: bool = False
    """Its directories may be searched, and not be listed."""
    streamed_bytes: int = 0
    """Read through handles."""
    failing: dict[Path, int] = field(default_factory=dict)
    """The errno that every operation on a path gets. The listing of its directory has the name,
    without attributes."""
    slow: dict[Path, float] = field(default_factory=dict)
    """Seconds that every operation on a path takes longer."""
    hanging: dict[Path, float] = field(default_factory=dict)
    """Until when no operation on a path ends. A scan of its directory leaves it out."""
    file_servers: int = 1
    """The servers that the files are spread over."""
    sick_server: tuple[int, float] | None = None
    """The server that does not answer, and until when."""
    filesystems: dict[Path, int] = field(default_factory=dict)
    """The filesystems mounted below the root, with the tag of each, the same on all nodes."""
    tick_s: float = 0.004
    """The tick of the server's clock: writes within one tick give one version."""
    rewritten: Path | None = None
    """A file that is written when its directory is listed next, and again when it is read then."""
    times_written: Counter[tuple[Path, Version]] = field(default_factory=Counter)
    """How often it was written in one version, beyond the first time."""
    mentions: dict[Path, frozenset[bytes]] = field(default_factory=dict)
    """The names that each compiled file mentions."""
    stalled_until: float = 0.0
    """Nothing begins before."""
    _files: dict[Path, Entry] = field(default_factory=dict)
    _directories: dict[Path, dict[bytes, None]] = field(default_factory=lambda: {ROOT: {}})
    """The names in each, in the order in which they came."""
    _inode: int = 1
    _contents: dict[tuple[Path, Version], tuple[Piece, ...]] = field(default_factory=dict)
    _listings: dict[Path, Listing] = field(default_factory=dict)
    _server: SimulatedClient = field(default_factory=SimulatedClient)
    """A client that sees all as it is."""
    scan_deadline_s: float = 60.0
    _held: list[Operation] = field(default_factory=list)
    """Operations that hang until all is well."""
    _servers_free: list[float] = field(init=False)
    _pipe_free: float = 0.0

    def __post_init__(self) -> None:
        self._servers_free = [0.0] * self.costs.servers

    # --- what is there ---------------------------------------------------------------------------

    def add(self, path: Path, size: int, changed_s: int = 0) -> Version:
        """Add a file, and the directories above it; or another version of one that is there."""
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
        """Give the file other bytes, as many, from now on."""
        old = self._files[path].attributes.version
        return self.add(path, old.size, old.mtime_ns // 1_000_000_000 + 1)

    def write(self, path: Path) -> Version:
        """Write other bytes, as many, into the file now, at the time of the server's clock."""
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
        """Always the same one until it changes: all nodes share it."""
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
        """The bytes of a file in this version; *written* says how often it had been written in that
        version by then. The inode number may be any client's."""
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
        """The seed of the bytes: a name of its own for each write within this version, and the
        server's inode number, which a file keeps."""
        entry = self._files.get(path)
        if entry is not None:
            version = version._replace(inode=entry.attributes.inode)
        if written is None:
            written = self.times_written[path, version]
        return Path(path + b"\0%d" % written) if written else path, version

    def _add_name(self, directory: Path, name: bytes) -> None:
        if directory not in self._directories:
            self._directories[directory] = {}
            self._add_name(*split(directory))
        if name:
            self._directories[directory][name] = None
        self._listings.pop(directory, None)

    # --- what is done to it ----------------------------------------------------------------------

    def begin(
        self,
        fetch: Fetch,
        done: Callable[[Arrived], None],
        times: int = 1,
        client: SimulatedClient | None = None,
    ) -> None:
        """Perform a fetch, and call *done* with its outcome when it ends. *times*: how many nodes
        do the same at the same time; it ends when the last one is served."""
        path = fetch.path
        self.counts[kind_of(fetch), path] += times
        ends = self._serve(path, isinstance(fetch, ScanSource), times)
        if isinstance(fetch, ReadChunk):
            self.chunk_counts[path, fetch.offset] += 1
        if self.rewritten is not None:
            self._write_meanwhile(fetch, self.rewritten)
        was = self._files.get(path)
        operation = Operation(fetch, done, times, client or self._server, was)
        is_young = was is not None and (path, was.attributes.version) in self.times_written
        if is_young and isinstance(fetch, ReadSource | OpenSource | ReadChunk):
            ends += operation.client.settles_s(ends, fetch.version)
            self.clock.at(ends, self._read_young, operation)
            return
        self._read(operation, ends)

    def _write_meanwhile(self, fetch: Fetch, path: Path) -> None:
        """Write the file once during a lookup, and once more when it is read."""
        if isinstance(fetch, ScanSource) and fetch.path == split(path)[0]:
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
        """Read the bytes. *ends*: when the metadata server is through with it."""
        fetch, size = operation.fetch, 0
        if isinstance(fetch, ReadSource):
            size = fetch.version.size
        elif isinstance(fetch, ReadChunk):
            size = fetch.length
        if size:
            begins = max(ends, self._pipe_free)
            ends = self._pipe_free = begins + operation.times * size / self.costs.bytes_per_s
        ends += self.costs.latency_s + self.slow.get(fetch.path, 0.0)
        if isinstance(fetch, ScanSource):
            ends += self._waits_for_names_s(fetch.path)
        self.clock.at(ends, self._end, operation)

    def stream(self, size: int, done: Callable[[], None], times: int = 1) -> None:
        """Move *size* bytes of an open file, for a node that caches none of it, or for several."""
        self.streamed_bytes += times * size
        took = times * size / self.costs.bytes_per_s
        self._pipe_free = max(self.clock.now, self._pipe_free) + took
        least = self.clock.now + size / self.costs.client_bytes_per_s
        self.clock.at(max(self._pipe_free, least) + self.costs.latency_s, done)

    def _serve(self, path: Path, scan: bool, times: int) -> float:
        """Reserve a metadata server, or all of them for their part of many operations; when it is
        through."""
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

    # --- what hangs ------------------------------------------------------------------------------

    def server_of(self, path: Path) -> int:
        """The server that keeps a file."""
        return sum(path) % self.file_servers

    def held_until(self, path: Path) -> float:
        """The earliest end of operations on a path."""
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
        """The names that a scan which ends now leaves out: those that hang, and all after the first
        few of them."""
        hanging = self._hanging_in(directory)
        if len(hanging) < LEFT_MAX:
            return hanging
        names = list(self._directories[directory])
        return names[names.index(hanging[LEFT_MAX - 1]) :]

    def _waits_for_names_s(self, directory: Path) -> float:
        """How long a scan waits for names that hang. If no other name answers, the scan cannot know
        how long one may take, and waits for half of its deadline."""
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
        if self.clock.now < held_until:  # it hangs, or has begun to meanwhile
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
            case LookSource():
                return SourceLookedUp(fetch.fetch, None if found is None else client.entry(found))
            case _ if found is None:
                return Failed(fetch.fetch, errno.ENOENT)
            case ScanSource():
                if path not in self._directories:
                    return Failed(fetch.fetch, errno.ENOTDIR)
                if self.only_searched:
                    return Failed(fetch.fetch, errno.EACCES)
                return SourceListed(fetch.fetch, client.listing(path, self.listing(path)))
            case ReadSource(_, _, version) | OpenSource(_, _, version) | ReadChunk(_, _, version):
                # the same before and after, which the real source checks, too
                if was is None or not (client.shows(version, was) and client.shows(version, found)):
                    return Failed(fetch.fetch, errno.ESTALE)
                if isinstance(fetch, OpenSource):
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
