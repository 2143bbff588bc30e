"""``copperfs run``: a mount for the duration of a command, shared by all runs on the node."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from copperfs.daemon.run_processes import processes_with
from copperfs.launch.join_socket import message
from copperfs.launch.shared_mount_client import counter_name
from tests.bootstrap.helpers import clean_environment
from tests.bootstrap.mpis import Mpi
from tests.mount.helpers import (
    COMMAND_TIMEOUT_S,
    COPPERFS,
    copperfs,
    eventually,
    is_mounted,
    is_running,
    run,
)
from tests.mount.keepers import kill_with_keeper

RUNNERS = 12


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mnt"
    yield path
    if is_mounted(path):
        copperfs("umount", "--lazy", path)


@pytest.fixture
def start(source: Path, mountpoint: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [*COPPERFS, "run", "--source", source, "--mountpoint", mountpoint, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=clean_environment() | {"PYTHONUNBUFFERED": "1"} | (env or {}),
            )
        )
        return started[-1]

    yield begin
    for each in started:
        each.kill()
        each.communicate(timeout=COMMAND_TIMEOUT_S)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    return process.returncode, output, errors


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def daemon_at(mountpoint: Path) -> int:
    done = copperfs("stats", "--json", mountpoint)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["pid"])


Start = Callable[..., subprocess.Popen[str]]

# ---- one ----------------------------------------------------------------------------------------


def test_a_command_reads_its_environment_through_a_mount_that_is_gone_afterwards(
    start: Start, source: Path, mountpoint: Path
) -> None:
    (source / "lib").mkdir()
    (source / "lib/mine.py").write_text("")
    script = "import mine, os, sys; print(mine.__file__, os.environ['OWN']); sys.exit(7)"
    process = start(
        *("--env", f"OWN={source}/data"), "--", sys.executable, "-Bc", script,
        env={"PYTHONPATH": f"/elsewhere:{source}/lib"},
    )  # fmt: skip
    code, output, errors = ended(process)
    assert (code, errors) == (7, "")
    assert output.split() == [f"{mountpoint}/lib/mine.py", f"{mountpoint}/data"]
    assert not is_mounted(mountpoint)


def test_a_stranger_at_the_counter_is_nobody(start: Start, mountpoint: Path) -> None:
    """A peer that does not speak the protocol of a run is no user, and can have no process
    killed."""
    process = start("--", "sh", "-c", "echo up; exec sleep 60")
    assert says(process) == "up"
    daemon = daemon_at(mountpoint)
    token = b'"token": "%s"' % (b"0" * 32)
    for words in (
        *(b"", b"nonsense\n", b"[]\n", b"{}\n", b"x" * 100_000),
        *(b'{"settings": {}, "token": ""}\n', b'{"settings": 1, %s}\n' % token),
        b'{"settings": {}, %s}\n' % token,
    ):
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(counter_name(str(mountpoint)))
            with suppress(BrokenPipeError):
                other.sendall(words)
    assert process.poll() is None
    process.terminate()
    assert ended(process)[0] == 128 + signal.SIGTERM
    eventually(lambda: not is_running(daemon), "the daemon has ended")


def test_its_own_mount_point_is_made_and_removed(source: Path) -> None:
    show = ["sh", "-c", 'ls -d "$COPPERFS_MOUNTPOINT"']
    done = copperfs("run", "--source", source, "--", *show)
    assert done.returncode == 0, done.stderr
    found = Path(done.stdout.strip())
    assert re.fullmatch(rf"/tmp/copperfs-{os.getuid()}-job-[0-9a-f]{{8}}", str(found))
    eventually(lambda: not found.exists(), "the directory is removed")


exit_codes = pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        (["no-such-command"], 127, "copperfs: no-such-command cannot be started: No such file"),
        (["/etc/passwd"], 126, "copperfs: /etc/passwd cannot be started: Permission denied"),
        (["sh", "-c", "kill -USR1 $$"], 128 + signal.SIGUSR1, ""),
    ],
)


@exit_codes
def test_exit_codes_are_those_of_shells(
    start: Start, mountpoint: Path, command: list[str], code: int, sentence: str
) -> None:
    found, _, errors = ended(start("--", *command))
    assert found == code
    assert errors.startswith(sentence)
    assert not is_mounted(mountpoint)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--source", "/nonexistent"], "the source /nonexistent is not a directory"),
        (["--env", "HOME"], "--env HOME sets nothing; write --env NAME=VALUE"),
        (["--bootstrap", "mpi"], "copperfs run leaves MPI to its command"),
    ],
)
def test_failing_itself_is_125(start: Start, flags: list[str], sentence: str) -> None:
    code, output, errors = ended(start(*flags, "--", "echo", "ran"))
    assert (code, output) == (125, "")
    assert errors.startswith(f"copperfs: {sentence}")
    assert errors.count("\n") == 1


def test_a_signal_is_passed_on_and_the_mount_removed(start: Start, mountpoint: Path) -> None:
    process = start(
        "--", "sh", "-c", "trap 'echo ended; exit 3' TERM; echo up; sleep 60 >/dev/null 2>&1 & wait"
    )
    assert says(process) == "up"
    process.send_signal(signal.SIGTERM)
    code, output, _ = ended(process)
    assert (code, output) == (3, "ended\n")
    assert not is_mounted(mountpoint)


def test_sigterm_before_the_command_has_begun_leaves_nothing(
    start: Start, mountpoint: Path, tmp_path: Path
) -> None:
    # It waits for a second node that never comes.
    process = start("--nodes", "2", "--rendezvous", str(tmp_path / "meet"), "--", "true")
    eventually(lambda: any((tmp_path / "meet").glob("*")), "it waits for the other node")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 128 + signal.SIGTERM
    assert not is_mounted(mountpoint)


def test_what_goes_on_in_the_background_loses_the_mount(
    start: Start, source: Path, mountpoint: Path
) -> None:
    (source / "file").write_text("")
    held = 'cd "$COPPERFS_MOUNTPOINT" && (sleep 60 >/dev/null 2>&1 & echo $!)'
    code, output, errors = ended(start("--", "sh", "-c", held))
    try:
        assert (code, errors) == (0, "")
        assert not is_mounted(mountpoint)
        assert is_running(int(output)), "nobody was killed, so nothing was cleaned up"
    finally:
        os.kill(int(output), signal.SIGKILL)


# ---- killed -------------------------------------------------------------------------------------


def test_a_killed_run_leaves_no_mount_and_no_process(start: Start, mountpoint: Path) -> None:
    # The grandchild has a session of its own and shares only its environment with the run.
    script = "setsid sleep 600 >/dev/null 2>&1 & echo $! $$ $COPPERFS_RUN; wait"
    process = start("--", "sh", "-c", script)
    grandchild, child, token = says(process).split()
    daemon = daemon_at(mountpoint)
    os.kill(process.pid, signal.SIGKILL)
    for pid in (int(child), int(grandchild), daemon):
        eventually(lambda pid=pid: not is_running(pid), f"{pid} has ended")  # type: ignore[misc]
    assert not is_mounted(mountpoint)
    assert list(processes_with(token)) == []


def test_one_of_several_is_killed_and_the_others_go_on(
    start: Start, source: Path, mountpoint: Path
) -> None:
    (source / "file").write_text("still there\n")
    wait = 'echo up; while [ ! -e "$0" ]; do sleep 0.05; done; cat "$COPPERFS_MOUNTPOINT/file"'
    go = mountpoint.with_name("go")
    killed = start("--", "sh", "-c", wait, str(go))
    other = start("--", "sh", "-c", wait, str(go))
    assert says(killed) == says(other) == "up"
    daemon = daemon_at(mountpoint)
    killed.kill()
    killed.wait(COMMAND_TIMEOUT_S)
    go.touch()
    code, output, errors = ended(other)
    assert (code, output, errors) == (0, "still there\n", "")
    eventually(lambda: not is_running(daemon), "the daemon has ended")
    assert not is_mounted(mountpoint)


def test_a_killed_daemon_is_cleaned_up_after(start: Start, mountpoint: Path) -> None:
    process = start("--", "sh", "-c", "echo up; exec sleep 60")
    assert says(process) == "up"
    kill_with_keeper(daemon_at(mountpoint))
    process.send_signal(signal.SIGTERM)
    code, _, errors = ended(process)
    assert code == 128 + signal.SIGTERM
    assert errors == f"copperfs: the daemon of {mountpoint} had ended before the command did\n"
    assert not is_mounted(mountpoint)


def test_an_epilog_cleans_up_when_all_are_killed_at_once(
    start: Start, mountpoint: Path, source: Path
) -> None:
    process = start("--", "sh", "-c", "echo up; exec sleep 60")
    assert says(process) == "up"
    kill_with_keeper(daemon_at(mountpoint))
    process.kill()
    process.wait(COMMAND_TIMEOUT_S)
    assert is_mounted(mountpoint), "nobody was left to do it"
    done = copperfs("umount", "--stale", mountpoint.parent)
    assert done.returncode == 0, done.stderr
    assert f"unmounted {mountpoint}, whose daemon is gone\n" in done.stdout
    assert not is_mounted(mountpoint)
    done = copperfs("umount", "--stale", "--json", mountpoint.parent)
    assert json.loads(done.stdout) == {"version": 1, "unmounted": []}


# ---- several ------------------------------------------------------------------------------------


def test_twelve_share_one_daemon_from_the_first_to_the_last(
    start: Start, source: Path, mountpoint: Path
) -> None:
    for number in range(20):
        (source / f"file{number}").write_text("content\n")
    go = mountpoint.with_name("go")
    script = 'cat "$COPPERFS_MOUNTPOINT"/file* | wc -l; while [ ! -e "$0" ]; do sleep 0.1; done'
    processes = [start("--", "sh", "-c", script, str(go)) for _ in range(RUNNERS)]
    assert [says(each) for each in processes] == ["20"] * RUNNERS
    document = json.loads(copperfs("stats", "--json", mountpoint).stdout)
    assert document["source"]["open"] == 20, "each file once for all of them"
    daemon = document["pid"]
    go.touch()
    assert [ended(each)[0] for each in processes] == [0] * RUNNERS
    assert not is_mounted(mountpoint)
    eventually(lambda: not is_running(daemon), "the daemon has ended")


def test_a_rank_that_comes_late_finds_the_mount_of_one_that_is_done(
    start: Start, mountpoint: Path
) -> None:
    launcher = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    assert ended(start("--", "true", env=launcher))[0] == 0
    daemon = daemon_at(mountpoint)
    second = start("--", "sh", "-c", "echo up; exec sleep 60", env=launcher)
    assert says(second) == "up"
    assert daemon_at(mountpoint) == daemon
    second.terminate()
    ended(second)
    assert not is_mounted(mountpoint)
    eventually(lambda: not is_running(daemon), "the daemon has ended")


def test_processes_share_a_tier_of_the_size_that_the_first_one_found(
    start: Start, source: Path, mountpoint: Path, tmp_path: Path
) -> None:
    (source / "large").write_bytes(bytes(3 << 20))
    flags = ("--tier-dir", f"{tmp_path}/tier-%h", "--node-name", "n5", "--tree-max", "1MiB")
    first = start(*flags, "--", sys.executable, "-c", "import time; print('up'); time.sleep(60)")
    assert says(first) == "up"
    second = start(*flags, "--", "cat", f"{mountpoint}/large")
    code, output, errors = ended(second)
    assert (code, errors) == (0, "")
    assert output == "\0" * (3 << 20)
    assert (tmp_path / "tier-n5" / "lock").exists()
    first.terminate()
    ended(first)


# As in a cgroup with a lower limit.
IN_A_CGROUP = """if True:
    import sys
    from copperfs.cli import main
    from copperfs.launch import available_memory
    memory = available_memory.Memory(int(sys.argv.pop(1)), "a cgroup")
    available_memory.cgroup_limits = lambda root: [memory]
    sys.exit(main.main())
"""


def test_processes_with_other_limits_of_memory_share_one_daemon(source: Path) -> None:
    """As two steps of srun with a different ``--mem`` each."""
    script = 'echo "$COPPERFS_MOUNTPOINT"; read _'
    words = ["run", "--source", str(source)]
    mounts: list[str] = []
    started = []
    try:
        for limit, flags in ((800 << 20, []), (400 << 20, []), (400 << 20, ["--memory", "50MiB"])):
            command = [sys.executable, "-c", IN_A_CGROUP, str(limit), *words, *flags]
            process = subprocess.Popen(
                [*command, "--", "sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=clean_environment(),
            )
            started.append(process)
            mounts.append(says(process))
    finally:
        for process in started:
            process.communicate("\n", timeout=COMMAND_TIMEOUT_S)
    assert mounts[0] == mounts[1]
    assert mounts[2] not in ("", mounts[0]), "somebody gave it"
    assert not any(is_mounted(Path(each)) for each in mounts)


def test_who_wants_another_mount_is_told(start: Start, mountpoint: Path) -> None:
    first = start("--", "sh", "-c", "echo up; exec sleep 60")
    assert says(first) == "up"
    code, _, errors = ended(start("--tree-max", "1MiB", "--", "true"))
    assert code == 125
    assert f"{mountpoint} is in use by another copperfs run, with another tree-max" in errors
    first.terminate()
    ended(first)
    assert not is_mounted(mountpoint)


def test_all_are_told_why_there_is_no_mount(
    start: Start, source: Path, mountpoint: Path, tmp_path: Path
) -> None:
    flags = ["--nodes", "2", "--rendezvous", str(tmp_path / "meet"), "--launch-timeout", "2"]
    processes = [start(*flags, "--", "true") for _ in range(3)]
    for each in processes:
        code, _, errors = ended(each)
        assert code == 125
        assert "1 of 2 nodes" in errors, errors
    assert not is_mounted(mountpoint)


def test_nodes_meet_in_a_home_that_has_never_seen_copperfs(
    start: Start, mountpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    process = start(
        *("--nodes", "2", "--launch-timeout", "2", "--", "true"),
        env={"HOME": str(tmp_path / "home")},
    )
    code, _, errors = ended(process)
    assert code == 125
    assert "waiting for 1 of 2 nodes" in errors  # and not: cannot be made
    assert (tmp_path / "home/.copperfs").stat().st_mode & 0o777 == 0o700
    assert not is_mounted(mountpoint)


def test_a_directory_that_was_made_for_a_mount_that_failed_is_gone(
    source: Path, tmp_path: Path
) -> None:
    meet = tmp_path / "meet"
    job = f"failed{os.getpid()}"
    flags = ("--source", source, "--nodes", "2", "--rendezvous", meet, "--launch-timeout", "1")
    done = run([*COPPERFS, "run", *flags, "--", "true"], env={"SLURM_JOB_ID": job})
    assert done.returncode == 125
    assert list(Path("/tmp").glob(f"copperfs-*-slurm.{job}-*")) == []


@pytest.mark.parametrize(("launcher", "nodes"), [("srun", "2"), ("/usr/bin/mpirun", "2")])
def test_a_launcher_of_other_nodes_is_no_command(launcher: str, nodes: str) -> None:
    done = run(
        [*COPPERFS, "run", "--", launcher, "-n", "4", "true"], env={"SLURM_JOB_NUM_NODES": nodes}
    )
    assert done.returncode == 125
    name = os.path.basename(launcher)
    assert f"write: {name} [OPTIONS] copperfs run -- COMMAND" in done.stderr


# ---- further runs, by the join socket -----------------------------------------------------------

WAITS = 'echo up $$; while [ ! -e "$0" ]; do sleep 0.05; done'
PROGRAM = os.path.realpath(COPPERFS[0])


def program_of(process: subprocess.Popen[str]) -> str:
    """What the process of a run has become."""
    return os.readlink(f"/proc/{process.pid}/exe")


def test_a_further_run_needs_no_python(start: Start, mountpoint: Path) -> None:
    go = str(mountpoint.with_name("go"))
    first, second = (start("--", "sh", "-c", WAITS, go, rank) for rank in "01")
    assert says(first).startswith("up")
    assert says(second).startswith("up")
    became = [program_of(each) for each in (first, second)]
    assert became.count(PROGRAM) == 1, became
    Path(go).touch()
    assert [ended(each) for each in (first, second)] == [(0, "", "")] * 2
    assert not is_mounted(mountpoint)


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [("ANY", "other", True), ("PMI_RANK", "1", True), ("PYTHONPATH", "/other", False)],
)
def test_a_run_with_other_variables_finds_out_by_itself_what_to_do(
    start: Start, mountpoint: Path, name: str, value: str, same: bool
) -> None:
    go = str(mountpoint.with_name("go"))
    words = ("--", "sh", "-c", f"{WAITS}; echo ${name}", go)
    first = start(*words)
    assert says(first).startswith("up")
    second = start(*words, env={name: value})
    assert says(second).startswith("up")
    assert (program_of(second) == PROGRAM) is same
    Path(go).touch()
    assert ended(first)[0] == 0
    assert ended(second) == (0, f"{value}\n", "")
    assert not is_mounted(mountpoint)


def test_a_further_run_has_the_environment_of_the_first_and_a_token_of_its_own(
    start: Start, source: Path, mountpoint: Path
) -> None:
    script = "env | grep -E '^(OWN|PYTHONPATH|COPPERFS_.*)=' | sort; "
    words = ("--env", f"OWN={source}/data", "--", "sh", "-c", script + WAITS)
    go = str(mountpoint.with_name("go"))
    said = []
    processes = []
    for _ in range(2):
        process = start(*words, go, env={"PYTHONPATH": f"{source}/lib"})
        processes.append(process)
        said.append([says(process) for _ in range(5)])
    Path(go).touch()
    assert [ended(each)[0] for each in processes] == [0, 0]
    tokens = [next(line for line in lines if "COPPERFS_RUN" in line) for lines in said]
    assert tokens[0] != tokens[1]
    shown = [[line for line in lines[:4] if "COPPERFS_RUN" not in line] for lines in said]
    assert shown[0] == shown[1]
    assert shown[0] == [
        f"COPPERFS_MOUNTPOINT={mountpoint}", f"OWN={mountpoint}/data",
        f"PYTHONPATH={mountpoint}/lib",
    ]  # fmt: skip


@exit_codes
def test_exit_codes_of_further_runs_are_those_of_shells(
    start: Start, mountpoint: Path, command: list[str], code: int, sentence: str
) -> None:
    launcher = {"PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}
    for process in [start("--", *command, env=launcher) for _ in range(3)]:
        found, _, errors = ended(process)
        assert found == code
        assert errors.startswith(sentence)
    assert not is_mounted(mountpoint)


@pytest.fixture
def further(start: Start, mountpoint: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that has joined, beside the first."""
    go = mountpoint.with_name("go")
    script = (
        "trap 'echo ended; exit 3' TERM; echo up $$; while [ ! -e \"$0\" ]; do sleep 0.05; done"
    )
    first = start("--", "sh", "-c", script, str(go))
    says(first)
    second = start("--", "sh", "-c", script, str(go))
    assert program_of(second) == PROGRAM
    yield second
    go.touch()
    ended(first)
    ended(second)


def test_a_signal_is_passed_on_by_a_further_run(further: subprocess.Popen[str]) -> None:
    says(further)
    further.send_signal(signal.SIGTERM)
    assert ended(further)[:2] == (3, "ended\n")


def test_a_further_run_that_is_killed_takes_its_command_with_it(
    further: subprocess.Popen[str], mountpoint: Path
) -> None:
    child = int(says(further).split()[1])
    daemon = daemon_at(mountpoint)
    further.kill()
    eventually(lambda: not is_running(child), "the command has ended")
    assert is_running(daemon), "the first one goes on"


def test_a_further_run_whose_daemon_was_killed_says_so(
    further: subprocess.Popen[str], mountpoint: Path
) -> None:
    says(further)
    kill_with_keeper(daemon_at(mountpoint))
    further.send_signal(signal.SIGTERM)
    code, _, errors = ended(further)
    assert code == 3
    assert errors == f"copperfs: the daemon of {mountpoint} had ended before the command did\n"
    assert not is_mounted(mountpoint)


def test_a_further_run_whose_daemon_was_killed_leaves_the_mount_of_another(
    further: subprocess.Popen[str], start: Start, mountpoint: Path
) -> None:
    says(further)
    kill_with_keeper(daemon_at(mountpoint))
    another = start("--memory", "60MiB", "--", "sh", "-c", "echo up; exec sleep 60")
    assert says(another) == "up"
    further.send_signal(signal.SIGTERM)
    assert ended(further)[0] == 3
    assert is_mounted(mountpoint)
    assert daemon_at(mountpoint) > 0
    another.terminate()
    assert ended(another)[0] == 128 + signal.SIGTERM


def test_runs_with_very_many_arguments_share_a_mount(start: Start, mountpoint: Path) -> None:
    go = str(mountpoint.with_name("go"))
    many = [f"{number:0>100}" for number in range(12_000)]  # more than a line may have
    first, second = (start("--", "sh", "-c", f"{WAITS}; echo $#", go, *many) for _ in range(2))
    assert says(first).startswith("up")
    assert says(second).startswith("up")
    Path(go).touch()
    assert [ended(each) for each in (first, second)] == [(0, "12000\n", "")] * 2
    assert not is_mounted(mountpoint)


def test_ranks_have_the_environment_and_the_signals_of_their_launcher(
    source: Path, tmp_path: Path
) -> None:
    """Python sets a locale where there is none, and ignores signals for itself."""
    go = tmp_path / "go"
    show = "env | grep -c ^LC_ || true; grep SigIgn /proc/$$/status; " + WAITS
    run = [*COPPERFS, "run", "--source", source, "--mountpoint", tmp_path / "mnt", "--"]
    launcher = "import os, signal, sys; [signal.signal(n, signal.SIG_IGN) for n in (13, 17)];"
    launcher += "os.environ.pop('LC_CTYPE', None); os.execv(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-c", launcher, *map(str, run), "sh", "-c", f"{show}; exit 3", str(go)]
    environ = {name: value for name, value in clean_environment().items() if name[:2] != "LC"}
    environ.pop("LANG", None)
    ranks = [
        subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [[says(each), says(each)] for each in ranks]
    for each in ranks:
        assert says(each).startswith("up")
    go.touch()
    assert [ended(each)[0] for each in ranks] == [3, 3]
    assert said[0] == said[1]
    assert said[0][0] == "0"
    assert int(said[0][1].split()[1], 16) & 1 << 12 == 0, "SIGPIPE ends a command"


def test_a_further_run_whose_errors_nobody_reads_has_the_code_of_its_command(
    source: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    run = [*COPPERFS, "run", "--source", source, "--mountpoint", tmp_path / "mnt", "--summary"]
    words = [*map(str, run), "--", "sh", "-c", f"{WAITS}; exit 4", str(go)]
    first = subprocess.Popen(
        words, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert says(first).startswith("up")
    reader, writer = os.pipe()
    second = subprocess.Popen(
        words, env=clean_environment(), stdout=subprocess.PIPE, stderr=writer, text=True
    )
    os.close(writer)
    assert says(second).startswith("up")
    os.close(reader)
    go.touch()
    assert [ended(each)[0] for each in (first, second)] == [4, 4]


def test_a_limit_of_file_sizes_ends_no_run(source: Path, tmp_path: Path) -> None:
    run = [*COPPERFS, "run", "--source", source, "--mountpoint", tmp_path / "mnt", "--"]
    limited = f"ulimit -f 100; exec {' '.join(map(str, run))} sh -c 'echo ran'"
    done = subprocess.run(
        ["sh", "-c", limited], env=clean_environment(), capture_output=True, text=True,
        timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


def join_sockets(daemon: int) -> set[str]:
    """Names of this daemon's own: tests beside this one have daemons, too."""
    held = set[str]()
    for each in Path(f"/proc/{daemon}/fd").iterdir():
        with suppress(FileNotFoundError):
            held.add(os.readlink(each))
    with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
        lines = [line.split() for line in table if "@copperfs/join/" in line]
    return {"\0" + line[-1][1:] for line in lines if f"socket:[{line[6]}]" in held}


def test_a_stranger_at_the_join_socket_is_no_run(start: Start, mountpoint: Path) -> None:
    process = start("--", "sh", "-c", "echo up; exec sleep 60")
    assert says(process) == "up"
    daemon = daemon_at(mountpoint)
    (listener,) = join_sockets(daemon)
    token = b"0" * 32 + b"\0"
    for words in (
        *(b"", b"\0", b"nonsense", b"\xff" * 8, (3).to_bytes(4, "little") + b"1\0\0"),
        *(message("1", "x", "/", "1", "true"), message("1", "0" * 32, "/", "7", "true")),
        message("1", "0" * 32, "/", "1", "true", "HOME=/") + token,
    ):
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(listener)
            with suppress(BrokenPipeError):
                other.sendall(words)
    assert process.poll() is None
    assert is_running(daemon)
    process.terminate()
    assert ended(process)[0] == 128 + signal.SIGTERM
    eventually(lambda: not is_running(daemon), "the daemon has ended")


# ---- by launchers -------------------------------------------------------------------------------

ALLREDUCE = """if True:
    import os, sys
    from mpi4py import MPI
    import mine
    ranks = MPI.COMM_WORLD.allreduce(1)
    content = open(os.environ["COPPERFS_MOUNTPOINT"] + "/file").read()
    # Launchers may mix the lines of their ranks.
    with open(sys.argv[1] + f"/{MPI.COMM_WORLD.rank}", "w") as said:
        print(ranks, mine.__file__, content, file=said)
"""


def test_the_ranks_of_mpiexec_share_a_mount_and_speak_mpi(
    mpi: Mpi, source: Path, mountpoint: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    said.mkdir()
    (source / "mine.py").write_text("")
    (source / "file").write_text("content")
    done = subprocess.run(
        mpi.command(
            4, *COPPERFS, "run", "--source", source, "--mountpoint", mountpoint, "--",
            sys.executable, "-Bc", ALLREDUCE, said,
        ),
        env=clean_environment() | mpi.env | {"PYTHONPATH": f"{os.getcwd()}:{source}"},
        capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [(said / str(rank)).read_text() for rank in range(4)]
    assert lines == [f"4 {mountpoint}/mine.py content\n"] * 4
    assert not is_mounted(mountpoint)


def test_two_nodes_of_two_ranks_are_one_job(mpi: Mpi, source: Path, tmp_path: Path) -> None:
    """Two nodes that differ by their mount points, without the variables that tell how many ranks
    are on this one."""
    (source / "file").write_text("content")
    show = (
        'cat "$COPPERFS_MOUNTPOINT/file" && '
        'while [ $(ls "$0" | wc -l) -lt 2 ]; do sleep 0.05; done; '
        '[ $((RANK % 2)) = 1 ] || { "$@" stats --all --json "$COPPERFS_MOUNTPOINT" >"$0.$RANK" && '
        'mv "$0.$RANK" "$0/s$RANK"; }; '
        'while [ $(ls "$0" | wc -l) -lt 4 ]; do sleep 0.05; done'
    )
    seen = tmp_path / "seen"
    seen.mkdir()
    rank = (
        "RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; export RANK; node=$((RANK / 2)); "
        "unset OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS; "
        f'exec "$@" run --source {source} --mountpoint {tmp_path}/m$node --node-name n$node '
        f"--listen lo --nodes 2 --rendezvous {tmp_path}/meet --wait-all "
        f"-- sh -c 'touch {seen}/r$((RANK / 2)); {show}' {seen} \"$@\""
    )
    done = subprocess.run(
        mpi.command(4, "sh", "-c", rank, "rank", *COPPERFS),
        env=clean_environment() | mpi.env,
        capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "content" * 4
    for name in ("s0", "s2"):
        document = json.loads((seen / name).read_text())
        assert (document["nodes"], document["roster"]) == (2, 2)
        assert document["total"]["source"]["open"] == 1, "read once for both"
    assert not any(is_mounted(tmp_path / f"m{node}") for node in range(2))


def test_a_killed_job_leaves_nothing(mpi: Mpi, source: Path, mountpoint: Path) -> None:
    launcher = subprocess.Popen(
        mpi.command(
            4, *COPPERFS, "run", "--source", source, "--mountpoint", mountpoint, "--",
            "sh", "-c", "echo $COPPERFS_RUN; exec sleep 600",
        ),
        env=clean_environment() | mpi.env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert launcher.stdout is not None
    tokens = [launcher.stdout.readline().strip() for _ in range(4)]
    daemon = daemon_at(mountpoint)
    launcher.kill()
    launcher.communicate(timeout=COMMAND_TIMEOUT_S)
    eventually(lambda: not is_running(daemon), "the daemon has ended", 30)
    assert not is_mounted(mountpoint)
    assert [pid for token in tokens for pid in processes_with(token)] == []
