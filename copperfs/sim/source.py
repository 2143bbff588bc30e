"""The source in virtual time: a tree of files behind metadata servers and one pipe.

An operation waits for the first metadata server that is free, keeps it for as long as an operation
takes there, and bytes then queue for the bandwidth that all nodes share. Servers and pipe are
first-come reservations: when an operation begins it is known when it will end, unless it is held.

It can be hurt: paths that fail, paths that are slow, everything that stalls. It counts what was
done to each path, which is what most promises of this project are about. A file's content follows
from its path and version, so bytes of another version show (``pieces.py``).
"""

import errno
import stat
import struct
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from copperfs.core.actions import (
    Fetch,
    LookSource,
    OpenSource,
    ReadChunk,
    ReadSource,
    ScanSource,
)
from copperfs.core.events import Failed, Looked, Scanned
from copperfs.core.listing import Listing, pack_listing
from copperfs.sim.clock import Clock
from copperfs.sim.pieces import Piece, chunk_of, content_of
from copperfs.types import ROOT, Attributes, Entry, FetchId, Path, Version, join, split


@dataclass(frozen=True, slots=True)
class SourceCosts:
    """What the source takes for things; a filesystem that is neither fast nor overloaded. The
    calibration of a cluster replaces these."""

    servers: int = 4
    operation_s: float = 100e-6
    """That one operation keeps a metadata server."""
    name_s: float = 10e-6
    """For each name of a directory that is scanned."""
    latency_s: float = 300e-6
    bytes_per_s: float = 2e9
    client_bytes_per_s: float = 2e9
    """That one node gets at most."""


@dataclass(frozen=True, slots=True)
class ContentRead:
    """A file was read; whoever gets this keeps the bytes and gives the core a handle to them."""

    fetch: FetchId
    content: tuple[Piece, ...]
    mentions: frozenset[bytes] = frozenset()
    """The names in it, if it is a compiled file."""


@dataclass(frozen=True, slots=True)
class FileOpened:
    fetch: FetchId


Arrived = Scanned | Looked | Failed | ContentRead | FileOpened


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
class Source:
    clock: Clock
    costs: SourceCosts = field(default_factory=SourceCosts)
    with_bytes: bool = True
    counts: Counter[tuple[str, Path]] = field(default_factory=Counter)
    """Operations by kind and path: scan, look, read, open, chunk."""
    chunk_counts: Counter[tuple[Path, int]] = field(default_factory=Counter)
    """Of chunks, also by offset."""
    only_searched: bool = False
    """Its directories may be searched, and not be listed."""
    streamed_bytes: int = 0
    """Read through handles."""
    failing: dict[Path, int] = field(default_factory=dict)
    """The errno that every operation on a path gets. The listing of its directory has the name, and
    tells nothing of it."""
    slow: dict[Path, float] = field(default_factory=dict)
    """Seconds that every operation on a path takes longer."""
    mentions: dict[Path, frozenset[bytes]] = field(default_factory=dict)
    """Of compiled files: what they would be found to mention."""
    stalled_until: float = 0.0
    """Nothing begins before."""
    _files: dict[Path, Entry] = field(default_factory=dict)
    _directories: dict[Path, dict[bytes, None]] = field(default_factory=lambda: {ROOT: {}})
    """The names in each, in the order in which they came."""
    _inode: int = 1
    _contents: dict[tuple[Path, Version], tuple[Piece, ...]] = field(default_factory=dict)
    _listings: dict[Path, Listing] = field(default_factory=dict)
    _servers_free: list[float] = field(init=False)
    _pipe_free: float = 0.0

    def __post_init__(self) -> None:
        self._servers_free = [0.0] * self.costs.servers

    # --- what is there ---------------------------------------------------------------------------

    def add(self, path: Path, size: int, changed_s: int = 0) -> Version:
        """A file, and the directories above it; or another version of one that is there."""
        directory, name = split(path)
        self._add_name(directory, name)
        before = self._files.get(path)
        if before is None:
            self._inode += 1
        inode = self._inode if before is None else before.attributes.inode
        entry = _entry(stat.S_IFREG | 0o644, size, inode, changed_s)
        self._files[path] = entry
        self._listings.pop(directory, None)
        return entry.attributes.version

    def add_directory(self, path: Path) -> None:
        if path not in self._directories:
            self._add_name(path, b"")

    def change(self, path: Path) -> Version:
        """The file has other bytes from now on, as many."""
        old = self._files[path].attributes.version
        return self.add(path, old.size, old.mtime_ns // 1_000_000_000 + 1)

    def entry(self, path: Path) -> Entry | None:
        if path in self._directories:
            return _entry(stat.S_IFDIR | 0o755, 4096, 1, 0)
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
        if not sick:
            return found
        shown = [(name, _unknown(entry) if name in sick else entry) for name, entry in found.rows()]
        return pack_listing(shown)

    def content(self, path: Path, version: Version) -> tuple[Piece, ...]:
        found = self._contents.get((path, version))
        if found is None:
            found = content_of(path, version, with_bytes=self.with_bytes)
            self._contents[path, version] = found
        return found

    def chunk(self, path: Path, version: Version, offset: int, length: int) -> Piece:
        return chunk_of(path, version, offset, length, with_bytes=self.with_bytes)

    def _add_name(self, directory: Path, name: bytes) -> None:
        if directory not in self._directories:
            self._directories[directory] = {}
            self._add_name(*split(directory))
        if name:
            self._directories[directory][name] = None
        self._listings.pop(directory, None)

    # --- what is done to it ----------------------------------------------------------------------

    def begin(self, fetch: Fetch, done: Callable[[Arrived], None], times: int = 1) -> None:
        """Perform a fetch, and say *done* with its outcome when it ends. *times*: for so many nodes
        that do the same at the same time; it ends when the last one is served."""
        path = fetch.path
        self.counts[kind_of(fetch), path] += times
        ends = self._serve(path, isinstance(fetch, ScanSource), times)
        size = 0
        if isinstance(fetch, ReadSource):
            size = fetch.version.size
        elif isinstance(fetch, ReadChunk):
            self.chunk_counts[path, fetch.offset] += 1
            size = fetch.length
        if size:
            begins = max(ends, self._pipe_free)
            ends = self._pipe_free = begins + times * size / self.costs.bytes_per_s
        was = self._files.get(path)
        ends += self.costs.latency_s + self.slow.get(path, 0.0)
        self.clock.at(ends, self._end, fetch, was, done)

    def stream(self, size: int, done: Callable[[], None], times: int = 1) -> None:
        """So many bytes of a file that is open, by a node that holds none of it, or by several."""
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

    def _end(self, fetch: Fetch, was: Entry | None, done: Callable[[Arrived], None]) -> None:
        if self.clock.now < self.stalled_until:  # it has stalled meanwhile
            self.clock.at(self.stalled_until, self._end, fetch, was, done)
            return
        done(self._outcome(fetch, was))

    def _outcome(self, fetch: Fetch, was: Entry | None) -> Arrived:
        path = fetch.path
        if path in self.failing:
            return Failed(fetch.fetch, self.failing[path])
        found = self.entry(path)
        match fetch:
            case LookSource():
                return Looked(fetch.fetch, found)
            case _ if found is None:
                return Failed(fetch.fetch, errno.ENOENT)
            case ScanSource():
                if path not in self._directories:
                    return Failed(fetch.fetch, errno.ENOTDIR)
                if self.only_searched:
                    return Failed(fetch.fetch, errno.EACCES)
                return Scanned(fetch.fetch, self.listing(path))
            case ReadSource(_, _, version) | OpenSource(_, _, version) | ReadChunk(_, _, version):
                # the same before and after, as the real source sees to it
                if was is None or {version} != {
                    was.attributes.version,
                    found.attributes.version,
                }:
                    return Failed(fetch.fetch, errno.ESTALE)
                if isinstance(fetch, OpenSource):
                    return FileOpened(fetch.fetch)
                if isinstance(fetch, ReadChunk):
                    piece = self.chunk(path, version, fetch.offset, fetch.length)
                    return ContentRead(fetch.fetch, (piece,))
                mentions = self.mentions.get(path, frozenset())
                return ContentRead(fetch.fetch, self.content(path, version), mentions)
        raise AssertionError("unreachable")


@dataclass(slots=True)
class Hands:
    """The threads of one node that are at work at the source: what finds none waits."""

    source: Source
    count: int
    times: int = 1
    """For so many nodes this one stands."""
    is_sick: bool = False
    """This node's own client of the filesystem gives errors, and no other's does."""
    busy: int = 0
    _waiting: deque[tuple[Fetch, Callable[[Arrived], None]]] = field(default_factory=deque)

    def start(self, fetch: Fetch, done: Callable[[Arrived], None]) -> None:
        if self.busy >= self.count:
            self._waiting.append((fetch, done))
            return
        self.busy += 1
        self.source.begin(fetch, lambda arrived: self._end(arrived, done), self.times)

    def _end(self, arrived: Arrived, done: Callable[[Arrived], None]) -> None:
        self.busy -= 1
        if self.is_sick:
            arrived = Failed(arrived.fetch, errno.EIO)
        if self._waiting:
            self.start(*self._waiting.popleft())
        done(arrived)


def _unknown(entry: Entry) -> Entry:
    attributes = entry.attributes
    return Entry(Attributes.bare(attributes.inode, stat.S_IFMT(attributes.mode)), unknown=True)


def _entry(mode: int, size: int, inode: int, changed_s: int) -> Entry:
    packed = struct.pack(
        "<6Q10I",
        *(inode, size, 0, 0, changed_s, changed_s),
        *(0, 0, 0, mode, 1, 0, 0, 0, 4096, 0),
    )
    return Entry(Attributes(packed))
