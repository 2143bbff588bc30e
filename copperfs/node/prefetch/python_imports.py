"""Import prefetch: reads what a directory or a Python import will need next.

After requests for two files of one *ending* (from the last dot on) in a small directory, the node
that reads the source for this directory reads the others of that ending, a few at a time. For
Python packages

* after a directory its ``__pycache__`` is listed
* in a ``__pycache__`` one request for a file is enough to read the others
* after a compiled ``__init__`` the package's directories and libraries that it *mentions*
  (``bytecode_names.c``) are listed and read

Rules for all of it (docs/decisions/0041 and 0042 have the reasons):

* The *set* of requested files decides what is read, not their order: a job of many nodes reads what
  one node alone would. So each file counts once, whichever node requested it and whether or not it
  was held already. A file that one rule may have prefetched counts for no other rule.
* Where the front reads on its allowance, it prefetches as well. ``native/front/import_prefetch.c``
  has these rules again, with the same numbers, and this node is only told what was read.
* A prefetch evicts nothing, and until it is requested it is the first to be evicted.
* A directory's names are scanned a fixed number of times, however many of its files are requested.
* A prefetch is a fetch with a request of its own (``NOBODY``), which other requests may join. If it
  fails and no other request waits, no error is reported.
"""

import stat
from collections import deque
from dataclasses import dataclass, field

from copperfs.model.listing import Listing, ending_of
from copperfs.model.types import COMPILED, Path, RequestId, Version, join, split
from copperfs.node.actions import Action, ObjectKey
from copperfs.node.cache.metadata_cache import Cache
from copperfs.node.events import ListRequest, NodeRequest, ReadRequest
from copperfs.node.fetch.fetch import Fetch
from copperfs.node.fetch.table import FetchTable
from copperfs.node.limits_and_counters import OBJECT_OVERHEAD_BYTES, FetchKind, Limits, NodeStats
from copperfs.node.requests.file_class import FileClass, FileClassifier
from copperfs.node.requests.path_policy import Place, Policy
from copperfs.node.routing.route import Routing

FILES_MAX = 512
FILE_BYTES_MAX = 128 << 10
BYTES_MAX = 4 << 20
PACKAGE_ITSELF = b"__init__."
LIBRARY_ENDING = b".so"
LIBRARY_BYTES_MAX = 4 << 20
# Larger compiled files are data, and a scan of them would take a millisecond.
LOOKED_THROUGH_BYTES_MAX = 1 << 20
# A directory with more directories and libraries is no package.
BESIDE_MAX = 4096
# A directory is several operations where a file is two.
FILES_FOR_EACH_DIRECTORY = 4
LISTING_ROOM_BYTES = 64 << 10
# Directories with endings or names to remember.
GROUPS_MAX = 1 << 16
QUEUE_MAX = 1 << 16

NOBODY = RequestId(0)
"""No other request has this number."""

_BEGUN = b""


def is_nobodys(request: NodeRequest) -> bool:
    return request.request == NOBODY


def stem_of(name: bytes) -> bytes:
    """The name of its module in Python."""
    return name.partition(b".")[0]


@dataclass(slots=True)
class ImportPrefetcher:
    policy: Policy
    files: FileClassifier
    limits: Limits
    stats: NodeStats
    cache: Cache
    fetches: FetchTable
    routing: Routing
    decides: bool
    """False where the front decides."""
    _groups: dict[tuple[Path, bytes], bytes] = field(default_factory=dict)
    """By directory and ending: the first requested file, or ``_BEGUN``."""
    _beside: dict[Path, dict[bytes, list[Path | ObjectKey]]] = field(default_factory=dict)
    """By package and name: what to list and read if it is mentioned."""
    _queue: deque[ObjectKey] = field(default_factory=deque)
    _to_list: deque[Path] = field(default_factory=deque)
    _under_way: set[ObjectKey] = field(default_factory=set)
    _listing: set[Path] = field(default_factory=set)
    _unused: dict[ObjectKey, None] = field(default_factory=dict)
    """Prefetched files, and those being read, that were not requested yet."""

    def requested(self, key: ObjectKey) -> None:
        """A file was requested, held or not. ``go_on`` comes next."""
        self.used(key)
        if not self.decides or not self.limits.ahead_max:
            return
        directory, name = split(key.path)
        ending = ending_of(name)
        group = directory, ending
        first = self._groups.get(group)
        if first in (_BEGUN, name) or not ending or not self._is_small(key.path, key.version.size):
            return
        if not self._is_read_here(directory):
            return
        if first is None:
            if len(self._groups) >= GROUPS_MAX:
                self._groups.clear()
            self._groups[group] = name
            if split(directory)[1] != COMPILED:
                return
        held = self.cache.held_listing(directory)
        if held is None:
            return
        self._groups[group] = _BEGUN
        if ending == LIBRARY_ENDING and _has_compiled(held[0]):
            return
        self._will_read(self._files(directory, held[0], ending))

    def listed(self, directory: Path, listing: Listing) -> None:
        """The names of a directory came. ``go_on`` comes next."""
        if self._lists_below(directory) and _has_compiled(listing):
            self._will_list(join(directory, COMPILED))

    def names_to_find(self, key: ObjectKey) -> tuple[bytes, ...]:
        """Empty if the file is no package's ``__init__``."""
        directory, name = split(key.path)
        package, compiled = split(directory)
        if compiled != COMPILED or not name.startswith(PACKAGE_ITSELF):
            return ()
        if key.version.size > LOOKED_THROUGH_BYTES_MAX:
            return ()
        if not self.decides or not self.limits.ahead_max or not self._is_read_here(directory):
            return ()
        beside = self._beside.get(package)
        if beside is None:
            held = self.cache.held_listing(package)
            if held is None:
                return ()
            if len(self._beside) >= GROUPS_MAX:
                self._beside.clear()
            beside = self._beside[package] = self._named_beside(package, held[0])
        return tuple(beside)

    def mentioned(self, key: ObjectKey, names: tuple[bytes, ...]) -> None:
        """The scan found these names. ``go_on`` comes next."""
        beside = self._beside.get(split(split(key.path)[0])[0], {})
        for name in names:
            for each in beside.pop(name, ()):
                if isinstance(each, ObjectKey):
                    self._will_read([each])
                else:
                    self._will_list(each)

    def _is_read_here(self, directory: Path) -> bool:
        file = join(directory, b"?")
        return self.policy.place(directory) is Place.SHARED and self.routing.is_root(file)

    def _lists_below(self, directory: Path) -> bool:
        """Whether directories in this one are prefetched: where the front, alone, would list them
        without asking."""
        return (
            self.decides
            and self.limits.ahead_max > 0
            and self._is_read_here(directory)
            and self.policy.is_uniform_below(directory)
        )

    def _is_small(self, path: Path, size: int, most: int = FILE_BYTES_MAX) -> bool:
        return 0 < size <= most and self.files.of(path, size) is FileClass.WHOLE

    def _files(self, directory: Path, listing: Listing, ending: bytes) -> list[ObjectKey]:
        """Empty if there are too many files."""
        found: list[ObjectKey] = []
        size = 0
        if listing.bare:
            return []
        for name, entry in listing.rows_ending(ending):
            attributes = entry.attributes
            path = join(directory, name)
            is_file = not entry.unknown and stat.S_ISREG(attributes.mode)
            if not is_file or not self._is_small(path, attributes.size):
                continue
            found.append(ObjectKey(path, attributes.version))
            size += attributes.size
            if len(found) > FILES_MAX or size > BYTES_MAX:
                return []
        return found

    def _named_beside(self, package: Path, listing: Listing) -> dict[bytes, list[Path | ObjectKey]]:
        found: dict[bytes, list[Path | ObjectKey]] = {}
        lists_below = self._lists_below(package)
        if listing.bare:
            return found
        for name, entry in listing.rows():
            attributes = entry.attributes
            if entry.unknown:
                continue
            if stat.S_ISDIR(attributes.mode):
                if lists_below and name != COMPILED:
                    found.setdefault(name, []).append(join(package, name))
                continue
            is_library = ending_of(name) == LIBRARY_ENDING and stat.S_ISREG(attributes.mode)
            path = join(package, name)
            if is_library and self._is_small(path, attributes.size, LIBRARY_BYTES_MAX):
                key = ObjectKey(path, attributes.version)
                found.setdefault(stem_of(name), []).append(key)
        return found if sum(map(len, found.values())) <= BESIDE_MAX else {}

    def _will_read(self, keys: list[ObjectKey]) -> None:
        if len(self._queue) + len(keys) <= QUEUE_MAX:
            self._queue.extend(keys)

    def _will_list(self, directory: Path) -> None:
        if len(self._to_list) < QUEUE_MAX:
            self._to_list.append(directory)

    def go_on(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._to_list and len(self._listing) < self._directories_max:
            directory = self._to_list.popleft()
            scan = (FetchKind.LISTING, directory, None)
            if self.cache.listing(directory, now) is not None or self.fetches.is_under_way(scan):
                continue
            if not self.cache.has_free(LISTING_ROOM_BYTES):
                continue
            self._listing.add(directory)
            actions += self.fetches.begin(now, scan, ListRequest(NOBODY, directory))
        while self._queue and len(self._under_way) < self.limits.ahead_max:
            key = self._queue.popleft()
            subject = (FetchKind.OBJECT, key.path, key.version)
            if self.cache.holds(key.path, key.version) or self.fetches.is_under_way(subject):
                continue
            size = key.version.size + OBJECT_OVERHEAD_BYTES
            if not self.cache.has_free(size) or not self.fetches.has_room(subject, size):
                continue
            self._under_way.add(key)
            self._unused[key] = None
            actions += self.fetches.begin(now, subject, ReadRequest(NOBODY, key.path, key.version))
        return actions

    @property
    def _directories_max(self) -> int:
        return max(1, self.limits.ahead_max // FILES_FOR_EACH_DIRECTORY)

    def ended(self, now: float, fetch: Fetch) -> list[Action]:
        """The result of a read or a scan is admitted already."""
        kind, path, version = fetch.subject
        if kind is FetchKind.LISTING:
            if path in self._listing:
                self._listing.discard(path)
                self.stats.listed_ahead += self.cache.held_listing(path) is not None
            return self.go_on(now)
        if not isinstance(version, Version) or ObjectKey(path, version) not in self._under_way:
            return self.go_on(now)  # it may have mentioned something
        key = ObjectKey(path, version)
        self._under_way.discard(key)
        if self.cache.holds(key.path, key.version):
            self._count(key)
        else:
            self._unused.pop(key, None)
        return self.go_on(now)

    def fetched(self, key: ObjectKey, *, used: bool) -> None:
        """The caller admits this file of the front."""
        if not used:
            self._unused[key] = None
        self._count(key)

    def _count(self, key: ObjectKey) -> None:
        self.stats.read_ahead += 1
        self.stats.read_ahead_bytes += key.version.size
        if key not in self._unused:
            self.stats.read_ahead_used += 1
        elif len(self._unused) > QUEUE_MAX:
            del self._unused[next(iter(self._unused))]

    def is_unused(self, key: ObjectKey) -> bool:
        return key in self._unused

    def used(self, key: object) -> None:
        if key in self._unused:
            del self._unused[key]
            # a fetch under way is counted when it completes
            self.stats.read_ahead_used += key not in self._under_way

    def clear(self) -> None:
        """A new epoch invalidates listings."""
        self._groups.clear()
        self._beside.clear()
        self._queue.clear()
        self._to_list.clear()
        self._listing.clear()

    def check_invariants(self) -> None:
        assert len(self._under_way) <= self.limits.ahead_max
        for key in self._under_way:
            assert self.fetches.is_under_way((FetchKind.OBJECT, key.path, key.version))
        assert len(self._listing) <= self._directories_max
        for directory in self._listing:
            assert self.fetches.is_under_way((FetchKind.LISTING, directory, None))


def _has_compiled(listing: Listing) -> bool:
    # Most have none, and a lookup of the name would index all the others.
    if listing.bare or COMPILED not in listing.packed:
        return False
    entry = listing.find(COMPILED)
    return entry is not None and not entry.unknown and stat.S_ISDIR(entry.attributes.mode)
