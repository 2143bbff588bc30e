"""Source client of one node: what its ``stat`` shows of the files that the server has.

Each mount has a device number of its own, which no other node sees. Its inode numbers are the
server's, or its own (sshfs). Each node also has a wall clock, which is some seconds off the
server's: it tells the node how old a version is (``lab/sim/settling.py``).
"""

from dataclasses import dataclass, field

from copperfs.lab.sim.settling import settles_ns
from copperfs.model.listing import Listing, pack_listing
from copperfs.model.types import OWN_INODE, Attributes, Entry, Path, Version

EPOCH_S = 1_700_000_000
"""The server's clock when virtual time begins."""
OWN_NUMBERS = 1_000_000
_INODE, _FLAGS = 0, 15


@dataclass(slots=True, eq=False)
class SimulatedClient:
    device: int = 1
    """The device of the source's root; a filesystem that is mounted below it has another one."""
    own_numbers: bool = False
    """Files have numbers here that no other client gives them."""
    ahead_s: float = 0.0
    """How far its clock is ahead of the server's."""
    ignores_numbers: bool = False
    """Inode numbers are left out of versions."""
    _listings: dict[Path, tuple[Listing, Listing]] = field(default_factory=dict)
    """The server's listing that each was made of, and the one that is shown."""

    def number(self, inode: int, filesystem: int) -> int:
        """The number in versions for the server's number of a file: what ``stat`` gives. It must
        not depend on *filesystem*, the tag of where the file lies (``tests/sim/old_defects.py``).
        """
        return self.raw_number(inode)

    def entry(self, found: Entry) -> Entry:
        """The server's entry, as this client shows it."""
        values = list(found.attributes.unpack())
        shown = self.number(values[_INODE], values[_FLAGS])
        if shown == values[_INODE] and not self.ignores_numbers:
            return found
        values[_INODE] = shown
        if self.ignores_numbers and not found.unknown:
            values[_FLAGS] |= OWN_INODE
        return Entry(Attributes.of_values(values), found.target, found.unknown)

    def listing(self, path: Path, found: Listing) -> Listing:
        """The server's listing, as this client shows it; always the same one until the server's
        changes."""
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
        """The version that a bare ``lstat`` shows: the inode number always counts."""
        attributes = found.attributes
        values = attributes.unpack()
        return attributes.version._replace(inode=self.raw_number(values[_INODE]))

    def raw_number(self, inode: int) -> int:
        """The number that ``stat`` gives."""
        return inode + self.device * OWN_NUMBERS if self.own_numbers else inode

    def shows(self, version: Version, found: Entry) -> bool:
        """Whether a file that is opened here is the *version* that was requested."""
        here = self.entry(found).attributes.version
        if not version.inode:
            here = here._replace(inode=0)
        elif not here.inode:
            values = found.attributes.unpack()
            here = here._replace(inode=self.number(values[_INODE], values[_FLAGS]))
        return here == version

    def settles_s(self, now: float, version: Version) -> float:
        """How long the node leaves a version alone that it has just seen."""
        return settles_ns(wall_ns(now + self.ahead_s), version) / 1e9


def wall_ns(now: float) -> int:
    """The server's clock."""
    return int((EPOCH_S + now) * 1e9)
