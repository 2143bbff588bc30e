"""Path policy: which paths are cooperative, and how the mount shows them.

Four kinds of places are below the source:

* **shared**: on the shared filesystem; read once for the whole job, kept as one snapshot (or for
  ``--revalidate`` seconds);
* **local**: of this node alone (``/tmp``, ``/etc``); passed through, so kept for a second at most;
* **pseudo**: kernel interfaces such as ``/proc``. Their files have no size until they are read, and
  would seem empty. So the mount shows the mount point as a symbolic link to itself outside the
  mount;
* **refused**: paths that lead back into the mount, shown as a directory that no process may enter,
  so that a recursive walk ends there.

Absolute symbolic links into shared places are shown with the mount point in front, so that a
process that follows one stays in the cooperative view.
"""

import posixpath
import stat
from dataclasses import dataclass, field, replace
from enum import Enum

from copperfs.model.listing import Listing, pack_listing
from copperfs.model.protection import UNPROTECTED, Protection
from copperfs.model.types import Entry, Path, is_below, join

LOCAL_FRESH_S = 1.0


class Place(Enum):
    SHARED = "shared"
    LOCAL = "local"
    REFUSED = "refused"


@dataclass(slots=True)
class Policy:
    """Prefixes are paths below the source. Only ``refused`` may change while a node runs."""

    source: bytes
    """Absolute, as is the mount point."""
    mountpoint: bytes
    shared: tuple[Path, ...] = (Path(b""),)
    local: tuple[Path, ...] = ()
    """The longest prefix of both decides."""
    pseudo: frozenset[Path] = frozenset()
    refused: frozenset[Path] = frozenset()
    rewrite_symlinks: bool = True
    revalidate_s: float | None = None
    ring: tuple[Path, ...] = ()
    """Datasets."""
    protection: Protection = UNPROTECTED
    _all_shared: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._all_shared = self.shared == (Path(b""),) and not self.local

    def is_ring(self, path: Path) -> bool:
        return bool(self.ring) and any(is_below(path, each) for each in self.ring)

    def place(self, path: Path) -> Place:
        if self._all_shared and not self.refused:
            return Place.SHARED  # the common case: each message asks several times
        if any(is_below(path, each) for each in self.refused):
            return Place.REFUSED
        best_shared = max((len(p) for p in self.shared if is_below(path, p)), default=-1)
        best_local = max((len(p) for p in self.local if is_below(path, p)), default=-1)
        return Place.SHARED if best_shared > best_local else Place.LOCAL

    def fresh_s(self, path: Path) -> float | None:
        """None means without limit. A path that leads down to a shared prefix is valid as long as
        the prefix. Otherwise every process would look up ``/lus`` again each second.
        """
        if self.place(path) is Place.SHARED or any(is_below(each, path) for each in self.shared):
            return self.revalidate_s
        return self._local_fresh_s()

    def listing_fresh_s(self, directory: Path) -> float | None:
        """A path that leads down to a shared prefix has siblings that come and go."""
        if self.place(directory) is Place.SHARED:
            return self.revalidate_s
        return self._local_fresh_s()

    def is_uniform_below(self, directory: Path) -> bool:
        """Whether all paths below *directory* are shared, one snapshot, and shown unchanged, except
        absolute links."""
        apart = (*self.local, *self.pseudo, *self.refused, *self.ring)
        return (
            self.revalidate_s is None
            and self.place(directory) is Place.SHARED
            and not any(is_below(each, directory) for each in apart)
        )

    def _local_fresh_s(self) -> float:
        return LOCAL_FRESH_S if self.revalidate_s is None else min(LOCAL_FRESH_S, self.revalidate_s)

    def shown(self, directory: Path, name: bytes, entry: Entry) -> Entry:
        path = join(directory, name)
        if entry.unknown:
            return entry  # it is looked up singly, and changed then
        if path in self.pseudo:
            return self._as_link(entry, self._absolute(path))
        if entry.target.startswith(b"/") and self.rewrite_symlinks:
            return self._rewritten(entry)
        return entry

    def shown_listing(self, directory: Path, listing: Listing) -> Listing:
        """The same object if nothing changes."""
        links = listing.absolute_symlinks and self.rewrite_symlinks
        if not links and not any(posixpath.dirname(path) == directory for path in self.pseudo):
            return listing
        rows = [(name, self.shown(directory, name, entry)) for name, entry in listing.rows()]
        return replace(pack_listing(rows, bare=listing.bare), directory=listing.directory)

    def _absolute(self, path: Path) -> bytes:
        return posixpath.join(self.source, path)

    @staticmethod
    def _as_link(entry: Entry, target: bytes) -> Entry:
        attributes = entry.attributes.with_mode(stat.S_IFLNK | 0o777).with_size(len(target))
        return Entry(attributes, target)

    def _rewritten(self, entry: Entry) -> Entry:
        target = entry.target
        # The normal form decides where the link leads; the shown target keeps its spelling.
        below = self._below_source(posixpath.normpath(target))
        if (
            below is None
            or is_below(target, self.mountpoint)
            or self.place(below) is not Place.SHARED
            or any(is_below(below, each) for each in self.pseudo)
        ):
            return entry
        spelled = self._below_source(target)
        if spelled is None:
            return entry
        shown = posixpath.join(self.mountpoint, spelled.lstrip(b"/"))
        if len(shown) > 4095:
            return entry
        return Entry(entry.attributes.with_size(len(shown)), shown)

    def _below_source(self, absolute: bytes) -> Path | None:
        prefix = self.source.rstrip(b"/")
        if not absolute.startswith(b"/") or not is_below(absolute, prefix):
            return None
        return Path(absolute[len(prefix) :].lstrip(b"/"))
