"""Outputs in a window of 80 by 24, and of 50 columns: no line is longer, and no word or value is
broken or missing where it could be elided."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from copperfs.cli import profile, ring, stats, status, top, tree
from copperfs.cli.stats_view import shown as stats_shown
from copperfs.cli.top_view import frame
from tests.cluster.helpers import Cluster
from tests.mount.helpers import COPPERFS, copperfs, run

pytestmark = pytest.mark.mount
LONG = "a-directory-with-a-long-name/and-another-one-below-it/which-goes-on"
BOXES = re.compile("[\u2500-\u259f]")
Shown = Callable[[Any], Any]


def job_tree(document: Any) -> Any:
    return tree.shown(document)


def top_frame(view: Any) -> Any:
    return frame(view, title="copperfs top /mnt, this node")


SHOWN: dict[str, tuple[str, Shown]] = {
    "stats": ("stats --json", stats_shown),
    "stats --all": ("stats --json --all", stats_shown),
    "stats --objects": ("stats --json --objects", stats._objects),
    "tree": ("tree --json", job_tree),
    "ring": ("ring --json", ring._tables),
    "ring PATH": (f"ring --json {LONG}/large", ring._path_tables),
    "top": ("top --json --count 1", top_frame),
    "top --all": ("top --json --count 1 --all", top_frame),
    "profile": ("profile", profile.shown),
    "status": ("status --json", status._shown),
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("narrow")
    source = directory / "source"
    (source / LONG).mkdir(parents=True)
    (source / LONG / "large").write_bytes(bytes(3 << 20))
    (source / LONG / "small").write_bytes(b"small")
    (directory / "tier").mkdir()
    tier = ("--tier-dir", str(directory / "tier" / "%h"), "--tree-max", "1MiB")
    cluster = Cluster(directory / "cluster", 3, source, *tier)
    try:
        assert cluster.up().returncode == 0
        yield dict(asked(cluster))
    finally:
        cluster.remove()


def asked(cluster: Cluster) -> Iterator[tuple[str, Any]]:
    mountpoint = Path(cluster.mnt(1))
    for name in ("small", "large"):
        (mountpoint / LONG / name).read_bytes()
    for name, (words, _) in SHOWN.items():
        command, *more = words.split()
        if name == "status":
            done = copperfs(command, *more)
        elif name == "profile":
            missing = str(mountpoint / LONG / "missing")
            read = ["sh", "-c", f"cat {mountpoint}/{LONG}/*; cat {missing} || true"]
            done = run([*COPPERFS, "profile", str(mountpoint), "--json", "-", "--", *read])
            text = done.stdout[done.stdout.index("{\n") :]
            yield name, json.loads(text)
            continue
        else:
            paths = [each for each in more if not each.startswith("-") and each != "1"]
            flags = [each for each in more if each not in paths]
            done = copperfs(command, *flags, mountpoint, *paths)
        assert done.returncode == 0, done.stderr
        yield name, json.loads(done.stdout)


def lines_of(shown: Any, columns: int) -> list[str]:
    recorder = Console(width=columns, height=24, color_system=None, emoji=False, highlight=False)
    with recorder.capture() as captured:
        recorder.print(shown)
    return captured.get().splitlines()


@pytest.mark.parametrize("columns", [80, 50])
@pytest.mark.parametrize("name", SHOWN)
def test_no_cell_wraps(documents: dict[str, Any], name: str, columns: int) -> None:
    _, shown = SHOWN[name]
    wide = "\n".join(lines_of(shown(documents[name]), 4000))
    whole = set(BOXES.sub(" ", wide).split())
    lines = lines_of(shown(documents[name]), columns)
    assert max(map(len, lines)) <= columns
    for line in lines:
        if "not shown, for " in line:
            continue
        for word in BOXES.sub(" ", line).split():
            assert word in whole or "..." in word, (word, line)


def test_top_scrolls_in_a_window_that_is_too_small(documents: dict[str, Any]) -> None:
    recorder = Console(width=50, height=10, color_system=None, force_terminal=False)
    window = top.ScrolledWindow(recorder)
    window.lines_of(top_frame(documents["top"]))

    def seen() -> list[str]:
        with recorder.capture() as captured:
            recorder.print(window.shown(), end="")
        return captured.get().splitlines()

    first = seen()
    assert len(first) == 10
    assert first[-1].startswith("lines 1 to 9 of ")
    assert window.scroll("j")
    assert seen()[0] == first[1]
    assert window.scroll("G")
    assert seen()[-1].split(";")[0].split()[3] == seen()[-1].split(";")[0].split()[5]
    assert window.scroll("g")
    assert seen() == first
    assert not window.scroll("x")
