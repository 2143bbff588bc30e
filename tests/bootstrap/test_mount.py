"""Mounts of a job, from the launch to the daemon; and a plain mount."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from copperfs.launch.curve_keys import derive_pair, read_key_file, write_key_file
from copperfs.launch.rendezvous import Meeting, meet
from copperfs.model.roster import Member
from tests.bootstrap.helpers import WITHIN_S, clean_environment
from tests.bootstrap.slurm import free_ports
from tests.mount.helpers import COPPERFS, copperfs, eventually, is_mounted, is_running

pytestmark = pytest.mark.mount


class Started:
    def __init__(self, work: Path, name: str, *flags: str) -> None:
        self.mountpoint = work / f"m-{name}"
        self.mountpoint.mkdir(exist_ok=True)
        self.log = work / f"log-{name}"
        source = work / "source"
        source.mkdir(exist_ok=True)
        (source / "file").write_text("content")
        command = [*COPPERFS, "mount", self.mountpoint, "--source", source, "--node-name", name]
        self.process = subprocess.Popen(
            [*map(str, command), "--log-file", str(work / "log-%h"), "--listen", "lo", *flags],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def ended(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, errors

    def answers(self) -> bool:
        return (self.mountpoint / "file").read_text() == "content"

    def daemon(self) -> int:
        return int(json.loads(copperfs("stats", "--json", self.mountpoint).stdout)["pid"])

    def close(self) -> None:
        if is_mounted(self.mountpoint):
            copperfs("umount", self.mountpoint)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate(timeout=10)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def listening(pid: int) -> set[str]:
    """On 127.0.0.1."""
    sockets = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(each)
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in sockets:
            found.add(f"tcp://127.0.0.1:{int(fields[1].partition(':')[2], 16)}")
    return found


def has_members(directory: Path, count: int) -> bool:
    members = directory / "job" / "members"
    return members.exists() and len(list(members.iterdir())) == count


def shows_the_file(mountpoint: Path) -> bool:
    return is_mounted(mountpoint) and (mountpoint / "file").exists()


def test_nodes_of_a_rendezvous_mount_when_all_have_come(tmp_path: Path, stack: ExitStack) -> None:
    flags = ("--rendezvous", str(tmp_path / "meet"), "--nodes", "3")
    nodes = []
    for name in ("n0", "n1", "n2"):
        nodes.append(node := Started(tmp_path, name, *flags))
        stack.callback(node.close)
        if name != "n2":
            eventually(partial(has_members, tmp_path / "meet", len(nodes)), "it waits")
            assert node.process.poll() is None
            assert not is_mounted(node.mountpoint)
    for place, node in enumerate(nodes):
        code, said = node.ended()
        # A node that waits for long prints this line, also on a busy machine.
        waiting = "copperfs: waiting for "
        assert (code, [x for x in said.splitlines() if not x.startswith(waiting)]) == (0, [])
        assert node.answers()
        assert f"node {place} of 3, n{place}, in job " in node.log.read_text()
        assert len(listening(node.daemon())) == 1
    assert list((tmp_path / "meet").iterdir()) == []


def test_a_node_whose_tier_cannot_be_is_told_before_the_others_are_there(
    tmp_path: Path, stack: ExitStack
) -> None:
    (tmp_path / "used").mkdir(mode=0o700)
    (tmp_path / "used" / "by something else").touch()
    flags = ("--rendezvous", str(tmp_path / "meet"), "--nodes", "2")
    node = Started(tmp_path, "n0", *flags, "--tier-dir", str(tmp_path / "used"))
    stack.callback(node.close)
    code, said = node.ended()
    assert (code, said.count("\n")) == (1, 1)
    assert "is not empty and holds no chunks of copperfs" in said


def test_the_secret_is_in_nothing_that_others_can_read(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "hosts").write_text(f"127.0.12.[1-2]:{free_ports(1)[0]}\n")
    write_key_file(str(key := tmp_path / "key"))
    flags = ("--hostfile", str(tmp_path / "hosts"), "--key-file", str(key))
    node = Started(tmp_path, "127.0.12.1", *flags)
    stack.callback(node.close)
    assert node.ended() == (0, "")
    pid = node.daemon()
    secret = read_key_file(str(key))
    hidden = [secret, derive_pair(secret, "127.0.12.1").secret.encode()]
    for name in ("cmdline", "environ"):
        shown = Path(f"/proc/{pid}/{name}").read_bytes()
        assert not any(each in shown for each in hidden)
    logged = node.log.read_bytes()
    assert not any(each in logged for each in hidden)


def test_a_port_that_a_daemon_has_is_taken_for_the_next(tmp_path: Path, stack: ExitStack) -> None:
    (port,) = free_ports(1)
    (tmp_path / "hosts").write_text(f"127.0.12.[3-4]:{port}\n")
    flags = ("--hostfile", str(tmp_path / "hosts"), "--security", "none")
    first = Started(tmp_path, "127.0.12.3", *flags)
    stack.callback(first.close)
    assert first.ended() == (0, "")
    (tmp_path / "again").mkdir()
    second = Started(tmp_path / "again", "127.0.12.3", *flags)
    stack.callback(second.close)
    code, said = second.ended()
    assert (code, said.count("\n")) == (6, 1)
    assert f"port {port} of 127.0.12.3 is taken; end what uses it (an earlier copperfs?)" in said
    first.close()
    third = Started(tmp_path / "again", "127.0.12.3", *flags)
    stack.callback(third.close)
    assert third.ended() == (0, ""), "the port is free once the daemon has ended"


def test_a_rendezvous_in_the_foreground(tmp_path: Path, stack: ExitStack) -> None:
    flags = ("--rendezvous", str(tmp_path / "meet"), "--nodes", "2", "--foreground")
    nodes = [Started(tmp_path, name, *flags) for name in ("n0", "n1")]
    for node in nodes:
        stack.callback(node.close)
    for node in nodes:
        eventually(partial(shows_the_file, node.mountpoint), "mounted")
        assert node.daemon() == node.process.pid
        node.process.send_signal(signal.SIGTERM)
        assert node.ended() == (0, "")
        assert not is_mounted(node.mountpoint)


PLAIN_MOUNT = """
import json, sys
from copperfs.cli.main import main
code = main(["mount", *sys.argv[1:]])
print(json.dumps(sorted({"mpi4py", "zmq", "ClusterShell", "yaml"} & set(sys.modules))))
sys.exit(code)
"""


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="outside of any job"),
        pytest.param({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, id="one rank"),
        pytest.param(
            {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "64", "SLURM_JOB_NODELIST": "n[1-8]"},
            id="in a batch script",
        ),
    ],
)
def test_a_plain_mount_imports_nothing_of_launching(
    tmp_path: Path, stack: ExitStack, environ: dict[str, str]
) -> None:
    (source := tmp_path / "source").mkdir()
    (mountpoint := tmp_path / "mnt").mkdir()
    stack.callback(copperfs, "umount", mountpoint)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_MOUNT, mountpoint, "--source", source],
        env=clean_environment() | environ,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    pid = int(json.loads(copperfs("stats", "--json", mountpoint).stdout)["pid"])
    assert is_running(pid)
    assert "mpi4py" not in Path(f"/proc/{pid}/maps").read_text(errors="replace")


def test_a_node_whose_root_has_ended_before_it_was_reached_takes_its_place(
    tmp_path: Path, stack: ExitStack
) -> None:
    """It took part in the rendezvous, as this process does here for it, and no process listens at
    its address afterwards."""
    directory = tmp_path / "meet"
    directory.mkdir(mode=0o700)
    flags = ("--rendezvous", str(directory), "--nodes", "2", "--security", "none")
    node = Started(tmp_path, "n1", *flags, "--launch-timeout", "60")
    stack.callback(node.close)
    eventually(lambda: list(directory.glob("*/members/*~n1~*")), "n1 has come")
    [members] = directory.glob("*/members")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        meeting = Meeting(str(directory), members.parent.name, 2, timeout_s=WITHIN_S)
        roster, place = meet(meeting, Member("n0", endpoint), None, print)
        assert (len(roster), place) == (2, 0)
    code, errors = node.ended()
    assert code == 0, errors
    assert node.answers()
    assert json.loads(copperfs("tree", "--json", node.mountpoint).stdout)
