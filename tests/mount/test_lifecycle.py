"""Lifecycle: from mounting to unmounting, by any cause, and the messages that users get
on the way."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from copperfs.config.settings import Settings
from copperfs.fuse.daemon_start import starting_daemon
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.fuse.mounting import unmount
from copperfs.model.errors import MountError
from tests.mount import helpers
from tests.mount.conftest import Mounter
from tests.mount.helpers import (
    COMMAND_TIMEOUT_S,
    COPPERFS,
    NOBODY,
    PROJECT,
    Mount,
    bind_mounted,
    copperfs,
    device_of,
    errno_of,
    eventually,
    is_mounted,
    is_running,
    name_of,
    namespaces_with,
    run,
    start_python,
    where_it_stands,
)
from tests.mount.keepers import kill_with_keeper
from tests.patience import PATIENCE
from tests.standin import StandIn

# The errors of promises.md: to requests under way, and to later ones.
UNDER_WAY, LATER = "ECONNABORTED", "ENOTCONN"
GONE = {UNDER_WAY, LATER}


def wait_for_end(pid: int) -> None:
    eventually(lambda: not is_running(pid), "the daemon ended")


# ---- mounting ------------------------------------------------------------------------------------


def test_mount_returns_only_when_the_mount_answers(source: Path, mounted: Mounter) -> None:
    (source / "file").write_text("content")
    for _ in range(5):
        mount = mounted()
        assert (mount / "file").read_text() == "content"  # the very first access
        assert mount.umount().returncode == 0
        assert not is_mounted(mount.mountpoint)
        assert not is_running(mount.pid), "umount returns when the daemon has ended"


def test_the_daemon_keeps_nothing_of_who_started_it(source: Path, mounted: Mounter) -> None:
    mount = mounted()
    assert os.readlink(f"/proc/{mount.pid}/cwd") == "/"
    assert os.getsid(mount.pid) == mount.pid
    for fd in (0, 1):
        assert os.readlink(f"/proc/{mount.pid}/fd/{fd}") == "/dev/null"


def test_a_core_dump_of_the_daemon_would_hold_no_memory(mounted: Mounter) -> None:
    """``test_core_dump.py`` has a real node dump."""
    pid = mounted().pid
    assert int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16) == 0x10


def test_an_end_leaves_no_error_in_the_log(source: Path, mounted: Mounter) -> None:
    (source / "file").write_text("content")
    mount = mounted()
    assert (mount / "file").read_text() == "content"
    assert mount.umount().returncode == 0
    log = mount.log.read_text()
    assert "was unmounted" in log
    assert "ERROR" not in log, log
    assert "Traceback" not in log, log


def test_mounting_twice_is_refused(source: Path, mounted: Mounter) -> None:
    mount = mounted()
    done = copperfs("mount", mount.mountpoint, "--source", source)
    assert done.returncode == 4
    assert "is mounted already" in done.stderr
    assert f"copperfs umount {mount.mountpoint}" in done.stderr
    assert os.listdir(mount.mountpoint) == []


def test_what_cannot_be_mounted_is_said_in_one_sentence(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "mnt").mkdir()
    cases: dict[str, list[str | Path]] = {
        "is not a directory; make it with": [tmp_path / "absent", "--source", source],
        f"{tmp_path / 'file'} is not a directory": [tmp_path / "file", "--source", source],
        "the source": [tmp_path / "mnt", "--source", tmp_path / "absent"],
        "cannot show itself": [source, "--source", source],
        "cannot be written": [tmp_path / "mnt", "--source", source, "--log-file", "/absent/log"],
        "is not a size": [tmp_path / "mnt", "--memory", "much"],
    }
    for sentence, arguments in cases.items():
        done = copperfs("mount", *arguments)
        is_usage = "--memory" in arguments
        assert done.returncode == (2 if is_usage else 4), arguments
        assert sentence in done.stderr, arguments
        assert "Traceback" not in done.stderr
        assert is_usage or done.stderr.count("\n") == 1
    assert not is_mounted(tmp_path / "mnt")


def test_a_mount_point_with_odd_characters_works(source: Path, tmp_path: Path) -> None:
    (source / "file").write_text("content")
    for name in ("with space", "comma,backslash\\", "новый", "tab\there"):
        with Mount(source, tmp_path / name) as mount:
            assert (mount / "file").read_text() == "content"
            assert mount.stats()["version"] == 1
        assert not os.path.ismount(tmp_path / name)


def test_a_mount_point_may_be_relative_or_reached_through_a_link(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "mnt").mkdir()
    (tmp_path / "link").symlink_to("real")
    (source / "file").write_text("content")
    command = [*COPPERFS, "mount", "link/mnt", "--source", "source"]
    assert run(command, cwd=tmp_path).returncode == 0
    try:
        assert (tmp_path / "real/mnt/file").read_text() == "content"
    finally:
        done = run([*COPPERFS, "umount", "link/mnt"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not is_mounted(tmp_path / "real" / "mnt")


def test_a_source_that_hangs_at_mounting_can_be_given_up(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    with StandIn(source) as standin:
        standin.hang("**")
        mounting = subprocess.Popen(
            [*COPPERFS, "mount", tmp_path / "mnt", "--source", standin.mountpoint],
            stderr=subprocess.PIPE,
        )
        try:
            standin.wait_for_hanging(1)
            mounting.send_signal(signal.SIGINT)
            eventually(lambda: mounting.poll() is not None, "the command ended")
            assert mounting.returncode != 0
        finally:
            standin.heal()
            mounting.kill()
            mounting.communicate(timeout=10)
        eventually(lambda: not is_mounted(tmp_path / "mnt"), "nothing is mounted")


def test_a_daemon_whose_command_is_killed_while_it_starts_leaves_no_mount(
    source: Path, tmp_path: Path
) -> None:
    """No command would ever unmount it."""
    (tmp_path / "mnt").mkdir()
    log = tmp_path / "log"
    settings = Settings(
        mountpoint=str(tmp_path / "mnt"),
        source=str(source),
        memory_bytes=64 << 20,
        log_file=str(log),
        log_level="info",
    )
    with starting_daemon(settings, "null") as daemon:
        daemon.channel.close()  # as at the end of a process
        assert daemon.process.wait(COMMAND_TIMEOUT_S) == 1
    assert "was killed meanwhile: unmounting" in log.read_text()
    assert not is_mounted(tmp_path / "mnt")


# ---- unmounting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts(source: Path, mounted: Mounter, number: signal.Signals) -> None:
    (source / "file").touch()
    mount = mounted()
    os.listdir(mount.mountpoint)
    os.kill(mount.pid, number)
    eventually(lambda: not is_running(mount.pid), "the daemon ended")
    assert not is_mounted(mount.mountpoint)


def test_a_daemon_with_a_log_begins_a_new_one_at_sighup(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(b"content")
    mount = mounted()
    rotated = mount.log.with_suffix(".1")
    mount.log.rename(rotated)
    os.kill(mount.pid, signal.SIGHUP)
    eventually(mount.log.exists, "a new log is begun")
    eventually(lambda: "SIGHUP: the log" in mount.log.read_text(), "and says why")
    assert (mount / "file").read_bytes() == b"content"
    assert mount.umount().returncode == 0
    eventually(lambda: not is_running(mount.pid), "the daemon ended")
    assert "is mounted at" in rotated.read_text()
    assert "was unmounted" in mount.log.read_text()


@pytest.mark.parametrize("foreground", [False, True])
def test_sighup_unmounts_where_no_log_is_rotated(
    source: Path, tmp_path: Path, foreground: bool
) -> None:
    """A terminal hangs up; or the daemon has no log."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    command = [*COPPERFS, "mount", mountpoint, "--source", source]
    if foreground:
        flags = ("--foreground", "--log-file", tmp_path / "log")
        daemon = subprocess.Popen([*map(str, command), *map(str, flags)], stderr=subprocess.DEVNULL)
        eventually(lambda: is_mounted(mountpoint), "it is mounted")
        daemon.send_signal(signal.SIGHUP)
        assert daemon.wait(COMMAND_TIMEOUT_S) == 0
    else:
        assert copperfs("mount", mountpoint, "--source", source).returncode == 0
        pid = int(json.loads(copperfs("stats", "--json", mountpoint).stdout)["pid"])
        os.kill(pid, signal.SIGHUP)
        eventually(lambda: not is_running(pid), "the daemon ended")
    assert not is_mounted(mountpoint)


def test_a_log_that_somebody_else_has_prepared_is_not_written_to(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "mnt").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "log").symlink_to(tmp_path / "precious")
    for flags in ((), ("--foreground",)):
        arguments = ("--source", source, "--log-file", tmp_path / "log", *flags)
        done = copperfs("mount", tmp_path / "mnt", *arguments)
        why = "cannot be written: it is a symbolic link"
        assert (done.returncode, done.stderr) == (4, f"copperfs: {tmp_path}/log {why}\n")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not is_mounted(tmp_path / "mnt")


def test_two_mounts_of_one_command_line_have_logs_of_their_own(
    source: Path, tmp_path: Path
) -> None:
    logs = tmp_path / "log-%u-%h-%m"
    for name in ("one", "other"):
        mountpoint = tmp_path / name
        mountpoint.mkdir()
        done = copperfs("mount", mountpoint, "--source", source, "--log-file", logs)
        assert done.returncode == 0, done.stderr
        assert copperfs("umount", mountpoint).returncode == 0
    found = sorted(each.name for each in tmp_path.glob("log-*"))
    assert len(found) == 2
    assert found[0].endswith("-one")
    assert found[1].endswith("-other")


def test_a_mount_in_use_is_not_unmounted_unless_lazily(source: Path, mounted: Mounter) -> None:
    (source / "file").write_text("content")
    mount = mounted()
    with (mount / "file").open() as held:
        done = mount.umount()
        assert done.returncode == 4
        assert "is in use; end what uses it, or unmount with --lazy" in done.stderr
        assert (mount / "file").read_text() == "content"
        assert mount.umount("--lazy").returncode == 0
        assert not is_mounted(mount.mountpoint)
        assert held.read() == "content", "who uses it may go on"
    eventually(lambda: not is_running(mount.pid), "the daemon ended with its last user")


def test_a_signal_ends_a_mount_in_use_as_well(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(b"content")
    mount = mounted()
    held = os.open(mount / "file", os.O_RDONLY)
    os.kill(mount.pid, signal.SIGTERM)
    eventually(lambda: not is_running(mount.pid), "the daemon ended")
    assert not is_mounted(mount.mountpoint)
    assert name_of(errno_of(lambda: os.read(held, 10))) == LATER
    with contextlib.suppress(OSError):  # closes it; the error says that no daemon is left
        os.close(held)


def test_unmounting_what_is_not_ours_is_refused(source: Path, tmp_path: Path) -> None:
    done = copperfs("umount", source)
    assert (done.returncode, done.stderr) == (4, f"copperfs: {source} is not mounted\n")
    with bind_mounted(source, tmp_path / "bind"):
        done = copperfs("umount", tmp_path / "bind")
        assert done.returncode == 4
        assert "not one of copperfs" in done.stderr
        assert is_mounted(tmp_path / "bind")


@pytest.mark.skipif(os.geteuid() != 0, reason="others unmount by fusermount3, which looks itself")
@pytest.mark.parametrize("lazy", [False, True])
def test_root_unmounts_nothing_through_a_link(source: Path, tmp_path: Path, lazy: bool) -> None:
    """Otherwise the owner of a dead mount could have the next ``umount --stale`` unmount
    anything."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with bind_mounted(source, tmp_path / "theirs/mnt"):
        with pytest.raises(MountError, match="cannot be unmounted: Not a directory"):
            unmount(str(tmp_path / "link/mnt"), lazy=lazy)
        assert is_mounted(tmp_path / "theirs/mnt")


def test_told_to_end_as_soon_as_it_is_mounted_it_leaves_nothing(
    source: Path, tmp_path: Path
) -> None:
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    flags = ("--source", source, "--foreground")
    daemon = subprocess.Popen([*COPPERFS, "mount", mountpoint, *flags], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + COMMAND_TIMEOUT_S
        while not is_mounted(mountpoint) and time.monotonic() < until:
            pass  # no pause: the test is about the first milliseconds
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(COMMAND_TIMEOUT_S) == 0
        assert not is_mounted(mountpoint)
    finally:
        daemon.kill()
        if is_mounted(mountpoint):
            copperfs("umount", "--lazy", mountpoint)


def test_in_the_foreground_it_stays_until_interrupted(source: Path, tmp_path: Path) -> None:
    (source / "file").write_text("content")
    (tmp_path / "mnt").mkdir()
    foreground = subprocess.Popen(
        [*COPPERFS, "mount", tmp_path / "mnt", "--source", source, "--foreground"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually((tmp_path / "mnt" / "file").exists, "it is mounted")
        assert foreground.poll() is None
    finally:
        foreground.send_signal(signal.SIGINT)
        _, said = foreground.communicate(timeout=20)
    assert "is mounted at" in said
    assert "Traceback" not in said
    assert foreground.returncode == 0
    assert not is_mounted(tmp_path / "mnt")


# ---- a daemon that is killed ---------------------------------------------------------------------

READER = """if True:
    import errno, os, sys
    print("reading")
    try:
        while True:
            for name in sys.argv[2:]:
                fd = os.open(os.path.join(sys.argv[1], name), os.O_RDONLY | os.O_DIRECT)
                try:
                    while os.read(fd, 1 << 20):
                        pass
                finally:
                    os.close(fd)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def test_when_the_daemon_is_killed_readers_are_told_at_once_and_umount_cleans_up(
    source: Path, mounted: Mounter
) -> None:
    for name in "abc":
        (source / name).write_bytes(os.urandom(3 << 20))
    mount = mounted()
    readers = [start_python(READER, mount.mountpoint, *"abc") for _ in range(4)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
    eventually(lambda: mount.stats()["bytes"]["from_memory"] > 20 << 20, "they are at it")
    mount.kill()
    for reader in readers:
        said, _ = reader.communicate(timeout=5 * PATIENCE)
        assert said.strip() in GONE
    assert name_of(errno_of(lambda: os.statvfs(mount.mountpoint))) == LATER
    done = copperfs("stats", mount.mountpoint)
    assert done.returncode == 5
    assert f"copperfs umount {mount.mountpoint}" in done.stderr
    assert mount.umount().returncode == 0
    assert not is_mounted(mount.mountpoint)


def test_a_reader_that_waits_for_the_source_is_told_when_the_daemon_is_killed(
    source: Path, tmp_path: Path
) -> None:
    (source / "file").write_bytes(b"content")
    with StandIn(source) as standin, Mount(standin.mountpoint, tmp_path / "mnt") as mount:
        os.lstat(mount / "file")
        standin.hang("file", ops=["read"])
        outcome: list[int | None] = []
        reader = threading.Thread(
            target=lambda: outcome.append(errno_of((mount / "file").read_bytes))
        )
        reader.start()
        standin.wait_for_hanging(1)
        kill_with_keeper(mount.pid)
        # a thread hangs in the source, so that the process cannot end yet; its descriptors close
        # with it
        standin.heal()
        reader.join(10)
        assert name_of(outcome[0]) in GONE


WAITING = """if True:
    import ctypes, errno, mmap, os, sys
    how, path = sys.argv[1:]
    def read(flags):
        fd = os.open(path, os.O_RDONLY | flags)
        with mmap.mmap(-1, 4096) as page:
            os.preadv(fd, [page], 0)
    ways = {
        "stat": lambda: os.stat(path + "-other"),
        "list": lambda: os.listdir(os.path.dirname(path)),
        "read": lambda: read(0),
        "read past the page cache": lambda: read(os.O_DIRECT),
    }
    print("begins", flush=True)
    try:
        ways[how]()
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize(
    ("how", "hangs", "told"),
    [
        ("stat", "closed", {UNDER_WAY, LATER}),
        ("list", "closed", {UNDER_WAY}),
        ("read", "open/file", {UNDER_WAY, LATER}),
        ("read past the page cache", "open/file", {UNDER_WAY}),
    ],
)
def test_who_waits_when_the_daemon_is_killed_is_told_what_is_promised(
    source: Path, tmp_path: Path, how: str, hangs: str, told: set[str]
) -> None:
    """Where both are possible the kernel asks again by itself."""
    for name in ("open", "closed"):
        (source / name).mkdir()
        (source / name / "file").write_bytes(b"content")
    with StandIn(source) as standin, Mount(standin.mountpoint, tmp_path / "mnt") as mount:
        path = mount / hangs / "file" if hangs == "closed" else mount / hangs
        os.stat(mount / "open" / "file")
        os.listdir(mount.mountpoint)
        standin.hang(f"{hangs}/**" if hangs == "closed" else hangs)
        standin.hang(hangs)
        waits = start_python(WAITING, how, path)
        standin.wait_for_hanging(1)
        kill_with_keeper(mount.pid)
        standin.heal()
        said, _ = waits.communicate(timeout=20 * PATIENCE)
        assert said.split()[0] == "begins"
        assert said.split()[1] in told
        assert name_of(errno_of((mount / "not looked at before").stat)) == LATER
        assert name_of(errno_of(lambda: os.statvfs(mount.mountpoint))) == LATER


def test_mounting_over_what_a_killed_daemon_left_cleans_it_up(
    source: Path, mounted: Mounter
) -> None:
    (source / "file").write_text("content")
    mount = mounted()
    held = os.open(mount / "file", os.O_RDONLY)  # busy, too
    mount.kill()
    assert is_mounted(mount.mountpoint)
    mount.start()
    assert (mount / "file").read_text() == "content"
    with contextlib.suppress(OSError):  # closes it; the error says that no daemon is left
        os.close(held)
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    assert sum(f" {mount.mountpoint} " in line for line in table) == 1


def test_a_stopped_daemon_does_not_hang_the_commands(source: Path, mounted: Mounter) -> None:
    mount = mounted()
    os.kill(mount.pid, signal.SIGSTOP)
    try:
        done = copperfs("mount", mount.mountpoint, "--source", source, timeout_s=30)
        assert done.returncode == 4
        assert "does not answer" in done.stderr
        assert f"copperfs umount --lazy {mount.mountpoint}" in done.stderr
        done = copperfs("umount", "--lazy", mount.mountpoint, timeout_s=30)
        assert done.returncode == 0, done.stderr
        assert not is_mounted(mount.mountpoint)
    finally:
        os.kill(mount.pid, signal.SIGCONT)
    eventually(lambda: not is_running(mount.pid), "the daemon ended")


# ---- an ordinary user ----------------------------------------------------------------------------

# The interpreter may lie in root's home directory. In a mount namespace of the test's own, a
# directory that others may enter replaces it, and /dev/fuse is open to all, as on Debian.
AS_ORDINARY_USER = """set -eu
prefix=$1 stash=$2 user=$3 closed=$4
shift 4
if [ -n "$closed" ]; then
    mount --bind "$prefix" "$stash"
    mount -t tmpfs -o mode=755 none "$closed"
    mkdir -p "$prefix"
    mount --bind "$stash" "$prefix"
fi
mknod "$stash.fuse" c 10 229
chmod 666 "$stash.fuse"
mount --bind "$stash.fuse" /dev/fuse
exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
"""

SESSION = """set -u
copperfs() { "$1" -P -m copperfs.cli.main "${@:2}"; }
python=$1 source=$2 mnt=$3
id -u
copperfs "$python" mount "$mnt" --source "$source" --log-file "$mnt.log" || exit 1
cat "$mnt/file"
cat "$mnt/private" 2>&1 | grep -o "Permission denied"
grep " $mnt " /proc/self/mountinfo | grep -o "user_id=[0-9]*"
copperfs "$python" stats "$mnt" --json | grep -o '"epoch": 1'
copperfs "$python" clear "$mnt" | grep -o "epoch 2"
for i in $(seq 20); do cat "$mnt/large" | cmp - "$source/large" && echo same; done | sort -u
copperfs "$python" umount "$mnt" || exit 1
grep -c " $mnt " /proc/self/mountinfo
copperfs "$python" mount "$mnt" --source "$source" --allow-other 2>&1 | grep -o user_allow_other
copperfs "$python" mount /usr --source "$source" 2>&1 | grep -o "is not yours"
copperfs "$python" mount "$mnt" --source "$source"
pid=$(copperfs "$python" stats "$mnt" --json | sed -n 's/.*"pid": \\([0-9]*\\).*/\\1/p')
kill -9 "$pid"
while [ -e "/proc/$pid/exe" ]; do sleep 0.05; done
copperfs "$python" umount "$mnt" && echo cleaned
grep -c " $mnt " /proc/self/mountinfo
"""


def test_an_ordinary_user_mounts_through_fusermount3(source: Path, tmp_path: Path) -> None:
    (source / "file").write_text("content\n")
    (source / "private").write_text("of root")
    (source / "private").chmod(0o600)
    (source / "large").write_bytes(os.urandom(5 << 20))
    home = tmp_path / "home"
    (home / "mnt").mkdir(parents=True)
    for path in (home, home / "mnt"):
        os.chown(path, NOBODY, NOBODY)
    (tmp_path / "stash").mkdir()
    prefix = Path(sys.base_prefix)
    closed = [
        each
        for each in [*reversed(prefix.parents), prefix]
        if not each.stat().st_mode & 0o001 and each != Path("/")
    ]
    (tmp_path / "as-user.sh").write_text(AS_ORDINARY_USER)
    (tmp_path / "session.sh").write_text(SESSION)
    done = run(
        [
            "unshare", "--mount", "--propagation", "private",
            "sh", tmp_path / "as-user.sh", prefix, tmp_path / "stash", str(NOBODY),
            closed[0] if closed else "",
            "bash", tmp_path / "session.sh", sys.executable, source, home / "mnt",
        ],
        env={"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=PROJECT,
    )  # fmt: skip
    allowed_for_all = "user_allow_other\n" in Path("/etc/fuse.conf").read_text().splitlines(True)
    assert not allowed_for_all, "this test is for the default configuration of fuse3"
    assert done.stdout.splitlines() == [
        str(NOBODY), "content", "Permission denied", f"user_id={NOBODY}", '"epoch": 1', "epoch 2",
        "same", "0", "user_allow_other", "is not yours", "cleaned", "0",
    ], done.stdout + done.stderr  # fmt: skip


# ---- nothing grows -------------------------------------------------------------------------------


def open_files_and_threads(pid: int) -> tuple[int, int]:
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


# A pool starts a thread when all others are busy, which may be late. There are fewer threads than
# uses, so a leak of one per use, or per third use, is found.
USES, POOLS = 40, 12


def test_descriptors_and_threads_do_not_grow_with_use(source: Path, mounted: Mounter) -> None:
    (source / "directory").mkdir()
    for number in range(50):
        (source / "directory" / f"{number}").write_bytes(b"%d" % number)
        (source / f"large-{number}").write_bytes(bytes(200_000))
    mount = mounted("--tree-max", "100KiB")

    def use() -> None:
        for path in mount.mountpoint.rglob("*"):
            if path.is_file():
                path.read_bytes()
        errno_of((mount / "absent").lstat)
        for request in (IoctlRequest.STATISTICS, IoctlRequest.CLEAR):  # as stats and clear ask
            ask_mount(str(mount.mountpoint), request)

    for _ in range(3):
        use()
    before = open_files_and_threads(mount.pid)
    for _ in range(USES):
        use()
    eventually(
        lambda: all(
            now <= then + POOLS
            for now, then in zip(open_files_and_threads(mount.pid), before, strict=True)
        ),
        lambda: f"back to {before}, now {open_files_and_threads(mount.pid)}",
    )


def test_a_removed_and_recreated_source_directory_does_not_end_the_daemon(
    source: Path, mounted: Mounter
) -> None:
    (source / "below").mkdir()
    mount = mounted(of=source / "below")
    shutil.rmtree(source / "below")
    mount.clear()
    assert errno_of(lambda: os.listdir(mount.mountpoint)) == errno.ESTALE
    assert is_running(mount.pid)


def test_daemon_serves_those_who_copied_its_mount_and_ends_with_them(
    source: Path, tmp_path: Path
) -> None:
    (source / "file").write_bytes(b"content")
    mount = Mount(source, tmp_path / "mnt")
    mount.start()
    device = device_of(mount.mountpoint)
    script = "print('there', flush=True); input(); print(open('{}').read())"
    command = [sys.executable, "-u", "-c", script.format(mount / "file")]
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as container:  # fmt: skip
        assert container.stdout is not None
        assert container.stdout.readline() == "there\n"
        subprocess.run(["umount", mount.mountpoint], check=True, timeout=30)
        assert [each for each in namespaces_with(device) if f"process {container.pid} " in each]
        assert is_running(mount.pid)
        assert "fuse_dev_do_read" in where_it_stands(mount.pid)
        said, _ = container.communicate("\n", timeout=30)
    assert said == "content\n"
    eventually(lambda: not is_running(mount.pid), "the daemon has ended")
    mount.remove()


def test_daemon_that_outlives_its_mount_fails_the_test_and_says_where_it_stands(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helpers, "namespaces_with", lambda _: [])  # others on this machine
    mount = Mount(source, tmp_path / "mnt")
    mount.start()
    with pytest.raises(AssertionError, match=r"outlived its mount by [\d.]+ s:\nthread \d+"):
        mount.end_outliving()
    mount.remove()
