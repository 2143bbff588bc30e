"""Launch by an MPI launcher: the nodes' members by one allgather, then MPI is over.

mpi4py is imported here, inside the one function that needs it, and only when a launcher has
started more than one process. After ``MPI_Finalize`` this process goes on as an ordinary one; the
daemon is a fresh process (``cli/mount.py``), because one that stays an MPI process dies with the
first rank that the job loses, under Open MPI and under MPICH.

A node that cannot take part (its port is taken, its mount point is in use) comes to the allgather
all the same and says why: otherwise the others would wait for it, or be killed by the launcher
before they could say anything. So every rank knows of every failure, and one of them tells.
"""

import json
from dataclasses import asdict
from typing import NamedTuple

from copperfs.bootstrap.invitation import Invitation
from copperfs.errors import LaunchError
from copperfs.roster import Member, Roster
from copperfs.types import NodeId

ONE_EACH = (
    "start one on each node: mpiexec --map-by ppr:1:node (Open MPI), mpiexec -ppn 1 (MPICH, PALS), "
    "srun --ntasks-per-node=1"
)
_FAILURES_TOLD_MAX = 3


class Gathered(NamedTuple):
    rank: int
    texts: list[str]


def launch_by_mpi(
    name: str, own: Invitation | LaunchError, job: str, processes: int, rank: int | None
) -> tuple[Roster, NodeId]:
    """The roster of all ranks and the place of this one, in order of rank.

    ``processes`` and ``rank`` are what the environment says. ``job`` is this process's draw; that
    of rank 0 is taken.
    """
    message: dict[str, object] = {"name": name, "job": job}
    if isinstance(own, Invitation):
        message["member"] = asdict(own.member)
    else:
        message["error"] = str(own)
    gathered = _allgather(json.dumps(message), processes, rank)
    return compose(gathered)


def compose(gathered: Gathered) -> tuple[Roster, NodeId]:
    """The roster from what was gathered; rank 0 tells what is wrong, the others end silently."""
    messages = [json.loads(text) for text in gathered.texts]
    failed = [f"{each['name']}: {each['error']}" for each in messages if "error" in each]
    sentence = ""
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        shown = "; ".join(failed[:_FAILURES_TOLD_MAX])
        sentence = f"{shown}{more}" if len(failed) > 1 else shown
    else:
        names = [each["name"] for each in messages]
        for name in names:
            if (count := names.count(name)) > 1:
                sentence = f"{count} processes were started on the node {name}; {ONE_EACH}"
                break
    if sentence:
        raise LaunchError(sentence if gathered.rank == 0 else "")
    members = tuple(Member(**each["member"]) for each in messages)
    return Roster(str(messages[0]["job"]), members), NodeId(gathered.rank)


def _allgather(text: str, processes: int, rank: int | None) -> Gathered:
    def fail(sentence: str) -> LaunchError:
        # MPI cannot say who is first when it is MPI that fails.
        return LaunchError(sentence if not rank else "")

    started = f"a launcher started {processes} processes"
    instead = "; or give --rendezvous DIR, which needs no MPI"
    try:
        import mpi4py

        mpi4py.rc.threads = False  # the least of the library
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except ImportError as error:
        raise fail(
            f"{started}, but mpi4py cannot be imported ({error}); pip install mpi4py{instead}"
        ) from None
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise fail(f"{started}, but mpi4py finds no MPI library ({why}){instead}") from None
    world = MPI.COMM_WORLD
    found = world.Get_size()
    library = MPI.Get_library_version().partition("\n")[0].split(",")[0].strip("\0 ")
    gathered = Gathered(world.Get_rank(), world.allgather(text) if found == processes else [])
    MPI.Finalize()
    if found != processes:
        raise fail(
            f"{started}, but mpi4py's MPI ({library}) sees {found}: the launcher is of "
            f"another MPI; put that one's library first in LD_LIBRARY_PATH{instead}"
        )
    return gathered
