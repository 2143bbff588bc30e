"""Rendezvous in a directory: real processes that start in any order, beside leftovers of
crashes."""

import os
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from copperfs.launch.rendezvous import LISTS_ONE_IN, Card, Meeting, _Party, _unranked, meet
from copperfs.model.errors import LaunchError
from copperfs.model.roster import Member
from tests.bootstrap.helpers import Node, Nodes, clean_environment
from tests.mount.helpers import COPPERFS, eventually

NOBODY = 65534


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "meet"


def start(nodes: Nodes, directory: Path, name: str, count: int, *flags: str, **env: str) -> Node:
    wanted: list[str | Path] = [
        "--rendezvous",
        directory,
        "--nodes",
        f"{count}",
        "--node-name",
        name,
    ]
    return nodes.start(*wanted, "--listen", "lo", *flags, env=env)


def cards(directory: Path, job: str = "job") -> list[str]:
    members = directory / job / "members"
    found = os.listdir(members) if members.exists() else []
    return sorted(card.name for text in found if (card := Card.parse(text)))


def wait_for(directory: Path, *names: str, job: str = "job") -> None:
    eventually(lambda: cards(directory, job) == sorted(names), lambda: f"{cards(directory, job)}")


def kill(node: Node) -> None:
    node.process.send_signal(signal.SIGKILL)
    node.process.wait(10)


# ---- the ordinary course -------------------------------------------------------------------------


def test_each_node_says_how_large_its_tier_is(nodes: Nodes, directory: Path) -> None:
    sizes = ("--tier-memory 0", "--tier-dir /n --tier-size 1GiB", "")
    started = [
        start(nodes, directory, f"n{place}", 3, *flags.split()) for place, flags in enumerate(sizes)
    ]
    for each in started:
        members = each.ended().roster.members
        assert [member.tier_bytes for member in members] == [0, (1 << 30) + (1 << 29), 1 << 29]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_nodes_that_start_in_any_order_have_one_roster(
    nodes: Nodes, directory: Path, order: tuple[int, ...]
) -> None:
    started = {}
    for place in order:
        started[place] = start(nodes, directory, f"n{place}", 4)
        if len(started) < 4:
            wait_for(directory, *(f"n{each}" for each in started))
    ended = [started[place].ended() for place in range(4)]
    assert len({each.roster.to_json() for each in ended}) == 1
    assert [each.name for each in ended[0].roster.members] == ["n0", "n1", "n2", "n3"]
    for place, each in enumerate(ended):
        assert each.last["me"] == place
        assert each.last["listens"] == each.roster.members[place].endpoint
        assert each.last["has_secret"]
        assert "mpi4py" not in each.last["imported"]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert list(directory.iterdir()) == [], "nothing is left behind"


def test_ranks_of_a_launcher_decide_the_order(nodes: Nodes, directory: Path) -> None:
    names = ["c", "a", "b"]
    started = [
        start(nodes, directory, name, 3, SLURM_PROCID=f"{rank}", SLURM_JOB_ID="7")
        for rank, name in enumerate(names)
    ]
    ended = [each.ended() for each in started]
    assert [each.name for each in ended[0].roster.members] == names
    assert [each.last["me"] for each in ended] == [0, 1, 2]
    assert list(directory.iterdir()) == []


def test_the_number_and_the_order_can_be_those_of_the_scheduler(
    nodes: Nodes, directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "nodes").write_text("x9\nx9\nx1\n")
    env = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "8.pbs"}
    started = [
        nodes.start("--rendezvous", directory, "--node-name", name, env=env)
        for name in ("x1.site", "x9")
    ]
    rosters = [each.ended().roster for each in started]
    assert [each.name for each in rosters[0].members] == ["x9", "x1.site"]


def test_two_jobs_in_one_directory_do_not_mix(nodes: Nodes, directory: Path) -> None:
    started = {
        (job, name): start(nodes, directory, name, 2, SLURM_JOB_ID=job)
        for name in ("n0", "n1")
        for job in ("1", "2")
    }
    rosters = {key: each.ended().roster for key, each in started.items()}
    assert rosters["1", "n0"] == rosters["1", "n1"]
    assert rosters["2", "n0"] == rosters["2", "n1"]
    assert rosters["1", "n0"].job != rosters["2", "n0"].job


def test_thirty_nodes_at_once(nodes: Nodes, directory: Path) -> None:
    started = [start(nodes, directory, f"n{place:02}", 30) for place in range(30)]
    assert len({each.ended().roster.to_json() for each in started}) == 1
    assert list(directory.iterdir()) == []


# ---- leftovers of an earlier start ---------------------------------------------------------------


@pytest.mark.parametrize("killed", ["n0", "n1"])
def test_a_node_that_crashed_and_starts_again_is_taken_as_it_is_now(
    nodes: Nodes, directory: Path, killed: str
) -> None:
    left = start(nodes, directory, killed, 3)
    wait_for(directory, killed)
    kill(left)
    others = [start(nodes, directory, name, 3) for name in ("n0", "n1", "n2") if name != killed]
    # The roster with the leftover may exist by now; no node acknowledges it.
    wait_for(directory, "n0", "n1", "n2")
    again = start(nodes, directory, killed, 3)
    now = again.ended()
    assert now.last["listens"] in {each.endpoint for each in now.roster.members}
    assert {each.ended().roster for each in others} == {now.roster}
    assert list(directory.iterdir()) == []


def test_what_crashed_long_ago_is_not_waited_for(nodes: Nodes, directory: Path) -> None:
    left = start(nodes, directory, "a", 2)
    wait_for(directory, "a")
    kill(left)
    (card,) = (directory / "job" / "members").iterdir()
    long_ago = card.stat().st_mtime - 400  # past --launch-timeout and a minute
    os.utime(card, (long_ago, long_ago))
    started = [start(nodes, directory, name, 2) for name in ("b", "c")]
    assert [each.name for each in started[0].ended().roster.members] == ["b", "c"]
    assert started[1].ended().code == 0
    assert list(directory.iterdir()) == []


def test_what_was_left_a_moment_ago_is_named_and_gone_at_the_next_start(
    nodes: Nodes, directory: Path
) -> None:
    left = start(nodes, directory, "z", 2)
    wait_for(directory, "z")
    kill(left)
    a = start(nodes, directory, "a", 2)
    wait_for(directory, "a", "z")
    b = start(nodes, directory, "b", 2)
    assert "2 nodes are expected at" in (error := a.ended().error)
    assert "3 came: a,b,z; give the right --nodes, or start again if a crash left some" in error
    assert b.ended().error == "", "one of them tells"
    started = [start(nodes, directory, name, 2) for name in ("a", "b")]
    assert started[0].ended().roster == started[1].ended().roster
    assert list(directory.iterdir()) == []


def test_a_start_that_is_told_to_end_leaves_nothing(nodes: Nodes, directory: Path) -> None:
    source = directory.parent / "source"
    (mountpoint := directory.parent / "mnt").mkdir()
    source.mkdir()
    command = [*COPPERFS, "mount", mountpoint, "--source", source, "--node-name", "n0"]
    waiting = subprocess.Popen(
        [*map(str, command), "--rendezvous", str(directory), "--nodes", "2"],
        env=clean_environment(),
    )
    try:
        wait_for(directory, "n0")
        waiting.terminate()
        assert waiting.wait(10) == 128 + signal.SIGTERM
    finally:
        waiting.kill()
        waiting.wait(10)
    assert list(directory.iterdir()) == []


# ---- failures ------------------------------------------------------------------------------------


def test_who_is_missing_is_told_by_name_where_a_scheduler_knows(
    nodes: Nodes, directory: Path
) -> None:
    env = {"SLURM_JOB_NODELIST": "n[0-7]", "SLURM_NNODES": "8", "SLURM_JOB_ID": "5"}

    def start_one(place: int, timeout_s: str) -> Node:
        return nodes.start(
            *("--rendezvous", directory, "--node-name", f"n{place}", "--launch-timeout", timeout_s),
            env=env | {"SLURM_PROCID": f"{place}"},
        )

    started = [start_one(place, "60") for place in (1, 2, 3, 4)]
    wait_for(directory, "n1", "n2", "n3", "n4", job="slurm.5")
    started.insert(0, start_one(0, "1"))
    error, *others = [each.ended().error for each in started]
    assert error.startswith("waiting for 3 of 8 nodes: n[5-7], after 1 s (--launch-timeout); ")
    assert others == [""] * 4, "one of them tells"
    assert list(directory.iterdir()) == []


def test_who_is_here_is_told_otherwise(nodes: Nodes, directory: Path) -> None:
    error = start(nodes, directory, "n0", 3, "--launch-timeout", "0.5").ended().error
    assert error.startswith("waiting for 2 of 3 nodes; here: n0, after 0.5 s")
    assert f"remove {directory}/job if another start left it" in error


def test_who_is_led_does_not_list_all_members_each_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each of 2,000 nodes without ranks listed them, the filesystem would list 2,000 names 2,000
    times a second."""
    listed: list[Path] = []

    def counted(path: Path) -> list[str]:
        listed.append(path)
        return os.listdir(path)

    meeting = Meeting(str(directory), "job", 3, timeout_s=60)
    follower, leader = (
        _Party(meeting, Card(_unranked, name, f"{name}x"), Member(name, "tcp://h:1"), print)
        for name in ("n1", "n0")
    )
    follower._enter()
    leader._enter()
    monkeypatch.setattr("copperfs.launch.rendezvous._listed", counted)
    for _ in range(4 * LISTS_ONE_IN):
        assert follower._poll() is None
    assert listed.count(follower.members) <= 5
    listed.clear()
    leader.leave()  # then the next leader is chosen
    assert follower._poll() is None
    assert listed.count(follower.members) == 1
    assert follower.leader is None


def test_progress_is_told_while_waiting(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copperfs.launch.rendezvous.TELL_FIRST_S", 0.1)
    told: list[str] = []
    meeting = Meeting(str(directory), "job", 2, ("n0", "n1"), timeout_s=0.5)
    with pytest.raises(LaunchError, match=r"^waiting for 1 of 2 nodes: n1, after"):
        meet(meeting, Member("n0", "tcp://h:1"), None, told.append)
    assert told == ["waiting for 1 of 2 nodes: n1"]


@pytest.mark.parametrize("ranks", [False, True])
def test_two_nodes_with_one_name_are_told_so(nodes: Nodes, directory: Path, ranks: bool) -> None:
    def env(rank: int) -> dict[str, str]:
        return {"PMI_RANK": f"{rank}"} if ranks else {}

    one = start(nodes, directory, "n0", 3, **env(1))
    wait_for(directory, "n0")
    third = start(nodes, directory, "n1", 3, **env(0))
    wait_for(directory, "n0", "n1")
    two = start(nodes, directory, "n0", 3, **env(2))
    errors = [each.ended().error for each in (one, two, third)]
    (told,) = [each for each in errors if each]
    assert "as n0: two nodes have one name, or two processes were started on one node" in told
    assert list(directory.iterdir()) == []


def poll_for_s(party: _Party, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        party._poll()


def test_a_process_whose_card_is_written_late_hears_of_the_failure(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process misses its card before the second one has written its own; the second one
    waited until the launch timeout."""
    meeting = Meeting(str(directory), "job", 3, timeout_s=60)
    first, second, other = (
        _Party(meeting, Card(_unranked, name, nonce), Member(name, "tcp://h:1"), print)
        for name, nonce in (("n0", "one"), ("n0", "two"), ("n1", "three"))
    )
    first._enter()
    other._enter()
    failures: list[str] = []

    def poll() -> None:
        with pytest.raises(LaunchError) as raised:
            first._poll()
        failures.append(str(raised.value))
        first.leave()

    polling = threading.Thread(target=poll)
    write = second._write

    def write_late(path: Path, content: object) -> None:
        polling.start()
        polling.join(0.3)
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(second, "_write", write_late)
        second._enter()
    for each in (other, second):
        with pytest.raises(LaunchError, match=r"^$"):
            poll_for_s(each, 2)
        each.leave()
    polling.join()
    assert ["two nodes have one name" in each for each in failures] == [True]


def test_nodes_that_expect_different_numbers_are_told_so(nodes: Nodes, directory: Path) -> None:
    one = start(nodes, directory, "n0", 2)
    wait_for(directory, "n0")
    two = start(nodes, directory, "n1", 3)
    assert "n1 expects 3 nodes and n0 2; give all nodes the same --nodes" in one.ended().error
    assert two.ended().error == ""


def test_nodes_with_different_security_are_a_wrong_roster(nodes: Nodes, directory: Path) -> None:
    started = [
        start(nodes, directory, "n0", 2),
        start(nodes, directory, "n1", 2, "--security", "none"),
    ]
    errors = [each.ended().error for each in started]
    assert errors == ["some nodes have a key and some have not: give all the same --security", ""]


def test_a_directory_that_others_may_enter_is_refused(nodes: Nodes, directory: Path) -> None:
    directory.mkdir(mode=0o755)
    error = start(nodes, directory, "n0", 2).ended().error
    assert error.startswith("others may enter the rendezvous directory")
    assert error.endswith(f"close it with: chmod 700 {directory}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is not its own")
def test_a_directory_of_somebody_else_is_refused(nodes: Nodes, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    os.chown(directory, NOBODY, NOBODY)
    assert "is not yours" in start(nodes, directory, "n0", 2).ended().error


def test_what_is_no_directory_is_refused(nodes: Nodes, directory: Path) -> None:
    assert "cannot be made: No such file" in start(nodes, directory / "x", "n", 2).ended().error
    directory.touch()
    assert "is not a directory; give another" in start(nodes, directory, "n", 2).ended().error


def test_files_of_others_in_the_directory_do_not_matter(nodes: Nodes, directory: Path) -> None:
    (directory / "job" / "members").mkdir(parents=True)
    directory.chmod(0o700)
    (directory / "job" / "members" / "notes.txt").touch()
    (directory / "job" / "roster~000001~old").write_text('{"roster": "{}", "nonces": ["x"]}')
    (directory / "job" / "go~old").write_text("{}")
    started = [start(nodes, directory, name, 2) for name in ("n0", "n1")]
    assert started[0].ended().roster == started[1].ended().roster
