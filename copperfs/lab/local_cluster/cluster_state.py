"""Cluster state: one JSON file in the cluster's directory, replaced as a whole.

It is written before anything is made, and again for each daemon, so ``cluster down`` finds what to
clean up whatever ended ``cluster up``. A process is recognised by its id and its start time,
because the kernel reuses ids.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from copperfs.fuse.daemon_start import start_of
from copperfs.fuse.mounting import FSTYPE, mount_at
from copperfs.lab.local_cluster.conditions import USUAL, Conditions
from copperfs.model.errors import ClusterError

FILE_NAME = "cluster.json"
VERSION = 2


@dataclass(slots=True)
class ClusterNode:
    name: str
    directory: str
    """Where ``mnt`` and ``log`` are."""
    endpoint: str = ""
    parents: list[str | None] = field(default_factory=list)
    """By tree; None where it is the root and reads the source."""
    depths: list[int] = field(default_factory=list)
    """Hops to the root, by tree."""
    tier_dir: str | None = None
    made_tier_dir: bool = False
    conditions: Conditions = USUAL
    pid: int = 0
    started: int = 0
    """In clock ticks."""

    @property
    def client(self) -> str:
        """Where its client of the source is mounted, with ``--own-clients``."""
        return os.path.join(self.directory, "client")

    @property
    def etc(self) -> str:
        return os.path.join(self.directory, "etc")

    @property
    def mountpoint(self) -> str:
        return os.path.join(self.directory, "mnt")

    @property
    def log(self) -> str:
        return os.path.join(self.directory, "log")

    @property
    def events(self) -> str:
        return os.path.join(self.directory, "events")

    @property
    def told(self) -> str:
        """The input of its daemon, for a later start."""
        return os.path.join(self.directory, "told")

    @property
    def index(self) -> int:
        return int(self.name.removeprefix("node"))

    def is_alive(self) -> bool:
        return self.pid != 0 and start_of(self.pid) == self.started

    def is_mounted(self) -> bool:
        """By the kernel's table, without touching a mount that may hang."""
        mounted = mount_at(self.mountpoint)
        return mounted is not None and mounted.fstype == FSTYPE


@dataclass(slots=True)
class Helper:
    """A process of the lab beside the daemons."""

    what: str
    pid: int
    started: int


@dataclass(slots=True)
class Cluster:
    directory: str
    nodes: list[ClusterNode]
    made_directory: bool
    settings: dict[str, Any] = field(default_factory=dict)
    made_tier_top: str | None = None
    """The parent of the nodes' chunk directories, if the cluster made it."""
    network: str | None = None
    """The prefix of its network namespaces."""
    mixed: int | None = None
    """The seed of the nodes' conditions."""
    clients_at: str | None = None
    """The directory of which each node has a client."""
    is_shared_mount: bool = False
    """Mounted on itself, so that the nodes' mounts are seen outside."""
    helpers: list[Helper] = field(default_factory=list)
    complete: bool = False

    def node(self, name: str) -> ClusterNode:
        for each in self.nodes:
            if name in (each.name, each.name.removeprefix("node")):
                return each
        raise ClusterError(
            f"there is no {name} in this cluster; its nodes are {self.nodes[0].name} to "
            f"{self.nodes[-1].name}"
        )

    def is_running(self) -> bool:
        return any(each.is_alive() for each in self.nodes)

    def save(self) -> None:
        path = os.path.join(self.directory, FILE_NAME)
        new = f"{path}.new"
        try:
            with open(new, "w", encoding="utf-8") as file:
                json.dump({"version": VERSION} | asdict(self), file, indent=1)
            os.replace(new, path)
        except OSError as error:
            raise ClusterError(f"{path} cannot be written: {error.strerror}") from None

    def forget(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.directory, FILE_NAME))


def load(directory: str) -> Cluster | None:
    path = os.path.join(directory, FILE_NAME)
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
        if values.pop("version") != VERSION:
            raise ClusterError(f"{path} is of another version of copperfs; use that one")
        nodes = [
            ClusterNode(**each | {"conditions": Conditions(**each["conditions"])})
            for each in values.pop("nodes")
        ]
        helpers = [Helper(**each) for each in values.pop("helpers")]
        return Cluster(nodes=nodes, helpers=helpers, **values)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ClusterError(f"{path} cannot be read: {error.strerror}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"{path} is not what copperfs wrote; remove it: {error}") from None


def running(directory: str) -> Cluster:
    found = load(os.path.realpath(directory))
    if found is None:
        raise ClusterError(
            f"there is no cluster in {directory}; start one with: copperfs cluster up -n 4 --dir "
            f"{directory}"
        )
    return found


@contextmanager
def locked(directory: str) -> Iterator[None]:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ClusterError(f"{directory} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ClusterError(
            f"another copperfs cluster command works on {directory}; wait until it has ended"
        ) from None
    finally:
        os.close(fd)
