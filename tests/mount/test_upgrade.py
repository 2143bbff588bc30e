"""``copperfs upgrade``: another installed version, or other settings, takes over a live mount."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from copperfs import __version__
from copperfs.fuse.ioctl import IoctlRequest
from tests.bootstrap.helpers import clean_environment
from tests.cluster.helpers import Cluster
from tests.mount.conftest import Mounter
from tests.mount.helpers import (
    COMMAND_TIMEOUT_S,
    COPPERFS,
    NOBODY,
    Mount,
    asked,
    copperfs,
    eventually,
    is_mounted,
    is_running,
    python,
    run,
)
from tests.mount.keepers import is_ready, keeper_of, standby_of
from tests.mount.test_takeover import (
    TAKEOVER,
    Readers,
    check_often,
    content_of,
    daemon_of,
    files,
    kill,
    successor,
    taken,
    way,
)
from tests.mount.test_undying_daemon import free_port, metrics_at
from tests.unit.test_layers import ROOT

__all__ = ["files", "taken", "way"]

UPGRADES, EARLY_UPGRADES, MANY_UPGRADES = 3, 10, 100
READERS = 8
MIB = 1 << 20


def upgrade(mount: Mount, *flags: str) -> dict[str, Any]:
    before = mount.pid
    done = copperfs("upgrade", mount.mountpoint, "--json", *flags)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    [upgraded] = document["upgraded"]
    assert document["failed"] == []
    mount.pid = successor(mount)
    assert upgraded["pid"] == mount.pid != before
    eventually(lambda: not is_running(before), "the old daemon has ended")
    return dict(upgraded)


def refusal(mount: Mount, *flags: str) -> str:
    """The sentence; nothing has changed."""
    done = copperfs("upgrade", mount.mountpoint, *flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert successor(mount) == mount.pid
    return done.stderr


def setting(mount: Mount, name: str) -> object:
    return asked(mount.mountpoint, IoctlRequest.CONFIGURATION)[name]


def release(mount: Mount) -> str:
    return str(asked(mount.mountpoint, IoctlRequest.HELLO)["release"])


Another = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def another(tmp_path: Path) -> Another:
    """Runs a command of another copy of copperfs, which differs in a file."""
    where = tmp_path / "another"

    def command(file: str, old: str, new: str, *words: str | Path) -> Any:
        if where.exists():
            shutil.rmtree(where)
        unwanted = shutil.ignore_patterns("lab", "__pycache__", "*.c", "*.h")
        shutil.copytree(ROOT / "copperfs", where / "copperfs", ignore=unwanted)
        path = where / "copperfs" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        main = [sys.executable, "-P", "-m", "copperfs.cli.main"]
        return run([*main, *words], env={"PYTHONPATH": str(where)})

    return command


def test_readers_notice_no_upgrade(taken: Mount) -> None:
    with Readers(taken, READERS) as readers:
        upgrade_often(taken, UPGRADES, readers)
    text = taken.log.read_text()
    assert text.count("took over") == text.count("(upgrade)") // 2 == UPGRADES
    assert "signal" not in text


@pytest.mark.long
def test_readers_notice_none_of_many_upgrades(taken: Mount) -> None:
    check_often(taken, upgrade_often, EARLY_UPGRADES, MANY_UPGRADES, READERS)
    assert taken.stats()["takeovers"]["by_cause"] == {"upgrade": MANY_UPGRADES}


def upgrade_often(mount: Mount, count: int, readers: Readers) -> None:
    for _ in range(count):
        upgrade(mount)
        last = mount.stats()["takeovers"]["latest"][-1]
        readers.ends.append(last["at"] - last["took_s"] + time.monotonic() - time.time())


def test_a_changed_setting_stays_for_later_successors(taken: Mount) -> None:
    assert setting(taken, "memory_bytes") != 200 * MIB
    upgrade(taken, "--memory", "200MiB", "--log-level", "debug")
    shown = copperfs("config", "show", "--of", taken.mountpoint, "--json")
    assert json.loads(shown.stdout)["memory"]["value"] == 200 * MIB
    assert taken.stats()["cache"]["budget_bytes"] <= 200 * MIB
    upgrade(taken, "--takeovers-max", "2000", "--hang-after", "20")
    eventually(lambda: is_ready(taken.pid), "a standby is ready")
    kill(taken)
    os.kill(keeper_of(taken.pid), signal.SIGKILL)
    eventually(lambda: is_ready(taken.pid), "a standby of another keeper is ready")
    kill(taken)
    assert setting(taken, "memory_bytes") == 200 * MIB
    assert setting(taken, "log_level") == "debug"
    assert setting(taken, "takeovers_max") == 2000
    assert setting(taken, "hang_after_s") == 20
    assert (taken / "d0/e0/f0").read_bytes() == content_of(0)


def test_a_tier_and_a_port_that_were_given_up_are_free(
    mounted: Mounter, files: Path, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    flags = [
        ["--tier-dir", str(tmp_path / f"tier{each}"), "--metrics", str(ports[each])]
        for each in range(2)
    ]
    mount = mounted(*TAKEOVER, *flags[0])
    upgrade(mount, *flags[1])
    assert "copperfs_epoch" in metrics_at(ports[1])
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    kill(mount)
    assert "copperfs_epoch" in metrics_at(ports[1])
    other = mounted(*flags[0])
    assert "copperfs_epoch" in metrics_at(ports[0])
    other.remove()
    upgrade(mount, *flags[0])
    assert "copperfs_epoch" in metrics_at(ports[0])
    assert mounted(*flags[1]).stats()["tier"]["disk"]["degraded"] == 0


def test_upgrades_are_not_counted_as_deaths(mounted: Mounter, files: Path) -> None:
    mount = mounted("--takeover", "--takeovers-max", "1")
    for _ in range(3):
        upgrade(mount)
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    kill(mount)
    assert (mount / "d0/e0/f0").read_bytes() == content_of(0)


def test_another_version_takes_over_and_is_taken_over(taken: Mount, another: Another) -> None:
    where = taken.mountpoint
    version = "__version__ = "
    done = another("__init__.py", version, '__version__ = "9.9.9"\nold = ', "upgrade", where)
    assert done.returncode == 0, done.stderr
    assert f"copperfs 9.9.9 in place of {__version__}" in done.stdout
    taken.pid = successor(taken)
    assert release(taken) == "9.9.9"
    eventually(lambda: is_ready(taken.pid), "a standby is ready")
    kill(taken)
    assert release(taken) == "9.9.9"
    assert (taken / "d1/e1/f1").read_bytes() == content_of(1)
    assert upgrade(taken)["release_before"] == "9.9.9"
    assert release(taken) == __version__


def test_a_version_that_is_found_by_a_relative_path_is_its_own_successor(
    another: Another, tmp_path: Path, source: Path
) -> None:
    version = "__version__ = "
    another("__init__.py", version, '__version__ = "9.9.9"\nold = ', "version")
    mount = Mount(source, tmp_path / "mnt")
    mount.mountpoint.mkdir()
    words = ["mount", str(mount.mountpoint), "--source", str(source), *TAKEOVER]
    done = run(
        [sys.executable, "-P", "-m", "copperfs.cli.main", *words, "--log-file", mount.log],
        env={"PYTHONPATH": "another:"},
        cwd=tmp_path,
    )
    try:
        assert done.returncode == 0, done.stderr
        mount.pid = successor(mount)
        assert release(mount) == "9.9.9"
        eventually(lambda: is_ready(mount.pid), "a standby is ready")
        kill(mount)
        assert release(mount) == "9.9.9"
    finally:
        mount.remove()


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("daemon/handover.py", "VERSION = 2", "VERSION = 77", "in the form 2, and not 77"),
        (
            "native/__init__.py", "__all__ =", "CONNECTION_VERSION = 77\n__all__ =",
            "has the form 2, and not 77",
        ),
        (
            "config/settings.py", "class Settings:", "class Settings:\n    other: int",
            "there is no other among the settings",
        ),
        ("daemon/standby.py", "import logging", "raise SystemExit", "has ended"),
    ],
)  # fmt: skip
def test_a_version_that_cannot_go_on_is_refused(
    taken: Mount, another: Another, file: str, old: str, new: str, sentence: str
) -> None:
    done = another(file, old, new, "upgrade", taken.mountpoint)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert successor(taken) == taken.pid
    assert (taken / "d2/e2/f2").read_bytes() == content_of(2)
    eventually(lambda: is_ready(taken.pid), "a standby of the old version is ready again")
    kill(taken)
    upgrade(taken)


def test_a_successor_that_fails_is_replaced_by_the_old_version(
    taken: Mount, another: Another
) -> None:
    fails = "os._exit(3)  # takeover = Takeover.of_message"
    words = ["upgrade", taken.mountpoint, "--memory", "200MiB"]
    done = another("daemon/standby.py", "takeover = Takeover.of_message", fails, *words)
    assert done.returncode == 1
    assert "the mount goes on as before" in done.stderr
    taken.pid = successor(taken)
    assert release(taken) == __version__
    assert setting(taken, "memory_bytes") != 200 * MIB
    assert (taken / "d2/e2/f2").read_bytes() == content_of(2)
    eventually(lambda: is_ready(taken.pid), "a standby is ready")
    kill(taken)
    upgrade(taken)


def test_a_daemon_that_dies_amid_an_upgrade_is_succeeded_by_its_own_version(
    taken: Mount, another: Another
) -> None:
    keeper = keeper_of(taken.pid)
    spare = standby_of(keeper, taken.pid)
    done: list[subprocess.CompletedProcess[str]] = []
    slow = "import time; time.sleep(1000)"
    words = ["daemon/standby.py", "import logging", slow, "upgrade", taken.mountpoint]
    asking = threading.Thread(target=lambda: done.append(another(*words)))
    asking.start()
    eventually(lambda: not is_running(spare), "the upgrade has begun")
    kill(taken)
    assert (taken / "d2/e2/f2").read_bytes() == content_of(2)
    asking.join(COMMAND_TIMEOUT_S)
    assert done[0].returncode == 1
    assert "the mount goes on as before" in done[0].stderr
    eventually(lambda: is_ready(taken.pid), "a standby is ready")
    upgrade(taken)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--source", "/"], "--source cannot change of a mount that is there"),
        (["--allow-other"], "--allow-other cannot change of a mount that is there"),
        (["--nodes", "2", "--port", "7"], "--nodes and --port cannot change of a mount"),
        (["--dead-after", "0.5"], "--dead-after has to be at least twice --heartbeat"),
        (["--log-file", "/nonexistent/log"], "/nonexistent/log cannot be written"),
        (["--tier-size", "1GiB"], "there is no --tier-dir"),
    ],
)
def test_settings_that_cannot_be_had_are_refused(
    taken: Mount, flags: list[str], sentence: str
) -> None:
    assert sentence in refusal(taken, *flags)
    assert (taken / "d2/e2/f2").read_bytes() == content_of(2)
    upgrade(taken, "--source", str(taken.source))


def test_a_mount_without_takeover_says_so(mounted: Mounter) -> None:
    assert "mounted with --no-takeover" in refusal(mounted("--no-takeover"))


def test_no_other_user_may_upgrade(mounted: Mounter, tmp_path: Path) -> None:
    mount = mounted(*TAKEOVER, "--allow-other")
    ran = tmp_path / "ran"
    words = {"number": "1", "command": ["/usr/bin/touch", str(ran)], "settings": {}}
    script = """
data = sys.argv[2].encode()
buffer = bytearray(8192)
struct.pack_into("=IIIIQQQ", buffer, 0, 1, 0, len(data), 0, 0, 0, 0)
buffer[40 : 40 + len(data)] = data
fd = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.ioctl(fd, 3 << 30 | 8192 << 16 | 0xC7 << 8 | 0x20, buffer)
    print(bytes(buffer[40:]).rstrip(bytes(1)).decode())
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    done = python(script, mount.mountpoint, json.dumps(words), user=NOBODY)
    assert (done.stdout, done.stderr) == ("EPERM\n", "")
    # Nor a process that seems to be the owner, in a container.
    apart = [sys.executable, "-c", "import errno, fcntl, os, struct, sys" + script]
    done = run(
        ["unshare", "--user", "--map-root-user", *apart, mount.mountpoint, json.dumps(words)]
    )
    assert "not from within a container" in done.stdout
    assert not ran.exists()
    assert successor(mount) == mount.pid


def test_all_mounts_of_the_node(tmp_path: Path, source: Path) -> None:
    """In namespaces of its own, so that mounts of other programs on this machine are left alone."""
    (source / "file").write_text("content")
    program = COPPERFS[0]
    script = f"""set -e
    awk '/ - fuse.copperfs /{{print $5}}' /proc/self/mountinfo | xargs -r umount -l
    for each in 1 2; do
        mkdir {tmp_path}/m$each
        {program} mount {tmp_path}/m$each --source {source}
    done
    mkdir {tmp_path}/m3
    {program} mount {tmp_path}/m3 --source {source} --no-takeover
    {program} upgrade --all --json --memory 100MiB || echo "exit $?"
    cat {tmp_path}/m1/file {tmp_path}/m2/file
    for each in 1 2 3; do {program} umount {tmp_path}/m$each; done
    """
    done = run(["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script])
    assert done.returncode == 0, done.stderr
    document, _, rest = done.stdout.partition("\n}\n")
    told = json.loads(document + "}")
    assert [each["mountpoint"] for each in told["upgraded"]] == [f"{tmp_path}/m1", f"{tmp_path}/m2"]
    [failed] = told["failed"]
    assert failed["mountpoint"] == f"{tmp_path}/m3"
    assert "--no-takeover" in failed["error"]
    assert rest == "exit 1\ncontentcontent"


def test_a_mount_of_a_run_is_upgraded(tmp_path: Path, files: Path) -> None:
    mountpoint = tmp_path / "mnt"
    words = [*COPPERFS, "run", "--source", files, "--mountpoint", mountpoint, *TAKEOVER]
    words += ["--in-place", "never", "--", "sh", "-c"]
    words += [f"echo up; read go; cat {mountpoint}/d0/e0/f0 | wc -c"]
    begun: list[subprocess.Popen[str]] = []

    def start() -> None:
        begun.append(
            subprocess.Popen(
                list(map(str, words)), env=clean_environment(), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        assert begun[-1].stdout is not None
        assert begun[-1].stdout.readline() == "up\n"

    try:
        start()
        start()
        before = daemon_of(mountpoint)
        done = copperfs("upgrade", mountpoint, "--memory", "200MiB")
        assert done.returncode == 0, done.stderr
        daemon = daemon_of(mountpoint)
        assert daemon != before
        assert asked(mountpoint, IoctlRequest.CONFIGURATION)["memory_bytes"] == 200 * MIB
        start()  # one more, as the first ones
        for each in begun:
            assert is_mounted(mountpoint)
            output, errors = each.communicate("go\n", timeout=COMMAND_TIMEOUT_S)
            assert (each.returncode, errors) == (0, "")
            assert output.strip() == str(len(content_of(0)))
        assert not is_mounted(mountpoint)
        eventually(lambda: not is_running(daemon), "it has ended")
    finally:
        for each in begun:
            each.kill()
            each.communicate()


def test_a_node_of_a_job_is_upgraded(tmp_path: Path, files: Path) -> None:
    """It returns to the job, and what all nodes agree on stays."""
    directory = tmp_path / "cluster"
    with Cluster(directory, 3, files, *TAKEOVER, "--memory", "100MiB") as cluster:
        assert (cluster.mnt(1) / "d0/e0/f0").read_bytes() == content_of(0)
        done = copperfs("upgrade", cluster.mnt(1), "--fanout", "2", "--memory", "200MiB")
        assert "--fanout cannot change while the job's other nodes run" in done.stderr
        before = daemon_of(cluster.mnt(1))
        done = copperfs("upgrade", cluster.mnt(1), "--memory", "200MiB", "--fanout", "8")
        assert done.returncode == 0, done.stderr + cluster.log(1).read_text()
        assert daemon_of(cluster.mnt(1)) != before
        for node in range(3):
            shown = asked(cluster.mnt(node), IoctlRequest.CONFIGURATION)["memory_bytes"]
            assert shown == (200 if node == 1 else 100) * MIB
            assert (cluster.mnt(node) / "d1/e1/f1").read_bytes() == content_of(1)
        cleared = asked(cluster.mnt(0), IoctlRequest.CLEAR)
        assert (cleared["nodes"], cleared["missing"]) == (3, [])
        daemon = daemon_of(cluster.mnt(1))
        eventually(lambda: is_ready(daemon), "a standby is ready")
        os.kill(daemon, signal.SIGKILL)
        assert daemon_of(cluster.mnt(1)) != daemon
