"""``copperfs top`` on real mounts: a frame, JSON, a picture, and a terminal with keys."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import xml.etree.ElementTree as Xml
from pathlib import Path

from tests.mount.conftest import Mounter
from tests.mount.helpers import COPPERFS, copperfs, eventually
from tests.mount.jobs import Job


def test_without_a_terminal_it_shows_one_frame(mounted: Mounter, source: Path) -> None:
    (source / "file").write_text("content")
    mount = mounted()
    (mount / "file").read_text()
    done = copperfs("top", mount.mountpoint, "--interval", "0.2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\blookup\b", done.stdout)
    assert "memory held" in done.stdout
    assert "\x1b" not in done.stdout


def test_rates_are_of_what_happened_between_two_looks(mounted: Mounter, source: Path) -> None:
    (source / "file").write_bytes(b"x" * 5000)
    mount = mounted()
    watching = subprocess.Popen(
        [*COPPERFS, "top", "--json", "--count", "4", "--interval", "0.5", mount.mountpoint],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with watching:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        (mount / "file").read_bytes()
        rest = watching.stdout.read()
    assert watching.returncode == 0
    views = [json.loads(each + "\n}") for each in (first + rest).split("\n}\n") if each.strip()]
    assert len(views) == 4
    for view in views:
        assert view["memory"]["budget_bytes"] > 0
        assert set(view["levels"]) == {"memory", "parents", "source"}
    read = sum(view["source"]["read_bytes_per_s"] * view["seconds"] for view in views)
    assert round(read) == 5000
    assert round(sum(view["source"]["open_per_s"] * view["seconds"] for view in views)) == 1
    assert max(view["levels"]["source"] or 0 for view in views) == 1


def test_all_nodes_are_shown_as_their_tree(source: Path, tmp_path: Path) -> None:
    with Job(source, tmp_path / "job", 3, "--fanout", "1") as job:
        done = copperfs("top", "--all", "--interval", "0.2", job[2].mountpoint)
        assert done.returncode == 0, done.stderr
        assert "3 of 3 nodes answered" in done.stdout
        assert re.search(r"^│ n0 ", done.stdout, re.MULTILINE)
        assert re.search(r"^│     n2 ", done.stdout, re.MULTILINE)
        job[2].kill()
        done = copperfs("top", "--all", "--json", "--interval", "0.2", job[0].mountpoint)
        assert json.loads(done.stdout)["missing"] == ["n2"]


def test_a_picture_needs_nothing_from_elsewhere(mounted: Mounter, tmp_path: Path) -> None:
    picture = tmp_path / "top.svg"
    done = copperfs("top", mounted().mountpoint, "--interval", "0.2", "--svg", picture)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    root = Xml.parse(picture).getroot()
    assert root.tag.endswith("svg")
    assert "url(http" not in picture.read_text()
    assert "memory" in picture.read_text()


def test_keys_on_a_terminal(mounted: Mounter) -> None:
    mount = mounted()
    ours, theirs = pty.openpty()
    watching = subprocess.Popen(
        [*COPPERFS, "top", "--interval", "0.2", mount.mountpoint],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "120", "LINES": "50"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""

    def shows(words: bytes) -> bool:
        nonlocal seen
        seen += os.read(ours, 65536)
        return words in seen

    try:
        eventually(lambda: shows(b"this node"), "it shows this node", 30)
        os.write(ours, b"a")
        eventually(lambda: shows(b"1 of 1 nodes answered"), "it shows all nodes", 30)
        assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", seen), "no colours with NO_COLOR"
        os.write(ours, b"q")
        assert watching.wait(30) == 0
    finally:
        watching.kill()
        watching.wait(30)
        os.close(ours)


def test_it_ends_when_the_mount_does(mounted: Mounter) -> None:
    mount = mounted()
    watching = subprocess.Popen(
        [*COPPERFS, "top", "--interval", "0.2", "--count", "1000", "--json", mount.mountpoint],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert watching.stdout.readline() == "{\n"
        assert mount.umount("--lazy").returncode == 0
        watching.stdout.read()
        assert watching.stderr.read() == ""
    assert watching.returncode == 0


def test_what_is_no_mount_is_said(tmp_path: Path) -> None:
    done = copperfs("top", tmp_path)
    assert done.returncode == 5
    assert "is not on a mount of copperfs" in done.stderr
