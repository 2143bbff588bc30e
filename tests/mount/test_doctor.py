"""``copperfs doctor`` with mounts that are well, gone, or hanging."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.mount.conftest import Mounter
from tests.mount.helpers import BECOME, NOBODY, copperfs, run
from tests.mount.jobs import Job


def doctor(*words: str | Path) -> tuple[int, dict[str, Any]]:
    done = copperfs("doctor", "--json", *words)
    return done.returncode, json.loads(done.stdout)


def about(document: dict[str, Any], name: str, word: str) -> list[dict[str, Any]]:
    return [each for each in document["checks"] if each["name"] == name and word in each["found"]]


def test_it_names_verdicts_and_remedies_and_counts_them(source: Path) -> None:
    # Other mounts on the machine belong to other tests.
    def verdicts(document: dict[str, Any]) -> list[str]:
        return [each["verdict"] for each in document["checks"] if each["name"] != "mounts"]

    code, document = doctor("--source", source, "--listen", "127.0.0.1")
    assert "failed" not in verdicts(document), document
    assert code == (document["failed"] > 0)
    assert document["warnings"] >= verdicts(document).count("warning") >= 1
    for each in document["checks"]:
        assert each.keys() == {"name", "verdict", "found", "remedy"}
        assert (each["remedy"] is None) == (each["verdict"] == "ok")
    code, document = doctor("--source", source / "nothing")
    assert (code, verdicts(document).count("failed")) == (1, 1)


def test_people_get_a_line_each_and_no_colours(source: Path) -> None:
    done = copperfs("doctor", "--source", source)
    assert "\x1b" not in done.stdout
    assert "ok      /dev/fuse: can be opened\n" in done.stdout
    assert done.stdout.rstrip().endswith(" failed")


def test_a_mount_that_hangs_hangs_nobody(mounted: Mounter) -> None:
    mount = mounted()
    os.kill(mount.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        code, document = doctor(mount.mountpoint)
        took_s = time.monotonic() - began
    finally:
        os.kill(mount.pid, signal.SIGCONT)
    assert code == 1
    (hung,) = about(document, "mounts", str(mount.mountpoint))
    assert hung["found"] == f"{mount.mountpoint} does not answer"
    assert about(document, "peers", "does not answer")
    assert took_s < 45, "two deadlines, and room for a busy machine"


def test_a_killed_daemon_is_told_of(mounted: Mounter) -> None:
    mount = mounted()
    mount.kill()
    _, document = doctor()
    (dead,) = about(document, "mounts", str(mount.mountpoint))
    assert (dead["verdict"], dead["remedy"]) == ("warning", "copperfs umount --stale")


def test_a_mount_of_somebody_else_is_not_called_gone(mounted: Mounter) -> None:
    """It refuses every other user; that says nothing about its health."""
    imports = "import copperfs.fuse.mounting; from copperfs.cli.doctor_checks import *\n"
    ask = "print([each.found for each in mount_state(CheckedMachine(None))])\n"
    mount = mounted()
    done = run([sys.executable, "-c", imports + BECOME.format(user=NOBODY) + ask])
    assert done.returncode == 0, done.stderr
    assert str(mount.mountpoint) not in done.stdout


def test_the_nodes_of_a_job_are_looked_at(source: Path, tmp_path: Path) -> None:
    with Job(source, tmp_path / "job", 2) as job:
        _, document = doctor(job[0].mountpoint)
        assert about(document, "peers", "2 of 2 nodes answered")
        job[1].kill()
        _, document = doctor(job[0].mountpoint)
        (lost,) = about(document, "peers", "missing or suspected: n1")
        assert lost["verdict"] == "warning"
