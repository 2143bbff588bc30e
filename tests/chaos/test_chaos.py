"""Schedules with fixed seeds on a real cluster: four in ``make test``, 44 in ``make test-long``.

Nothing here depends on durations; ``python -m tests.chaos --report`` reports those.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from copperfs.lab.local_cluster.conditions import Conditions
from tests.chaos.arena import Arena, Setup
from tests.chaos.content import LARGE, WALK
from tests.chaos.judge import judge, more_than_once
from tests.chaos.mixture import Environment, Trouble, draw_environment, path_of
from tests.chaos.report import complaints, opened_beyond_faults
from tests.chaos.schedule import OWN_KINDS, Fault, Schedule, draw
from tests.cluster.test_links import namespaces, networks_can_be_made
from tests.conftest import mounts_below
from tests.mount.helpers import PROJECT, eventually

SETUP = Setup(environment=draw_environment(0, Setup().nodes))
# A storm, any kinds at any times (the root is killed), one kind (killed).
SEEDS = (29, 5, 14)
LONG_SEEDS = range(100, 120)

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(
        not networks_can_be_made() or shutil.which("nft") is None,
        reason="networks of nodes need root, iproute2 and nftables",
    ),
]


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(tmp_path_factory.mktemp("chaos"), SETUP) as arena:
        yield arena


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(each, marks=pytest.mark.long) for each in LONG_SEEDS)]
)
def test_nobody_sees_an_error_or_a_wrong_byte(arena: Arena, seed: int) -> None:
    schedule = draw(seed, SETUP.nodes, SETUP.fanout, mixed_files=SETUP.files, environment=0)
    outcome = arena.carry_out(schedule)
    verdict = judge(outcome)
    said = [f"seed {seed}", str(outcome.schedule), str(SETUP.environment)]
    said += complaints(outcome, verdict)
    assert verdict.is_good, "\n".join(said)
    beyond = opened_beyond_faults(outcome)
    assert not beyond, "\n".join(said + beyond)
    assert len({each.node for each in outcome.reads}) == SETUP.nodes
    assert len(outcome.imports) == SETUP.nodes
    walks = [each for each in outcome.reads if each.path == WALK]
    assert len({each.node for each in walks}) > SETUP.nodes / 2, "they also walk"


@pytest.mark.parametrize(
    "seed", [51, *(pytest.param(each, marks=pytest.mark.long) for each in range(3, 23))]
)
def test_nobody_notices_that_own_daemons_die_hang_and_are_upgraded(
    tmp_path: Path, seed: int
) -> None:
    """Nor does the reader on that very node."""
    setup = Setup(nodes=8, fanout=2, files=600, takeover=True)
    kinds = (*OWN_KINDS, "cut", "drop")
    schedule = draw(seed, 8, 2, kinds=kinds, length_s=10.0, takeover=True)
    with Arena(tmp_path, setup) as arena:
        outcome = arena.carry_out(schedule)
        verdict = judge(outcome)
        said = [str(outcome.schedule), *complaints(outcome, verdict)]
        assert verdict.is_good, "\n".join(said)
        assert not verdict.excused
    assert len(outcome.imports) == setup.nodes


def test_errors_and_wrong_bytes_are_noticed(tmp_path: Path) -> None:
    """Otherwise the judge would find every schedule good."""
    calm = Schedule(0, 3, 2, 2.0, "calm", ())
    with Arena(tmp_path, Setup(nodes=3, fanout=2, files=60)) as arena:
        rule = arena.standin.fail("data/d07/**", errno.EIO, ops=["open"])
        verdict = judge(arena.carry_out(calm))
        assert {(each.errno, each.path[:8]) for each in verdict.errors} == {(errno.EIO, "data/d07")}
        assert not verdict.wrong
        arena.standin.release(rule)

        changed = arena.content.source / "data/d07/f0007"
        with changed.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read()
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        verdict = judge(arena.carry_out(calm))
        assert {each.path for each in verdict.wrong} == {"data/d07/f0007"}
        assert not verdict.errors

        (arena.content.source / "packages" / "mdurl" / "__init__.py").write_text("1 / 0")
        verdict = judge(arena.carry_out(calm))
        assert {each.node for each in verdict.imports} == {0, 1, 2}
        assert "ZeroDivisionError" in verdict.imports[0].said


def test_troubles_are_really_in_force_and_a_walk_that_misses_a_name_is_noticed(
    tmp_path: Path,
) -> None:
    few = Conditions(descriptors=256)
    environment = Environment(0, own_inodes=False, conditions=(few, few, few))
    troubles = (
        Trouble(0.0, "crowd", "node1", 3.0, "300"),
        Trouble(0.0, "server", "3", 3.0, "slow"),
        Trouble(0.0, "sick", path_of(7, 60), 2.5, "EIO"),
        Trouble(0.0, "sick", path_of(8, 60), 2.5, "hang"),
        Trouble(1.0, "clear", "all", 0.0, "once"),
    )
    schedule = Schedule(0, 3, 2, 4.0, "calm", (), troubles, 0)
    setup = Setup(nodes=3, fanout=2, files=60, environment=environment)
    with Arena(tmp_path, setup) as arena:
        outcome = arena.carry_out(schedule)
        verdict = judge(outcome)
        assert verdict.is_good, "\n".join(complaints(outcome, verdict))
        assert verdict.excused["sick"] > 0, "its readers were told so"
        assert arena.standin.rules() == [], "all is well again"
        stats = arena.cluster.stats(1)
        assert stats["transport"]["crowded"] > 0
        assert stats["epoch"] > 1, "it was cleared"
        well = [each for each in outcome.reads if each.path == path_of(8, 60) and not each.errno]
        assert {each.node for each in well} == {0, 1, 2}, "what hung was read everywhere"
        assert any(each.path == WALK for each in outcome.reads)

        (arena.content.source / WALK / arena.content.kept[0]).unlink()
        verdict = judge(arena.carry_out(Schedule(1, 3, 2, 4.0, "calm", (), (), 0)))
        assert not verdict.errors
        assert {each.path for each in verdict.wrong} == {
            f"{WALK} (missed 1, twice 0, of {len(arena.content.kept)} names)"
        }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
def test_a_run_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    schedule = Schedule(
        *(0, 3, 2, 60.0, "mixed"),
        (Fault(0.1, 0, "cut", 59.0), Fault(0.1, 1, "stop", 59.0)),
    )
    (tmp_path / "schedule").write_text(str(schedule))
    command = [sys.executable, "-m", "tests.chaos", "--files", "50", "--replay"]
    with subprocess.Popen(
        [*command, str(tmp_path / "schedule")],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        eventually(lambda: list(tmp_path.glob("copperfs-chaos-*/cluster/cluster.json")), "up", 60)
        [directory] = tmp_path.glob("copperfs-chaos-*")
        eventually(lambda: stopped(directory / "cluster", 1), "it is at it", 60)
        own = json.loads((directory / "cluster" / "cluster.json").read_text())["network"]
        run.send_signal(number)
        said, _ = run.communicate(timeout=60)
    assert "LEFT BEHIND" not in said
    eventually(
        lambda: not mounts_below(tmp_path) and not left_of(own),
        lambda: f"nothing is left: {mounts_below(tmp_path)}; {left_of(own)}",
        30,
    )
    if number == signal.SIGTERM:
        assert not directory.exists()


def left_of(network: str) -> list[str]:
    return [each for each in namespaces() if each.startswith(network)]


def stopped(cluster: Path, node: int) -> bool:
    try:
        pid = json.loads((cluster / "cluster.json").read_text())["nodes"][node]["pid"]
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return False
    return bool(state == "T")


def test_without_faults_everything_is_read_once(arena: Arena) -> None:
    """The baseline: further reads in other schedules are due to their faults."""
    outcome = arena.carry_out(Schedule(0, SETUP.nodes, SETUP.fanout, 3.0, "calm", ()))
    verdict = judge(outcome)
    assert verdict.is_good, "\n".join(complaints(outcome, verdict))
    assert sum(outcome.opened.values()) > 200
    # Or to suspicions, where a busy machine made a node late; the nodes counted those. Each of its
    # owners opens a large file.
    small = {path: count for path, count in outcome.opened.items() if LARGE not in path}
    again = [count - 1 for each in (small, outcome.listed) for count in each.values()]
    in_place = [each["node"]["fallbacks"] + each["node"]["took_over"] for each in outcome.nodes]
    assert len(in_place) == SETUP.nodes
    assert sum(again) <= sum(in_place), [more_than_once(small), in_place]


def test_faults_are_really_in_force(arena: Arena) -> None:
    """Faults show by their traces: another process, a reader that waited."""
    kinds = ("kill", "stop", "cut", "drop", "stick")
    faults = [Fault(1.0, 10 + place, kind, 2.0) for place, kind in enumerate(kinds)]
    schedule = Schedule(0, SETUP.nodes, SETUP.fanout, 4.0, "mixed", tuple(faults))
    before = [arena.pid(each.node) for each in faults]
    outcome = arena.carry_out(schedule)
    verdict = judge(outcome)
    assert verdict.is_good, "\n".join(complaints(outcome, verdict))
    after = [arena.pid(each.node) for each in faults]
    assert [one != other for one, other in zip(before, after, strict=True)] == [
        each == "kill" for each in kinds
    ]
    assert verdict.excused, "who was killed was told so"
    applied = {each.fault.node: each for each in outcome.applied}
    assert len(applied) == len(faults)
    for fault in faults[:2]:
        # The kernel's cached content lasts until the reader needs a file that only the daemon has.
        here = applied[fault.node]
        own = [each for each in outcome.reads if each.node == fault.node]
        assert any(
            each.errno if fault.kind == "kill" else each.began < here.healing < each.ended
            for each in own
            if here.during(each.began, each.ended)
        ), f"{fault}: it goes on reading"
