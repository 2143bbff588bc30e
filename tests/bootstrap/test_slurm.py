"""``srun copperfs mount`` on three nodes of a real Slurm, all of them on this machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bootstrap.helpers import WITHIN_S
from tests.bootstrap.mpis import installed
from tests.bootstrap.slurm import Slurm, lacking
from tests.mount.helpers import COPPERFS, copperfs, eventually, is_mounted, is_running

pytestmark = pytest.mark.mount

NODES = 3
RANK = Path(__file__).parent / "rank.sh"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if lacking():
        pytest.skip(f"no Slurm: {', '.join(lacking())}")
    with Slurm(tmp_path_factory.mktemp("slurm") / "own", NODES) as running:
        yield running


class Step:
    def __init__(self, slurm: Slurm, work: Path, mpi: str, *flags: str) -> None:
        self.work = work
        (work / "source").mkdir()
        (work / "source/file").write_text("content")
        mount = [*COPPERFS, "mount", "--source", work / "source", "--listen", "lo", "--wait-all"]
        command = ["sh", RANK, work, *mount, *flags]
        self.process = subprocess.Popen(
            slurm.srun(f"--mpi={mpi}", *map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=slurm.env | installed(work)["mpich-wheel"].env,
        )

    @property
    def mountpoints(self) -> list[Path]:
        return [self.work / f"m{rank}" for rank in range(NODES)]

    def exit_codes(self) -> list[int]:
        """By rank, once all have ended."""
        files = [self.work / f"ended{rank}" for rank in range(NODES)]
        eventually(
            lambda: all(each.exists() for each in files) or self.process.poll() is not None,
            "all ranks have mounted",
            within_s=WITHIN_S,
        )
        assert all(each.exists() for each in files), self.end()
        return [int(each.read_text()) for each in files]

    def end(self) -> tuple[int, str]:
        (self.work / "end").touch()
        said, _ = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, said

    def close(self) -> None:
        for each in self.mountpoints:
            if is_mounted(each):
                copperfs("umount", each)
        self.end()


@pytest.mark.parametrize("way", ["mpi", "rendezvous"])
def test_srun_makes_one_job_of_its_nodes(slurm: Slurm, tmp_path: Path, way: str) -> None:
    by_way = {"mpi": ("pmi2",), "rendezvous": ("none", "--rendezvous", str(tmp_path / "meet"))}
    with ExitStack() as stack:
        step = Step(slurm, tmp_path, *by_way[way])
        stack.callback(step.close)
        assert step.exit_codes() == [0] * NODES
        pids = []
        for mountpoint in step.mountpoints:
            assert (mountpoint / "file").read_text() == "content"
            done = copperfs("stats", "--all", "--json", mountpoint)
            assert done.returncode == 0, done.stderr
            asked = json.loads(done.stdout)
            assert (asked["nodes"], asked["missing"]) == (NODES, [])
            assert asked["total"]["source"]["open"] == 1, "read once for all"
            names = [each["name"] for each in asked["by_node"]]
            assert names == ["n0", "n1", "n2"], "in the order of the ranks"
            pids.append(int(json.loads(copperfs("stats", "--json", mountpoint).stdout)["pid"]))
        assert step.end() == (0, "")
        # No cgroup tracks the step, so the daemons outlive it.
        assert all(is_running(pid) for pid in pids)
        assert all(is_mounted(each) for each in step.mountpoints)


@pytest.mark.parametrize("mpi", ["none", "pmi2"])
def test_the_tasks_of_srun_share_a_mount_on_each_node(
    slurm: Slurm, tmp_path: Path, mpi: str
) -> None:
    """All nodes are on this machine, so each task gets a mount point."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_text("content\n")
    run = [
        *COPPERFS, "run", "--source", tmp_path / "source", "--listen", "lo",
        "--rendezvous", tmp_path / "meet", "--wait-all",
    ]  # fmt: skip
    script = (
        f'exec "$@" --mountpoint {tmp_path}/m$SLURM_NODEID --node-name n$SLURM_NODEID '
        "-- sh -c 'cat $COPPERFS_MOUNTPOINT/file'"
    )
    command = slurm.srun(f"--mpi={mpi}", "sh", "-c", script, "task", *map(str, run))
    command[command.index("--ntasks-per-node=1")] = "--ntasks-per-node=2"
    done = subprocess.run(
        command, env=slurm.env, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "content\n" * 2 * NODES
    mountpoints = [tmp_path / f"m{node}" for node in range(NODES)]
    assert not any(is_mounted(each) for each in mountpoints)
