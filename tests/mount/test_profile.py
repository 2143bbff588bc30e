"""``copperfs profile`` on real mounts, and its report in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from tests.mount.conftest import Mounter
from tests.mount.helpers import COPPERFS, Mount, copperfs, eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def mount(mounted: Mounter, source: Path) -> Mount:
    for name in ("pkg", "pkg/sub", "unused"):
        (source / name).mkdir()
    for name, size in (("pkg/a", 1000), ("pkg/b", 3000), ("pkg/sub/c", 50), ("unused/d", 7000)):
        (source / name).write_bytes(b"x" * size)
    (source / "<b>&[markup].txt").write_bytes(b"y" * 10)
    return mounted()


def profile(mount: Mount, script: str, *flags: str | Path) -> dict[str, Any]:
    done = copperfs(
        "profile", mount.mountpoint, "--json", "-", *flags, "--",
        "sh", "-c", f'cd "$0" && {script}', mount.mountpoint,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def by(rows: list[Any], key: str) -> dict[str, Any]:
    return {row[key]: row for row in rows}


def test_each_path_has_what_it_cost(mount: Mount) -> None:
    for each in ("pkg/a", "pkg/b"):  # caches are warm, and it does not matter
        (mount / each).read_bytes()
    report = profile(mount, "cat pkg/a >/dev/null; cat pkg/gone pkg/sub/gone 2>/dev/null; true")
    paths = by(report["paths"], "path")
    assert (paths["pkg/a"]["reads"], paths["pkg/a"]["bytes"]) == (1, 1000)
    assert paths["pkg/a"]["wait_us"] >= paths["pkg/a"]["max_us"] > 0
    assert (paths["pkg/a"]["type"], paths["pkg"]["type"]) == ("file", "directory")
    assert "pkg/b" not in paths
    assert "unused" not in paths
    vain = by(report["in_vain"], "name")
    assert (vain["gone"]["lookups"], vain["gone"]["directories"]) == (2, 2)
    directories = by(report["directories"], "path")
    assert (directories["pkg"]["files"], directories["pkg"]["file_bytes"]) == (2, 4000)
    assert (directories["pkg"]["used_files"], directories["pkg"]["used_bytes"]) == (1, 1000)
    assert directories["pkg"]["in_vain"] == 1
    totals = report["totals"]
    assert (totals["files_read"], totals["bytes"], totals["in_vain"]) == (1, 1000, 2)
    assert totals["requests"] == sum(
        count for kind in report["requests"].values() for count in kind.values()
    )
    assert sum(count for count, _ in report["timeline"]["bins"]) == totals["requests"]
    assert report["lost"] == 0


def test_a_second_profile_sees_the_same(mount: Mount) -> None:
    script = "cat pkg/a pkg/sub/c >/dev/null; ls -l pkg >/dev/null"
    first, second = (profile(mount, script) for _ in range(2))
    for key in ("lookups", "in_vain", "reads", "bytes", "files_read"):
        assert first["totals"][key] == second["totals"][key], key


def test_the_share_of_a_whole_tree(mount: Mount) -> None:
    report = profile(
        mount, "cat pkg/b >/dev/null", "--whole", mount.mountpoint, "--whole", mount / "pkg"
    )
    assert [(each["path"], each["files"], each["bytes"]) for each in report["wholes"]] == [
        ("/", 5, 11060),
        ("/pkg", 3, 4050),
    ]
    assert {(each["used_files"], each["used_bytes"]) for each in report["wholes"]} == {(1, 3000)}


def test_people_get_tables_and_the_commands_exit_code(mount: Mount) -> None:
    done = copperfs("profile", mount.mountpoint, "--", "sh", "-c", f"cat {mount / 'pkg/a'}; exit 5")
    assert done.returncode == 5, done.stderr
    assert "1 files read, 1000 B" in done.stdout
    assert re.search(r"^/pkg +.* 1 of 2 *$", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 2, "nothing to profile; give a command after --, or --attach"),
        (["--attach", "1", "--", "true"], 2, "nothing to profile"),
        (["--", "no-such-command"], 125, "no-such-command cannot be started: No such file"),
        (["--html", "/no/where", "--", "true"], 125, "/no/where cannot be written"),
        (["--whole", "/usr", "--", "true"], 125, "--whole /usr is not in"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    mount: Mount, words: list[str], code: int, sentence: str
) -> None:
    done = copperfs("profile", mount.mountpoint, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"copperfs: {sentence}")


def test_attached_it_sees_what_others_do_until_it_is_interrupted(mount: Mount) -> None:
    watching = subprocess.Popen(
        [*COPPERFS, "profile", mount.mountpoint, "--attach", "--json", "-"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stderr is not None
    assert "watching" in watching.stderr.readline()
    (mount / "pkg/b").read_bytes()
    watching.send_signal(signal.SIGINT)
    output, _ = watching.communicate(timeout=30)
    assert watching.returncode == 0
    assert by(json.loads(output)["paths"], "path")["pkg/b"]["bytes"] == 3000


def test_it_ends_with_the_process_that_wanted_it(mount: Mount) -> None:
    """Later requests would cost more, and a profile that has ended has nothing to report."""
    script = (
        "import os, sys\nfrom copperfs.fuse.ioctl import IoctlRequest, ask_mount\n"
        "ask_mount(sys.argv[1], IoctlRequest.PROFILE_BEGIN, str(os.getpid()).encode())"
    )
    subprocess.run([sys.executable, "-c", script, mount.mountpoint], check=True, timeout=30)
    eventually(
        lambda: ask_mount(str(mount.mountpoint), IoctlRequest.PROFILE_END) is None,
        "the profile of a process that is gone has ended",
    )


# ---- in a browser --------------------------------------------------------------------------------

PRESSED = """([table, column]) => {
  const own = document.getElementById(table);
  own.tHead.rows[0].cells[column].querySelector("button").click();
  return [[...own.tBodies[0].rows].map(row => row.cells[column].dataset.v ??
    row.cells[column].textContent), own.tHead.rows[0].cells[column].getAttribute("aria-sort")];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [400, 1400])
def test_the_report_is_a_page_that_works(
    mount: Mount, tmp_path: Path, browser: Any, width: int
) -> None:
    page_file = tmp_path / "report.html"
    profile(
        mount,
        "cat pkg/a pkg/b pkg/sub/c '<b>&[markup].txt' >/dev/null; cat pkg/gone 2>/dev/null; true",
        *("--html", page_file, "--whole", mount.mountpoint),
    )
    assert "http" not in re.sub(r"<title>.*?</title>", "", page_file.read_text())
    page = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(page_file.as_uri())
    # The browser decides whether it requests the icon, which is in the page itself.
    assert said == [page_file.as_uri()] or said == [page_file.as_uri(), "data:,"], said

    charts = page.evaluate("""[...document.querySelectorAll("figure svg")].map(svg => {
        const own = svg.getBoundingClientRect();
        const shapes = [...svg.querySelectorAll("rect")].map(r => r.getBoundingClientRect());
        return {inside: own.right <= innerWidth + 1 && own.width > 300,
                seen: shapes.filter(s => s.width > 0.3 && s.height > 3).length,
                size: Math.min(...[...svg.querySelectorAll("text")].map(
                    t => t.getBoundingClientRect().height))};
    })""")
    assert len(charts) == 4
    for chart in charts:
        assert chart["inside"], chart
        assert chart["seen"] > 0, chart
        assert chart["size"] >= 11, "text that can be read"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    size = page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
    assert size >= 14

    # Tables: sorted by numbers down and up, by text; one column shows that it is sorted.
    values, order = page.evaluate(PRESSED, ["paths", 2])
    assert order == "descending"
    assert [int(each) for each in values] == sorted(map(int, values), reverse=True)
    values, order = page.evaluate(PRESSED, ["paths", 2])
    assert order == "ascending"
    assert [int(each) for each in values] == sorted(map(int, values))
    names, order = page.evaluate(PRESSED, ["paths", 0])
    assert order == "descending"
    assert "/<b>&[markup].txt" in names, "shown as it is, not as markup"
    assert names != page.evaluate(PRESSED, ["paths", 0])[0]
    assert page.evaluate("document.querySelectorAll('#paths [aria-sort]').length") == 1
    assert page.evaluate("document.querySelectorAll('table').length") == 4
    page.close()
