"""Source client of one node: what its ``stat`` shows of the files that the server has.

Each mount has a device number of its own. Its inode numbers are the server's, or its own (sshfs).
Its node's wall clock tells how old a version is (``lab/sim/version_settling.py``).
"""

from dataclasses import dataclass, field

from copperfs.lab.sim.version_settling import settles_ns
from copperfs.model.listing import Listing, pack_listing
from copperfs.model.types import OWN_INODE, Attributes, Entry, Path, Version

EPOCH_S = 1_700_000_000
"""The server's clock when virtual time begins."""
OWN_NUMBERS = 1_000_000
_INODE, _FLAGS = 0, 15


@dataclass(slots=True, eq=False)
class SimulatedClient:
    device: int = 1
    """A filesystem mounted below the source's root has another one."""
    own_numbers: bool = False
    """No other client gives files these numbers."""
    ahead_s: float = 0.0
    ignores_numbers: bool = False
    """Versions leave inode numbers out."""
    _listings: dict[Path, tuple[Listing, Listing]] = field(default_factory=dict)

    def number(self, inode: int, filesystem: int) -> int:
        """It must not depend on *filesystem*, the tag of where the file lies
        (``tests/sim/old_defects.py``)."""
        return self.raw_number(inode)

    def entry(self, found: Entry) -> Entry:
        values = list(found.attributes.unpack())
        shown = self.number(values[_INODE], values[_FLAGS])
        if shown == values[_INODE] and not self.ignores_numbers:
            return found
        values[_INODE] = shown
        if self.ignores_numbers and not found.unknown:
            values[_FLAGS] |= OWN_INODE
        return Entry(Attributes.of_values(values), found.target, found.unknown)

    def listing(self, path: Path, found: Listing) -> Listing:
        """Always the same one until the server's changes."""
        rows = list(found.rows())
        if all(self.entry(entry) is entry for _, entry in rows):
            return found
        known = self._listings.get(path)
        if known is not None and known[0] is found:
            return known[1]
        shown = pack_listing([(name, self.entry(entry)) for name, entry in rows])
        self._listings[path] = found, shown
        return shown

    def ignore_numbers(self) -> None:
        self.ignores_numbers = True
        self._listings.clear()

    def raw(self, found: Entry) -> Version:
        """The version by a bare ``lstat``: the inode number always counts."""
        attributes = found.attributes
        values = attributes.unpack()
        return attributes.version._replace(inode=self.raw_number(values[_INODE]))

    def raw_number(self, inode: int) -> int:
        return inode + self.device * OWN_NUMBERS if self.own_numbers else inode

    def shows(self, version: Version, found: Entry) -> bool:
        here = self.entry(found).attributes.version
        if not version.inode:
            here = here._replace(inode=0)
        elif not here.inode:
            values = found.attributes.unpack()
            here = here._replace(inode=self.number(values[_INODE], values[_FLAGS]))
        return here == version

    def settles_s(self, now: float, version: Version) -> float:
        """For how long the node waits before it uses a version that it has just seen."""
        return settles_ns(wall_ns(now + self.ahead_s), version) / 1e9


def wall_ns(now: float) -> int:
    return int((EPOCH_S + now) * 1e9)
