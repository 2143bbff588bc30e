"""A walk gives every name that existed all the time exactly once, whatever others do meanwhile:
they remove and add names, clear the mount, have it listed anew.

The walker reads a few names a call with ``getdents64``, and every event happens between two calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench.altered_daemons import altered
from tests.mount.conftest import Mounter
from tests.mount.helpers import Mount, eventually

FILES = 900
KEPT = {f"kept-{number:03}" for number in range(FILES)}
PASSING = [f"passing-{number:03}" for number in range(120)]
# Some ten names a call.
BUFFER_BYTES = 400
DOTS = {".", ".."}
# Each of the four names has one string of either pair. They have one FNV-1a, so they share their
# cookie.
COLLIDING = [
    "".join(parts)
    for parts in itertools.product(
        (
            "tbbxDyfVvm7jnoe39Z8GlhUjOfY1zhjCjPWHZif4tAernr4izseD9E3BnccYKt4AzfkIDvZIVb7QmhQvHwjW",
            "8PTh8k4FBkeZ2qWCMXj78ngzslgAFv8sjPWHZif4Hs3bRdZyNaWT9E3BnccY3ioazfkIDvZIbPeA9ncFty8G",
        ),
        (
            "ziVt3xtsGCYFXC6bjhjGy0LU9chIgrGsXc65Sa8fLb5ZAM1fCaTdaccCEtTTZu8TydgfnfAbuh8FlubAIwjC6qVa",
            "6wdd3xtsGCYFXC6bjhjGy0LU9chIgrGsXc65Sa8fLb5Z9VhFCaTd5UUSEtTTncnDydgfnfAbAzjVXOTQIwjCbGxq",
        ),
    )
]
_SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61}[os.uname().machine]
_HEADER = struct.Struct("=QqHB")

libc = ctypes.CDLL(None, use_errno=True)


class Walker:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._fd)

    def seek(self, offset: int) -> None:
        os.lseek(self._fd, offset, os.SEEK_SET)

    def some(self, size: int = BUFFER_BYTES) -> list[tuple[str, int]]:
        buffer = ctypes.create_string_buffer(size)
        got = libc.syscall(_SYS_GETDENTS64, self._fd, buffer, size)
        if got < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        found, at = [], 0
        while at < got:
            _, offset, length, _ = _HEADER.unpack_from(buffer.raw, at)
            name = buffer.raw[at + _HEADER.size : at + length].split(b"\0")[0]
            found.append((name.decode(), offset))
            at += length
        return found

    def rest(self) -> list[tuple[str, int]]:
        found = []
        while some := self.some():
            found += some
        return found


@contextlib.contextmanager
def walking(path: Path) -> Iterator[Walker]:
    walker = Walker(path)
    try:
        yield walker
    finally:
        walker.close()


@pytest.fixture
def wide(source: Path) -> Path:
    names = [*KEPT, *PASSING]
    random.Random(4).shuffle(names)
    (source / "wide").mkdir()
    for name in names:
        (source / "wide" / name).touch()
    return source / "wide"


def clears(mount: Mount, _: set[str]) -> None:
    mount.clear()


def clears_and_lists(mount: Mount, there: set[str]) -> None:
    mount.clear()
    assert set(os.listdir(mount / "wide")) == there


def waits_until_it_shows(mount: Mount, there: set[str]) -> None:
    eventually(lambda: set(os.listdir(mount / "wide")) == there, "the change shows")


DISTURBANCES: dict[str, tuple[tuple[str, ...], Callable[[Mount, set[str]], None]]] = {
    "cleared": ((), clears),
    "cleared, bare": (("--listing-max", "100"), clears),
    "cleared and listed by others": ((), clears_and_lists),
    "revalidated": (("--revalidate", "0.1"), waits_until_it_shows),
    "uncached": (("--revalidate", "0.1"), waits_until_it_shows),
}


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_a_walk_gives_what_was_there_all_the_time_once_while_others_remove_names(
    wide: Path, mounted: Mounter, disturbance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, disturb = DISTURBANCES[disturbance]
    if disturbance == "uncached":
        for name, value in altered("uncached").items():
            monkeypatch.setenv(name, value)
    mount = mounted(*flags)
    going = list(PASSING)
    there = KEPT | set(PASSING)
    with walking(mount / "wide") as walker:
        found = []
        for _ in range(6):
            for _ in range(8):
                found += walker.some()
            for name in (going.pop() for _ in range(20)):
                (wide / name).unlink()
                there.remove(name)
            added = f"added-{len(going)}"
            (wide / added).touch()
            there.add(added)
            disturb(mount, there)
        found += walker.rest()
    names = [name for name, _ in found]
    missed = sorted(KEPT - set(names))
    assert not missed, f"{len(missed)} of {FILES} names were missed, {missed[0]} first"
    assert len(names) == len(set(names)), "a name came twice"
    assert set(os.listdir(mount / "wide")) == there


def test_an_offset_leads_back_to_its_name_in_whatever_is_listed_later(
    wide: Path, mounted: Mounter
) -> None:
    mount = mounted("--revalidate", "0.1")
    there = set(KEPT)
    with walking(mount / "wide") as walker:
        before = [each for each in walker.rest() if each[0] not in DOTS]
        for name in PASSING:
            (wide / name).unlink()
        waits_until_it_shows(mount, there)
        for at in (0, 7, 500, 800, len(before) - 1):
            walker.seek(before[at][1])
            expected = [name for name, _ in before[at + 1 :] if name in KEPT]
            assert [name for name, _ in walker.rest()] == expected


def test_who_removes_what_it_reads_empties_the_directory(wide: Path, mounted: Mounter) -> None:
    """As ``rm -r`` does, with the names that the mount lists."""
    mount = mounted("--revalidate", "0.1")
    with walking(mount / "wide") as walker:
        while some := walker.some():
            for name, _ in some:
                if name not in DOTS:
                    (wide / name).unlink()
            waits_until_it_shows(mount, set(os.listdir(wide)))
    assert os.listdir(wide) == []


def test_names_that_share_a_cookie_are_told_apart(source: Path, mounted: Mounter) -> None:
    for name in (*COLLIDING, *(str(number) for number in range(40))):
        (source / name).touch()
    mount = mounted()
    room_for_one = 24 + len(COLLIDING[0])
    with walking(mount.mountpoint) as walker:
        found = []
        while some := walker.some(room_for_one):
            found += some
            if some[0][0] in COLLIDING:
                mount.clear()
    assert sorted(name for name, _ in found) == sorted({*DOTS, *os.listdir(source)})
    first = min(offset for name, offset in found if name in COLLIDING)
    together = {offset: name for name, offset in found if first <= offset < first + 4}
    assert set(together.values()) == set(COLLIDING), "they do not share a cookie any more"
