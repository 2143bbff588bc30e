"""Nodes with separate clients of the source, which differ in device numbers, or in inode numbers,
too.

One stand-in is mounted several times. Each node runs in a mount namespace in which another of these
mounts is at the same path below the source.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.bootstrap.slurm import free_ports
from tests.mount.helpers import Mount, eventually, is_running, run
from tests.mount.jobs import Job, JobNode
from tests.mount.keepers import kill_with_keeper
from tests.standin import StandIn

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mount namespaces"),
]

MIB = 1 << 20
LARGE = 9 * MIB + 77
# Each node has to take the bytes from its peers, also on a busy machine, where it would otherwise
# fall back to the source.
PATIENT = ("--hedge-after", "20", "--dead-after", "60", "--launch-timeout", "60")
TREE_MAX = ("--tree-max", "4MiB", "--chunk-size", "1MiB")


class Clients:
    """*count* clients of one directory, and a source that has one of them at ``fs``."""

    def __init__(self, top: Path, count: int, *, own_inodes: bool = False) -> None:
        self.top = top
        self.real = top / "real"
        self.real.mkdir()
        self.source = top / "source"
        (self.source / "fs").mkdir(parents=True)
        self.where = top / "nodes"
        self.where.mkdir()
        self.mounts = [top / f"client{each}" for each in range(count)]
        self.own_inodes = own_inodes

    @contextmanager
    def mounted(self) -> Iterator[None]:
        with ExitStack() as stack:
            # Only the mounts that the nodes make are visible here.
            mount("--bind", self.where, self.where)
            stack.callback(run, ["umount", "-l", self.where])
            mount("--make-shared", self.where)
            stack.enter_context(
                StandIn(self.real, mountpoints=self.mounts, own_inodes=self.own_inodes)
            )
            yield

    def job(self, *flags: str) -> Job:
        job = Job(self.source, self.where, len(self.mounts), *PATIENT, *flags)
        for node, client in zip(job.nodes, self.mounts, strict=True):
            node.inside = self.inside(client)
        return job

    def inside(self, client: Path) -> list[str | Path]:
        script = 'mount --bind "$0" "$1" && shift && exec "$@"'
        unshare: list[str | Path] = ["unshare", "-m", "--propagation", "unchanged"]
        return [*unshare, "sh", "-c", script, client, self.source / "fs"]

    def remount(self, node: JobNode, client: Path) -> None:
        at = str(self.source / "fs")
        for command in (["umount", "-l", at], ["mount", "--bind", str(client), at]):
            done = run(["nsenter", "-t", str(node.pid), "-m", *command])
            assert done.returncode == 0, done.stderr


def mount(*words: str | Path) -> None:
    done = run(["mount", *words])
    assert done.returncode == 0, done.stderr


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    clients = Clients(tmp_path, 2)
    with clients.mounted():
        yield clients


def fill(directory: Path) -> dict[str, bytes]:
    numbers = random.Random("clients")
    contents = {f"d{each % 3}/f{each}": numbers.randbytes(each * 997) for each in range(12)}
    contents["large"] = numbers.randbytes(LARGE)
    for name, content in contents.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))
    return contents


def check(node: JobNode, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        assert (node / "fs" / name).read_bytes() == content, (node.name, name)


def device(path: Path, pid: int | None = None) -> int:
    root = "" if pid is None else f"/proc/{pid}/root"
    return os.stat(f"{root}{path}").st_dev


WAYS = {
    "through the tier": (),
    "each by itself": ("--tier-memory", "0"),
    "bypassed": ("--bypass-above", "4MiB"),
}


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
def test_nodes_with_other_device_numbers_read_every_file(
    clients: Clients, flags: tuple[str, ...]
) -> None:
    contents = fill(clients.real)
    with clients.job(*TREE_MAX, *flags) as job:
        at = clients.source / "fs"
        devices = {device(at, node.pid) for node in job.nodes} | {device(clients.source)}
        assert len(devices) == 3, "each node is to have a device number of its own"
        for node in job.nodes:
            check(node, contents)


def test_after_the_death_of_the_root_the_others_read_what_has_not_changed(
    clients: Clients,
) -> None:
    contents = fill(clients.real)
    with clients.job(*TREE_MAX, "--hedge-after", "0.5", "--dead-after", "5") as job:
        survivor = job[1]
        # The node knows the attributes of these files, but none of their bytes.
        stats = {name: os.stat(survivor / "fs" / name) for name in contents}
        with ExitStack() as stack:
            files = {
                name: stack.enter_context((survivor / "fs" / name).open("rb")) for name in contents
            }
            root = job[0].pid
            kill_with_keeper(root)
            eventually(lambda: not is_running(root), "the daemon has ended")
            for name, content in contents.items():
                assert files[name].read() == content, name
        check(survivor, contents)
        for name, before in stats.items():
            assert os.stat(survivor / "fs" / name).st_ino == before.st_ino, name


def test_a_remount_of_the_source_on_one_node_costs_no_error(clients: Clients) -> None:
    contents = fill(clients.real)
    node = JobNode(clients.source, clients.where / "n0", *TREE_MAX)
    node.name, node.inside = "n0", clients.inside(clients.mounts[0])
    with ExitStack() as stack:
        stack.callback(node.remove)
        node.is_up(node.begin())
        stats = {name: os.stat(node / "fs" / name) for name in contents}
        before = device(clients.source / "fs", node.pid)
        clients.remount(node, clients.mounts[1])
        assert device(clients.source / "fs", node.pid) != before
        check(node, contents)
        node.clear()
        assert {name: os.stat(node / "fs" / name).st_ino for name in contents} == {
            name: each.st_ino for name, each in stats.items()
        }
    node.check_log()


def test_chunks_on_the_disk_are_right_after_a_remount(clients: Clients, tmp_path: Path) -> None:
    contents = fill(clients.real)
    tier = ("--tier-dir", str(tmp_path / "tier"), "--ring", str(clients.source / "fs"))
    devices, read = [], -1
    for client in clients.mounts:
        node = JobNode(clients.source, clients.where / "n0", *TREE_MAX, *tier)
        node.name, node.inside = "n0", clients.inside(client)
        with ExitStack() as stack:
            stack.callback(node.remove)
            node.is_up(node.begin())
            check(node, contents)
            devices.append(device(clients.source / "fs", node.pid))
            read = node.stats()["source"]["read_bytes"]
            done = node.umount()
            assert done.returncode == 0, done.stderr
    assert devices[0] != devices[1]
    assert read == 0, "what the first mount had kept is there for the second"


def test_files_of_two_filesystems_do_not_look_like_hard_links(tmp_path: Path) -> None:
    clients = Clients(tmp_path, 2)
    contents = fill(clients.real)
    os.link(clients.real / "large", clients.real / "link")
    with clients.mounted(), ExitStack() as stack:
        for name, client in zip(("x", "y"), clients.mounts, strict=True):
            (clients.source / name).mkdir()
            mount("--bind", client, clients.source / name)
            stack.callback(run, ["umount", "-l", clients.source / name])
        with Mount(clients.source, clients.where / "n0") as node:
            x, y = os.scandir(node / "x"), os.scandir(node / "y")
            inodes = {each.path: each.inode() for each in (*x, *y)}
            for path, inode in inodes.items():
                assert os.stat(path).st_ino == inode, path
            assert inodes[str(node / "x/large")] == inodes[str(node / "x/link")]
            assert inodes[str(node / "x/large")] != inodes[str(node / "y/large")]
            for name in ("x", "y"):
                assert (node / name / "large").read_bytes() == contents["large"]
                assert os.stat(node / name / "large").st_nlink == 2


# ---- clients whose inode numbers differ, too -----------------------------------------------------

LEFT_OUT = "inode numbers are left out of versions"


@pytest.fixture
def numbering(tmp_path: Path) -> Iterator[Clients]:
    clients = Clients(tmp_path, 3, own_inodes=True)
    with clients.mounted():
        yield clients


def logs(job: Job) -> list[str]:
    return [node.log.read_text() for node in job.nodes]


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
def test_clients_with_inode_numbers_of_their_own_are_noticed(
    numbering: Clients, flags: tuple[str, ...]
) -> None:
    contents = fill(numbering.real)
    with numbering.job(*TREE_MAX, *flags) as job:
        assert all(LEFT_OUT in each for each in logs(job))
        for node in job.nodes:
            check(node, contents)
        inodes = {os.stat(job[0] / "fs" / name).st_ino for name in contents}
        assert len(inodes) == len(contents), "what is shown still tells files apart"


UNKNOWN = "could not be found out whether"


def test_in_a_shared_subdirectory_inode_numbers_are_compared(numbering: Clients) -> None:
    contents = fill(numbering.real)
    shared = ("--shared", str(numbering.source / "fs" / "d0"))
    with numbering.job(*TREE_MAX, *shared) as job:
        assert all(LEFT_OUT in each and UNKNOWN not in each for each in logs(job))
        for node in job.nodes:
            check(node, contents)


def test_where_there_is_nothing_to_compare_no_node_waits(clients: Clients) -> None:
    (clients.source / "fs2").mkdir()
    contents = fill(clients.real)
    with clients.job(*TREE_MAX, "--shared", str(clients.source / "fs2")) as job:
        assert not any(UNKNOWN in each or LEFT_OUT in each for each in logs(job))
        for node in job.nodes:
            check(node, contents)


def test_after_the_death_of_the_root_clients_with_their_own_inode_numbers_read_on(
    numbering: Clients,
) -> None:
    contents = fill(numbering.real)
    with numbering.job(*TREE_MAX, "--hedge-after", "0.5", "--dead-after", "5") as job:
        with ExitStack() as stack:
            files = {
                name: stack.enter_context((job[1] / "fs" / name).open("rb")) for name in contents
            }
            root = job[0].pid
            kill_with_keeper(root)
            eventually(lambda: not is_running(root), "the daemon has ended")
            for name, content in contents.items():
                assert files[name].read() == content, name
        check(job[1], contents)
        check(job[2], contents)


def test_one_node_that_is_started_later_is_enough(numbering: Clients, tmp_path: Path) -> None:
    """With a hostfile nodes start at any time. Two have the same client at first; they forget what
    they know by inode numbers when the third comes."""
    contents = fill(numbering.real)
    mounts = [numbering.mounts[0], numbering.mounts[0], numbering.mounts[2]]
    with hostfile_job(numbering, tmp_path, mounts) as nodes:
        for node in nodes[:2]:
            node.is_up(node.begin())
            check(node, contents)
            assert LEFT_OUT not in node.log.read_text()
        nodes[2].is_up(nodes[2].begin())
        check(nodes[2], contents)
        for node in nodes:
            eventually(lambda node=node: LEFT_OUT in node.log.read_text(), "all have noticed")  # type: ignore[misc]
        # one that returns learns it before it reads anything
        nodes[1].kill()
        run(["umount", "-l", nodes[1].mountpoint])
        nodes[1].log.write_text("")
        nodes[1].is_up(nodes[1].begin())
        for node in nodes:
            check(node, contents)
        eventually(lambda: LEFT_OUT in nodes[1].log.read_text(), "it was told")


def test_who_stands_in_a_directory_stays_there_when_numbers_are_left_out(
    numbering: Clients, tmp_path: Path
) -> None:
    contents = fill(numbering.real)
    mounts = [numbering.mounts[0], numbering.mounts[0], numbering.mounts[2]]
    with hostfile_job(numbering, tmp_path, mounts) as nodes, ExitStack() as stack:
        stood = []
        for node in nodes[:2]:
            node.is_up(node.begin())
            for directory in ("fs", "fs/d0", "fs/d1"):
                fd = os.open(node / directory, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, fd)
                stood.append((directory.removeprefix("fs").lstrip("/"), fd))
            os.listdir(node / "fs")
            os.listdir(node / "fs/d0")
        nodes[2].is_up(nodes[2].begin())
        for node in nodes:
            eventually(lambda node=node: LEFT_OUT in node.log.read_text(), "all have noticed")  # type: ignore[misc]
        for directory, fd in stood:
            below = [each for each in contents if os.path.dirname(each) == directory]
            assert {os.path.basename(each) for each in below} <= set(os.listdir(fd)), directory
            for each in below:
                file = os.open(os.path.basename(each), os.O_RDONLY, dir_fd=fd)
                with open(file, "rb") as opened:
                    assert opened.read() == contents[each], each


@contextmanager
def hostfile_job(
    clients: Clients, top: Path, mounts: list[Path], *others: str
) -> Iterator[list[JobNode]]:
    hosts = top / "hosts"
    hosts.write_text(f"127.0.13.[1-{len(mounts)}]:{free_ports(1)[0]}\n")
    nodes = []
    for each, client in enumerate(mounts):
        # no tier: chunks may belong to a node that is not up yet
        flags = ("--security", "none", "--tier-memory", "0", *PATIENT, *TREE_MAX, *others)
        node = JobNode(clients.source, clients.where / f"n{each}", "--hostfile", str(hosts), *flags)
        node.name, node.inside = f"127.0.13.{each + 1}", clients.inside(client)
        nodes.append(node)
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.remove)
        yield nodes
    for node in nodes:
        node.check_log()


def test_the_setting_says_so_from_the_start(numbering: Clients) -> None:
    contents = fill(numbering.real)
    with numbering.job(*TREE_MAX, "--inodes", "ignore") as job:
        for node in job.nodes:
            check(node, contents)
        assert not any("its own inode numbers" in each for each in logs(job))
