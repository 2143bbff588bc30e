"""Replacement of a directory: which directory may take over the number that the kernel knows."""

import stat
import struct

import pytest

from copperfs.fuse.handlers import is_as_open, may_become
from copperfs.model.types import Attributes

USER = 1000


def owned(mode: int, user: int = 0, kind: int = stat.S_IFDIR) -> Attributes:
    values = 0, 0, 0, kind | mode, 2, user, user, 0, 4096, 0
    return Attributes(struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, *values))


@pytest.mark.parametrize(
    ("new", "known", "as_open"),
    [
        (owned(0o755), owned(0o755), True),
        (owned(0o1777), owned(0o755), True),
        (owned(0o555), owned(0o755), True),  # other users may not write either way
        (owned(0o700), owned(0o755), False),
        (owned(0o750), owned(0o755), False),
        (owned(0o711), owned(0o755), False),
        (owned(0o700), owned(0o700), True),
        (owned(0o755, USER), owned(0o755), True),
        (owned(0o700, USER), owned(0o755), False),
        (owned(0o700, USER), owned(0o700), False),  # its owner might look into another's
        (owned(0o755, USER), owned(0o700), True),
        (owned(0o055), owned(0o755, USER), False),
    ],
)
def test_a_directory_takes_the_place_of_one_that_was_no_more_open(
    new: Attributes, known: Attributes, as_open: bool
) -> None:
    assert is_as_open(new, known) is as_open
    assert may_become(new, known, allow_other=True) is as_open
    assert may_become(new, known, allow_other=False)


def test_nothing_else_takes_the_place_of_a_directory() -> None:
    assert not may_become(owned(0o777, kind=stat.S_IFREG), owned(0o755), allow_other=False)
