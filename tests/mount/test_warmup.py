"""``copperfs warmup`` and ``record`` with real daemons: four nodes of one job, and a
single node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.mount.conftest import Mounter
from tests.mount.helpers import COPPERFS, NOBODY, Mount, copperfs, eventually, python
from tests.mount.jobs import Job
from tests.mount.keepers import kill_with_keeper
from tests.standin import StandIn

NODES = 4
MIB = 1 << 20
Starter = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path, source: Path) -> Iterator[Starter]:
    with ExitStack() as stack:

        def start(*flags: str, of: Path | None = None, **only: Any) -> Job:
            fanout = ("--fanout", "2", "--push-fanout", "2")
            where = tmp_path / "job"
            return stack.enter_context(Job(of or source, where, NODES, *fanout, *flags, **only))

        yield start


def warm_up(
    mount: Mount, *arguments: str | Path, code: int = 0, timeout_s: float = 60.0
) -> dict[str, Any]:
    done = copperfs("warmup", mount.mountpoint, *arguments, "--json", timeout_s=timeout_s)
    assert done.returncode == code, (done.stdout, done.stderr)
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def refusal(mount: Mount, *arguments: str | Path) -> str:
    done = copperfs("warmup", mount.mountpoint, *arguments)
    assert done.returncode in (2, 5), done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr.removeprefix("copperfs: ").strip()


def a_set(source: Path) -> dict[str, bytes]:
    files = {
        "set/small": b"content",
        "set/deep/er/file": os.urandom(70_000),
        "set/of-pieces": os.urandom(5 * MIB + 17),
        "set/of-a-piece": os.urandom(MIB),
        "set/empty": b"",
        "set/" + os.fsdecode(b"not-utf-8-\xff\xe9"): b"bytes",
        "set/" + os.fsdecode(b"dir-\xff") + "/name\nwith [newline]": b"more",
    }
    files |= {f"set/many/{n:04}": b"%d" % n * 50 for n in range(300)}
    for path, content in files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(content)
    (source / "set/link").symlink_to("deep/er/file")
    (source / "set/dangling").symlink_to("nowhere")
    (source / "set/nothing-in-it").mkdir()
    return files


class Quiet:
    """Within it no node sends a request to another, or to the source."""

    def __init__(self, nodes: Sequence[Mount]) -> None:
        self.nodes = nodes

    def _counts(self) -> list[dict[str, int]]:
        stats = [node.stats() for node in self.nodes]
        return [
            {"asks": each["node"]["asks"], "fallbacks": each["node"]["fallbacks"]} | each["source"]
            for each in stats
        ]

    def __enter__(self) -> None:
        self.before = self._counts()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            assert self._counts() == self.before


def source_counts(job: Job) -> Counter[str]:
    return source_counts_of(job.nodes)


def source_counts_of(nodes: Sequence[Mount]) -> Counter[str]:
    total: Counter[str] = Counter()
    for node in nodes:
        total.update(node.stats()["source"])
    return total


def equal_on(node: Mount, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        assert (node / path).read_bytes() == content, path


def walk(top: Path) -> None:
    """Names and attributes that every node knows, and names that do not exist."""
    for directory, directories, names in os.walk(top):
        for name in (*directories, *names, "not-there"):
            with_error = name == "not-there"
            try:
                os.lstat(os.path.join(directory, name))
            except FileNotFoundError:
                assert with_error


# ---- all nodes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trees", ["1", "3"])
def test_after_it_no_node_asks_anybody(source: Path, job: Starter, trees: str) -> None:
    files = a_set(source)
    nodes = job("--trees", trees)
    outcome = warm_up(nodes[2], "set")
    held = {path: content for path, content in files.items() if content}
    assert outcome["objects"] == len(held)
    assert outcome["total_bytes"] == outcome["done_bytes"] == sum(map(len, held.values()))
    assert (outcome["nodes_complete"], outcome["roster"], outcome["failed"]) == (4, 4, 0)
    counts = source_counts(nodes)
    assert counts["open"] == len(held), "each file is read once for all nodes"
    assert counts["read_bytes"] == outcome["total_bytes"]
    directories = 2 + len({str(Path(path).parent) for path in files} - {"set"}) + 2
    assert counts["scandir"] == directories, "and each directory listed once"
    with Quiet(nodes.nodes):
        for node in nodes.nodes:
            walk(node / "set")
            equal_on(node, files)
            assert (node / "set/link").read_bytes() == files["set/deep/er/file"]


@pytest.mark.parametrize(("trees", "tree_max"), [("1", "64MiB"), ("3", "16MiB")])
def test_numpy_is_imported_on_every_node_without_asking_anybody(
    tmp_path: Path, job: Starter, trees: str, tree_max: str
) -> None:
    import numpy

    site = Path(numpy.__file__).parent.parent
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            subprocess.run(["cp", "-a", site / name, packages], check=True, timeout=60)
    with StandIn(packages, servers=0) as pfs:
        # Without a data tier each node opens the large file by itself.
        flags = ("--trees", trees, "--tree-max", tree_max, "--tier-memory", "0")
        nodes = job(*flags, of=pfs.mountpoint)
        pfs.reset_counts()
        outcome = warm_up(nodes[1], ".", timeout_s=120)
        assert outcome["nodes_complete"] == 4
        assert source_counts(nodes)["open"] == outcome["objects"]
        large = outcome["too_large"]
        assert large == (tree_max == "16MiB"), "a library of numpy's has 24 MiB"
        script = "import numpy; assert numpy.__file__.startswith({!r}); numpy.ones(3).sum()"
        opened = [node.stats()["source"] for node in nodes.nodes]
        asked = [node.stats()["node"]["asks"] for node in nodes.nodes]
        pfs.reset_counts()
        for node in nodes.nodes:
            done = subprocess.run(
                [sys.executable, "-S", "-c", script.format(str(node.mountpoint))],
                env={"PYTHONPATH": str(node.mountpoint), "PYTHONDONTWRITEBYTECODE": "1",
                     "OPENBLAS_NUM_THREADS": "1"},
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        assert [node.stats()["node"]["asks"] for node in nodes.nodes] == asked
        for counts in opened:
            counts["open"] += large
        assert [node.stats()["source"] for node in nodes.nodes] == opened
        if not large:
            assert not pfs.counts().total(), "the source was not touched at all"


def test_a_check_before_and_after(source: Path, job: Starter) -> None:
    a_set(source)
    nodes = job()
    before = warm_up(nodes[0], "set", "--check", code=1)
    assert (before["nodes"], before["nodes_complete"], before["done_bytes"]) == (4, 0, 0)
    assert before["lacking"] == ["n0", "n1", "n2", "n3"]
    said = copperfs("warmup", "--check", nodes[0].mountpoint, "set")
    assert "held by 0 of 4 nodes, not by n0, n1, n2, n3" in said.stdout
    warm_up(nodes[3], "set")
    read = source_counts(nodes)
    for node in nodes.nodes:
        assert warm_up(node, "set", "--check")["nodes_complete"] == 4
    warm_up(nodes[1], "set")  # already cached: nothing is to do
    assert source_counts(nodes) == read
    copperfs("clear", nodes[2].mountpoint)
    warm_up(nodes[1], "set", "--check", code=1)


def test_what_is_larger_than_tree_max_is_left_to_each_node(source: Path, job: Starter) -> None:
    (source / "set").mkdir()
    (source / "set/large").write_bytes(b"x" * (2 * MIB))
    (source / "set/small").write_bytes(b"x")
    nodes = job("--tree-max", "1MiB")
    done = copperfs("warmup", nodes[0].mountpoint, "set")
    assert done.returncode == 0, done.stderr
    assert "1 file, 0.0 MiB: held by 4 of 4 nodes; 1 larger than --tree-max" in done.stdout
    for node in nodes.nodes:
        equal_on(node, {"set/large": b"x" * (2 * MIB), "set/small": b"x"})


def test_directories_with_more_names_than_a_message_holds(source: Path, job: Starter) -> None:
    (source / "set").mkdir()
    for number in range(6000):
        (source / f"set/{number:050}").touch()
    (source / "set/file").write_bytes(b"content")
    nodes = job("--listing-max", "20000")
    warm_up(nodes[1], "set")
    assert source_counts(nodes)["scandir"] == 2
    with Quiet(nodes.nodes):
        for node in nodes.nodes:
            assert len(list((node / "set").iterdir())) == 6001
            equal_on(node, {"set/file": b"content"})


def test_directories_that_are_listed_bare_are_told_of(source: Path, job: Starter) -> None:
    (source / "set").mkdir()
    for number in range(30):
        (source / f"set/{number}").write_bytes(b"x")
    nodes = job("--listing-max", "20")
    outcome = warm_up(nodes[0], "set")
    assert (outcome["objects"], outcome["unlisted"]) == (0, 30)
    assert (nodes[3] / "set/7").read_bytes() == b"x"


def test_names_that_change_during_the_push_cost_only_themselves(source: Path, job: Starter) -> None:
    files = a_set(source)
    nodes = job()
    assert (nodes[0] / "set/small").stat().st_size == 7  # the listing is cached
    (source / "set/small").write_bytes(b"other content")
    outcome = warm_up(nodes[1], "set", code=1)
    assert outcome["failed"] == 1
    assert outcome["least_objects"] < outcome["objects"]
    del files["set/small"]
    for node in nodes.nodes:
        equal_on(node, files)


def test_with_revalidation_the_bytes_stay_held(source: Path, job: Starter) -> None:
    files = a_set(source)
    nodes = job("--revalidate", "30")
    warm_up(nodes[2], "set")
    with Quiet(nodes.nodes):
        for node in nodes.nodes:
            equal_on(node, files)


def test_the_way_to_what_is_shared_is_held_as_well(source: Path, job: Starter) -> None:
    files = {"lus/me/set/file": b"content"}
    (source / "lus/me/set").mkdir(parents=True)
    (source / "lus/me/set/file").write_bytes(b"content")
    nodes = job("--shared", str(source / "lus/me"))
    warm_up(nodes[2], "lus/me/set")
    asked = [node.stats()["node"]["asks"] for node in nodes.nodes]
    for node in nodes.nodes:
        equal_on(node, files)
    assert [node.stats()["node"]["asks"] for node in nodes.nodes] == asked


# ---- the names of paths --------------------------------------------------------------------------


def test_paths_are_understood_in_several_ways(source: Path, mounted: Mounter) -> None:
    a_set(source)
    (source / "current").symlink_to("set")
    (source / "absolute").symlink_to(source / "set/many")
    mount = mounted()
    expected = warm_up(mount, "set", "--check", code=1)["objects"]
    for path in (mount / "set", source / "set", "set/", "./set", "current", "set/many/../../set"):
        assert warm_up(mount, path, "--check", code=1)["objects"] == expected, path
    assert warm_up(mount, "absolute", "--check", code=1)["objects"] == 300
    assert warm_up(mount, "current/many/0007", "--check", code=1)["objects"] == 1
    done = subprocess.run(
        [*COPPERFS, "warmup", mount.mountpoint, "many", "--check", "--json"],
        cwd=mount / "set", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["objects"] == 300


def test_what_is_not_there_is_named_and_nothing_is_done(source: Path, mounted: Mounter) -> None:
    a_set(source)
    os.mkfifo(source / "fifo")
    (source / "out").symlink_to("/etc/passwd")
    (source / "round").symlink_to("round")
    mount = mounted()
    mnt = mount.mountpoint
    assert "set/nowhere; nothing was warmed up" in refusal(mount, "set", "set/nowhere")
    assert "set/small/below" in refusal(mount, "set/small/below")
    assert "fifo" in refusal(mount, "fifo")
    assert refusal(mount, "/etc/passwd") == f"/etc/passwd is not below {mnt}"
    assert refusal(mount, "../outside") == f"../outside is not below {mnt}"
    assert "nothing to warm up" in refusal(mount)
    assert "leads out" in refusal(mount, "out")
    assert "too many links" in refusal(mount, "round")
    assert mount.stats()["source"]["open"] == 0
    inside = copperfs("warmup", mount / "set", "small")
    assert inside.returncode == 5
    assert f"its mount point is {mnt}" in inside.stderr
    nowhere = copperfs("warmup", source, "set")
    assert "not on a mount of copperfs" in nowhere.stderr


def test_an_empty_set_is_held(source: Path, job: Starter) -> None:
    (source / "empty").mkdir()
    outcome = warm_up(job()[0], "empty")
    assert (outcome["objects"], outcome["nodes_complete"]) == (0, 4)


def test_a_directory_that_may_not_be_read_is_counted(tmp_path: Path, source: Path) -> None:
    """Root may always read."""
    a_set(source)
    (source / "set/closed").mkdir(0)
    (source / "set/secret").write_bytes(b"x")
    (source / "set/secret").chmod(0)
    mountpoint = tmp_path / "mnt-nobody"
    mountpoint.mkdir()
    os.chown(mountpoint, NOBODY, NOBODY)
    if python("pass", user=NOBODY).returncode != 0:
        pytest.skip("another user cannot run this Python")
    with Mount(source, tmp_path / "mnt", "--allow-other") as mount:
        # Only its owner may have a mount warmed up.
        script = """if True:
            import fcntl, struct, sys
            fd = os.open(sys.argv[1], os.O_RDONLY)
            buffer = bytearray(8192)
            struct.pack_into("=IIIIQQQ", buffer, 0, 1, 0, 0, 0, 0, 0, 0)
            try:
                fcntl.ioctl(fd, 3 << 30 | 8192 << 16 | 0xC7 << 8 | 0x18, buffer)
            except OSError as error:
                print(errno.errorcode[error.errno])
        """
        done = python(script, mount.mountpoint, user=NOBODY)
        assert done.stdout.strip() == "EPERM", done.stderr
        assert warm_up(mount, "set")["nodes_complete"] == 1


# ---- room ----------------------------------------------------------------------------------------


def test_a_set_that_does_not_fit(source: Path, job: Starter) -> None:
    for name in ("one", "other"):
        (source / name).mkdir()
        for number in range(20):
            (source / name / str(number)).write_bytes(os.urandom(MIB))
    (source / "all").mkdir()
    for number in range(70):
        (source / "all" / str(number)).write_bytes(b"x" * MIB)
    nodes = job("--memory", "32MiB")
    warm_up(nodes[1], "one")
    said = refusal(nodes[0], "other")
    assert "the set takes 20.0 MiB, and a node has room for 1" in said
    assert "--evict" in said
    said = refusal(nodes[0], "all")
    assert "the set takes 70.1 MiB" in said
    assert "--evict" not in said
    assert "70.1 MiB" in refusal(nodes[0], "all", "--evict")
    assert warm_up(nodes[2], "one")["nodes_complete"] == 4, "what is held needs no room"
    assert warm_up(nodes[3], "other", "--evict")["nodes_complete"] == 4
    warm_up(nodes[3], "one", "--check", code=1)
    for node in nodes.nodes:
        cache = node.stats()["cache"]
        assert cache["held_bytes"] + cache["reserved_bytes"] <= cache["budget_bytes"]
    with Quiet(nodes.nodes):
        for node in nodes.nodes:
            for number in range(20):
                name = f"other/{number}"
                assert (node / name).read_bytes() == (source / name).read_bytes()


# ---- several at once, and nodes that are lost ----------------------------------------------------


def start(mount: Mount, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COPPERFS, "warmup", mount.mountpoint, *arguments, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_second_one_has_to_wait_or_goes_on_beside_it(source: Path, job: Starter) -> None:
    a_set(source)
    with StandIn(source, per_read_s=1.0) as pfs:
        nodes = job(of=pfs.mountpoint)
        first, said = start(nodes[1], "set"), ""
        try:
            eventually(lambda: source_counts(nodes)["open"] > 3, "it reads")
            assert refusal(nodes[1], "set") == "a warm-up is under way already; wait for it"
            beside = start(nodes[2], "set")
            pfs.set_latency(per_read_s=0.0)
            for each in (first, beside):
                said, complained = each.communicate(timeout=60)
                assert each.returncode == 0, complained
                assert json.loads(said)["nodes_complete"] == 4
        finally:
            first.kill()
            first.communicate()
        assert source_counts(nodes)["open"] == json.loads(said)["objects"]


@pytest.mark.parametrize("trees", ["1", "3"])
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_node_that_is_killed_during_a_push_keeps_nobody_waiting(
    source: Path, job: Starter, lost: int, trees: str
) -> None:
    files = a_set(source)
    with StandIn(source, per_read_s=1.0) as pfs:
        nodes = job("--trees", trees, of=pfs.mountpoint)
        alive = [node for node in nodes.nodes if node is not nodes[lost]]
        running = start(nodes[2], "set")
        try:
            eventually(lambda: alive[0].stats()["node"]["pushed"] > 20
                       or source_counts_of(alive)["open"] > 20, "it pushes")  # fmt: skip
            kill_with_keeper(nodes[lost].pid)
            pfs.set_latency(per_read_s=0.0)
            said, complained = running.communicate(timeout=30)
        finally:
            running.kill()
            running.communicate()
        assert running.returncode == 1, (said, complained)
        outcome = json.loads(said)
        assert outcome["roster"] == 4
        assert outcome["nodes_complete"] < 4
        assert f"n{lost}" in outcome["lacking"]
        if lost == 3 and trees == "1":
            assert outcome["nodes_complete"] == 3
        for node in alive:
            equal_on(node, files)


def test_the_bar_can_advance_while_it_is_pushed(source: Path, job: Starter) -> None:
    (source / "set").mkdir()
    for number in range(40):
        (source / f"set/{number}").write_bytes(os.urandom(MIB))
    script = f"""if True:
        import json, sys
        sys.path.insert(0, {str(Path.cwd())!r})
        from copperfs.fuse.ioctl import IoctlRequest, ask_mount
        seen = set()
        phase = ""
        while phase != "done":
            state = ask_mount(sys.argv[1], IoctlRequest.WARM_UP_STATE)
            phase = state["phase"]
            seen.add(state["done_bytes"])
        print(len(seen))
    """
    with StandIn(source, per_read_s=0.02) as pfs:
        nodes = job(of=pfs.mountpoint)
        for asked in (nodes[0], nodes[3]):
            watching = subprocess.Popen(
                [sys.executable, "-c", script, asked.mountpoint], stdout=subprocess.PIPE, text=True
            )
            outcome = warm_up(asked, "set")
            said, _ = watching.communicate(timeout=30)
            assert outcome["done_bytes"] == outcome["total_bytes"]
            assert int(said) > 2, "nothing between the beginning and the end was shown"
            copperfs("clear", asked.mountpoint)


# ---- one node ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("--revalidate", "30")])
def test_a_node_alone_reads_it_into_itself(
    source: Path, mounted: Mounter, flags: tuple[str, ...]
) -> None:
    files = a_set(source)
    mount = mounted(*flags)
    done = copperfs("warmup", mount.mountpoint, "set")
    assert done.returncode == 0, done.stderr
    assert "held by 1 of 1 node" in done.stdout
    with Quiet([mount]):
        equal_on(mount, files)
    assert mount.stats()["source"]["open"] == len(files) - 1


# ---- manifests -----------------------------------------------------------------------------------


def test_what_a_command_used_is_warmed_up_from_its_manifest(
    tmp_path: Path, source: Path, job: Starter
) -> None:
    files = a_set(source)
    manifest = tmp_path / "manifest"
    nodes = job()
    used = [path for path in files if "many" not in path]
    script = "import sys, os\nfor path in sys.argv[1:]: open(path, 'rb').read()\n"
    script += "sys.exit(3 if os.path.exists(sys.argv[1] + '-not-there') else 7)"
    command = [sys.executable, "-c", script, *(str(nodes[1] / path) for path in used)]
    for path in used:
        (nodes[1] / path).read_bytes()  # what was cached before is recorded as well
    done = copperfs("record", nodes[1].mountpoint, "-o", manifest, "--", *command)
    assert done.returncode == 7, done.stderr
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert {each["path"] for each in lines if each["kind"] == "object"} == {
        path for path in used if files[path]
    }
    assert "set" in {each["path"] for each in lines if each["kind"] == "listing"}
    copperfs("clear", nodes[0].mountpoint)
    outcome = warm_up(nodes[2], "--manifest", manifest)
    assert outcome["objects"] == len(used) - 1
    with Quiet(nodes.nodes):
        for node in nodes.nodes:
            equal_on(node, {path: files[path] for path in used})
    for path in ("set/small", "set/deep/er/file"):
        (source / path).unlink()
    (source / "set/deep/er").rmdir()
    copperfs("clear", nodes[0].mountpoint)
    outcome = warm_up(nodes[2], "--manifest", manifest)
    assert (outcome["missing"], outcome["failed"], outcome["nodes_complete"]) == (2, 0, 4)


def test_a_node_alone_records_what_its_front_read(
    tmp_path: Path, source: Path, mounted: Mounter
) -> None:
    files = a_set(source)
    mount = mounted()
    manifest = tmp_path / "manifest"
    done = copperfs("record", mount.mountpoint, "-o", manifest, "--", "cat", mount / "set/small")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "content"
    command: list[str | Path] = ["cp", "-r", mount / "set", tmp_path / "copy"]
    done = copperfs("record", mount.mountpoint, "-o", manifest, "--", *command)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    recorded = {each["path"] for each in lines if each["kind"] == "object"}
    assert recorded == {path for path, content in files.items() if content}


def test_recording_says_what_is_wrong(tmp_path: Path, source: Path, mounted: Mounter) -> None:
    mount = mounted()
    where = tmp_path / "no" / "such" / "directory"
    done = copperfs("record", mount.mountpoint, "-o", where, "--", "touch", tmp_path / "ran")
    assert done.returncode == 125
    assert "cannot be written" in done.stderr
    assert not (tmp_path / "ran").exists(), "it says so before the command has run"
    done = copperfs("record", mount.mountpoint, "-o", tmp_path / "m", "--", "no-such-command")
    assert done.returncode == 125
    assert "could not be started" in done.stderr
    done = copperfs("record", mount.mountpoint, "-o", tmp_path / "m", "--", "sh", "-c", "kill $$")
    assert done.returncode == 128 + signal.SIGTERM


def test_a_recording_that_did_not_fit_says_so(
    tmp_path: Path, source: Path, mounted: Mounter
) -> None:
    for number in range(24):
        (source / str(number)).write_bytes(b"x" * (3 * MIB))
    mount = mounted("--memory", "48MiB")
    command: list[str | Path] = ["sh", "-c", f"cat {mount.mountpoint}/* > /dev/null"]
    done = copperfs("record", mount.mountpoint, "-o", tmp_path / "m", "--", *command)
    assert done.returncode == 0
    assert "give the mount a larger --memory" in done.stderr


@pytest.mark.parametrize(
    "text", ["nonsense\n", "[]\n", '{"path": 5, "kind": "object"}\n', '{"path": "x"}\n',
             '{"path": "x", "kind": "other"}\n', "\xff\n"],
)  # fmt: skip
def test_what_is_no_manifest(tmp_path: Path, mounted: Mounter, text: str) -> None:
    manifest = tmp_path / "manifest"
    manifest.write_text(text)
    assert "is no manifest" in refusal(mounted(), "--manifest", manifest)
