"""``copperfs run --in-place``: the command sees the files of its environment at their own paths,
and nothing is left afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.bootstrap.helpers import clean_environment
from tests.bootstrap.mpis import Mpi
from tests.mount.helpers import COMMAND_TIMEOUT_S, COPPERFS, eventually
from tests.mount.ordinary_user import GROUP, SUPPLEMENTARY, USER, as_user
from tests.patience import PATIENCE

# The bound, on a machine with nothing else to do.
LEFT_AT_MOST_S = 5.0 * PATIENCE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


@dataclass
class Site:
    """A user's home on a shared filesystem, with an environment that belongs to a group."""

    home: Path
    as_root: bool
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def env(self) -> Path:
        return self.home / "env"

    def build(self) -> None:
        site = self.env / "lib/python/site-packages"
        site.mkdir(parents=True)
        (self.env / "bin").mkdir()
        (self.env / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
        (site / "mine.py").write_text("VALUE = 'from the source'\n")
        tool = self.env / "bin/tool"
        tool.write_text(f"#!{self.env}/bin/sh\necho $0; cat {site}/mine.py\n")
        tool.chmod(0o755)
        (self.env / "bin/sh").symlink_to("/bin/sh")
        (self.home / "writable").mkdir()
        for each in (self.home, self.home / "writable"):
            os.chown(each, USER, GROUP)
        for each in (self.env, *self.env.rglob("*")):
            os.chown(each, 0, SUPPLEMENTARY, follow_symlinks=False)
            if not each.is_symlink():
                each.chmod(0o750 if each.is_dir() or each.parent.name == "bin" else 0o640)

    def environ(self, **more: str) -> dict[str, str]:
        own = {
            "HOME": str(self.home),
            "PYTHONPATH": f"{self.env}/lib/python/site-packages",
            "PATH": f"{self.env}/bin:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.env),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return clean_environment() | own | more

    def start(
        self,
        *words: str | Path,
        options: Sequence[str | Path] = (),
        **more: str,
    ) -> subprocess.Popen[str]:
        """PWD in *more* is the working directory."""
        run = [*COPPERFS, "run", "--in-place", "always", "--shared", self.home, *options]
        command = list(map(str, [*run, "--", *words]))
        self.started.append(
            subprocess.Popen(
                command if self.as_root else as_user(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=more.get("PWD", self.home / "writable"),
                env=self.environ(**more),
                start_new_session=True,
            )
        )
        return self.started[-1]

    def run(self, *words: str | Path, options: Sequence[str | Path] = (), **more: str) -> str:
        process = self.start(*words, options=options, **more)
        output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert (process.returncode, errors) == (0, "")
        return output

    def python(self, script: str, *arguments: str, **more: str) -> str:
        return self.run(sys.executable, "-c", textwrap.dedent(script), *arguments, **more)


@pytest.fixture(params=["user", "root"])
def site(request: pytest.FixtureRequest, source: Path) -> Iterator[Site]:
    site = Site(source, as_root=request.param == "root")
    site.build()
    yield site
    for each in site.started:
        each.kill()
        each.communicate(timeout=COMMAND_TIMEOUT_S)
    eventually(lambda: not traces(site), lambda: f"left: {traces(site)}", LEFT_AT_MOST_S)


def traces(site: Site) -> set[str]:
    """What this site's runs have on the machine: covers and mounts in any namespace, processes, and
    directories of the user's runs in /tmp."""
    found = {str(each) for each in Path("/tmp").glob(f"copperfs-{USER}-*")}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            namespace = os.readlink(process / "ns/mnt")
            for line in (process / "mountinfo").read_text(errors="replace").splitlines():
                if f" {site.home}/" in line:
                    found.add(f"{namespace}: {line.split()[4]}")
    return found | {f"process {pid}: {command_line(pid)!r}" for pid in processes_of_runs(site)}


def test_an_environment_of_a_supplementary_group_is_read_in_place(site: Site) -> None:
    """The smallest proof: mode 0750, readable only through the group; $HOME writable beside it."""
    script = """
        import errno, json, mine, os, subprocess, sys
        def fails(path):
            try:
                open(path, "w")
            except OSError as error:
                return errno.errorcode[error.errno]
        env = os.environ["VIRTUAL_ENV"]
        open(os.path.expanduser("~/writable/result"), "w").write("written")
        print(json.dumps({
            "file": mine.__file__, "value": mine.VALUE, "denied": fails(env + "/new"),
            "tool": subprocess.check_output(["tool"], text=True).split("\\n"),
            "device": os.stat(env).st_dev == os.stat(os.path.expanduser("~")).st_dev,
            "ids": [os.getuid(), os.getgid(), os.stat(mine.__file__).st_gid],
            "mount": os.environ["COPPERFS_MOUNTPOINT"],
            "capabilities": open("/proc/self/status").read().split("CapEff:\\t")[1][:16],
            "cwd": os.getcwd(),
        }))
    """
    found = json.loads(site.python(script))
    module = site.env / "lib/python/site-packages/mine.py"
    assert found["file"] == str(module)
    assert (found["value"], found["denied"]) == ("from the source", "EROFS")
    assert found["tool"] == [str(site.env / "bin/tool"), *module.read_text().split("\n")]
    assert not found["device"]
    assert (site.home / "writable/result").read_text() == "written"
    assert found["cwd"] == str(site.home / "writable")
    if not site.as_root:
        assert found["ids"] == [USER, GROUP, GROUP], "the group is shown as the user's own"
        assert found["capabilities"] == "0" * 16


def test_files_are_read_by_the_daemon(site: Site) -> None:
    """By the daemon's own count, asked from inside."""
    script = """
        import json, mine, os, subprocess, sys
        words = [sys.executable, "-P", "-m", "copperfs.cli.main", "stats", "--json"]
        print(subprocess.check_output([*words, os.environ["COPPERFS_MOUNTPOINT"]], text=True))
    """
    document = json.loads(site.python(script))
    assert document["source"]["open"] >= 1


def test_ranks_of_a_node_share_a_namespace_and_can_read_each_other(site: Site) -> None:
    """As MPI libraries do, by process_vm_readv."""
    script = """
        import ctypes, mine, os, sys, time
        from pathlib import Path
        own, other = Path(sys.argv[1]), Path(sys.argv[2])
        word = ctypes.create_string_buffer(b"of " + own.name.encode())
        own.with_suffix(".tmp").write_text(f"{os.getpid()} {ctypes.addressof(word)}")
        own.with_suffix(".tmp").rename(own)
        while not other.exists():
            time.sleep(0.01)
        pid, address = map(int, other.read_text().split())
        class Piece(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        got = ctypes.create_string_buffer(8)
        to, of = Piece(ctypes.addressof(got), 4), Piece(address, 4)
        libc = ctypes.CDLL(None, use_errno=True)
        said = libc.process_vm_readv(pid, ctypes.byref(to), 1, ctypes.byref(of), 1, 0)
        done = own.with_suffix(".done")
        done.touch()
        while not other.with_suffix(".done").exists():
            time.sleep(0.01)
        print(said, got.value.decode(), os.readlink("/proc/self/ns/mnt"))
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    one, other = site.home / "writable/a", site.home / "writable/b"
    ranks = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2"}
    begun = [
        site.start(*words, one, other, options=["--nodes", "1"], **ranks),
        site.start(*words, other, one, options=["--nodes", "1"], **ranks),
    ]
    ended = [each.communicate(timeout=COMMAND_TIMEOUT_S) for each in begun]
    assert [errors for _, errors in ended] == ["", ""]
    found = sorted(output.split() for output, _ in ended)
    assert [each[:3] for each in found] == [["4", "of", "a"], ["4", "of", "b"]]
    assert len({each[3] for each in found}) == 1, "one namespace"


def another_environment(site: Site) -> dict[str, str]:
    """A second one on the shared filesystem, and the variables that lead to it."""
    other = site.home / "other"
    (other / "lib").mkdir(parents=True)
    (other / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    (other / "lib/mine.py").write_text("VALUE = 'from the other one'\n")
    return {
        "PYTHONPATH": f"{other}/lib", "VIRTUAL_ENV": str(other), "PATH": os.environ["PATH"],
    }  # fmt: skip


SHOWS = """if True:
    import mine, os, subprocess, sys, time
    print(mine.VALUE, mine.__file__, os.stat(mine.__file__).st_dev != os.stat("/").st_dev,
          os.readlink("/proc/self/ns/mnt"), flush=True)
    if sys.stdin.readline().strip() == "clear":
        clear = [*sys.argv[1:], "clear", os.environ["COPPERFS_MOUNTPOINT"]]
        subprocess.run(clear, check=True, stdout=subprocess.DEVNULL)
        time.sleep(0.5)
    print(open(mine.__file__).read().split("'")[1], flush=True)
"""


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_programs_with_different_environments_share_a_namespace(site: Site) -> None:
    """As in an MPMD launch, whose ranks read each other's memory."""
    launch = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    variables = another_environment(site)
    one = site.start(sys.executable, "-Pc", SHOWS, *COPPERFS, **launch)
    said = [says(one)]
    two = site.start(sys.executable, "-Pc", SHOWS, *COPPERFS, **launch, **variables)
    said.append(says(two))
    values, spaces = zip(*(line.rsplit(" ", 1) for line in said), strict=True)
    assert values == (
        f"from the source {site.env}/lib/python/site-packages/mine.py True",
        f"from the other one {site.home}/other/lib/mine.py True",
    )
    assert len(set(spaces)) == 1
    # All covers are renewed after a clear.
    (site.home / "other/lib/mine.py").write_text("VALUE = 'changed since'\n")
    (site.env / "lib/python/site-packages/mine.py").write_text("VALUE = 'changed, too'\n")
    for process, word, value in ((two, "clear", "changed since"), (one, "", "changed, too")):
        output, errors = process.communicate(f"{word}\n", timeout=COMMAND_TIMEOUT_S)
        assert (process.returncode, errors) == (0, "")
        assert output.splitlines()[-1] == value


def test_a_later_program_covers_nothing_that_an_earlier_one_works_in(site: Site) -> None:
    variables = another_environment(site)
    launch = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    one = site.start(
        sys.executable, "-Pc", SHOWS, *COPPERFS, PWD=f"{site.home}/other/lib", **launch
    )
    says(one)
    two = site.start(sys.executable, "-Pc", SHOWS, *COPPERFS, **launch, **variables)
    assert says(two).startswith("from the other one")
    (site.home / "other/lib/written").touch()
    assert one.communicate("\n", timeout=COMMAND_TIMEOUT_S)[1] == ""
    _, errors = two.communicate("\n", timeout=COMMAND_TIMEOUT_S)
    assert errors == (
        f"copperfs: {site.home}/other could not be covered, or left writable: another program of "
        f"this launch works in {site.home}/other/lib\n"
    )


def test_ranks_of_mpiexec_speak_mpi_in_place(site: Site, mpi: Mpi) -> None:
    """With messages that are long enough to be copied from process to process."""
    script = """
        import os, mine
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        got = bytearray(4 << 20)
        peer = world.rank ^ 1
        world.Sendrecv(bytes([world.rank]) * (4 << 20), peer, recvbuf=got, source=peer)
        said = f"{world.allreduce(1)} {got.count(peer)} {mine.__file__}"
        open(os.path.expanduser(f"~/writable/rank{world.rank}"), "w").write(said)
    """
    run = [*COPPERFS, "run", "--in-place", "always", "--shared", str(site.home), "--"]
    command = mpi.command(4, *run, sys.executable, "-c", textwrap.dedent(script))
    done = subprocess.run(
        command if site.as_root else as_user(command),
        env=site.environ() | mpi.env, cwd=site.home / "writable",
        capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    module = site.env / "lib/python/site-packages/mine.py"
    found = [(site.home / f"writable/rank{rank}").read_text() for rank in range(4)]
    assert found == [f"4 {4 << 20} {module}"] * 4


def test_a_process_in_the_background_keeps_the_mount(site: Site) -> None:
    module = f"{site.env}/lib/python/site-packages/mine.py"
    reads_late = f"(sleep 1; cat {module} > $HOME/writable/late) &"  # nothing of it is cached
    site.run("sh", "-c", f"cat {site.env}/pyvenv.cfg; {reads_late}")
    late = site.home / "writable/late"
    eventually(lambda: late.exists() and late.read_text() == "VALUE = 'from the source'\n", "read")


@pytest.mark.parametrize("takeover", ["--takeover", "--no-takeover"])
def test_a_process_in_the_background_is_not_in_the_way_of_the_next_run(
    site: Site, takeover: str
) -> None:
    """Nothing of the first run's daemon answers to the next one, and its keeper holds no socket."""
    stays = "(exec >/dev/null 2>&1; touch $HOME/writable/stays; exec sleep 600) &"
    keeps = "echo $! > $HOME/writable/pid;"
    waits = "while ! [ -e $HOME/writable/stays ]; do sleep 0.05; done; sleep 1"  # for the keeper
    site.run("sh", "-c", f"cat {site.env}/pyvenv.cfg; {stays} {keeps} {waits}", options=[takeover])
    background = int((site.home / "writable/pid").read_text())
    try:
        assert site.run("cat", f"{site.env}/pyvenv.cfg", options=[takeover]).startswith("home")
    finally:
        os.kill(background, signal.SIGKILL)


@pytest.mark.parametrize(
    "victim", ["run", "daemon", "command", "daemon and run", "command and daemon and run"]
)
def test_whatever_is_killed_nothing_is_left(site: Site, victim: str) -> None:
    """The fixture looks for what is left."""
    process = site.start("sh", "-c", "echo up $$; exec sleep 60")
    assert process.stdout is not None
    command = int(process.stdout.readline().split()[1])
    daemons = [pid for pid in processes_of_runs(site) if b"daemon_main" in command_line(pid)]
    assert len(daemons) == 1
    parent = int(re.findall(r"PPid:\t(\d+)", Path(f"/proc/{command}/status").read_text())[0])
    for name, pids in (("daemon", daemons), ("run", [parent]), ("command", [command])):
        if name in victim.split(" and "):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
    if victim == "daemon":
        os.kill(command, signal.SIGKILL)
    process.communicate(timeout=COMMAND_TIMEOUT_S)


@pytest.mark.parametrize("takeover", ["--takeover", "--no-takeover"])
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_leave_nothing(site: Site, seed: int, takeover: str) -> None:
    kill_at_random(site, Random(seed), takeover)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1050))
def test_200_kills_at_random_leave_nothing(site: Site, seed: int) -> None:
    """100 runs, for a user and for root, with at least two kills each."""
    kill_at_random(site, Random(seed), "--takeover" if seed % 2 else "--no-takeover")


def test_a_dead_daemon_is_succeeded_in_place(site: Site) -> None:
    """The command reads on, others join, and nothing is left."""
    for number in range(4):
        (site.env / f"file{number}").write_text(f"content {number}\n")
        os.chown(site.env / f"file{number}", 0, SUPPLEMENTARY)
        (site.env / f"file{number}").chmod(0o640)
    options = ["--takeover"]
    script = 'echo up; while read name; do cat "$VIRTUAL_ENV/$name"; done'
    process = site.start("sh", "-c", script, options=options)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    for number in range(3):
        eventually(lambda: spare_of(site), "a standby is ready")
        (daemon,) = daemons_of(site)
        os.kill(daemon, signal.SIGKILL)
        process.stdin.write(f"file{number}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"content {number}\n"
    assert site.run("sh", "-c", 'cat "$VIRTUAL_ENV/file3"', options=options) == "content 3\n"
    output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert (process.returncode, output, errors) == (0, "", "")


def test_a_live_run_in_place_is_upgraded_from_outside(site: Site) -> None:
    script = (
        # the last one: others of this machine come before it
        """awk '/fuse.copperfs/ && $4 == "/" {x = $5} END {print x}' /proc/self/mountinfo;"""
        f" read go; {COPPERFS[0]} upgrade $go 2>&1 | tail -n 1; read go; cat $VIRTUAL_ENV/file"
    )
    (site.env / "file").write_text("content\n")
    process = site.start("sh", "-c", script, options=["--takeover"])
    assert process.stdin is not None
    assert process.stdout is not None
    mountpoint = process.stdout.readline().strip()
    process.stdin.write(f"{mountpoint}\n")
    process.stdin.flush()
    told = process.stdout.readline()
    # root's own run has no namespace of users
    assert ("no answers for" if site.as_root else "not from within a container") in told
    eventually(lambda: spare_of(site), "a standby is ready")
    (before,) = daemons_of(site)

    def upgrade(*flags: str) -> tuple[int, str]:
        command = [*COPPERFS, "upgrade", mountpoint, *flags]
        done = subprocess.run(
            command if site.as_root else as_user(command),
            capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
            env=site.environ(), cwd=site.home,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    code, told = upgrade("--revalidate", "60")
    assert (code, "--revalidate cannot change of an in-place run" in told) == (1, True)
    code, told = upgrade("--memory", "200MiB")
    assert (code, "no answers for" in told) == (0, True), told
    eventually(lambda: spare_of(site), "a standby is ready")
    (daemon,) = daemons_of(site)
    assert daemon != before
    output, errors = process.communicate("go\n", timeout=COMMAND_TIMEOUT_S)
    assert (process.returncode, output, errors) == (0, "content\n", "")


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def spare_of(site: Site) -> list[int]:
    return [pid for pid in processes_of_runs(site) if name_of(pid) == "copperfs-spare"]


def daemons_of(site: Site) -> list[int]:
    """Also one that has taken over."""
    words = (b"daemon_main", b"daemon.standby")
    found = [
        pid for pid in processes_of_runs(site) if any(each in command_line(pid) for each in words)
    ]
    return [pid for pid in found if name_of(pid) not in ("copperfs-spare", "copperfs-keeper")]


def kill_at_random(site: Site, dice: Random, takeover: str) -> None:
    """Two ranks, each with a process in the background, are killed at any stage, in any order; what
    is left of their commands is killed at last."""
    ranks = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2"}
    words = ["sh", "-c", "sleep 61 & cat $VIRTUAL_ENV/pyvenv.cfg; wait"]
    options = ["--nodes", "1", takeover]
    begun = [site.start(*words, options=options, **ranks) for _ in range(2)]
    time.sleep(dice.random() * 1.5)
    for _ in range(dice.randrange(2, 6)):
        found = processes_of_runs(site)
        if not found:
            break
        pid = dice.choice(found)
        with suppress(OSError):
            if dice.random() < 0.2:
                os.killpg(os.getpgid(pid), signal.SIGKILL)
            else:
                os.kill(pid, dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        time.sleep(dice.random() * 0.2)
    for pid in processes_of_runs(site):
        if not any(each in command_line(pid) for each in (b"copperfs.daemon", b"copperfs-keeper")):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    for each in begun:
        each.communicate(timeout=COMMAND_TIMEOUT_S)


def processes_of_runs(site: Site) -> list[int]:
    """Runs, commands and daemons of this test, by the home directory in their environment; not this
    process, nor what started them as another user."""
    needle = f"HOME={site.home}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        with suppress(OSError):
            words = command_line(pid)
            if needle in (process / "environ").read_bytes().split(b"\0") and words:
                found.append(pid)
    return sorted(found)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# ---- what it looks like inside ------------------------------------------------------------------


def test_files_behave_as_on_any_filesystem(site: Site) -> None:
    """Mappings, exec, libraries, locks, watches, statfs, inode and device numbers."""
    library = site.env / "lib/libnothing.so"
    subprocess.run(
        ["cc", "-shared", "-o", library, "-x", "c", "-"], input=b"int seven(void) { return 7; }",
        check=True, timeout=COMMAND_TIMEOUT_S,
    )  # fmt: skip
    os.chown(library, 0, SUPPLEMENTARY)
    library.chmod(0o750)
    script = """
        import ctypes, fcntl, json, mmap, os, select
        env = os.environ["VIRTUAL_ENV"]
        module = env + "/lib/python/site-packages/mine.py"
        fd = os.open(module, os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        fcntl.flock(fd, fcntl.LOCK_SH)
        watch = libc.inotify_init()
        kept = os.statvfs(env)
        same = os.stat(os.environ["COPPERFS_MOUNTPOINT"] + module[len(os.environ["SOURCE"]):])
        print(json.dumps({
            "mapped": mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:5].decode(),
            "library": ctypes.CDLL(env + "/lib/libnothing.so").seven(),
            "watched": libc.inotify_add_watch(watch, env.encode(), 0xfff) > 0,
            "blocks": kept.f_blocks > 0, "isatty": os.isatty(fd),
            "inode": os.fstat(fd).st_ino == same.st_ino,
            "devices": len({os.stat(each).st_dev for each in (module, env + "/bin/tool")}),
        }))
    """
    found = json.loads(site.python(script, SOURCE=""))
    assert found == {
        "mapped": "VALUE", "library": 7, "watched": True, "blocks": True, "isatty": False,
        "inode": True, "devices": 1,
    }  # fmt: skip


@pytest.mark.parametrize("revalidate", [(), ("--revalidate", "0.2")], ids=["snapshot", "fresh"])
def test_after_a_clear_the_new_version_is_seen(site: Site, revalidate: tuple[str, ...]) -> None:
    """A process that had read the old version sees it, too, and keeps its open files."""
    module = site.env / "lib/python/site-packages/mine.py"
    script = """
        import os, subprocess, sys, time
        module = os.environ["VIRTUAL_ENV"] + "/lib/python/site-packages/mine.py"
        old = open(module)
        unchanged = open(os.environ["VIRTUAL_ENV"] + "/pyvenv.cfg")
        print(old.read().strip(), flush=True)
        input()
        words = [sys.executable, "-P", "-m", "copperfs.cli.main", "clear"]
        subprocess.run([*words, os.environ["COPPERFS_MOUNTPOINT"]], check=True, stdout=2)
        time.sleep(0.5)
        print(open(module).read().strip(), flush=True)
        old.seek(0)
        print(old.read().strip(), unchanged.read()[:4], flush=True)
        print(open(os.environ["VIRTUAL_ENV"] + "/pyvenv.cfg").read()[:4], flush=True)
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    process = site.start(*words, options=[*revalidate])
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "VALUE = 'from the source'\n"
    time.sleep(0.1)  # the clock of the source ticks
    module.write_text("VALUE = 'a new version'\n")
    output, errors = process.communicate("go\n", timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 0, errors
    assert output.splitlines() == [
        "VALUE = 'a new version'",
        "VALUE = 'from the source' home",
        "home",
    ]


def test_a_file_that_changed_is_seen_after_it_was_refused(site: Site) -> None:
    """As in any mount: its old version is ESTALE, and the next open sees the new one."""
    module = site.env / "lib/python/site-packages/mine.py"
    script = """
        import os, sys, time
        module = os.environ["VIRTUAL_ENV"] + "/lib/python/site-packages/mine.py"
        os.stat(module)
        print("known", flush=True)
        input()
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                print(open(module).read().strip())
                break
            except OSError as error:
                time.sleep(0.1)
    """
    process = site.start(sys.executable, "-c", textwrap.dedent(script))
    assert process.stdout is not None
    assert process.stdout.readline() == "known\n"
    time.sleep(0.1)  # the clock of the source ticks
    module.write_text("VALUE = 'a new version'\n")
    output, _ = process.communicate("go\n", timeout=COMMAND_TIMEOUT_S)
    assert output == "VALUE = 'a new version'\n"


def test_what_others_may_not_read_is_refused_inside(site: Site) -> None:
    secret = site.env / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)  # of root
    script = "cat $VIRTUAL_ENV/pyvenv.cfg >&2; cat $VIRTUAL_ENV/secret || echo refused"
    output, _ = site.start("sh", "-c", script).communicate(timeout=COMMAND_TIMEOUT_S)
    assert output == ("secret" if site.as_root else "refused\n")


def test_a_core_file_is_written_to_the_working_directory(site: Site) -> None:
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core":
        pytest.skip("this machine gives core files to a program")
    crash = "ulimit -c unlimited; sleep 0; kill -SEGV $$"
    process = site.start("sh", "-c", crash)
    process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 128 + signal.SIGSEGV
    assert (site.home / "writable/core").stat().st_size > 0


CONTAINERS = [
    "bwrap --dev-bind / / --unshare-user --unshare-pid --proc /proc",
    "bwrap --dev-bind / / --tmpfs /run --unshare-pid --proc /proc",
    "unshare --user --map-root-user --mount",
]


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_container_of_one_user_shows_the_covers(site: Site, container: str) -> None:
    """As Apptainer's and Charliecloud's, which map one user, too."""
    if shutil.which(container.split()[0]) is None:
        pytest.skip(f"{container.split()[0]} is not installed")
    script = "import mine, os; print(mine.__file__, os.stat(mine.__file__).st_dev)"
    inside = site.run(*container.split(), sys.executable, "-c", script)
    plain = site.run(sys.executable, "-c", script)
    path, device = inside.split()
    assert path == str(site.env / "lib/python/site-packages/mine.py")
    assert int(device) != os.stat(path).st_dev, "through the mount"
    assert path == plain.split()[0]


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_run_in_a_container_is_in_place(site: Site, container: str) -> None:
    if shutil.which(container.split()[0]) is None:
        pytest.skip(f"{container.split()[0]} is not installed")
    run = [*COPPERFS, "run", "--in-place", "always", "--shared", str(site.home), "--"]
    script = "import mine, os; print(mine.__file__, os.stat(mine.__file__).st_dev)"
    command = [*container.split(), *run, sys.executable, "-c", script]
    done = subprocess.run(
        command if site.as_root else as_user(command),
        env=site.environ(), cwd=site.home / "writable",
        capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    path, device = done.stdout.split()
    assert path == str(site.env / "lib/python/site-packages/mine.py")
    assert int(device) != os.stat(path).st_dev, "through the mount"


def test_a_run_inside_a_run_shares_its_namespace(site: Site) -> None:
    module = f"{site.env}/lib/python/site-packages/mine.py"
    inner = " ".join([*COPPERFS, "run", "--in-place", "always", "--shared", str(site.home)])
    output = site.run("sh", "-c", f"cat {module}; {inner} -- sh -c 'cat {module}'")
    assert output == "VALUE = 'from the source'\n" * 2


def test_what_is_not_covered_goes_through_the_mount_all_the_same(site: Site) -> None:
    """A program of no environment, and a file that a variable names."""
    program, model = site.home / "app/solver", site.home / "models/model.bin"
    for each in (program, model):
        each.parent.mkdir()
        each.write_text(
            "#!/bin/sh\necho $0 $MODEL; cat $VIRTUAL_ENV/pyvenv.cfg >&2; stat -c %d $MODEL"
        )
        each.chmod(0o755)
    process = site.start(program, options=["--env", f"MODEL={model}"])
    output, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
    shown, named, device = output.split()
    assert shown.startswith("/sys/fs/fuse/connections/")
    assert shown.endswith(str(program))
    assert named.endswith(str(model))
    assert int(device) != model.stat().st_dev


def test_commands_from_outside_reach_the_mount(site: Site) -> None:
    process = site.start("sh", "-c", "echo $COPPERFS_MOUNTPOINT; exec sleep 60")
    assert process.stdout is not None
    where = process.stdout.readline().strip()
    assert not os.path.exists(where)

    def outside(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*COPPERFS, *words]
        return subprocess.run(
            command if site.as_root else as_user(command),
            capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S,
            env=site.environ(), cwd=site.home / "writable",
        )  # fmt: skip

    document = outside("stats", "--json", where)
    assert json.loads(document.stdout)["version"] == 1
    module = site.env / "lib/python/site-packages/mine.py"
    entered = outside("enter", "--mountpoint", where, "--", "stat", "-c", "%d %n", str(module))
    assert entered.returncode == 0, entered.stderr
    assert int(entered.stdout.split()[0]) != module.stat().st_dev
    assert outside("clear", where).returncode == 0
    examined = outside("doctor", "--json", where)
    checks = {each["name"]: each for each in json.loads(examined.stdout)["checks"]}
    assert checks["mounts"]["verdict"] == checks["peers"]["verdict"] == "ok", examined.stdout
    assert outside("umount", where).returncode == 0
    process.terminate()
    process.communicate(timeout=COMMAND_TIMEOUT_S)


def test_a_summary_says_what_was_covered_and_read(site: Site) -> None:
    process = site.start("cat", f"{site.env}/pyvenv.cfg", options=["--summary"])
    _, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert f"covered, and read-only for the command: {site.env}\n" in errors
    assert re.search(
        r"read through the mount by all runs of this node: \d+ B; 1 files and ", errors
    )


def test_a_command_that_reads_nothing_through_the_mount_is_reported(site: Site) -> None:
    process = site.start("true")
    _, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert errors.startswith("copperfs: nothing was read through the mount: name the filesystem")
    assert errors.count("\n") == 1


def test_what_is_mounted_outside_later_arrives_inside(source: Path) -> None:
    """As by an automounter."""
    site = Site(source, as_root=True)
    site.build()
    top = site.home / "top"
    (top / "later").mkdir(parents=True)
    with ExitStack() as stack:
        subprocess.run(["mount", "--bind", str(top), str(top)], check=True, timeout=60)
        unmount = ["umount", "--lazy", "--recursive", str(top)]
        stack.callback(lambda: subprocess.run(unmount, check=True, timeout=60))
        subprocess.run(["mount", "--make-shared", str(top)], check=True, timeout=60)
        wait = f"until [ -e {top}/later/file ]; do sleep 0.05; done; cat {top}/later/file"
        process = site.start("sh", "-c", f"cat $VIRTUAL_ENV/pyvenv.cfg; {wait}")
        stack.callback(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        mount = ["mount", "-t", "tmpfs", "none", str(top / "later")]
        subprocess.run(mount, check=True, timeout=COMMAND_TIMEOUT_S)
        (top / "later/file").write_text("mounted")
        output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert (output, errors) == ("mounted", "")


def test_a_mount_point_of_any_name_is_shown_by_one_that_is_plain(site: Site) -> None:
    named = site.home / "writable/.my mount, inside"
    words = ["sh", "-c", "cat $VIRTUAL_ENV/pyvenv.cfg >&2; echo $COPPERFS_MOUNTPOINT"]
    process = site.start(*words, options=["--mountpoint", named])
    output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert output == "/sys/fs/fuse/connections/my_mount__inside\n", errors


def test_a_directory_may_be_left_writable(site: Site) -> None:
    results = site.env / "results"
    results.mkdir()
    os.chown(results, USER, GROUP)
    script = "echo done > $VIRTUAL_ENV/results/it; touch $VIRTUAL_ENV/no || echo refused"
    process = site.start("sh", "-c", script, options=["--writable", results])
    output, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert output == "refused\n"
    assert (results / "it").read_text() == "done\n"


# ---- where it cannot be had ---------------------------------------------------------------------


def without_namespaces(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    """In a mount namespace whose owner may make no other."""
    closing = 'echo 0 > /proc/sys/user/max_mnt_namespaces; exec "$@"'
    limited = ["unshare", "-Urm", "sh", "-c", closing, "sh"]
    return subprocess.run(
        [*limited, *COPPERFS, "run", *words],
        capture_output=True,
        text=True,
        env=site.environ(),
        cwd="/",
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def closed(source: Path) -> Site:
    site = Site(source, as_root=True)
    site.build()
    for each in (site.home, *site.home.rglob("*")):  # inside there is one user
        os.chown(each, 0, 0, follow_symlinks=False)
    return site


def test_always_says_why_it_cannot_be_had(closed: Site) -> None:
    done = without_namespaces(closed, "--in-place", "always", "--shared", str(closed.home), "true")
    assert done.returncode == 125
    assert "--in-place always cannot be had: mount namespaces are closed here" in done.stderr


def test_auto_leads_variables_through_the_mount_instead(closed: Site) -> None:
    log = closed.home / "log"
    options = ["--in-place", "auto", "--shared", str(closed.home), "--log-file", str(log)]
    script = "import mine; print(mine.__file__)"
    done = without_namespaces(closed, *options, "--", sys.executable, "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    module = closed.env / "lib/python/site-packages/mine.py"
    found = re.fullmatch(r"(/tmp/copperfs-[^/]*)(/.*)\n", done.stdout)
    assert found is not None
    assert found[2] == str(module)
    assert not Path(found[1]).exists()
    assert "files are not shown in place: mount namespaces are closed here" in log.read_text()
