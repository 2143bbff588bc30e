"""Commands take paths as the user's shell does: relative to the working directory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from copperfs.cli import doctor, doctor_checks, doctor_peer_checks, ring
from copperfs.cli.main import _parse
from copperfs.cli.preflight import on_this_node
from copperfs.config.settings import Settings
from copperfs.fuse.ioctl import IoctlRequest


def test_doctor_resolves_its_mount_before_its_checks_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str | None] = []

    def check(machine: doctor_checks.CheckedMachine) -> list[doctor_checks.Check]:
        seen.append(machine.mountpoint)
        return []

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor_checks, "LOCAL_CHECKS", (check,))
    monkeypatch.setattr(doctor_peer_checks, "PEER_CHECKS", ())
    assert doctor.run(_parse(["doctor", "mnt", "--json"])) == 0
    assert seen == [str(tmp_path / "mnt")]
    assert json.loads(capsys.readouterr().out)["failed"] == 0


@pytest.mark.parametrize(
    ("cwd", "path", "asked"),
    [("mnt/data", "file", "data/file"), (".", "mnt/data/file", "data/file"), (".", "data", "data")],
)
def test_ring_takes_paths_relative_to_the_working_directory_or_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cwd: str, path: str, asked: str
) -> None:
    (tmp_path / "mnt" / "data").mkdir(parents=True)
    (tmp_path / "mnt" / "data" / "file").touch()

    def ask_mount(mountpoint: str, request: IoctlRequest, data: bytes = b"") -> Any:
        return json.loads(data)

    monkeypatch.chdir(tmp_path / cwd)
    monkeypatch.setattr(ring, "ask_mount", ask_mount)
    assert ring._owners(str(tmp_path / "mnt"), path)["path"] == asked


@pytest.mark.parametrize("rule", ["slurm", "name:r(.)"])
def test_a_file_of_failure_domains_is_where_the_command_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """The daemon, whose working directory is another, reads it."""
    monkeypatch.chdir(tmp_path)
    settings = Settings(mountpoint="/mnt", memory_bytes=1 << 30)
    assert on_this_node(replace(settings, domains="racks")).domains == str(tmp_path / "racks")
    assert on_this_node(replace(settings, domains=rule)).domains == rule
