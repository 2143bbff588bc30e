"""What launchers and schedulers say in the environment: places, numbers, names, the job.

Pure but for ``PBS_NODEFILE``, which is a file. Nothing here is trusted further than to choose a
way to launch and to put nodes in order: a wrong number ends in a sentence, never in a wrong roster.

Which variables: Open MPI's are documented (tuning-apps/environment-var), and so are srun's; those
of hydra were printed by MPICH 5.0 and 4.0, those of PALS are in Cray's pals.h, those of Flux in
flux-core's ``shell/task.c``. ``tests/bootstrap/test_environment.py`` has samples.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from copperfs.bootstrap.nodesets import expand
from copperfs.errors import LaunchError

# The number of processes. Each launcher's own comes before those of the scheduler around it.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE")
_SCHEDULER_SIZES = ("SLURM_STEP_NUM_TASKS", "FLUX_JOB_SIZE")
# Without one of these no MPI library could find its peers; srun --mpi=none sets none of them.
_MPI_SIGNS = (
    *("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    *("PMIX_RANK", "PMI_FD", "PMI_CONTROL_PORT", "PALS_RANKID"),
)
_RANKS = (
    *("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID"),
    *("SLURM_PROCID", "FLUX_TASK_RANK", "PBS_NODENUM"),
)
_NODE_COUNTS = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "FLUX_JOB_NNODES")
_NODE_SETS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
# Two launches in one job differ in the second, where there is one.
_JOBS = (
    ("slurm", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("pbs", "PBS_JOBID", "PALS_APID"),
    ("flux", "FLUX_JOB_ID", ""),
    ("lsf", "LSB_JOBID", ""),
)
# What a process has from an MPI launcher. The daemon must not have it: it would take itself, and be
# taken, for a rank.
_MPI_PREFIXES = (
    *("OMPI_", "OPAL_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "PALS_"),
    *("HYD_", "HYDI_", "HYDRA_", "MPIR_", "MPI_LOCAL", "MPIEXEC_", "MPICH_", "MPI4PY_"),
    *("MV2_", "I_MPI_"),
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the environment says of this launch; None and () where it says nothing."""

    mpi_processes: int | None = None
    """How many processes an MPI launcher started, if an MPI library could find them."""
    open_mpi: bool = False
    """Whether it was Open MPI's."""
    processes_without_mpi: int | None = None
    """How many processes srun or flux started in a way that MPI cannot use."""
    rank: int | None = None
    nodes: int | None = None
    """As the scheduler counts them; else the names; else the processes, one on each."""
    names: tuple[str, ...] = ()
    """The nodes, in the scheduler's order."""
    job: str = "job"
    """Names the job, and the launch in it, if the scheduler does; usable as a file name."""


def look_around(environ: Mapping[str, str], *, names_wanted: bool = False) -> Surroundings:
    """``names_wanted``: to take a list of nodes apart costs an import, or a file."""
    size = _number(environ, _SIZES) or _number(environ, _SCHEDULER_SIZES)
    has_mpi = any(name in environ for name in _MPI_SIGNS)
    names = _names(environ) if names_wanted else ()
    nodes = _number(environ, _NODE_COUNTS)
    if nodes is None:
        nodes = len(names) or size
    return Surroundings(
        mpi_processes=size if has_mpi else None,
        open_mpi="OMPI_COMM_WORLD_SIZE" in environ,
        processes_without_mpi=None if has_mpi else size,
        rank=_number(environ, _RANKS),
        nodes=nodes,
        names=names,
        job=_job(environ),
    )


def without_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that is not to know of MPI."""
    return {name: value for name, value in environ.items() if not name.startswith(_MPI_PREFIXES)}


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if re.fullmatch(r"\d{1,9}", text, re.ASCII):
            return int(text)
    return None


def _names(environ: Mapping[str, str]) -> tuple[str, ...]:
    for name in _NODE_SETS:
        if environ.get(name):
            return expand(environ[name], name)
    if environ.get("PBS_NODEFILE"):
        path = environ["PBS_NODEFILE"]
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").split()
        except OSError as error:
            raise LaunchError(
                f"PBS_NODEFILE {path} cannot be read: {error.strerror}; unset it or give --nodes"
            ) from None
        return tuple(dict.fromkeys(lines))  # a line for each process
    return ()


def _job(environ: Mapping[str, str]) -> str:
    for kind, *names in _JOBS:
        found = [environ[name] for name in names if environ.get(name)]
        if environ.get(names[0]):
            return re.sub(r"[^\w.-]", "_", ".".join([kind, *found]), flags=re.ASCII)[:200]
    return "job"
