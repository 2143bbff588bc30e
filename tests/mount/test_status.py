"""``copperfs status`` and ``copperfs probe``: the mounts of a node, also those that hang."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.mount.conftest import Mounter
from tests.mount.helpers import COPPERFS, Mount, copperfs, run

pytestmark = pytest.mark.mount


def about(mount: Mount, command: str = "status") -> dict[str, Any]:
    """Other mounts on the machine belong to other tests."""
    done = copperfs(command, "--json", timeout_s=60)
    document = json.loads(done.stdout)
    assert document["version"] == 1
    if command == "probe":
        states = [each["state"] for each in document["mounts"]]
        assert document["ok"] == (done.returncode == 0) == ({*states} <= {"ok"})
    (found,) = [e for e in document["mounts"] if e["mountpoint"] == str(mount.mountpoint)]
    return dict(found)


def test_a_mount_is_shown_with_what_one_asks_first(mounted: Mounter) -> None:
    mount = mounted()
    os.listdir(mount.mountpoint)
    found = about(mount)
    assert (found["state"], found["pid"]) == ("ok", mount.pid)
    assert found["source"] == str(mount.source)
    assert found["log_file"] == str(mount.log)
    assert 0 <= found["age_s"] < 600
    assert 0 <= found["hit_ratio"] <= 1
    assert found["hits"] + found["misses"] > 0
    assert about(mount, "probe")["state"] == "ok"


def test_a_mount_that_hangs_or_whose_daemon_is_gone_is_shown_as_that(mounted: Mounter) -> None:
    mount = mounted("--no-takeover")
    os.kill(mount.pid, signal.SIGSTOP)
    try:
        assert about(mount)["state"] == "does not answer"
        assert about(mount, "probe")["state"] == "does not answer"
    finally:
        os.kill(mount.pid, signal.SIGKILL)
    assert about(mount)["state"] == "daemon is gone"
    assert copperfs("probe").returncode == 5
    assert copperfs("umount", mount.mountpoint).returncode == 0


def test_several_mounts_are_unmounted_and_one_that_fails_hides_no_other(
    mounted: Mounter, tmp_path: Path
) -> None:
    one = mounted()
    done = copperfs("umount", tmp_path / "nothing", one.mountpoint)
    assert done.returncode == 4
    assert done.stderr == f"copperfs: {tmp_path}/nothing is not mounted\n"
    assert not os.path.ismount(one.mountpoint)


def test_the_mount_may_be_named_by_the_variable(mounted: Mounter) -> None:
    mount = mounted()
    variables = {"COPPERFS_MOUNTPOINT": str(mount.mountpoint)}
    done = run([*COPPERFS, "stats", "--json"], env=variables)
    assert json.loads(done.stdout)["pid"] == mount.pid
