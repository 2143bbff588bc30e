"""Whether the nodes' clients give files the same inode numbers: the sample, and who does what."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path as FilePath
from typing import cast

import pytest
import trio

from copperfs.core.messages import SAMPLE_MAX, Hello, Seen
from copperfs.core.node import Node
from copperfs.core.peering import EPOCH_LEAP_MAX
from copperfs.core.policy import Policy
from copperfs.runtime.comparison import COMPARED_MAX, Comparison
from copperfs.source import sample as sampling
from copperfs.source.sample import other_number, take_sample
from copperfs.types import ROOT, NodeId, Path, Version, is_below

EPOCH = 7


def everything(_: Path) -> bool:
    return True


def fill(top: FilePath, count: int = 10) -> bytes:
    for each in range(count):
        (top / f"f{each}").write_bytes(bytes(each))
    return bytes(top)


def renumbered(sample: tuple[Seen, ...]) -> tuple[Seen, ...]:
    """As another client sees the same files."""
    return tuple(
        Seen(each.path, each.version._replace(inode=each.version.inode + 1)) for each in sample
    )


# ---- the sample ----------------------------------------------------------------------------------


def test_a_sample_is_a_few_names_as_they_are(tmp_path: FilePath) -> None:
    sample = take_sample(fill(tmp_path), (ROOT,), everything)
    assert len(sample) == SAMPLE_MAX
    assert sample[0].path == ROOT
    for each in sample:
        status = os.lstat(tmp_path / os.fsdecode(each.path))
        assert each.version.inode == status.st_ino
        assert each.version.mtime_ns == status.st_mtime_ns


def test_of_a_source_without_names_there_is_itself(tmp_path: FilePath) -> None:
    assert [each.path for each in take_sample(bytes(tmp_path), (ROOT,), everything)] == [ROOT]
    assert take_sample(bytes(tmp_path / "gone"), (ROOT,), everything) == ()


def test_a_sample_goes_deeper_where_there_are_few_names(tmp_path: FilePath) -> None:
    (tmp_path / "only" / "one").mkdir(parents=True)
    fill(tmp_path / "only" / "one")
    sample = take_sample(bytes(tmp_path), (ROOT,), everything)
    assert len(sample) == SAMPLE_MAX
    assert {b"", b"only", b"only/one"} < {each.path for each in sample}


def test_a_sample_has_names_of_all_prefixes_and_none_that_are_local(tmp_path: FilePath) -> None:
    for name in ("a", "b", "local"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name)
    prefixes = (Path(b"a"), Path(b"b"))
    sample = take_sample(
        bytes(tmp_path), prefixes, lambda path: any(is_below(path, each) for each in prefixes)
    )
    below = [each.path.partition(b"/")[0] for each in sample]
    assert below == [b"a"] * (SAMPLE_MAX // 2) + [b"b"] * (SAMPLE_MAX // 2)


def test_another_number_is_found_only_where_all_else_is_the_same(tmp_path: FilePath) -> None:
    root = fill(tmp_path)
    sample = take_sample(root, (ROOT,), everything)
    assert other_number(root, sample, everything) is None
    other = renumbered(sample)
    assert other_number(root, other, everything) == other[-1].path
    assert other_number(root, other, lambda _: False) is None
    for each in sample:  # all have changed since
        os.utime(tmp_path / os.fsdecode(each.path), ns=(1, 1))
    assert other_number(root, other, everything) is None
    assert other_number(bytes(tmp_path / "gone"), other, everything) is None


def test_clients_that_number_files_as_they_see_them_are_told_apart(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them that looked in the same order would have given the same numbers."""
    root = fill(tmp_path)
    versions: dict[tuple[int, ...], int] = {}

    def number(status: os.stat_result) -> Version:
        inode = versions.setdefault(tuple(status[1:3]), len(versions))
        return Version(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)

    monkeypatch.setattr(sampling, "_version", number)
    sample = take_sample(root, (ROOT,), everything)
    versions.clear()
    assert other_number(root, sample, everything) is not None


# ---- what a node does ----------------------------------------------------------------------------


class FakeNode:
    epoch = EPOCH

    def __init__(self, root: bytes) -> None:
        self.policy = Policy(root, b"/mnt")
        self.lost: frozenset[NodeId] = frozenset()

    def gone(self) -> frozenset[NodeId]:
        return self.lost


class Lab:
    """One node's comparison, and in which order it did what."""

    def __init__(self, root: bytes, me: int, *, is_wanted: bool = True) -> None:
        self.did: list[object] = []
        self._said = trio.Event()
        self.node = FakeNode(root)
        self.comparison = Comparison(
            cast(Node, self.node),
            lambda: self.did.append("ignore"),
            self._say,
            lambda epoch: self.did.append(("begin", epoch)),
            NodeId(me),
            is_wanted=is_wanted,
        )

    def _say(self, epoch: int) -> None:
        self.did.append(("say", epoch, self.comparison.sample))
        self._said.set()

    def hear(self, sample: tuple[Seen, ...] = (), *, ignores: bool = False, epoch: int = 1) -> None:
        self.comparison.hear(
            Hello(NodeId(0), "job", b"", epoch, ignores_inodes=ignores, sample=sample)
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.comparison.run)
            yield
            nursery.cancel_scope.cancel()

    async def settled(self) -> None:
        """As long as it takes, and no longer than a node waits before it says that it is ready."""
        with trio.fail_after(5):
            await self.comparison.wait()

    async def said(self) -> list[object]:
        with trio.fail_after(5):
            await self._said.wait()
        return self.did


def test_the_first_node_takes_the_sample_and_says_so(tmp_path: FilePath) -> None:
    async def main() -> None:
        lab = Lab(fill(tmp_path), 0)
        async with lab.running():
            await lab.settled()
            sample = take_sample(bytes(tmp_path), (ROOT,), everything)
            assert await lab.said() == [("say", EPOCH, sample)]

    trio.run(main)


def test_a_node_that_sees_the_same_passes_the_sample_on_and_is_ready(tmp_path: FilePath) -> None:
    async def main() -> None:
        lab = Lab(fill(tmp_path), 1)
        sample = take_sample(bytes(tmp_path), (ROOT,), everything)
        async with lab.running():
            lab.hear(sample)
            assert lab.did == [("say", EPOCH, sample)], "at once, for those behind it"
            await lab.settled()
            lab.hear(sample)
            assert lab.did == [("say", EPOCH, sample)]
            assert not lab.comparison.ignoring

    trio.run(main)


def test_a_node_that_sees_other_numbers_has_all_leave_them_out(
    tmp_path: FilePath, expected_warnings: object
) -> None:
    expected_warnings("another inode number")  # type: ignore[operator]

    async def main() -> None:
        lab = Lab(fill(tmp_path), 1)
        sample = renumbered(take_sample(bytes(tmp_path), (ROOT,), everything))
        async with lab.running():
            lab.hear(sample)
            await lab.settled()
            # what is listed from now on has none; all know before they hear of the new epoch
            new = EPOCH + 1
            assert lab.did[1:] == ["ignore", ("say", new, sample), ("begin", new)]

    trio.run(main)


@pytest.mark.parametrize(
    ("told", "begun"),
    [(EPOCH - 1, EPOCH), (EPOCH, EPOCH), (EPOCH + 3, EPOCH + 3), (EPOCH_LEAP_MAX * 2, EPOCH)],
)
def test_a_node_that_is_told_does_the_same_in_the_epoch_of_the_other(
    told: int, begun: int, expected_warnings: object
) -> None:
    expected_warnings("its own inode numbers")  # type: ignore[operator]
    lab = Lab(b"/nowhere", 5)
    lab.hear(ignores=True, epoch=told)
    lab.hear(ignores=True, epoch=told)
    assert lab.did == ["ignore", ("say", begun, ()), ("begin", begun)]


def test_when_the_first_are_gone_the_next_takes_the_sample(tmp_path: FilePath) -> None:
    async def main() -> None:
        lab = Lab(fill(tmp_path), 2)
        async with lab.running():
            await trio.testing.wait_all_tasks_blocked()
            assert lab.did == []
            lab.node.lost = frozenset({NodeId(0), NodeId(1)})
            lab.comparison.wake()
            assert len(await lab.said()) == 1
            assert lab.comparison.sample

    trio.run(main)


def test_with_a_setting_nothing_is_looked_at(tmp_path: FilePath) -> None:
    async def main() -> None:
        lab = Lab(fill(tmp_path), 0, is_wanted=False)
        await lab.comparison.run()
        lab.hear(renumbered(take_sample(bytes(tmp_path), (ROOT,), everything)), ignores=True)
        await lab.settled()
        assert lab.did == []

    trio.run(main)


def test_only_so_many_samples_are_kept(tmp_path: FilePath) -> None:
    lab = Lab(fill(tmp_path), 1)
    (first, *_) = take_sample(bytes(tmp_path), (ROOT,), everything)
    for inode in range(2 * COMPARED_MAX):
        lab.hear((Seen(first.path, first.version._replace(inode=inode)),))
    assert len(lab.comparison._heard) == COMPARED_MAX
