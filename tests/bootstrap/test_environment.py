"""Launch environment: the variables that launchers set, and what copperfs derives from them.

``mpiexec -n 2 env`` printed the samples of Open MPI, MPICH and Slurm, of the wheels (5.0.11, 5.0.2)
and Debian's packages (4.1.4, 4.0.2). Those of PALS are from Cray's ``pals.h`` and job scripts for
Aurora, those of Flux from flux-core's own tests.
"""

from pathlib import Path

import pytest

from copperfs.config.settings import Settings
from copperfs.launch.launch_method import Alone, ByMpi, ByRendezvous, find_way
from copperfs.launch.launcher_variables import (
    Companions,
    Surroundings,
    companions,
    look_around,
    without_mpi,
)
from copperfs.model.errors import LaunchError

OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_FILE_LOCATION": "/tmp/ompi.18860/1/1",
    "OPAL_PREFIX": "/opt/openmpi",
    "PMIX_NAMESPACE": "prterun-vm-18860@1",
    "PMIX_RANK": "1",
    "PMIX_SERVER_URI41": "prterun-vm-18860@0.0;tcp4://127.0.0.1:56493",
    "PRTE_LAUNCHED": "1",
}
OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1054474240.0;tcp://192.0.2.2:46773",
    "PMIX_RANK": "0",
}
MPICH = {
    "HYDI_CONTROL_FD": "7",
    "MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "vm",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "9",
    "PMI_HOSTNAME": "vm",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
SLURM_STEP = {
    "SLURM_JOB_ID": "200505",
    "SLURM_JOB_NODELIST": "gnode[10,20,25,37]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "gnode[20,25,37]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
}
SLURM_BATCH = {
    "SLURM_JOB_ID": "200505",
    "SLURM_JOB_NODELIST": "gnode[10,20,25,37]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
}
SLURM_PMI2 = SLURM_STEP | {"PMI_FD": "8", "PMI_JOBID": "200505.3", "PMI_RANK": "2", "PMI_SIZE": "3"}
SLURM_PMIX = SLURM_STEP | {"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.200505.3"}
SLURM_CRAY = SLURM_STEP | {"PMI_CONTROL_PORT": "20000,20001", "PALS_APID": "200505.3"}
PALS = {
    "PBS_JOBID": "1234567.aurora-pbs-0001.hostmgmt.cm.aurora.alcf.anl.gov",
    "PALS_APID": "6a0ffa1c-8d33-4c60-9f0c-4bb6e4a1d6a2",
    "PALS_LOCAL_RANKID": "0",
    "PALS_NODEID": "5",
    "PALS_RANKID": "5",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
}
FLUX = {
    "FLUX_JOB_ID": "42",
    "FLUX_JOB_NNODES": "2",
    "FLUX_JOB_SIZE": "2",
    "FLUX_TASK_RANK": "1",
    "FLUX_TASK_LOCAL_ID": "0",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "PMI_FD": "12",
}


def settings(**values: object) -> Settings:
    return Settings(mountpoint="/mnt", memory_bytes=1 << 30, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environ", "processes", "rank", "nodes", "job"),
    [
        pytest.param({}, None, None, None, "job", id="nothing"),
        pytest.param(OPEN_MPI_5, 2, 1, 2, "job", id="Open MPI 5"),
        pytest.param(OPEN_MPI_4, 2, 0, 2, "job", id="Open MPI 4"),
        pytest.param(MPICH, 2, 1, 2, "job", id="MPICH"),
        pytest.param(SLURM_BATCH, None, 0, 4, "slurm.200505", id="sbatch"),
        pytest.param(SLURM_STEP, None, 2, 3, "slurm.200505.3", id="srun --mpi=none"),
        pytest.param(SLURM_PMI2, 3, 2, 3, "slurm.200505.3", id="srun --mpi=pmi2"),
        pytest.param(SLURM_PMIX, 3, 2, 3, "slurm.200505.3", id="srun --mpi=pmix"),
        pytest.param(SLURM_CRAY, 3, 2, 3, "slurm.200505.3", id="srun --mpi=cray_shasta"),
        pytest.param(
            PALS, 8, 5, 8, ".".join(["pbs", PALS["PBS_JOBID"], PALS["PALS_APID"]]), id="PALS"
        ),
        pytest.param(FLUX, 2, 1, 2, "flux.42", id="flux run"),
    ],
)
def test_what_a_launcher_says_is_understood(
    environ: dict[str, str], processes: int | None, rank: int | None, nodes: int | None, job: str
) -> None:
    around = look_around(environ, names_wanted=False)
    assert (around.mpi_processes, around.rank, around.nodes, around.job) == (
        processes,
        rank,
        nodes,
        job,
    )


def test_the_nodes_of_a_step_come_before_those_of_the_job() -> None:
    around = look_around(SLURM_STEP, names_wanted=True)
    assert around.names == ("gnode20", "gnode25", "gnode37")


def test_a_node_file_of_pbs_has_a_line_for_each_process(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("x2\nx2\nx1\nx1\n")
    around = look_around({"PBS_NODEFILE": str(tmp_path / "nodes")}, names_wanted=True)
    assert (around.names, around.nodes) == (("x2", "x1"), 2)


def test_a_node_file_that_is_missing_matters_only_to_a_rendezvous(tmp_path: Path) -> None:
    environ = {"PBS_NODEFILE": str(tmp_path / "absent")}
    assert look_around(environ) == Surroundings()
    with pytest.raises(LaunchError, match=r"PBS_NODEFILE .* cannot be read: No such file"):
        look_around(environ, names_wanted=True)


@pytest.mark.parametrize("nonsense", ["", "-1", "two", "9" * 30, "1.5", "\u0663"])
def test_a_number_that_is_none_is_as_good_as_none(nonsense: str) -> None:
    assert look_around({"PMI_SIZE": nonsense, "PMI_RANK": nonsense}).rank is None


def test_a_job_names_no_other_directory() -> None:
    assert look_around({"SLURM_JOB_ID": "../../etc"}).job == "slurm..._.._etc"


@pytest.mark.parametrize("launcher", [OPEN_MPI_5, OPEN_MPI_4, MPICH, SLURM_PMI2, PALS, FLUX])
def test_the_daemon_gets_nothing_of_a_launcher(launcher: dict[str, str]) -> None:
    kept = without_mpi(launcher | {"PATH": "/bin", "COPPERFS_MEMORY": "1G"})
    assert kept.pop("PATH") == "/bin"
    assert kept.pop("COPPERFS_MEMORY") == "1G"
    assert all(name.startswith(("SLURM_", "PBS_", "FLUX_")) for name in kept), kept


# ---- which way is meant --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "environ", "way"),
    [
        ({}, {}, Alone()),
        ({}, SLURM_BATCH, Alone()),
        ({}, {"OMPI_COMM_WORLD_SIZE": "1"}, Alone()),
        ({}, MPICH, ByMpi(2)),
        ({}, SLURM_PMIX, ByMpi(3)),
        ({"bootstrap": "none"}, MPICH, Alone()),
        ({"bootstrap": "none", "rendezvous": "/d", "nodes": 3}, {}, Alone()),
        ({"rendezvous": "/d"}, SLURM_STEP, ByRendezvous("/d", 3)),
        ({"rendezvous": "/d", "nodes": 2}, MPICH, ByRendezvous("/d", 2)),
        ({"rendezvous": "/d", "nodes": 1}, {}, Alone()),
        ({"bootstrap": "mpi"}, {"PMI_SIZE": "1"}, ByMpi(1)),
    ],
)
def test_the_way_follows_from_settings_and_surroundings(
    values: dict[str, object], environ: dict[str, str], way: object
) -> None:
    assert find_way(settings(**values), look_around(environ)) == way


@pytest.mark.parametrize(
    ("values", "environ", "sentence"),
    [
        ({"rendezvous": "/d"}, {}, "which the environment does not say; give --nodes N"),
        ({"rendezvous": "/d", "hostfile": "/f"}, {}, "two ways to launch; give one"),
        ({"nodes": 4}, {}, "--nodes 4 needs a way for the nodes to find each other"),
        ({"bootstrap": "mpi"}, {}, "--bootstrap mpi needs an MPI launcher"),
        ({}, SLURM_STEP, "3 processes were started in a way that MPI cannot use"),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_sentence(
    values: dict[str, object], environ: dict[str, str], sentence: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        find_way(settings(**values), look_around(environ))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- copperfs run --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Companions()),
        # a batch script on the first of its four nodes
        ({"SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4", "SLURM_PROCID": "0"}, Companions()),
        ({"PMI_SIZE": "12", "MPI_LOCALNRANKS": "4"}, Companions(3, 4, by_mpi=True)),
        (
            {"OMPI_COMM_WORLD_SIZE": "24", "OMPI_COMM_WORLD_LOCAL_SIZE": "12"},
            Companions(2, 12, by_mpi=True),
        ),
        # mpiexec within a step of Slurm
        (
            {"PMI_SIZE": "8", "MPI_LOCALNRANKS": "2", "SLURM_STEP_NUM_NODES": "1"},
            Companions(4, 2, by_mpi=True),
        ),
        (
            {
                "SLURM_STEP_NUM_NODES": "3",
                "SLURM_STEP_TASKS_PER_NODE": "12(x2),11",
                "SLURM_NODEID": "2",
            },
            Companions(3, 11),
        ),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "x"}, Companions(2, 1)),
        ({"FLUX_JOB_SIZE": "8", "FLUX_JOB_NNODES": "2"}, Companions(2, 1)),
    ],
)
def test_a_run_knows_beside_how_many_it_was_started(
    environ: dict[str, str], expected: Companions
) -> None:
    assert companions(environ) == expected


@pytest.mark.parametrize(
    "environ", [{"PMI_SIZE": "6", "MPI_LOCALNRANKS": "4"}, {"PALS_SIZE": "6", "PALS_RANKID": "0"}]
)
def test_a_run_that_cannot_know_its_nodes_asks_for_their_number(environ: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match="give --nodes N"):
        companions(environ)
    assert companions(environ, nodes=2).nodes == 2


def test_no_daemon_ends_with_a_run() -> None:
    assert without_mpi({"COPPERFS_RUN": "token", "COPPERFS_SOURCE": "/lus"}) == {
        "COPPERFS_SOURCE": "/lus"
    }
