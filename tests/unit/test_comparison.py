"""Inode comparison: whether the nodes' clients number files alike; the sample, and each node's
part."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path as FilePath

import pytest
import trio
import trio.testing

from copperfs.daemon import inode_comparison as comparing
from copperfs.daemon.inode_comparison import LOOKS_S, WITHIN_S, Comparison
from copperfs.model.types import ROOT, NodeId, Path, Version, is_below
from copperfs.node.actions import LogEvent
from copperfs.node.events import (
    ConnectionMade,
    InodesFound,
    InodesSampled,
    MessageReceived,
    Start,
)
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.inode_agreement import COMPARED_MAX, InodeNumbers
from copperfs.node.peer.messages import (
    EPOCH_LEAP_MAX,
    SAMPLE_MAX,
    SAMPLE_PATH_BYTES_MAX,
    Hello,
    MembershipUpdate,
    MemberStatus,
    Message,
    Seen,
)
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees
from copperfs.source import inode_sample as sampling
from copperfs.source.inode_sample import (
    NAMES_IN_ALL,
    NAMES_OF_EACH,
    PREFIXES_MAX,
    names_of_each,
    other_number,
    take_names,
)
from tests.unit.ports_lab import NoPorts

EPOCH = 7


def everything(_: Path) -> bool:
    return True


def fill(top: FilePath, count: int = 10) -> bytes:
    for each in range(count):
        (top / f"f{each}").write_bytes(bytes(each))
    return bytes(top)


def take_sample(root: bytes) -> tuple[Seen, ...]:
    names = take_names(root, ROOT, everything, names_of_each(1))
    assert names is not None
    return names


def renumbered(sample: tuple[Seen, ...]) -> tuple[Seen, ...]:
    return tuple(
        Seen(each.path, each.version._replace(inode=each.version.inode + 1)) for each in sample
    )


# ---- the sample ----------------------------------------------------------------------------------


def test_a_sample_is_a_few_names_as_they_are(tmp_path: FilePath) -> None:
    sample = take_sample(fill(tmp_path))
    assert len(sample) == NAMES_IN_ALL
    assert ROOT not in {each.path for each in sample}, "all clients number their root alike"
    for each in sample:
        status = os.lstat(tmp_path / os.fsdecode(each.path))
        assert each.version.inode == status.st_ino
        assert each.version.mtime_ns == status.st_mtime_ns


def test_of_a_source_without_names_there_is_itself(tmp_path: FilePath) -> None:
    assert [each.path for each in take_sample(bytes(tmp_path))] == [ROOT]
    assert take_sample(bytes(tmp_path / "gone")) == ()


def test_a_sample_goes_deeper_where_there_are_few_names(tmp_path: FilePath) -> None:
    (tmp_path / "only" / "one").mkdir(parents=True)
    fill(tmp_path / "only" / "one")
    sample = take_sample(bytes(tmp_path))
    assert len(sample) == NAMES_IN_ALL
    assert {b"only", b"only/one"} < {each.path for each in sample}


def test_of_each_of_many_filesystems_there_are_enough_names(tmp_path: FilePath) -> None:
    for prefixes in range(1, PREFIXES_MAX + 1):
        assert names_of_each(prefixes) >= NAMES_OF_EACH >= 3
        assert prefixes * names_of_each(prefixes) <= SAMPLE_MAX
    for name in ("a", "local"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name)
    prefix = Path(b"a")
    names = take_names(bytes(tmp_path), prefix, lambda path: is_below(path, prefix), NAMES_OF_EACH)
    assert names is not None
    assert [each.path.partition(b"/")[0] for each in names] == [prefix] * NAMES_OF_EACH
    assert prefix not in {each.path for each in names}


def test_no_name_is_longer_than_a_hello_can_carry(tmp_path: FilePath) -> None:
    deep = tmp_path / "/".join(["d" * 200] * 3)
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"")
    prefix = Path(os.fsencode(deep.relative_to(tmp_path)))
    assert len(prefix) > SAMPLE_PATH_BYTES_MAX
    assert take_names(bytes(tmp_path), prefix, everything, 3) == ()


def test_what_gives_an_error_is_to_be_looked_at_again(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lstat(path: bytes) -> os.stat_result:
        raise OSError(errno.EIO, "as if")

    monkeypatch.setattr(os, "lstat", lstat)
    assert take_names(bytes(tmp_path), ROOT, everything, 3) is None


def test_another_number_is_found_only_where_all_else_is_the_same(tmp_path: FilePath) -> None:
    root = fill(tmp_path)
    sample = take_sample(root)
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
    """Two clients that saw files in the same order would have given the same numbers."""
    root = fill(tmp_path)
    versions: dict[tuple[int, ...], int] = {}

    def number(status: os.stat_result) -> Version:
        inode = versions.setdefault(tuple(status[1:3]), len(versions))
        return Version(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)

    monkeypatch.setattr(sampling, "_version", number)
    sample = take_sample(root)
    versions.clear()
    assert other_number(root, sample, everything) is not None


# ---- actions of a node ---------------------------------------------------------------------------


PEER = NodeId(7)


class Lab(NoPorts):
    """One node with its comparison, and what they did, in order. One peer is connected to it."""

    def __init__(self, root: bytes, me: int, *, is_wanted: bool = True) -> None:
        self.did: list[object] = []
        self._said = trio.Event()
        limits = Limits(1 << 20, 1 << 16, None, 30.0)
        self.node = Node(Policy(root, b"/mnt"), limits, Trees(8, NodeId(me)))
        self.node.stats.epoch = EPOCH
        self.driver = self.drive(self.node)
        self.post = self.driver.post
        self.comparison = Comparison(self.node, lambda: self.did.append("ignore"), self.post)
        self.driver.ports.network = self
        self.driver.ports.inode_comparison = self.comparison
        self.post(ConnectionMade(PEER))
        self.hear()
        self.numbers.is_wanted = is_wanted
        self.did.clear()
        self._said = trio.Event()

    @property
    def numbers(self) -> InodeNumbers:
        assert self.node.inode_numbers is not None
        return self.node.inode_numbers

    # --- ports -----------------------------------------------------------------------------------

    def send(self, peer: NodeId, message: Message, payload: object) -> None:
        if isinstance(message, Hello):
            self.did.append(("say", message.epoch, message.sample))
            self._said.set()

    def begin_epoch(self, epoch: int) -> None:
        self.did.append(("begin", epoch))

    def connect(self, peer: NodeId) -> None: ...
    def disconnect(self, peer: NodeId) -> None: ...
    def probe(self, peer: NodeId) -> None: ...
    def note(self, happened: LogEvent) -> None: ...

    # --- what happens ----------------------------------------------------------------------------

    def hear(
        self,
        sample: tuple[Seen, ...] = (),
        *,
        ignores: bool = False,
        epoch: int = 1,
        is_sampled: bool = False,
    ) -> None:
        hello = Hello(
            PEER,
            "",
            b"",
            epoch,
            is_answer=True,
            ignores_inodes=ignores,
            sample=sample,
            is_sampled=is_sampled or bool(sample),
        )
        self.post(MessageReceived(PEER, hello))

    def lose(self, *nodes: int) -> None:
        """The peer reports that these are gone."""
        gone = tuple(MemberStatus(NodeId(each), 0, is_gone=True) for each in nodes)
        self.post(MessageReceived(PEER, MembershipUpdate(gone)))

    async def until(self, condition: Callable[[], bool]) -> None:
        """The comparison wakes its waiters at each change."""
        with trio.fail_after(5 + 2 * WITHIN_S):
            while not condition():
                await self.comparison._woken.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.comparison.run)
            self.post(Start())
            yield
            nursery.cancel_scope.cancel()

    async def settled(self) -> None:
        """At most as long as a node waits before it reports that it is ready."""
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
            sample = take_sample(bytes(tmp_path))
            assert await lab.said() == [("say", EPOCH, sample)]

    trio.run(main)


def test_the_first_node_does_not_compare_the_names_it_found_itself(tmp_path: FilePath) -> None:
    async def main() -> None:
        lab = Lab(fill(tmp_path), 0)
        async with lab.running():
            await lab.said()
            lab.hear(lab.numbers.sample)
            assert not lab.numbers.is_pending()

    trio.run(main)


def test_a_node_that_sees_the_same_passes_the_sample_on_and_is_ready(tmp_path: FilePath) -> None:
    async def main() -> None:
        lab = Lab(fill(tmp_path), 1)
        sample = take_sample(bytes(tmp_path))
        async with lab.running():
            lab.hear(sample)
            assert lab.did == [("say", EPOCH, sample)], "at once, for those behind it"
            await lab.settled()
            lab.hear(sample)
            assert lab.did == [("say", EPOCH, sample)]
            assert not lab.numbers.ignoring

    trio.run(main)


def test_a_node_that_sees_other_numbers_has_all_leave_them_out(
    tmp_path: FilePath, expected_warnings: object
) -> None:
    expected_warnings("another inode number")  # type: ignore[operator]

    async def main() -> None:
        lab = Lab(fill(tmp_path), 1)
        sample = renumbered(take_sample(bytes(tmp_path)))
        async with lab.running():
            lab.hear(sample)
            await lab.settled()
            # listings have no numbers now; all nodes know that before they hear of the new epoch
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
            lab.lose(0, 1)
            assert len(await lab.said()) == 1
            assert lab.numbers.sample

    trio.run(main)


def test_with_a_setting_nothing_is_looked_at(tmp_path: FilePath) -> None:
    async def main() -> None:
        lab = Lab(fill(tmp_path), 0, is_wanted=False)
        await lab.comparison.run()
        lab.hear(renumbered(take_sample(bytes(tmp_path))), ignores=True)
        await lab.settled()
        assert lab.did == []

    trio.run(main)


def test_only_so_many_samples_are_kept(tmp_path: FilePath) -> None:
    lab = Lab(fill(tmp_path), 1)
    (first, *_) = take_sample(bytes(tmp_path))
    for inode in range(2 * COMPARED_MAX):
        lab.hear((Seen(first.path, first.version._replace(inode=inode)),))
    assert len(lab.comparison._orders) == COMPARED_MAX
    assert lab.numbers.sample == (Seen(first.path, first.version._replace(inode=0)),)


def test_where_there_is_nothing_to_compare_nobody_waits(tmp_path: FilePath) -> None:
    """The first node tells the others, and each tells its children."""

    async def main() -> None:
        first, second = Lab(bytes(tmp_path / "gone"), 0), Lab(bytes(tmp_path), 1)
        async with first.running(), second.running():
            assert await first.said() == [("say", EPOCH, ())]
            assert first.numbers.is_sampled
            second.hear(is_sampled=True)
            assert second.did == [("say", EPOCH, ())]
            assert not second.numbers.is_pending()
            second.hear(is_sampled=True)
            assert second.did == [("say", EPOCH, ())], "once"

    trio.run(main)


def test_a_node_that_found_names_declares_them_though_another_found_none(
    tmp_path: FilePath,
) -> None:
    lab = Lab(fill(tmp_path), 0)
    sample = take_sample(bytes(tmp_path))
    lab.post(Start())
    lab.post(InodesFound(sample))
    lab.hear(is_sampled=True)
    lab.post(InodesSampled())
    assert lab.did == [("say", EPOCH, ()), ("say", EPOCH, sample)]


def test_with_a_hostfile_nobody_waits_for_a_node_that_may_never_come(tmp_path: FilePath) -> None:
    async def main() -> None:
        lab = Lab(fill(tmp_path), 1)
        assert lab.numbers.is_pending()
        lab.numbers.all_have_met = False
        assert not lab.numbers.is_pending()
        lab.hear(take_sample(bytes(tmp_path)))
        assert lab.numbers.is_pending(), "what was heard is compared first"
        async with lab.running():
            await lab.settled()

    trio.run(main)


# ---- filesystems that hang -----------------------------------------------------------------------


class Hanging:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_drained = threading.Event()

        def take(root: bytes, prefix: Path, *others: object) -> tuple[Seen, ...] | None:
            self.pass_by(prefix)
            return take_names(root, prefix, *others)  # type: ignore[arg-type]

        def compare(root: bytes, sample: tuple[Seen, ...], *others: object) -> Path | None:
            self.pass_by(sample[0].path)
            return other_number(root, sample, *others)  # type: ignore[arg-type]

        monkeypatch.setattr(comparing, "take_names", take)
        monkeypatch.setattr(comparing, "other_number", compare)

    def pass_by(self, path: Path) -> None:
        if is_below(path, Path(b"sick")):
            self.is_drained.wait(60)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    found = Hanging(monkeypatch)
    yield found
    found.is_drained.set()


def two_filesystems(top: FilePath) -> tuple[Path, ...]:
    for name in ("sick", "well"):
        (top / name).mkdir()
        fill(top / name)
    return Path(b"sick"), Path(b"well")


def places_of(sample: tuple[Seen, ...]) -> set[bytes]:
    return {each.path.partition(b"/")[0] for each in sample}


def test_a_filesystem_that_hangs_does_not_take_the_others_from_the_sample(
    tmp_path: FilePath, hanging: Hanging, expected_warnings: object
) -> None:
    expected_warnings("sick.* does not answer")  # type: ignore[operator]
    clock = trio.testing.MockClock()

    async def main() -> None:
        lab = Lab(bytes(tmp_path), 0)
        lab.comparison.prefixes = two_filesystems(tmp_path)
        async with lab.running():
            await lab.until(lambda: bool(lab.numbers._taken))
            await trio.testing.wait_all_tasks_blocked()
            assert lab.did == [], "it may answer yet"
            clock.jump(LOOKS_S)
            await lab.until(lambda: lab.numbers.is_sampled)
            assert places_of(lab.numbers.sample) == {b"well"}
            hanging.is_drained.set()
            await lab.until(lambda: len(places_of(lab.numbers.sample)) == 2)
            assert len(lab.did) == 2, "what came later is said, too"

    trio.run(main, clock=clock)


def test_names_that_come_later_are_passed_on_and_compared(
    tmp_path: FilePath, expected_warnings: object
) -> None:
    expected_warnings("another inode number")  # type: ignore[operator]

    async def main() -> None:
        lab = Lab(fill(tmp_path), 1)
        sample = take_sample(bytes(tmp_path))
        first = sample[:2]
        longer = (*first, *renumbered(sample[2:]))
        async with lab.running():
            lab.hear(first)
            await lab.settled()
            lab.hear(longer)
            assert lab.did == [("say", EPOCH, first), ("say", EPOCH, longer)]
            await lab.until(lambda: lab.numbers.ignoring)

    trio.run(main)


def test_a_filesystem_that_hangs_does_not_keep_others_from_being_compared(
    tmp_path: FilePath, hanging: Hanging, expected_warnings: object
) -> None:
    expected_warnings("another inode number")  # type: ignore[operator]

    async def main() -> None:
        lab = Lab(bytes(tmp_path), 1)
        lab.comparison.prefixes = two_filesystems(tmp_path)
        sick, well = (
            take_names(bytes(tmp_path), each, everything, 3) for each in lab.comparison.prefixes
        )
        assert sick is not None
        assert well is not None
        async with lab.running():
            lab.hear((*sick, *renumbered(well)))
            await lab.until(lambda: lab.numbers.ignoring)

    trio.run(main)


def test_what_could_not_be_compared_in_time_is_said_and_is_not_taken_for_compared(
    tmp_path: FilePath, hanging: Hanging, expected_warnings: object
) -> None:
    expected_warnings("could not be found out")  # type: ignore[operator]
    expected_warnings("another inode number")  # type: ignore[operator]
    clock = trio.testing.MockClock()

    async def main() -> None:
        lab = Lab(bytes(tmp_path), 1)
        lab.comparison.prefixes = two_filesystems(tmp_path)
        sick = take_names(bytes(tmp_path), Path(b"sick"), everything, 3)
        assert sick is not None
        async with lab.running(), trio.open_nursery() as nursery:
            lab.hear(renumbered(sick))
            nursery.start_soon(lab.comparison.wait)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(WITHIN_S)
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks, "it waits no longer"
            assert lab.numbers.is_pending()
            hanging.is_drained.set()
            await lab.until(lambda: lab.numbers.ignoring)

    trio.run(main, clock=clock)
