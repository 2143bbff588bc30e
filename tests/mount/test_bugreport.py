"""``copperfs bugreport``: writes an archive in time, whatever state the mounts are in."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from copperfs.cli.bugreport_archive import GatheredFiles, write
from copperfs.model.errors import OutputError
from tests.mount.conftest import Mounter
from tests.mount.helpers import copperfs, errno_of, run

WITHIN_S = 10.0


def report(tmp_path: Path, *words: str | Path) -> tuple[dict[str, Any], dict[str, str]]:
    archive = tmp_path / "report.tar.gz"
    done = copperfs("bugreport", "--json", "-o", archive, *words)
    assert done.returncode == 0, done.stderr
    files = {}
    with tarfile.open(archive) as opened:
        for each in opened.getmembers():
            content = opened.extractfile(each)
            assert content is not None
            files[each.name.removeprefix("report/")] = content.read().decode()
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    return json.loads(done.stdout), files


def test_it_has_what_the_mount_and_the_kernel_say_of_the_daemon(
    mounted: Mounter, source: Path, tmp_path: Path
) -> None:
    (source / "file").write_text("secret content")
    mount = mounted("--tree-max", "3MiB")
    (mount / "file").read_text()
    said, files = report(tmp_path, mount.mountpoint)
    assert said["silent"] == [], said
    assert sorted(files) == said["files"]
    assert json.loads(files["mount-0/stats.json"])["pid"] == mount.pid
    assert json.loads(files["mount-0/settings.json"])["tree-max"]["value"] == 3 << 20
    assert json.loads(files["mount-0/tree.json"])["nodes"] == 1
    assert json.loads(files["about.json"])["packages"]["pyfuse3"]
    daemon = f"daemon-{mount.pid}"
    assert "is mounted at" in files[f"{daemon}/log-0.txt"]
    assert "/dev/fuse" in files[f"{daemon}/descriptors.txt"]
    assert f"Pid:\t{mount.pid}" in files[f"{daemon}/status.txt"]
    assert re.match(rf"{mount.pid} [RS] ", files[f"{daemon}/threads.txt"])
    assert "/dev/fuse: can be opened" in files["doctor.txt"]
    assert not any("secret content" in content for content in files.values())


def test_a_stopped_daemon_costs_no_more_than_ten_seconds(mounted: Mounter, tmp_path: Path) -> None:
    mount = mounted()
    os.kill(mount.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        said, files = report(tmp_path, mount.mountpoint)
        took_s = time.monotonic() - began
    finally:
        os.kill(mount.pid, signal.SIGCONT)
    # Without the deadline it would be a minute. Starting a process takes time as well.
    assert took_s < 3 * WITHIN_S
    assert {"mount-0/stats.json", "mount-0/tree.json"} <= set(said["silent"])
    assert "did not end within" in files["mount-0/stats.json"]
    assert "T (stopped)" in files[f"daemon-{mount.pid}/threads.txt"]
    assert errno_of(lambda: os.statvfs(mount.mountpoint)) is None, "and it goes on"


def test_a_dead_daemon_is_reported_as_such(mounted: Mounter, tmp_path: Path) -> None:
    mount = mounted()
    mount.kill()
    said, files = report(tmp_path, mount.mountpoint)
    assert said["silent"] == []
    assert "is gone" in files["mount-0/stats.json"]
    assert str(mount.mountpoint) in files["mounts.txt"]


def test_without_a_name_it_goes_to_tmp_and_says_where(tmp_path: Path) -> None:
    done = copperfs("bugreport")
    archive = Path(done.stdout.strip())
    try:
        assert done.returncode == 0, done.stderr
        assert archive.parent == Path("/tmp")
        assert tarfile.is_tarfile(archive)
    finally:
        archive.unlink()


def test_where_it_cannot_be_written_a_sentence_says_so(tmp_path: Path) -> None:
    done = copperfs("bugreport", "-o", tmp_path / "no" / "report.tar.gz")
    assert done.returncode == 1
    assert "cannot be written: No such file or directory; give another --output" in done.stderr


def test_no_variable_that_may_hold_a_secret_is_taken(tmp_path: Path) -> None:
    archive = tmp_path / "report.tar.gz"
    done = run(
        [
            "env",
            "AWS_SECRET_ACCESS_KEY=hidden",
            "SLURM_JWT=hidden",
            "SLURM_JOB_ID=77",
            *_command(archive),
        ],
    )
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        ["tar", "-xzOf", archive], capture_output=True, check=True, timeout=30
    ).stdout
    assert b"hidden" not in shown
    assert b'"SLURM_JOB_ID": "77"' in shown


def test_whatever_was_there_before_only_its_owner_can_read_it(tmp_path: Path) -> None:
    archive = tmp_path / "report.tar.gz"
    archive.touch(0o644)
    write(GatheredFiles({"about.json": b"{}"}), str(archive), new=False)
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    # A name in /tmp that others can guess may be theirs.
    with pytest.raises(OutputError, match="File exists; give another --output"):
        write(GatheredFiles(), str(archive), new=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError):
        write(GatheredFiles(), str(tmp_path / "link"), new=True)
    assert not (tmp_path / "elsewhere").exists()


def _command(archive: Path) -> list[str]:
    from tests.mount.helpers import COPPERFS

    return [*COPPERFS, "bugreport", "-o", str(archive)]
