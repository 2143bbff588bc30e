"""Keepers: the processes that belong to a daemon, as tests find them."""

import contextlib
import os
import signal
from pathlib import Path


def children_of(pid: int) -> set[int]:
    found = set()
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(child) for child in each.read_text().split()}
    return found


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def keeper_of(daemon: int) -> int:
    """The keeper is the child of the first daemon, and the parent of each later one; 0: there is
    none."""
    near = [*children_of(daemon), parent_of(daemon)]
    return next((each for each in near if name_of(each) == "copperfs-keeper"), 0)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def standby_of(keeper: int, daemon: int) -> int:
    return next(iter(children_of(keeper) - {daemon}), 0)


def is_ready(daemon: int) -> bool:
    """Whether a standby waits for its end."""
    keeper = keeper_of(daemon)
    return bool(keeper) and name_of(standby_of(keeper, daemon)) == "copperfs-spare"


def kill_with_keeper(daemon: int) -> None:
    """As when all of a job is killed: nobody is left to go on with the mount."""
    keeper = keeper_of(daemon)
    os.kill(daemon, signal.SIGSTOP)  # it would start another keeper
    if keeper:
        os.kill(keeper, signal.SIGKILL)
    os.kill(daemon, signal.SIGKILL)
