"""Reading ahead: files that will be asked for, as far as one can tell.

Who has asked for two files of one *ending* (from the last dot on) in a small directory will mostly
ask for the others: of the ``__pycache__`` directories that an import lists, 91 % of the bytes are
read in the end. So the rest of that ending is read meanwhile, a few at a time, by whoever reads the
source for this directory; others are given what is asked for, or offered what was read.

* What is read follows from the *set* of files that were asked for, not from their order: a job of
  many nodes reads what one node alone would. So what is counted is distinct files, by whomever they
  were asked for, and whether they were held already makes no difference.
* Where the front reads on credit, it reads ahead, too: ``fuse/front/ahead.c`` has this rule again,
  with the same numbers, and this node is only told of what came.
* Nothing has to go for it. What nobody has asked for yet is read only into free room, and is the
  first to go when room is needed.
* A file that is read ahead is a fetch like any other, with a question that is *nobody's*. Who asks
  for it meanwhile waits on that fetch. If it fails and nobody waits, nothing is said: who asks
  for it finds out.

Tried in thought and rejected: more files the longer somebody goes on, as the kernel does for one
file; what is read would depend on who was faster.
"""

import stat
from collections import deque
from dataclasses import dataclass, field

from copperfs.core.actions import Action, ObjectKey
from copperfs.core.asking import Fetch
from copperfs.core.cache import Cache
from copperfs.core.events import Question, Read
from copperfs.core.fetches import Fetches
from copperfs.core.listing import Listing
from copperfs.core.policy import Place, Policy
from copperfs.core.routing import Routing
from copperfs.core.state import OBJECT_OVERHEAD_BYTES, Kind, Limits, NodeStats
from copperfs.types import Path, RequestId, join, split

FILES_MAX = 512
FILE_BYTES_MAX = 128 << 10
BYTES_MAX = 4 << 20
# Directories with endings that are kept in mind, and files that are still to be read.
GROUPS_MAX = 1 << 16
QUEUE_MAX = 1 << 16

NOBODY = RequestId(0)
"""Who asks for what is read ahead; nobody else has this number."""

_BEGUN = b""


def is_nobodys(question: Question) -> bool:
    return question.request == NOBODY


def ending_of(name: bytes) -> bytes:
    """From the last dot on; empty if there is none, or only at the beginning."""
    dot = name.rfind(b".")
    return name[dot:] if dot > 0 else b""


@dataclass(slots=True)
class Ahead:
    policy: Policy
    limits: Limits
    stats: NodeStats
    cache: Cache
    fetches: Fetches
    routing: Routing
    decides: bool
    """False where the front does."""
    _groups: dict[tuple[Path, bytes], bytes] = field(default_factory=dict)
    """By directory and ending: the name of the first file that was asked for, or that it began."""
    _queue: deque[ObjectKey] = field(default_factory=deque)
    _under_way: set[ObjectKey] = field(default_factory=set)
    _unused: dict[ObjectKey, None] = field(default_factory=dict)
    """What was read ahead, or is being, and nobody has asked for."""

    # --- what is read ----------------------------------------------------------------------------

    def asked(self, key: ObjectKey) -> None:
        """Somebody wants this file; whether it is held or not. ``go_on`` comes next."""
        self.used(key)
        if not self.decides or not self.limits.ahead_max:
            return
        directory, name = split(key.path)
        ending = ending_of(name)
        group = directory, ending
        first = self._groups.get(group)
        if first in (_BEGUN, name) or not ending or not self._is_small(key.version.size):
            return
        if self.policy.place(directory) is not Place.SHARED or not self.routing.is_root(key.path):
            return
        if first is None:
            if len(self._groups) >= GROUPS_MAX:
                self._groups.clear()
            self._groups[group] = name
            return
        held = self.cache.held_listing(directory)
        if held is None:
            return
        self._groups[group] = _BEGUN
        rest = self._files(directory, held[0], ending)
        if len(self._queue) + len(rest) <= QUEUE_MAX:
            self._queue.extend(rest)

    def _is_small(self, size: int) -> bool:
        return 0 < size <= min(FILE_BYTES_MAX, self.limits.whole_max_bytes)

    def _files(self, directory: Path, listing: Listing, ending: bytes) -> list[ObjectKey]:
        """All of one ending; none if that would be too much, or nothing is known of them."""
        found: list[ObjectKey] = []
        size = 0
        if listing.bare:
            return []
        for name, entry in listing.rows():
            if ending_of(name) != ending:
                continue
            attributes = entry.attributes
            if not stat.S_ISREG(attributes.mode) or not self._is_small(attributes.size):
                continue
            found.append(ObjectKey(join(directory, name), attributes.version))
            size += attributes.size
            if len(found) > FILES_MAX or size > BYTES_MAX:
                return []
        return found

    def go_on(self, now: float) -> list[Action]:
        """Read as many as may be read at a time."""
        actions: list[Action] = []
        while self._queue and len(self._under_way) < self.limits.ahead_max:
            key = self._queue.popleft()
            subject = (Kind.READ, key.path, key.version)
            if self.cache.holds(key.path, key.version) or self.fetches.is_under_way(subject):
                continue
            size = key.version.size + OBJECT_OVERHEAD_BYTES
            if not self.cache.has_free(size) or not self.fetches.has_room(subject, size):
                continue
            self._under_way.add(key)
            self._unused[key] = None
            actions += self.fetches.begin(now, subject, Read(NOBODY, key.path, key.version))
        return actions

    # --- what came of it -------------------------------------------------------------------------

    def ended(self, now: float, fetch: Fetch) -> list[Action]:
        """A read is over, by whomever it was asked for; whatever came of it is admitted already."""
        kind, path, version = fetch.subject
        if kind is not Kind.READ:
            return []
        key = ObjectKey(path, version)  # type: ignore[arg-type]  # of a READ it is one
        if key not in self._under_way:
            return []
        self._under_way.discard(key)
        if self.cache.holds(key.path, key.version):
            self._count(key)
        else:
            self._unused.pop(key, None)
        return self.go_on(now)

    def fetched(self, key: ObjectKey, *, used: bool) -> None:
        """The front has read this ahead; it is to be admitted."""
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
        """Read ahead, and not asked for until now."""
        return key in self._unused

    def used(self, key: object) -> None:
        if key in self._unused:
            del self._unused[key]
            # what is under way is counted when it comes
            self.stats.read_ahead_used += key not in self._under_way

    def clear(self) -> None:
        """A new epoch: what was listed is not believed any more."""
        self._groups.clear()
        self._queue.clear()

    def check_invariants(self) -> None:
        assert len(self._under_way) <= self.limits.ahead_max
        for key in self._under_way:
            assert self.fetches.is_under_way((Kind.READ, key.path, key.version))
