"""Inode numbers for a mount without the front: what tables.c keeps, in Python.

A number names one version of a file, as there: a name whose file changed gets a new number, and
whoever holds the old one open keeps to the old version. Numbers live as long as the kernel refers
to them.
"""

from dataclasses import dataclass, field

import pyfuse3

from copperfs.types import ROOT, Attributes, Entry, Path, is_below


@dataclass(slots=True)
class Inode:
    path: Path
    attributes: Attributes
    target: bytes = b""
    lookups: int = 0


@dataclass(slots=True)
class Inodes:
    _by_number: dict[int, Inode] = field(default_factory=dict)
    _by_path: dict[Path, int] = field(default_factory=dict)
    _next: int = pyfuse3.ROOT_INODE + 1

    def __post_init__(self) -> None:
        self._by_number[pyfuse3.ROOT_INODE] = Inode(ROOT, Attributes.bare(1, 0o40755))
        self._by_path[ROOT] = pyfuse3.ROOT_INODE

    def __len__(self) -> int:
        return len(self._by_number)

    def get(self, number: int) -> Inode | None:
        return self._by_number.get(number)

    def obtain(self, path: Path, entry: Entry) -> int:
        """The number of *path* in this version."""
        number = self._by_path.get(path)
        if number is not None:
            inode = self._by_number[number]
            old, new = inode.attributes, entry.attributes
            directories = old.is_directory() and new.is_directory()
            if path == ROOT or (
                not new.version.is_another_than(old.version)
                if directories
                else old.version == new.version
            ):
                inode.attributes = new
                return number
            if old.is_directory():  # nor do the paths below it lead to what they led to
                for each in [each for each in self._by_path if is_below(each, path)]:
                    del self._by_path[each]
        number = self._next
        self._next += 1
        self._by_number[number] = Inode(path, entry.attributes, entry.target)
        self._by_path[path] = number
        return number

    def refer(self, number: int) -> None:
        self._by_number[number].lookups += 1

    def forget(self, number: int, lookups: int) -> None:
        inode = self._by_number.get(number)
        if inode is None or number == pyfuse3.ROOT_INODE:
            return
        inode.lookups -= lookups
        if inode.lookups <= 0:
            self.drop_unreferred(number)

    def drop_unreferred(self, number: int) -> None:
        """For a number that was made and did not reach the kernel."""
        inode = self._by_number.get(number)
        if inode is None or inode.lookups > 0 or number == pyfuse3.ROOT_INODE:
            return
        del self._by_number[number]
        if self._by_path.get(inode.path) == number:
            del self._by_path[inode.path]

    def is_untouched(self, number: int) -> bool:
        """Whether no name in this directory has a number."""
        inode = self._by_number[number]
        return not any(each != inode.path and is_below(each, inode.path) for each in self._by_path)

    def is_attached(self, number: int) -> bool:
        """Whether its path leads to no newer number, as far as is known."""
        return self._by_path.get(self._by_number[number].path) == number

    def attributes_at(self, path: Path) -> Attributes | None:
        number = self._by_path.get(path)
        return None if number is None else self._by_number[number].attributes

    def find(self, path: Path) -> int | None:
        return self._by_path.get(path)

    def paths(self) -> list[Path]:
        return [path for path in self._by_path if path != ROOT]
