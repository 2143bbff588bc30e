"""What users see of takeovers: statistics, metrics, the tree, top, events and bug reports."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.helpers import Cluster
from tests.mount.conftest import Mounter
from tests.mount.helpers import (
    Mount,
    copperfs,
    eventually,
    is_mounted,
    is_running,
    kernel_release,
)
from tests.mount.keepers import is_ready, keeper_of
from tests.mount.test_bugreport import report
from tests.mount.test_metrics import parsed
from tests.mount.test_takeover import (
    HANGS,
    TAKEOVER,
    content_of,
    daemon_of,
    files,
    kill,
    successor,
    taken,
    way,
)
from tests.mount.test_upgrade import upgrade

__all__ = ["files", "taken", "way"]

pytestmark = pytest.mark.skipif(
    kernel_release() < (6, 15), reason="this kernel may not tell how a first daemon has ended"
)


def killed(mount: Mount) -> None:
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    kill(mount)


def shown(*words: str | Path) -> str:
    done = copperfs(*words)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_each_command_tells_cause_and_length(mounted: Mounter, files: Path, tmp_path: Path) -> None:
    metrics, events = tmp_path / "metrics", tmp_path / "events"
    mount = mounted(*TAKEOVER, "--metrics", str(metrics), "--events", str(events))
    where = mount.mountpoint
    before = mount.stats()["takeovers"]
    assert before == {
        "count": 0, "last_s": 0.0, "by_cause": {}, "latest": [], "standbys_fail": 0
    }  # fmt: skip
    assert "took over" not in shown("stats", where)
    assert json.loads(shown("tree", "--json", where))["members"][0]["takeovers"] is None
    assert "taken over" not in shown("top", "--interval", "0.1", where)
    killed(mount)
    upgrade(mount)

    told = mount.stats()["takeovers"]
    assert (told["count"], told["by_cause"]) == (2, {"signal-9": 1, "upgrade": 1})
    assert [(each["number"], each["cause"]) for each in told["latest"]] == [
        (1, "signal-9"),
        (2, "upgrade"),
    ]
    for each in told["latest"]:
        assert 0 < each["took_s"] < 10
        assert 0 <= time.time() - each["at"] < 600
    last = told["latest"][-1]
    assert told["last_s"] == last["took_s"]

    said = shown("stats", where)
    assert "another daemon took over 2 times (signal-9 1, upgrade 1), last at " in said
    assert f"for upgrade; none answered for {last['took_s']:.3f} s" in said
    of_all = json.loads(shown("stats", "--all", "--json", where))["total"]["takeovers"]
    assert of_all == {
        "count": 2, "by_cause": {"signal-9": 1, "upgrade": 1}, "max_last_s": last["took_s"]
    }  # fmt: skip
    assert "took over 2 times" in shown("stats", "--all", where)
    [member] = json.loads(shown("tree", "--json", where))["members"]
    assert member["takeovers"] == {
        "count": 2, "cause": "upgrade", "took_s": last["took_s"], "at": last["at"]
    }  # fmt: skip
    line = f"taken over 2 times, last for upgrade in {last['took_s']:.2f} s"
    assert line in shown("tree", where)
    assert line in shown("top", "--interval", "0.1", where)
    assert "taken over" in shown("top", "--all", "--interval", "0.1", where)

    samples = parsed(metrics.read_text())
    for cause in ("signal-9", "upgrade"):
        assert samples["copperfs_takeovers_total", frozenset({("cause", cause)})] == 1
    assert samples["copperfs_takeovers_last_s", frozenset()] == last["took_s"]
    happened = [json.loads(each) for each in events.read_text().splitlines()]
    assert [(each["what"], each["detail"]) for each in happened] == [
        ("takeover", "signal-9"),
        ("takeover", "upgrade"),
    ]
    assert all(each["took_ms"] > 0 and each["peer"] is None for each in happened)


def test_they_are_remembered_beyond_the_keepers_death_and_a_reset(taken: Mount) -> None:
    killed(taken)
    before = keeper_of(taken.pid)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: keeper_of(taken.pid) not in (0, before), "another keeper")
    killed(taken)
    taken.reset()
    told = taken.stats()["takeovers"]
    assert told["by_cause"] == {"signal-9": 2}
    assert [each["number"] for each in told["latest"]] == [1, 2]


def test_the_other_nodes_of_a_job_see_it(tmp_path: Path, files: Path) -> None:
    with Cluster(tmp_path / "cluster", 3, files, *TAKEOVER) as cluster:
        daemon = daemon_of(cluster.mnt(1))
        eventually(lambda: is_ready(daemon), "a standby is ready")
        os.kill(daemon, signal.SIGKILL)
        assert (cluster.mnt(1) / "d0/e0/f0").read_bytes() == content_of(0)

        def members() -> list[Any]:
            document = json.loads(shown("tree", "--json", cluster.mnt(0)))
            return [each for each in document["members"] if each["answered"]]

        eventually(lambda: len(members()) == 3, "all answer")
        found = [each["takeovers"] and each["takeovers"]["cause"] for each in members()]
        assert found == [None, "signal-9", None]
        assert "taken over once, last for signal-9" in shown("tree", cluster.mnt(0))
        total = json.loads(shown("stats", "--all", "--json", cluster.mnt(0)))["total"]
        assert total["takeovers"]["by_cause"] == {"signal-9": 1}
        events = (cluster.directory / "node1" / "events").read_text().splitlines()
        assert "takeover" in {json.loads(each)["what"] for each in events}


@pytest.fixture
def without_log(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    """Its daemons hang on SIGUSR1."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    where = tmp_path / "mnt"
    where.mkdir()
    mount = Mount(files, where)
    done = copperfs("mount", where, "--source", files, *TAKEOVER, "--hang-after", "1")
    try:
        assert done.returncode == 0, done.stderr
        mount.pid = successor(mount)
        eventually(lambda: is_ready(mount.pid), "a standby is ready")
        yield mount
    finally:
        if is_mounted(mount.mountpoint):
            mount.umount()


def test_a_bugreport_has_the_last_words_of_a_dead_daemon_without_a_log_file(
    without_log: Mount, tmp_path: Path
) -> None:
    mount = without_log
    hung = mount.pid
    os.kill(hung, signal.SIGUSR1)
    assert (mount / "d2/e2/f2").read_bytes() == content_of(2)
    mount.pid = successor(mount)
    assert mount.pid != hung
    killed(mount)
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    keeper = keeper_of(mount.pid)
    _, files = report(tmp_path, mount.mountpoint)
    log = files[f"daemon-{mount.pid}/log-0.txt"]
    for each in ("is mounted at", "has shown no sign of life", "in hang", "(hang)", "(signal-9)"):
        assert each in log
    assert f"Pid:\t{keeper}" in files[f"keeper-{keeper}/status.txt"]
    assert any(each.startswith("standby-") for each in files)
    told = json.loads(files["mount-0/stats.json"])["takeovers"]
    assert told["by_cause"] == {"hang": 1, "signal-9": 1}
    assert mount.umount().returncode == 0
    eventually(lambda: not is_running(keeper), "all have ended, and with them their log")


def test_a_bugreport_has_the_log_of_a_successor(taken: Mount, tmp_path: Path) -> None:
    killed(taken)
    _, files = report(tmp_path, taken.mountpoint)
    log = files[f"daemon-{taken.pid}/log-0.txt"]
    assert "is mounted at" in log
    assert "the daemon has ended (signal-9)" in log


def test_the_log_says_how_the_threads_of_a_stopped_daemon_stood(
    mounted: Mounter, files: Path
) -> None:
    mount = mounted(*TAKEOVER, "--hang-after", "1")
    eventually(lambda: is_ready(mount.pid), "a standby is ready")
    os.kill(mount.pid, signal.SIGSTOP)
    mount.pid = successor(mount)
    assert "of its threads are stopped" in mount.log.read_text()
