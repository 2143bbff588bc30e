"""The scripts of ``examples/``, executed as they are; the tests adapt them by variables."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bootstrap.helpers import clean_environment
from tests.bootstrap.slurm import Slurm, lacking
from tests.mount.helpers import COPPERFS, copperfs, eventually, is_mounted, is_running
from tests.mount.keepers import kill_with_keeper
from tests.standin import StandIn
from tests.unit.test_layers import ROOT

EXAMPLES = ROOT / "examples"
WITHIN_S = 120.0
NODES = 3

pytestmark = pytest.mark.mount

APP = """\
import os, sys, mine
device = os.stat(mine.__file__).st_dev
os.write(1, f"PREFIX {sys.prefix} MINE {mine.__file__} {device}\\n".encode())  # all at once
"""


class Site:
    """A shared filesystem with an environment and a program, and an account of the requests to
    copperfs."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.shared = where / "lus"
        self.env_dir = self.shared / "env"
        self.app = where / "app.py"
        self.app.write_text(APP)
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", self.env_dir],
            check=True, timeout=WITHIN_S,
        )  # fmt: skip
        packages = next(self.env_dir.glob("lib/python*/site-packages"))
        (packages / "mine.py").write_text("")
        self.packages = packages

    def variables(self, *flags: str) -> dict[str, str]:
        command = self.where / "copperfs"
        command.write_text(f'#!/bin/sh\nexec {" ".join(COPPERFS)} "$@"\n')
        if flags:  # before what the example gives
            given = " ".join(flags)
            command.write_text(
                f'#!/bin/sh\nword=$1; shift\nexec {" ".join(COPPERFS)} "$word" {given} "$@"\n'
            )
        command.chmod(0o755)
        return {
            "COPPERFS": str(command),
            "ENV_DIR": str(self.env_dir),
            "SHARED": str(self.shared),
            "APP": str(self.app),
            "HOME": str(self.where),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def check(self, output: str, lines: int, mounts: str = "") -> None:
        """This many processes ran, all with the environment as the mount shows it: at its own path
        (another device than the source's), or below *mounts*."""
        found = [line.split() for line in output.splitlines() if line.startswith("PREFIX")]
        assert len(found) == lines, output
        for _, prefix, _, mine, device in found:
            assert prefix.startswith(mounts or str(self.env_dir)), output
            assert prefix.endswith(str(self.env_dir)), output
            assert mine.startswith(prefix), output
            assert int(device) != self.where.stat().st_dev, output


def example(name: str, variables: dict[str, str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [EXAMPLES / name],
        env={**(environment or clean_environment()), **variables},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield Site(tmp_path)
    left = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if str(tmp_path) in line and "fuse.copperfs" in line]  # fmt: skip
    for each in left:
        copperfs("umount", "--lazy", each)


THROUGH_VARIABLES = {"COPPERFS_IN_PLACE": "never"}


@pytest.mark.parametrize("name", ["venv.sh", "conda.sh"])
def test_an_environment_is_read_through_a_mount(site: Site, name: str) -> None:
    site.check(example(name, site.variables()), 1)
    site.check(example(name, site.variables() | THROUGH_VARIABLES), 1, "/tmp/copperfs-")


def test_a_container_sees_the_mount(site: Site) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if shutil.which("apptainer") or shutil.which("podman"):
        pytest.skip("it would want an image")
    variables = site.variables() | {"ENV_DIR": str(site.packages)}
    output = example("container.sh", variables)
    assert "MINE /tmp/copperfs-" in output
    assert str(site.packages / "mine.py") in output


# ---- PBS, by its variables -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pbs/job.sh", "aurora/job.sh"])
def test_ranks_of_a_pbs_job_share_a_mount(site: Site, name: str) -> None:
    mpiexec = shutil.which("mpiexec.mpich")
    if mpiexec is None:
        pytest.skip("MPICH is not installed")
    nodes = site.where / "nodes"
    nodes.write_text(f"{socket.gethostname()}\n" * 4)
    job = {
        "PBS_JOBID": "123.pbs", "PBS_NODEFILE": str(nodes), "PBS_O_WORKDIR": str(site.where),
        "MPIEXEC": mpiexec, "RANKS_PER_NODE": "4", "LISTEN": "lo", "MEMORY": "64MiB",
    }  # fmt: skip
    site.check(example(name, site.variables() | job), 4)
    through_variables = site.variables() | job | THROUGH_VARIABLES
    site.check(example(name, through_variables), 4, "/tmp/copperfs-0-pbs.123.pbs-")


# ---- PyTorch, over the data tier -----------------------------------------------------------------

TORCH = (Path(sys.prefix) / "torch").resolve()  # an environment of its own (tests/setup.sh)
SAMPLES = 48  # of each of two classes
SAMPLE_BYTES = 3 * 64 * 64


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[StandIn]:
    """Without a page cache: each read is counted."""
    files = tmp_path / "files"
    rng = random.Random(7)
    for name, least in (("dark", 0), ("light", 100)):
        (files / name).mkdir(parents=True)
        for number in range(SAMPLES):
            content = bytes(rng.randrange(least, least + 156) for _ in range(SAMPLE_BYTES))
            (files / name / f"{number:03}.raw").write_bytes(content)
    mountpoint = tmp_path / "lus" / "dataset"
    mountpoint.mkdir(parents=True)
    with StandIn(files, mountpoint) as standin:
        yield standin


def test_a_training_reads_its_dataset_once_for_all_nodes(tmp_path: Path, dataset: StandIn) -> None:
    """Three nodes of a rank each, which are told apart by their mount points, also read PyTorch
    through the mount."""
    mpiexec = shutil.which("mpiexec.mpich")
    if mpiexec is None:
        pytest.skip("MPICH is not installed")
    if not TORCH.exists():
        pytest.skip("pip knows no PyTorch for CPUs")
    command = tmp_path / "copperfs"
    command.write_text(
        "#!/bin/sh\nshift; unset MPI_LOCALNRANKS\n"
        f"exec {' '.join(COPPERFS)} run --mountpoint {tmp_path}/m$PMI_RANK "
        f"--node-name n$PMI_RANK --nodes {NODES} --rendezvous {tmp_path}/meet --wait-all "
        '--listen lo --memory 256MiB --tier-memory 64MiB "$@"\n'
    )
    command.chmod(0o755)
    variables = {
        "LAUNCH": f"{mpiexec} -n {NODES}", "COPPERFS": str(command), "ENV_DIR": str(TORCH),
        "SHARED": f"{TORCH} {dataset.mountpoint}", "DATA_DIR": str(dataset.mountpoint),
        "TIER_DIR": f"{tmp_path}/nvme-%h", "TIER_SIZE": "256MiB",
        "APP": str(EXAMPLES / "pytorch/train.py"), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    output = example("pytorch/job.sh", variables)
    told = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert {(each["rank"], each["epoch"]) for each in told} == {
        (rank, epoch) for rank in range(NODES) for epoch in range(3)
    }, output
    for each in told:
        mountpoint = f"{tmp_path}/m{each['rank']}"
        assert each["samples"] == 2 * SAMPLES // NODES
        assert each["data"] == f"{mountpoint}{dataset.mountpoint}/dark/000.raw"
        assert each["torch"].startswith(f"{mountpoint}{TORCH}/")
    for rank in range(NODES):
        losses = [each["loss"] for each in told if each["rank"] == rank]
        assert losses[-1] < losses[0], "it learns"
    once = {
        f"{name}/{number:03}.raw": SAMPLE_BYTES
        for name in ("dark", "light")
        for number in range(SAMPLES)
    }
    assert dataset.counts().read_bytes == once, "each byte once, in all epochs of all nodes"
    assert not any(is_mounted(tmp_path / f"m{node}") for node in range(NODES))


# ---- Slurm, a real one ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if lacking() or shutil.which("sbatch") is None:
        pytest.skip(f"no Slurm: {', '.join(lacking())}")
    with Slurm(tmp_path_factory.mktemp("slurm") / "own", NODES) as running:
        yield running


def read_if_there(file: Path) -> str:
    return file.read_text() if file.exists() else "(nothing was written)"


def batch(
    slurm: Slurm,
    name: str,
    tasks: int,
    variables: dict[str, str],
    where: Path,
    nodes: int = NODES,
) -> str:
    """``sbatch`` it, and return what it printed; ``--wait`` would poll too seldom. All nodes are
    this machine, and differ by the number that Slurm gives them."""
    output = where / "output"
    done = subprocess.run(
        [
            "sbatch", "--parsable", f"--nodes={nodes}", f"--ntasks-per-node={tasks}", "--account=",
            "--gpus-per-task=0", f"--output={output}", EXAMPLES / name,
        ],
        env=slurm.env | variables | {"SRUN_FLAGS": "--mpi=none"},
        capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = ["scontrol", "--oneliner", "show", "job", done.stdout.strip()]

    def state() -> str:
        said = subprocess.run(
            shown, env=slurm.env, capture_output=True, text=True, timeout=WITHIN_S, check=True
        )
        return said.stdout.partition("JobState=")[2].partition(" ")[0]

    eventually(
        lambda: state() not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"),
        lambda: f"the job has ended; it is {state()}: {read_if_there(output)}",
        WITHIN_S,
    )
    said = output.read_text()
    assert state() == "COMPLETED", said
    return said


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "through variables"])
@pytest.mark.parametrize("name", ["slurm/job.sh", "frontier/job.sh"])
def test_tasks_of_a_slurm_job_share_a_mount_on_each_node(
    slurm: Slurm, site: Site, name: str, in_place: bool
) -> None:
    how = "--in-place always" if in_place else f"--mountpoint {site.where}/m$SLURM_NODEID"
    flags = (how, "--node-name n$SLURM_NODEID", f"--rendezvous {site.where}/meet", "--listen lo")
    variables = site.variables(*flags) | {"LISTEN": "lo", "MEMORY": "64MiB"}
    output = batch(slurm, name, 2, variables, site.where)
    site.check(output, 2 * NODES, "" if in_place else f"{site.where}/m")
    assert not any(is_mounted(site.where / f"m{node}") for node in range(NODES))


def test_steps_share_a_mount_that_another_step_holds(slurm: Slurm, site: Site) -> None:
    """On one node, since a job has one mount point."""
    mountpoint = site.where / "mnt"
    variables = site.variables() | {
        "COPPERFS_LISTEN": "lo",
        "MNT": str(mountpoint),
        "MEET": str(site.where / "meet"),
    }
    output = batch(slurm, "slurm/steps.sh", 2, variables, site.where, nodes=1)
    site.check(output, 4, str(mountpoint))
    assert output.count(f"is mounted at {mountpoint}") == 1, "one on each node"
    eventually(lambda: not is_mounted(mountpoint), "it is unmounted")


def test_an_epilog_removes_what_a_killed_job_has_left(site: Site) -> None:
    mountpoint = site.where / "mnt"
    process = subprocess.Popen(
        [*COPPERFS, "run", "--source", site.shared, "--mountpoint", mountpoint, "--", "sh", "-c",
         "echo up; exec sleep 600"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        daemon = json.loads(copperfs("stats", "--json", mountpoint).stdout)["pid"]
        kill_with_keeper(daemon)
        process.kill()
    eventually(lambda: not is_running(daemon), "the daemon is gone")
    assert is_mounted(mountpoint)
    output = example("slurm/epilog.sh", site.variables() | {"WITHIN": str(site.where)})
    assert f"unmounted {mountpoint}" in output
    assert not is_mounted(mountpoint)


def test_every_example_is_named_and_executed_here() -> None:
    scripts = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.sh")}
    said = (EXAMPLES / "README.md").read_text()
    here = Path(__file__).read_text()
    for each in scripts:
        assert f"`{each}`" in said, each
        assert f'"{each}"' in here, each
        assert os.access(EXAMPLES / each, os.X_OK), each
