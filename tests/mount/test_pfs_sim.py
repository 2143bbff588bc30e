"""``copperfs pfs-sim`` from the command line: the operations that reach its servers, and its
commands.

The tests compare costs by counts and by the servers' own statistics. ``tests/standin`` tests the
pass-through, ``tests/unit`` the servers in virtual time.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from copperfs.lab.pfs_sim.pfs_client import PfsSim
from copperfs.model.errors import ControlError
from tests.mount.helpers import (
    NOBODY,
    PROJECT,
    Mount,
    copperfs,
    errno_of,
    eventually,
    is_mounted,
    is_running,
    run,
)
from tests.standin import StandIn

MIB = 1 << 20
Starter = Callable[..., PfsSim]


@pytest.fixture
def tree(source: Path) -> Path:
    (source / "dir").mkdir()
    for name in ("a", "b", "c"):
        (source / "dir" / name).write_text(name)
    (source / "link").symlink_to("dir/a")
    (source / "big").write_bytes(os.urandom(2 * MIB))
    return source


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    return tmp_path


@pytest.fixture
def started(here: Path, tree: Path) -> Iterator[Starter]:
    def start(*flags: str) -> PfsSim:
        done = copperfs("pfs-sim", tree, here / "one", here / "two", *flags)
        assert done.returncode == 0, done.stderr
        return PfsSim.at(here / "one")

    yield start
    for mountpoint in (here / "one", here / "two"):
        with suppress(ControlError):
            PfsSim.at(mountpoint).stop()
        eventually(lambda where=mountpoint: not is_mounted(where), "it is unmounted")  # type: ignore[misc]


def asked(sim: PfsSim) -> dict[str, int]:
    totals: dict[str, int] = sim.ask("counts")["totals"]
    sim.reset()
    return {op: count for op, count in totals.items() if not op.startswith("release")}


def ask(mountpoint: Path, *arguments: str) -> Any:
    done = copperfs("pfs-ask", mountpoint, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pid_of(sim: PfsSim) -> int:
    return int(sim.hello()["pid"])


# --- costs, and the caches of a client -----------------------------------------------------------


def test_it_starts_in_the_background_and_shows_the_directory(
    started: Starter, here: Path, tree: Path
) -> None:
    sim = started()
    assert asked(sim) == {}, "mounting asks for nothing"
    for client in ("one", "two"):
        assert run(["diff", "-r", tree, here / client]).stdout == ""
    assert os.readlink(here / "one" / "link") == "dir/a"
    assert errno_of(lambda: (here / "one" / "new").write_text("")) == errno.EROFS
    info = sim.hello()
    assert info["directory"] == str(tree)
    assert info["mountpoints"] == [str(here / "one"), str(here / "two")]
    assert (info["latency_s"], info["servers"]) == (0.001, 4)


def test_listing_costs_an_operation_for_each_name_once(started: Starter, here: Path) -> None:
    sim = started()
    listing = [
        sys.executable,
        "-c",
        "import os, sys; [os.lstat(e) for e in os.scandir(sys.argv[1])]",
    ]
    run([*listing, here / "one" / "dir"])
    first = asked(sim)
    first.pop("getattr", None)  # of the root: the permission to enter it
    assert first == {"lookup": 1 + 3, "opendir": 1, "readdir": 1}
    run([*listing, here / "one" / "dir"])
    assert asked(sim) == {"opendir": 1}, "the client keeps names, attributes and listings"


def test_each_client_has_its_own_caches(started: Starter, here: Path) -> None:
    sim = started()
    for _ in range(3):
        (here / "one" / "dir" / "a").stat()
        (here / "two" / "dir" / "a").stat()
    counts = sim.counts()
    assert counts.total("lookup", "dir/a") == 2
    assert [counts.clients[str(here / name)]["lookup"] for name in ("one", "two")] == [2, 2]


def test_opens_are_never_cached_and_pages_are(started: Starter, here: Path) -> None:
    sim = started()
    content = (here / "one" / "big").read_bytes()
    first = asked(sim)
    assert first["open"] == 1
    assert first["read"] >= 1
    assert (here / "one" / "big").read_bytes() == content
    assert asked(sim) == {"open": 1}
    assert (here / "two" / "big").read_bytes() == content
    assert asked(sim)["read"] >= 1, "the other client has pages of its own"


def test_a_changed_file_is_read_again(started: Starter, here: Path, tree: Path) -> None:
    started("--cache", "0", "--page-cache")
    assert (here / "one" / "dir" / "a").read_text() == "a"
    (tree / "dir" / "a").write_text("changed")
    assert (here / "one" / "dir" / "a").read_text() == "changed"


def test_a_missing_name_is_kept_only_where_the_client_has_listed(
    started: Starter, here: Path
) -> None:
    sim = started()
    missing = here / "one" / "dir" / "missing"
    for _ in range(2):
        assert errno_of(missing.stat) == errno.ENOENT
    assert sim.counts().not_found == {"dir/missing": 2}
    os.listdir(missing.parent)
    sim.reset()
    for _ in range(3):
        assert errno_of(missing.stat) == errno.ENOENT
    assert sim.counts().not_found == {"dir/missing": 1}


def test_without_caches_everything_is_asked_for_every_time(started: Starter, here: Path) -> None:
    sim = started("--cache", "0", "--no-permissions")
    for _ in range(3):
        (here / "one" / "dir" / "a").read_bytes()
    counts = sim.counts()
    assert counts.total("lookup", "dir") == 3
    assert counts.total("lookup", "dir/a") == 3
    assert counts.total("open", "dir/a") == 3
    assert counts.read_bytes["dir/a"] == 3


def test_a_large_directory_is_shown_whole_for_one_operation_each_mebibyte(
    started: Starter, here: Path, tree: Path
) -> None:
    names = {f"{index:05}-{'x' * 200}" for index in range(6000)}
    (tree / "large").mkdir()
    for name in names:
        (tree / "large" / name).touch()
    sim = started()
    assert set(os.listdir(here / "one" / "large")) == names
    # 6,000 names of 24 + 206 bytes, rounded up to 232: 1.3 MiB
    assert asked(sim)["readdir"] == 2


# --- servers -------------------------------------------------------------------------------------


def test_many_clients_wait_for_few_servers(started: Starter, here: Path, tree: Path) -> None:
    (tree / "many").mkdir()
    for index in range(40):
        (tree / "many" / str(index)).touch()
    sim = started("--servers", "1", "--latency", "5ms")
    paths = [here / client / "many" / str(i) for client in ("one", "two") for i in range(40)]
    with ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(os.lstat, paths))
    load = sim.counts().metadata
    assert load.operations == sim.counts().total()
    assert load.served_s == pytest.approx(load.operations * 0.005)
    assert load.queued_s > load.served_s, "most of the time was spent waiting"
    sim.set(servers=0)
    sim.reset()
    os.listdir(here / "one" / "many")
    assert sim.counts().metadata.queued_s == 0


def test_reads_share_the_bandwidth(started: Starter, here: Path) -> None:
    sim = started("--bandwidth", "64MiB", "--read-latency", "0")
    for client in ("one", "two"):
        (here / client / "big").read_bytes()
    load = sim.counts().data
    assert load.served_s == pytest.approx(4 / 64, rel=0.01)


def test_the_servers_can_be_changed_while_it_runs(started: Starter, here: Path) -> None:
    sim = started()
    changed = ask(here / "two", "set", "--latency", "2ms", "--servers", "9", "--bandwidth", "1MB")
    assert (changed["latency_s"], changed["servers"]) == (0.002, 9)
    assert sim.hello()["bandwidth_bytes"] == 1_000_000
    assert sim.hello()["read_latency_s"] == 0.001
    with pytest.raises(ControlError, match="cache_s"):
        sim.ask("set", cache_s=1)
    with pytest.raises(ControlError, match="servers cannot be"):
        sim.ask("set", servers=-1, latency_s=7)
    assert sim.hello()["latency_s"] == 0.002, "all or nothing"


# --- failing and hanging -------------------------------------------------------------------------


def test_a_path_fails_hangs_and_heals_from_the_command_line(started: Starter, here: Path) -> None:
    sim = started()
    one = here / "one"
    path = one / "dir" / "a"
    ask(one, "fail", str(path), "--ops", "open", "--errno", "EACCES")
    assert errno_of(path.read_bytes) == errno.EACCES
    ask(one, "slow", "dir/**", "--by", "1ms", "--times", "1")
    assert [each["kind"] for each in ask(one, "rules")] == ["fail", "delay"]
    shown = copperfs("pfs-ask", one, "rules").stdout
    assert "EACCES" in shown
    ask(one, "heal")
    assert path.read_text() == "a"
    rule = ask(one, "hang", "dir/b", "--ops", "open", "read")["rule"]
    answers: list[str] = []
    reader = threading.Thread(target=lambda: answers.append((one / "dir" / "b").read_text()))
    reader.start()
    sim.wait_for_hanging()
    assert ask(one, "counts")["hanging"] == 1
    assert path.read_text() == "a"
    assert not answers
    ask(one, "release", str(rule))
    reader.join(10)
    assert answers == ["b"]
    done = copperfs("pfs-ask", one, "release", str(rule))
    assert (done.returncode, f"there is no rule {rule}" in done.stderr) == (5, True)
    done = copperfs("pfs-ask", one, "fail", "/elsewhere", "--errno", "EIO")
    assert (done.returncode, "not below a mount point" in done.stderr) == (5, True)
    done = copperfs("pfs-ask", one, "fail", "dir", "--errno", "ENOSUCH")
    assert (done.returncode, "is not an errno" in done.stderr) == (5, True)


def test_whoever_hangs_can_be_killed_but_not_interrupted(started: Starter, here: Path) -> None:
    sim = started()
    sim.hang("dir/**")
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('signalled', flush=True))\n"
        "os.stat(sys.argv[1])\n"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", script, here / "one" / "dir" / "a"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    sim.wait_for_hanging()
    reader.send_signal(signal.SIGUSR1)
    with pytest.raises(subprocess.TimeoutExpired):
        reader.wait(0.3)
    assert sim.counts().hanging == 1
    reader.kill()
    output, error = reader.communicate(timeout=10)
    assert (output, error) == ("", "")
    assert sim.counts().hanging == 0


def test_it_can_be_asked_and_stopped_while_everything_hangs(started: Starter, here: Path) -> None:
    sim = started()
    pid = pid_of(sim)
    sim.hang("**")
    with ThreadPoolExecutor(4) as pool:
        for name in ("a", "b", "c", "d"):
            pool.submit(os.stat, here / "one" / name)
        sim.wait_for_hanging(4)
        assert copperfs("pfs-ask", here / "one", "counts").returncode == 0
        assert copperfs("pfs-ask", here / "one", "stop").returncode == 0
    eventually(lambda: not is_running(pid), "it ended")
    assert not is_mounted(here / "one")


# --- the control socket --------------------------------------------------------------------------


def test_only_its_user_can_reach_the_control_socket(started: Starter, here: Path) -> None:
    sim = started()
    control = Path(sim.control)
    assert control.parent == here / "copperfs"
    assert stat.S_IMODE(control.stat().st_mode) == 0o600
    assert stat.S_IMODE(control.parent.stat().st_mode) == 0o700
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    control.chmod(0o666)
    control.parent.chmod(0o755)
    script = (
        "import os, socket, sys\n"
        f"os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        's.settimeout(5); s.send(b\'{"do": "hello"}\\n\'); print(s.recv(100))\n'
    )
    refused = run(["/usr/bin/python3", "-c", script, control])
    # The kernel decides how far the request came before the connection was shut.
    assert refused.stdout.strip() == "b''" or "Broken pipe" in refused.stderr or (
        "reset" in refused.stderr
    ), refused  # fmt: skip


def test_a_directory_that_others_may_enter_is_refused(here: Path, tree: Path) -> None:
    (here / "copperfs").mkdir(mode=0o755)
    done = copperfs("pfs-sim", tree, here / "one")
    assert done.returncode == 4
    assert "only you may enter" in done.stderr
    assert not is_mounted(here / "one")


def test_nonsense_on_the_control_socket_harms_nothing(started: Starter) -> None:
    sim = started()
    for line in (b"nonsense", b"[]", b"{}", b'{"do": []}', b'{"do": "fail"}', b"\xff", b"[" * 9999):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(sim.control)
            connection.sendall(line + b"\n")
            assert json.loads(connection.makefile("rb").readline())["ok"] is False, line
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(sim.control)
        with suppress(OSError):  # either the write or the read fails
            connection.sendall(b"x" * (1 << 20))
            assert connection.recv(1) == b""
    assert sim.counts().total() == 0


# --- beginning and end ---------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts_also_what_is_in_use(
    started: Starter, here: Path, number: signal.Signals
) -> None:
    sim = started()
    pid = pid_of(sim)
    held = os.open(here / "one" / "big", os.O_RDONLY)
    os.kill(pid, number)
    eventually(lambda: not is_running(pid), "it ended")
    with suppress(OSError):  # its flush gets no reply
        os.close(held)
    assert not is_mounted(here / "one")
    assert not is_mounted(here / "two")
    assert not Path(sim.control).exists()


def test_it_ends_with_its_last_mount(started: Starter, here: Path) -> None:
    sim = started()
    pid = pid_of(sim)
    assert copperfs("umount", here / "one").returncode == 0
    assert (here / "two" / "dir" / "a").read_text() == "a"
    assert sim.hello()["mountpoints"] == [str(here / "two")]
    assert run(["fusermount3", "-u", here / "two"]).returncode == 0
    eventually(lambda: not is_running(pid), "it ended")
    assert not Path(sim.control).exists()


def test_what_a_killed_one_left_is_cleaned_up(started: Starter, here: Path) -> None:
    sim = started()
    os.kill(pid_of(sim), signal.SIGKILL)
    eventually(lambda: errno_of((here / "one").stat) == errno.ENOTCONN, "it is stale")
    done = copperfs("pfs-ask", here / "one", "counts")
    assert (done.returncode, "cannot be asked" in done.stderr) == (5, True)
    again = started()
    assert again.control != sim.control
    assert not Path(sim.control).exists()
    assert (here / "one" / "dir" / "a").read_text() == "a"


def test_a_wrong_start_says_what_is_wrong(started: Starter, here: Path, tree: Path) -> None:
    inside = tree / "dir"
    for arguments, sentence in (
        ([tree / "absent", here / "one"], "is not a directory that can be read"),
        ([tree, here / "absent"], "make it with: mkdir"),
        ([tree, inside], "must not contain each other"),
        ([inside, tree], "must not contain each other"),
        ([tree, here / "one", here / "one"], "once only"),
        ([tree, here / "one", "--servers", "-1"], "is not a whole number"),
        ([tree, here / "one", "--latency", "soon"], "is not a duration"),
        ([tree, here / "one", "--control", "a b"], "short path of letters"),
    ):
        done = copperfs("pfs-sim", *arguments)
        assert sentence in done.stderr, (arguments, done.stderr)
        is_usage = "--servers" in arguments or "--latency" in arguments
        assert done.returncode == (2 if is_usage else 4), arguments
    assert not is_mounted(here / "one")
    started()
    done = copperfs("pfs-sim", tree, here / "one")
    assert (done.returncode, "is mounted already" in done.stderr) == (4, True)
    assert (here / "one" / "dir" / "a").read_text() == "a"
    done = copperfs("pfs-ask", here, "counts")
    assert "is not a mount of copperfs pfs-sim" in done.stderr


def test_in_the_foreground_it_says_when_it_is_ready(here: Path, tree: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "copperfs.cli.main", "pfs-sim", tree, here / "one",
         "--foreground"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as lines:
        assert lines.readline() == "ready\n"
        assert (here / "one" / "dir" / "a").read_text() == "a"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert not is_mounted(here / "one")


# --- its purpose ---------------------------------------------------------------------------------


def test_copperfs_reads_each_file_once_for_many_readers(here: Path, tree: Path) -> None:
    with (
        StandIn(tree, here / "one", per_op_s=0.001, servers=4) as sim,
        Mount(sim.mountpoint, here / "mnt") as mount,
    ):
        for _ in range(2):
            with ThreadPoolExecutor(8) as pool:
                names = ["dir/a", "dir/b", "dir/c"] * 8
                read = list(pool.map(lambda name: (mount / name).read_text(), names))
            assert read == [name[-1] for name in names]
        counts = sim.counts()
        assert counts.operations["open"] == {"dir/a": 1, "dir/b": 1, "dir/c": 1}
        assert set(counts.clients) == {str(here / "one")}


def test_the_document_has_every_key_of_the_counts(started: Starter, here: Path) -> None:
    started()
    (here / "one" / "dir" / "a").read_bytes()
    document = (PROJECT / "docs" / "pfs-sim.md").read_text()
    table = document.partition("What `counts --json` says")[2].partition("\n### ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(
        ask(here / "one", "counts")
    )
    shown = copperfs("pfs-ask", here / "one", "counts").stdout
    assert "dir/a" in shown
    assert str(here / "two") in shown
