"""Launcher variables: reads ranks, counts, names and the job from the environment, and from
``PBS_NODEFILE``.

The values only choose a way to launch and order the nodes: a wrong number ends in an error message,
never in a wrong roster. ``tests/bootstrap/test_environment.py`` has samples and their sources.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from copperfs.launch.node_sets import expand
from copperfs.model.errors import LaunchError

# A launcher's own count comes before that of the scheduler around it.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE")
_SCHEDULER_SIZES = ("SLURM_STEP_NUM_TASKS", "FLUX_JOB_SIZE")
# Without one of these no MPI library finds its peers; srun --mpi=none sets none of them.
_MPI_SIGNS = (
    *("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    *("PMIX_RANK", "PMI_FD", "PMI_CONTROL_PORT", "PALS_RANKID"),
)
_RANKS = (
    *("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID"),
    *("SLURM_PROCID", "FLUX_TASK_RANK", "PBS_NODENUM"),
)
_SIZES_HERE = (
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
_NODE_COUNTS = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "FLUX_JOB_NNODES")
_NODE_SETS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
# Two launches in one job differ in the second.
_JOBS = (
    ("slurm", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("pbs", "PBS_JOBID", "PALS_APID"),
    ("flux", "FLUX_JOB_ID", ""),
    ("lsf", "LSB_JOBID", ""),
)
# The daemon must not have these: it would act as a rank, and be treated as one.
_MPI_PREFIXES = (
    *("OMPI_", "OPAL_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "PALS_"),
    *("HYD_", "HYDI_", "HYDRA_", "MPIR_", "MPI_LOCAL", "MPIEXEC_", "MPICH_", "MPI4PY_"),
    *("MV2_", "I_MPI_"),
)
# It identifies the processes of one ``copperfs run``.
RUN_VARIABLE = "COPPERFS_RUN"
# Where the command finds the mount.
MOUNTPOINT_VARIABLE = "COPPERFS_MOUNTPOINT"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """None and () where the environment has no value."""

    mpi_processes: int | None = None
    """Only if an MPI library could find them."""
    open_mpi: bool = False
    processes_without_mpi: int | None = None
    """Started by srun or flux in a way that MPI cannot use."""
    rank: int | None = None
    nodes: int | None = None
    """As the scheduler counts them; else the number of names; else the processes."""
    names: tuple[str, ...] = ()
    job: str = "job"
    """With the launch in it; usable as a file name."""


def look_around(environ: Mapping[str, str], *, names_wanted: bool = False) -> Surroundings:
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


@dataclass(frozen=True, slots=True)
class Companions:
    nodes: int = 1
    """Those of this launch, which may be fewer than the scheduler's."""
    here: int = 1
    """Processes on this node."""
    by_mpi: bool = False
    """Whether an MPI launcher is the parent."""


def companions(environ: Mapping[str, str], nodes: int | None = None) -> Companions:
    """LaunchError if the launcher gives half of it. *nodes* is the user's number.

    Only values of this launch count: in a batch script that starts a single process the scheduler's
    number of nodes is that of the job.
    """
    size, here = _number(environ, _SIZES), _number(environ, _SIZES_HERE)
    step_nodes = _number(environ, ("SLURM_STEP_NUM_NODES",))
    by_mpi = size is not None
    if size is not None and here:
        if nodes is None and size % here:
            raise LaunchError(
                f"{size} processes, {here} of them on this node, do not say how many nodes there "
                "are; give --nodes N"
            )
        return Companions(nodes or size // here, here, by_mpi)
    if step_nodes is not None:
        return Companions(nodes or step_nodes, _tasks_of_step_here(environ) or 1, by_mpi)
    if nodes is None and size is not None and size > 1:
        raise LaunchError(
            f"{size} processes were started, and nothing says on how many nodes; give --nodes N"
        )
    nodes = nodes or _number(environ, ("FLUX_JOB_NNODES",)) or 1
    # All processes counted here are waited for, so rather too few than too many.
    return Companions(nodes, max(1, (size or 1) // nodes), by_mpi)


def _tasks_of_step_here(environ: Mapping[str, str]) -> int | None:
    """Slurm writes the tasks of all nodes: ``12(x3),11``."""
    number = _number(environ, ("SLURM_NODEID",))
    tasks = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        found = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part, re.ASCII)
        if found is None:
            return None
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks[number] if number is not None and number < len(tasks) else None


def same_for_all(environ: Mapping[str, str]) -> dict[str, str]:
    """What this module reads of a launch, without the numbers of ranks. Of signs only the names
    count, because some have a value for each rank."""
    names = {
        *(*_SIZES, *_SCHEDULER_SIZES, *_SIZES_HERE, *_NODE_COUNTS, *_NODE_SETS),
        *(name for _, *names in _JOBS for name in names),
        *("SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", "PBS_NODEFILE"),
    }
    signs = dict.fromkeys((name for name in _MPI_SIGNS if name in environ), "")
    return signs | {name: environ[name] for name in names if name in environ}


def without_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name != RUN_VARIABLE and not name.startswith(_MPI_PREFIXES)
    }


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
