"""Clusters whose nodes differ: clients of the source, clocks, descriptors, memory, resolvers."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from copperfs.fuse.daemon_start import start_of
from copperfs.lab.local_cluster.conditions import draw_conditions
from copperfs.lab.pfs_sim.pfs_client import PfsSim
from tests.cluster.helpers import PATIENT, Cluster
from tests.cluster.test_links import namespaces, networks_can_be_made
from tests.conftest import mounts_below
from tests.mount.helpers import COPPERFS, copperfs, eventually, is_running, run

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mount namespaces"),
]

LARGE = 3_000_000
NUMBER = 5
"""Names, with resolvers that are slow or fail on some nodes."""


@pytest.fixture
def below(source: Path) -> Path:
    numbers = random.Random("mixed")
    (source / "fs" / "d").mkdir(parents=True)
    for index in range(12):
        (source / "fs" / "d" / f"f{index}").write_bytes(numbers.randbytes(index * 997))
    (source / "fs" / "large").write_bytes(numbers.randbytes(LARGE))
    return source / "fs"


@contextmanager
def mixed(tmp_path: Path, below: Path, nodes: int, *flags: str) -> Iterator[Cluster]:
    """It checks that its end leaves nothing behind."""
    clients = ("--own-clients", str(below), "--tree-max", "1MiB")
    with Cluster(tmp_path / "c", nodes, below.parent, *clients, *flags) as cluster:
        state = json.loads((cluster.directory / "cluster.json").read_text())
        yield cluster
    assert not (tmp_path / "c").exists()
    assert not mounts_below(tmp_path)
    assert not [each for each in namespaces() if each.startswith(state["network"] or "/")]
    for each in [*state["helpers"], *state["nodes"]]:
        assert start_of(each["pid"]) != each["started"]


def read_everywhere(cluster: Cluster, below: Path) -> None:
    for node in cluster.everywhere():
        shown = cluster.mnt(node) / "fs"
        for path in sorted(below.rglob("*")):
            if path.is_file():
                assert (shown / path.relative_to(below)).read_bytes() == path.read_bytes()


def inside(cluster: Cluster, node: int, path: Path | str) -> os.stat_result:
    return os.stat(f"/proc/{cluster.pid(node)}/root{path}")


def conditions(cluster: Cluster) -> list[dict[str, Any]]:
    return [each["conditions"] for each in cluster.status()["nodes"]]


@pytest.mark.skipif(not networks_can_be_made(), reason="needs networks of nodes")
def test_a_mixed_cluster_shows_what_was_drawn_and_reads_everything_right_and_once(
    tmp_path: Path, below: Path
) -> None:
    drawn = draw_conditions(NUMBER, 4)
    assert {each.resolver for each in drawn} > {"slow"}, "or its name tells nothing"
    with mixed(tmp_path, below, 4, "--netns", "--mixed", str(NUMBER), *PATIENT) as cluster:
        status = cluster.status()
        assert status["well"]
        assert status["mixed"] == NUMBER
        assert status["clients_at"] == str(below)
        assert [each["skew"] for each in conditions(cluster)] == [each.skew for each in drawn]
        text = copperfs("cluster", "status", "--dir", cluster.directory).stdout
        for each in drawn:
            assert str(each) in text
        devices = {inside(cluster, node, below).st_dev for node in range(4)}
        assert len(devices) == 4, "each node has a device number of its own"
        assert below.stat().st_dev not in devices, "and the machine sees none of them"
        read_everywhere(cluster, below)
        counts = PfsSim.at(cluster.directory / "node0" / "client").counts()
        assert counts.read_bytes.keys() >= {"large", "d/f1"}
        assert counts.read_bytes["large"] == LARGE
        assert set(counts.operations["open"]) >= {f"d/f{index}" for index in range(1, 12)}
        assert all(n == 1 for path, n in counts.operations["open"].items() if path != "large")


def test_single_nodes_are_and_start_as_they_were_told_also_after_a_crash(
    tmp_path: Path, below: Path
) -> None:
    given = ("--with", "0:skew=1.5", "1:descriptors=128,memory=0.5", "2:start=1.0,skew=-1.5")
    with mixed(tmp_path, below, 3, *given, "--memory", "128MiB") as cluster:
        for _ in range(2):
            limits = [
                resource.prlimit(cluster.pid(node), resource.RLIMIT_NOFILE) for node in (0, 1)
            ]
            assert limits[1] == (128, 128) != limits[0]
            environ = Path(f"/proc/{cluster.pid(2)}/environ").read_bytes()
            assert b"COPPER_LAB_SKEW_NS=-1500000000" in environ
            assert cluster.stats(1)["cache"]["budget_bytes"] == 64 << 20
            assert cluster.stats(0)["cache"]["budget_bytes"] == 128 << 20
            starts = {node: start_of(cluster.pid(node)) or 0 for node in range(3)}
            assert starts[2] == max(starts.values()), "the one that is late comes last"
            read_everywhere(cluster, below)
            for node in (1, 2):
                cluster.kill(node)
            words = ("cluster", "start", "1", "2", "--dir", str(cluster.directory))
            done = copperfs(*words)
            assert done.returncode == 0, done.stderr
            assert [start_of(cluster.pid(node)) != starts[node] for node in range(3)] == [
                *(False, True, True)
            ]


def test_a_change_is_seen_right_whatever_the_clocks_of_the_nodes_say(
    tmp_path: Path, below: Path
) -> None:
    """Files are replaced and written to, while their nodes' clocks are ahead and behind by more
    than anything here takes."""
    skews = ("0:skew=2", "1:skew=-2", "2:skew=3600")
    numbers = random.Random("changes")
    flags = ("--own-inodes", "--revalidate", "0.2", "--with", *skews)
    with mixed(tmp_path, below, 3, *flags) as cluster:
        for turn in range(3):
            for path in (below / "large", below / "d" / "f3"):
                content = numbers.randbytes(path.stat().st_size + turn)
                before = path.read_bytes()
                if turn == 1:
                    path.with_name("new").write_bytes(content)
                    os.replace(path.with_name("new"), path)
                else:
                    path.write_bytes(content)
                for node in cluster.everywhere():
                    shown = cluster.mnt(node) / path.relative_to(below.parent)
                    eventually(
                        lambda shown=shown, content=content, before=before: is_new(  # type: ignore[misc]
                            shown, content, before
                        ),
                        f"node{node} shows it",
                    )


def read(path: Path) -> tuple[bytes, int]:
    try:
        return path.read_bytes(), 0
    except OSError as error:
        return b"", error.errno or -1


def is_new(shown: Path, content: bytes, before: bytes) -> bool:
    found, code = read(shown)
    assert code in (0, errno.ESTALE), "of one that was just replaced; the next open sees that"
    assert code or found in (content, before), "bytes of two versions"
    return not code and found == content


def test_a_sick_data_server_fails_reads_of_its_own_files_and_no_others(
    tmp_path: Path, below: Path
) -> None:
    files = {path for path in below.rglob("*") if path.is_file() and path.stat().st_size}
    inodes = {path: path.stat().st_ino for path in files}
    # Filesystems number their files differently: enough servers that the files are on several.
    servers = next(n for n in range(4, 1000) if len({each % n for each in inodes.values()}) > 1)
    sick = inodes[below / "d" / "f3"] % servers
    on_it = {path for path in files if inodes[path] % servers == sick}
    with mixed(tmp_path, below, 3) as cluster:
        client = cluster.directory / "node0" / "client"
        sim = PfsSim.at(client)
        sim.set(data_servers=servers)
        done = copperfs("pfs-ask", client, "fail", "**", "--server", str(sick), "--json")
        assert done.returncode == 0, done.stderr
        assert f"on data server {sick}" in copperfs("pfs-ask", client, "rules").stdout
        shown = [
            (cluster.mnt(node) / path.relative_to(below.parent), path)
            for node in cluster.everywhere()
            for path in sorted(files)
        ]
        for ours, path in shown:
            well = (path.read_bytes(), 0)
            assert read(ours) == ((b"", errno.EIO) if path in on_it else well), ours
        sim.heal()
        for ours, path in shown:
            eventually(partial(is_well_or_still_sick, ours, path), "it is well again")


def is_well_or_still_sick(shown: Path, path: Path) -> bool:
    """The error is believed for a moment."""
    found, code = read(shown)
    assert code in (0, errno.EIO)
    assert code or found == path.read_bytes()
    return not code


def test_it_comes_up_in_a_namespace_of_a_users_own(tmp_path: Path, below: Path) -> None:
    """Root in the namespace has no rights outside of it."""
    inside = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*inside, "true"], check=False).returncode != 0:
        pytest.skip("this machine lets no user make namespaces")
    directory = tmp_path / "c"
    up = [*COPPERFS, "cluster", "up", "-n", "2", "--mixed", "1", "--own-clients", str(below)]
    where = ["--dir", str(directory)]
    script = (
        f"{shlex.join([*up, *where, '--source', str(below.parent)])} && "
        f"cat {directory}/node?/mnt/fs/d/f3 | md5sum; "
        f"{shlex.join([*COPPERFS, 'cluster', 'down', *where])} && "
        f"! grep {tmp_path} /proc/self/mountinfo"
    )
    done = run([*inside, "sh", "-c", script])
    assert done.returncode == 0, done.stderr + done.stdout
    assert hashlib.md5((below / "d" / "f3").read_bytes() * 2).hexdigest() in done.stdout
    assert not directory.exists()


@pytest.mark.parametrize("hangs", [False, True], ids=["idle", "hanging"])
def test_what_a_crash_leaves_is_removed(tmp_path: Path, below: Path, hangs: bool) -> None:
    cluster = Cluster(tmp_path / "c", 2, below.parent, "--own-clients", str(below))
    done = cluster.up()
    assert done.returncode == 0, done.stderr
    waiting: list[subprocess.Popen[bytes]] = []
    try:
        state = json.loads((cluster.directory / "cluster.json").read_text())
        if hangs:
            sim = PfsSim.at(cluster.directory / "node1" / "client")
            sim.hang("d/**")
            reader = subprocess.Popen(["cat", cluster.mnt(1) / "fs" / "d" / "f3"])
            waiting.append(reader)
            sim.wait_for_hanging()
        for each in [*state["nodes"][:1], *([] if hangs else state["helpers"])]:
            os.kill(each["pid"], signal.SIGKILL)
            eventually(lambda pid=each["pid"]: not is_running(pid), "it has ended")  # type: ignore[misc]
    finally:
        cluster.remove()
        for reader in waiting:
            reader.wait(timeout=30)  # it was let go
    assert not (tmp_path / "c").exists()
    assert not mounts_below(tmp_path)
    for each in [*state["helpers"], *state["nodes"]]:
        assert start_of(each["pid"]) != each["started"]


def test_nothing_is_left_when_it_cannot_come_up(tmp_path: Path, below: Path) -> None:
    """One node has started when the next one finds no place for its log."""
    (tmp_path / "c" / "node1" / "log").mkdir(parents=True)
    cluster = Cluster(tmp_path / "c", 2, below.parent, "--own-clients", str(below))
    done = cluster.up()
    assert done.returncode == 1
    assert "node1/log cannot be made" in done.stderr
    assert not mounts_below(tmp_path)
    assert sorted(os.listdir(tmp_path / "c")) == ["node1"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--own-clients", "/nowhere/at/all"), "is no directory of which"),
        (("--own-clients", "/usr"), "is not below the source"),
        (("--own-inodes",), "add --own-clients"),
        (("--with", "0:resolver=slow"), "add --netns"),
        (("--with", "7:skew=1"), "is about no node"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    tmp_path: Path, below: Path, flags: tuple[str, ...], said: str
) -> None:
    done = copperfs(
        *("cluster", "up", "-n", "2", "--dir", tmp_path / "c", "--source", below.parent), *flags
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    shutil.rmtree(tmp_path / "c", ignore_errors=True)
    assert not mounts_below(tmp_path)
