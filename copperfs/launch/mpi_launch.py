"""MPI launch: exchanges the nodes' members by one allgather, then ends MPI.

The daemon is a fresh process (``cli/mount.py``): one that stays an MPI process dies with the first
rank that the job loses, under Open MPI and under MPICH.

A node that cannot take part (its port is taken, its mount point is in use) sends the reason in the
allgather, and rank 0 reports it. Otherwise the others would wait for that node, or the launcher
would kill them.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from copperfs.launch.launcher_variables import Surroundings
from copperfs.launch.node_identity import Invitation, check, other_version, own_version
from copperfs.model.errors import LaunchError
from copperfs.model.roster import BadRoster, Member, Roster
from copperfs.model.types import NodeId
from copperfs.startup.bundle import environment_python, started_from

if TYPE_CHECKING:
    from mpi4py import MPI

ONE_EACH = (
    "start one on each node: mpiexec --map-by ppr:1:node (Open MPI), mpiexec -ppn 1 (MPICH, PALS), "
    "srun --ntasks-per-node=1"
)
_FAILURES_TOLD_MAX = 3
# Where MPI fails, the ranks cannot agree on which one reports. The others give rank 0 this time
# before the launcher ends all.
_SPEAK_WITHIN_S = 2.0
_ALARM_AFTER_S = 2.0
_ASKED_WITHIN_S = 60.0


class _OtherVersion(BadRoster):
    def __init__(self, sentence: str, rank: int) -> None:
        super().__init__(sentence)
        self.rank = rank


class Gathered(NamedTuple):
    rank: int
    texts: list[str]


def launch_by_mpi(
    name: str,
    own: Invitation | LaunchError,
    around: Surroundings,
    timeout_s: float,
    tell: Callable[[str], None],
) -> tuple[Roster, NodeId]:
    with _ending_at(timeout_s, tell):
        return _launch(name, own, around, tell)


def _launch(
    name: str, own: Invitation | LaunchError, around: Surroundings, tell: Callable[[str], None]
) -> tuple[Roster, NodeId]:
    message: dict[str, object] = {
        "name": name,
        "job": secrets.token_hex(8),
        "runs": own_version(),
    }
    if isinstance(own, Invitation):
        message["member"] = asdict(own.member)
    else:
        message["error"] = str(own)
    try:
        world = _open_world(around.mpi_processes or 1, by_open_mpi=around.open_mpi)
    except LaunchError:
        if around.rank:
            time.sleep(_SPEAK_WITHIN_S)
            raise LaunchError("") from None
        raise
    gathered = Gathered(world.Get_rank(), world.allgather(json.dumps(message)))
    try:
        return compose(gathered)
    except BadRoster as error:
        # Before the first rank ends, since the launcher then ends the others.
        concerned = error.rank if isinstance(error, _OtherVersion) else None
        if gathered.rank in (0, concerned):
            tell(str(error))
        raise LaunchError("") from None
    finally:
        world.Barrier()
        _close_world()


def compose(gathered: Gathered) -> tuple[Roster, NodeId]:
    """BadRoster, on all ranks, if some rank cannot take part."""
    messages = [json.loads(text) for text in gathered.texts]
    if failed := [f"{each['name']}: {each['error']}" for each in messages if "error" in each]:
        untold = len(failed) - _FAILURES_TOLD_MAX
        more = f" (and {untold} more)" if untold > 0 else ""
        raise BadRoster("; ".join(failed[:_FAILURES_TOLD_MAX]) + more)
    _check_versions(messages)
    counts = Counter(each["name"] for each in messages)
    name, count = counts.most_common(1)[0]
    if count > 1:
        raise BadRoster(f"{count} processes were started on the node {name}; {ONE_EACH}")
    # The job is what rank 0 drew.
    roster = Roster(str(messages[0]["job"]), tuple(Member(**each["member"]) for each in messages))
    check(roster)
    return roster, NodeId(gathered.rank)


def _check_versions(messages: list[dict[str, Any]]) -> None:
    """Rank 0 and the first rank that differs report it."""
    first, *others = messages
    for rank, each in enumerate(others, start=1):
        if each.get("runs") == first.get("runs"):
            continue
        one, other = (first, each) if first.get("runs") == own_version() else (each, first)
        sentence = other_version(other["name"], other.get("runs"), one["name"])
        raise _OtherVersion(sentence or "", rank)


@contextmanager
def _ending_at(timeout_s: float, tell: Callable[[str], None]) -> Iterator[None]:
    """End this process if MPI waits for longer: MPI cannot be cancelled.

    MPI_Init may wait without letting other threads run, or a signal's Python handler: there the
    alarm ends the process, and the launcher reports that.
    """

    def end() -> None:
        tell(
            f"the other processes did not come within {timeout_s:g} s (--launch-timeout); "
            "look for a node that hangs before it starts copperfs"
        )
        os._exit(1)  # so that the launcher ends all the others, too

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    numbers = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    signal.setitimer(signal.ITIMER_REAL, timeout_s + _ALARM_AFTER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _add_usual_path() -> None:
    """mpi4py has to be the one that the site's MPI wants, which it may provide by PYTHONPATH. A
    process that was started from a bundle has not looked there."""
    if started_from() is None:
        return
    command = [environment_python(), "-c", "import json, sys; json.dump(sys.path[1:], sys.stdout)"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_ASKED_WITHIN_S
    )
    if done.returncode == 0:
        sys.path += [each for each in json.loads(done.stdout) if each not in sys.path]


def _open_world(processes: int, *, by_open_mpi: bool) -> "MPI.Intracomm":
    started = f"a launcher started {processes} processes"
    instead = "; or give --rendezvous DIR, which needs no MPI"
    try:
        _add_usual_path()
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except ImportError as error:
        raise LaunchError(
            f"{started}, but mpi4py cannot be imported ({error}); pip install mpi4py{instead}"
        ) from None
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise LaunchError(f"{started}, but mpi4py finds no MPI library ({why}){instead}") from None
    version = MPI.Get_library_version().strip("\0")
    library = " ".join(version.partition("\n")[0].split(",")[0].replace(":", "").split())
    # MPICH 5 would end this process in MPI_Init, and others would not find each other.
    found = 0
    if not (by_open_mpi and "MPICH" in version):
        MPI.Init()
        found = MPI.COMM_WORLD.Get_size()
    if found != processes:
        if found:
            MPI.Finalize()
        raise LaunchError(
            f"{started}, but mpi4py's MPI ({library}) does not find them; put the "
            f"library of the launcher's MPI first in LD_LIBRARY_PATH{instead}"
        )
    return MPI.COMM_WORLD


def _close_world() -> None:
    from mpi4py import MPI

    MPI.Finalize()
