"""A mount shows what a real filesystem shows: every read works, every write is refused."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.conftest import Mounter
from tests.mount.helpers import (
    NOBODY,
    Mount,
    bind_mounted,
    copperfs,
    errno_of,
    eventually,
    name_of,
    python,
    run,
)

ATTRIBUTES = ("mode", "nlink", "uid", "gid", "size", "blocks", "mtime_ns", "ctime_ns", "rdev")


def shown(path: Path | str | bytes) -> dict[str, int]:
    status = os.lstat(path)
    return {name: getattr(status, f"st_{name}") for name in ATTRIBUTES}


# ---- names and directories -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_a_directory_of_any_size_lists_its_names_and_finds_each(
    source: Path, mounted: Mounter, count: int
) -> None:
    (source / "many").mkdir()
    for number in range(count):
        (source / "many" / f"name-{number:05}").touch()
    # 10,000 is more than the default listing-max: each name is looked up by itself
    mount = mounted()
    for _ in ("cold", "warm"):
        assert sorted(os.listdir(mount / "many")) == sorted(os.listdir(source / "many"))
        for number in range(0, count, 999):
            assert shown(mount / f"many/name-{number:05}") == shown(
                source / f"many/name-{number:05}"
            )
        assert errno_of((mount / "many/absent").lstat) == errno.ENOENT


@pytest.mark.parametrize("listing_max", ["10", "100"])
def test_a_directory_above_listing_max_equals_one_below(
    source: Path, mounted: Mounter, listing_max: str
) -> None:
    for number in range(50):
        (source / f"{number}").write_text(f"content {number}")
    mount = mounted("--listing-max", listing_max)
    assert errno_of((mount / "absent").lstat) == errno.ENOENT
    assert sorted(os.listdir(mount.mountpoint)) == sorted(os.listdir(source))
    for number in range(50):
        assert shown(mount / f"{number}") == shown(source / f"{number}")
        assert (mount / f"{number}").read_text() == f"content {number}"
    assert errno_of((mount / "absent").lstat) == errno.ENOENT


def test_a_directory_can_be_read_from_any_place_that_telldir_named(
    source: Path, mounted: Mounter
) -> None:
    for number in range(3000):
        (source / f"{number:04}").touch()
    mount = mounted()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long
    for function in (libc.readdir, libc.telldir, libc.closedir, libc.rewinddir):
        function.argtypes = [ctypes.c_void_p]
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]

    def next_name() -> bytes | None:
        # struct dirent of x86-64 and aarch64: the name is behind 19 bytes
        entry = libc.readdir(directory)
        return ctypes.string_at(entry + 19) if entry else None

    directory = libc.opendir(os.fsencode(mount.mountpoint))
    places: list[tuple[int, bytes]] = []
    while True:
        place = libc.telldir(directory)
        name = next_name()
        if name is None:
            break
        places.append((place, name))
    assert {name for _, name in places} == {b".", b".."} | {
        os.fsencode(each) for each in os.listdir(source)
    }
    for place, name in [places[-1], places[0], places[1500], places[2], places[2999]]:
        libc.seekdir(directory, place)
        assert next_name() == name
    libc.rewinddir(directory)
    assert next_name() == places[0][1]
    libc.closedir(directory)


def test_entry_types_and_inode_numbers_in_a_listing_are_those_of_the_entries(
    source: Path, mounted: Mounter
) -> None:
    (source / "file").touch()
    (source / "directory").mkdir()
    (source / "link").symlink_to("file")
    os.mkfifo(source / "fifo")
    mount = mounted()
    entries = list(os.scandir(mount.mountpoint))
    assert sorted(each.name for each in entries) == ["directory", "fifo", "file", "link"]
    for entry in entries:
        assert entry.inode() == entry.stat(follow_symlinks=False).st_ino, entry.name
        status = os.lstat(source / entry.name)
        assert entry.is_dir(follow_symlinks=False) == stat.S_ISDIR(status.st_mode)
        assert entry.is_file(follow_symlinks=False) == stat.S_ISREG(status.st_mode)
        assert entry.is_symlink() == stat.S_ISLNK(status.st_mode)


def test_names_need_not_be_utf8_and_may_have_255_bytes(source: Path, mounted: Mounter) -> None:
    names = [b"caf\xe9", b"\xff\xfe", b"new\nline", b"back\\slash", b" ", b"x" * 255, "ü".encode()]
    root = os.fsencode(source)
    for name in names:
        with open(os.path.join(root, name), "wb") as file:
            file.write(name)
    mount = os.fsencode(mounted().mountpoint)
    assert sorted(os.listdir(mount)) == sorted(names)
    for name in names:
        with open(os.path.join(mount, name), "rb") as file:
            assert file.read() == name
    code = errno_of(lambda: os.lstat(os.path.join(mount, b"x" * 256)))
    assert name_of(code) == "ENAMETOOLONG"


def test_a_path_of_4095_bytes_works(source: Path, mounted: Mounter, tmp_path: Path) -> None:
    mount = mounted()
    room = 4095 - len(os.fsencode(mount.mountpoint))
    # "/" and 99 bytes for each level, and a last name that fills up
    levels, rest = divmod(room - 2, 100)
    parts = ["d" * 99] * levels
    last = "f" * (rest + 1)
    here = os.open(source, os.O_RDONLY)
    for part in parts:
        os.mkdir(part, dir_fd=here)
        there = os.open(part, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = there
    with open(os.open(last, os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
        file.write(b"at the bottom")
    os.close(here)
    mount.umount()
    mount.start()
    path = "/".join([str(mount.mountpoint), *parts, last])
    assert len(path) == 4095
    with open(path, "rb") as file:
        assert file.read() == b"at the bottom"
    assert os.listdir(os.path.dirname(path)) == [last]
    assert name_of(errno_of(lambda: os.stat(path + "f"))) == "ENAMETOOLONG"
    shutil.rmtree(source / parts[0])


def test_a_file_is_no_directory_and_a_directory_no_file(source: Path, mounted: Mounter) -> None:
    (source / "file").touch()
    (source / "directory").mkdir()
    mount = mounted()
    assert name_of(errno_of((mount / "file/below").lstat)) == "ENOTDIR"
    assert name_of(errno_of(lambda: os.listdir(mount / "file"))) == "ENOTDIR"
    assert name_of(errno_of((mount / "directory").read_bytes)) == "EISDIR"
    assert name_of(errno_of(lambda: os.readlink(mount / "file"))) == "EINVAL"


# ---- attributes ----------------------------------------------------------------------------------


def test_attributes_are_the_sources(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(b"1234567")
    os.link(source / "file", source / "second name")
    (source / "empty").touch()
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 34)
    (source / "private").touch(mode=0o600)
    (source / "script").touch(mode=0o755)
    (source / "setuid").touch()
    os.chmod(source / "setuid", 0o4755)
    os.chown(source / "private", 1234, 5678)
    (source / "directory" / "below").mkdir(parents=True)
    os.chmod(source / "directory", 0o1777)
    for name, time_ns in {
        "file": 1_234_567_890_123_456_789,
        "empty": -1_000_000_001,  # before 1970, and not on a whole second
        "script": 0,
        "sparse": 2_200_000_000_999_999_999,  # after 2038
    }.items():
        os.utime(source / name, ns=(time_ns, time_ns))
    mount = mounted()
    for round_ in ("cold", "warm"):
        assert shown(mount.mountpoint) == shown(source), round_
        for path in sorted(source.rglob("*")):
            relative = str(path.relative_to(source))
            assert shown(mount / relative) == shown(path), (round_, relative)
    assert os.stat(mount / "file").st_nlink == 2
    assert os.stat(mount / "empty").st_mtime_ns == -1_000_000_001


def test_devices_sockets_and_fifos_are_shown_as_such(
    source: Path, mounted: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(source / "fifo")
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(source / "block", stat.S_IFBLK | 0o600, os.makedev(259, 70_000))
    monkeypatch.chdir(source)  # the path of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        mount = mounted()
        for name in ("fifo", "null", "block", "socket"):
            assert shown(mount / name) == shown(source / name), name
        # a fifo has its own kernel object on each filesystem, so no process is at its other end
        end = os.open(mount / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        assert os.read(end, 1) == b""
        os.close(end)
        # mounted nodev
        assert name_of(errno_of((mount / "null").read_bytes)) == "EACCES"


def test_statfs_counts(source: Path, mounted: Mounter) -> None:
    found = os.statvfs(mounted().mountpoint)
    assert found.f_blocks > 0
    assert found.f_files > 0
    assert found.f_bsize > 0
    assert found.f_namemax == 255
    assert found.f_flag & os.ST_RDONLY


@pytest.mark.long
def test_statfs_follows_the_source(source: Path, mounted: Mounter, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", full], check=True, timeout=30)
    try:
        mountpoint = mounted(of=full).mountpoint
        before = os.statvfs(mountpoint).f_bfree
        assert before == os.statvfs(full).f_bfree
        (full / "file").write_bytes(bytes(4 << 20))
        left = os.statvfs(full).f_bfree
        assert left < before
        # a lookup does not keep an entry fresh
        eventually(lambda: os.statvfs(mountpoint).f_bfree == left, "it is shown", within_s=60)
        copperfs("umount", mountpoint)
    finally:
        subprocess.run(["umount", "-l", full], check=True, timeout=30)


def test_extended_attributes_are_not_there(source: Path, mounted: Mounter) -> None:
    (source / "file").touch()
    mount = mounted()
    assert errno_of(lambda: os.getxattr(mount / "file", "user.a")) == errno.EOPNOTSUPP
    assert errno_of(lambda: os.listxattr(mount / "file")) == errno.EOPNOTSUPP


# ---- bytes ---------------------------------------------------------------------------------------

KIB = 1024
SIZES = (0, 1, 4095, 4096, 4097, 128 * KIB, 300 * KIB + 7, 3 * 1024 * KIB + 1)


@pytest.mark.parametrize("extra", [(), ("--tree-max", "64KiB")], ids=["whole", "large"])
def test_bytes_are_the_sources_at_odd_offsets(
    source: Path, mounted: Mounter, extra: tuple[str, ...]
) -> None:
    for size in SIZES:
        (source / f"{size}").write_bytes(os.urandom(size))
    mount = mounted(*extra)
    for size in SIZES:
        content = (source / f"{size}").read_bytes()
        fd = os.open(mount / f"{size}", os.O_RDONLY)
        # the far end first: the order of reads must not matter
        for offset in (max(0, size - 3), size // 2, 4093, 131_071, 1, 0, size, size + 1, 1 << 40):
            for length in (1, 7, 4097, 200_000):
                expected = content[offset : offset + length]
                assert os.pread(fd, length, offset) == expected, (size, offset, length)
        os.close(fd)
        assert (mount / f"{size}").read_bytes() == content


def test_a_sparse_file_reads_as_zeros(source: Path, mounted: Mounter) -> None:
    with (source / "sparse").open("wb") as file:
        file.seek(64 << 20)
        file.write(b"end")
    mount = mounted()
    assert (mount / "sparse").read_bytes() == bytes(64 << 20) + b"end"


def test_direct_io_and_sendfile_read_the_same(source: Path, mounted: Mounter) -> None:
    content = os.urandom(1_000_003)
    (source / "file").write_bytes(content)
    mount = mounted()
    fd = os.open(mount / "file", os.O_RDONLY)
    left, right = socket.socketpair()
    received = b""
    with left, right:
        while len(received) < len(content):
            sent = os.sendfile(left.fileno(), fd, len(received), 65536)
            while sent > 0:
                part = right.recv(sent)
                received += part
                sent -= len(part)
    os.close(fd)
    assert received == content
    with mmap.mmap(-1, 1 << 20) as aligned:
        fd = os.open(mount / "file", os.O_RDONLY | os.O_DIRECT)
        assert os.preadv(fd, [aligned], 0) == len(content)
        os.close(fd)
        assert aligned[: len(content)] == content


def test_a_file_can_be_mapped_privately_and_shared(source: Path, mounted: Mounter) -> None:
    content = os.urandom(5 * 4096 + 11)
    (source / "file").write_bytes(content)
    mount = mounted()
    with (mount / "file").open("rb") as file:
        for kind in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
            with mmap.mmap(file.fileno(), 0, kind, mmap.PROT_READ) as mapped:
                assert mapped[4090:4100] == content[4090:4100]
                assert mapped[:] == content
        with mmap.mmap(
            file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
        ) as mine:
            mine[0:4] = b"mine"
        assert os.pread(file.fileno(), 4, 0) == content[:4]


def test_a_program_can_be_run_and_a_library_loaded(source: Path, mounted: Mounter) -> None:
    program = shutil.which("true")
    echo = shutil.which("echo")
    assert program is not None
    assert echo is not None
    shutil.copy(echo, source / "echo")
    (source / "script").write_text("#!/bin/sh\necho from $0\n")
    (source / "script").chmod(0o755)
    (source / "answer.c").write_text("int answer(void) { return 42; }\n")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", source / "answer.so", source / "answer.c"], check=True
    )
    mount = mounted()
    assert run([mount / "echo", "hello"]).stdout == "hello\n"
    assert run([mount / "script"]).stdout == f"from {mount / 'script'}\n"
    load = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).answer())"
    assert python(load, mount / "answer.so").stdout == "42\n"
    # a running program does not make its file busy for readers
    assert (mount / "echo").read_bytes() == (source / "echo").read_bytes()


# ---- rights and writes ---------------------------------------------------------------------------


def test_the_kernel_checks_access_by_the_modes_that_are_shown(
    source: Path, mounted: Mounter
) -> None:
    (source / "public").write_text("public")
    (source / "private").write_text("private")
    (source / "private").chmod(0o600)
    (source / "group").write_text("group")
    os.chown(source / "group", 0, NOBODY)
    (source / "group").chmod(0o640)
    (source / "closed").mkdir(mode=0o700)
    (source / "closed" / "file").touch()
    (source / "blind").mkdir()
    (source / "blind" / "file").write_text("found")
    (source / "blind").chmod(0o711)
    (source / "tool").write_text("#!/bin/sh\n")
    (source / "tool").chmod(0o744)
    mount = mounted("--allow-other")
    script = """if True:
        import errno, os, sys
        def say(action):
            try:
                action()
            except OSError as error:
                print(errno.errorcode[error.errno])
            else:
                print("success")
        os.chdir(sys.argv[1])
        say(lambda: open("public").close())
        say(lambda: open("private").close())
        say(lambda: open("group").close())
        say(lambda: os.stat("private"))
        say(lambda: os.stat("closed/file"))
        say(lambda: os.listdir("closed"))
        say(lambda: open("blind/file").close())
        say(lambda: os.listdir("blind"))
        say(lambda: os.execv("tool", ["tool"]))
        print(os.access("private", os.R_OK), os.access("public", os.W_OK))
    """
    said = python(script, mount.mountpoint, user=NOBODY)
    assert said.stdout.split() == [
        "success", "EACCES", "success", "success", "EACCES", "EACCES", "success", "EACCES",
        "EACCES", "False", "False",
    ], said.stderr  # fmt: skip
    # as the source itself returns
    assert python(script, source, user=NOBODY).stdout == said.stdout


def test_without_allow_other_other_users_see_nothing(source: Path, mounted: Mounter) -> None:
    (source / "public").write_text("public")
    mount = mounted()
    said = python("import os, sys; os.listdir(sys.argv[1])", mount.mountpoint, user=NOBODY)
    assert "PermissionError" in said.stderr


def writes(root: Path) -> dict[str, Callable[[], object]]:
    file, directory = root / "file", root / "directory"
    return {
        "open for writing": lambda: os.open(file, os.O_WRONLY),
        "open for both": lambda: os.open(file, os.O_RDWR),
        "append": lambda: os.open(file, os.O_WRONLY | os.O_APPEND),
        "open to truncate": lambda: os.open(file, os.O_RDONLY | os.O_TRUNC),
        "create": lambda: os.open(root / "new", os.O_WRONLY | os.O_CREAT),
        "unnamed file": lambda: os.open(root, os.O_TMPFILE | os.O_RDWR),
        "truncate": lambda: os.truncate(file, 0),
        "mkdir": lambda: os.mkdir(root / "new"),
        "mkfifo": lambda: os.mkfifo(root / "new"),
        "mknod": lambda: os.mknod(root / "new", stat.S_IFREG),
        "symlink": lambda: os.symlink("file", root / "new"),
        "link": lambda: os.link(file, root / "new"),
        "unlink": lambda: os.unlink(file),
        "rmdir": lambda: os.rmdir(directory),
        "rename": lambda: os.rename(file, root / "new"),
        "chmod": lambda: os.chmod(file, 0o777),
        "chown": lambda: os.chown(file, 1, 1),
        "utime": lambda: os.utime(file, (0, 0)),
        "lchown a link": lambda: os.lchown(root / "link", 1, 1),
        "setxattr": lambda: os.setxattr(file, "user.a", b"b"),
        "removexattr": lambda: os.removexattr(file, "user.a"),
    }


def test_every_write_is_refused_as_on_a_read_only_filesystem(
    source: Path, mounted: Mounter
) -> None:
    (source / "file").write_text("unchanged")
    (source / "directory").mkdir()
    (source / "link").symlink_to("file")
    mount = mounted()
    outcome = {name: name_of(errno_of(write)) for name, write in writes(mount.mountpoint).items()}
    assert outcome == dict.fromkeys(outcome, "EROFS")
    assert not os.access(mount / "file", os.W_OK)
    assert (source / "file").read_text() == "unchanged"
    assert sorted(os.listdir(source)) == ["directory", "file", "link"]


def test_locks_are_granted_and_exclude_each_other(source: Path, mounted: Mounter) -> None:
    (source / "file").write_text("lock me")
    mount = mounted()
    attempt = """if True:
        import fcntl, os, sys
        fd = os.open(sys.argv[1], os.O_RDONLY)
        try:
            if sys.argv[2] == "flock":
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            print(type(error).__name__)
        else:
            print("granted")
    """
    with (mount / "file").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert python(attempt, mount / "file", "flock").stdout == "BlockingIOError\n"
        fcntl.flock(file, fcntl.LOCK_UN)
        assert python(attempt, mount / "file", "flock").stdout == "granted\n"
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # read locks share
        assert python(attempt, mount / "file", "fcntl").stdout == "granted\n"


def test_a_foreign_ioctl_is_no_ioctl_of_this_file(source: Path, mounted: Mounter) -> None:
    (source / "file").touch()
    with (mounted() / "file").open("rb") as file:
        assert not os.isatty(file.fileno())
        assert name_of(errno_of(lambda: fcntl.ioctl(file, 0x5413, bytes(8)))) == "ENOTTY"


# ---- symbolic links, and the way back ------------------------------------------------------------


def test_relative_links_are_shown_as_they_are(source: Path, mounted: Mounter) -> None:
    (source / "directory").mkdir()
    (source / "directory" / "file").write_text("content")
    links = {"to file": "directory/file", "dangling": "nowhere", "loop": "loop", "long": "x" * 4095}
    for name, target in links.items():
        (source / name).symlink_to(target)
    mount = mounted()
    for name, target in links.items():
        assert os.readlink(mount / name) == target
        assert os.lstat(mount / name).st_size == len(target)
    assert (mount / "to file").read_text() == "content"
    assert name_of(errno_of((mount / "dangling").stat)) == "ENOENT"
    assert name_of(errno_of((mount / "loop").stat)) == "ELOOP"


def test_absolute_links_into_the_source_stay_in_the_mount(source: Path, mounted: Mounter) -> None:
    (source / "file").write_text("content")
    (source / "inside").symlink_to(source / "file")
    (source / "itself").symlink_to(source)
    (source / "outside").symlink_to("/etc/hostname")
    (source / "beside").symlink_to(f"{source}-and-more/file")
    mount = mounted()
    for _ in ("cold", "warm"):
        assert os.readlink(mount / "inside") == str(mount / "file")
        assert os.path.realpath(mount / "itself") == str(mount.mountpoint)
        assert os.readlink(mount / "outside") == "/etc/hostname"
        assert os.readlink(mount / "beside") == f"{source}-and-more/file"
        for name in ("inside", "itself", "outside", "beside"):
            assert os.lstat(mount / name).st_size == len(os.readlink(mount / name)), name
        assert (mount / "inside").read_text() == "content"


IN_A_CHROOT = """if True:
    import errno, os, sys
    os.chroot(sys.argv[1])
    for path in sys.argv[2:]:
        try:
            print(open(path).read())
        except OSError as error:
            print(errno.errorcode[error.errno])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("mode", "of_all", "of_part"), [("rewrite", "ELOOP", "ENOENT"), ("keep", "content", "ENOENT")]
)
def test_what_absolute_links_lead_to_where_the_mount_is_seen_at_another_path(
    source: Path, mounted: Mounter, tmp_path: Path, mode: str, of_all: str, of_part: str
) -> None:
    """As promises.md says: in a chroot into the mount, in one of a mount of the whole system, and
    through a bind mount after the mount itself is no longer visible."""
    (source / "file").write_text("content")
    (source / "absolute").symlink_to(source / "file")
    (source / "relative").symlink_to("file")
    flags = ("--symlinks", mode, "--shared", str(source))
    whole = mounted(*flags, of=Path("/"))
    absolute, relative = str(source / "absolute"), str(source / "relative")
    said = python(IN_A_CHROOT, whole.mountpoint, absolute, relative)
    assert said.stdout.split() == [of_all, "content"], said.stderr
    part = mounted(*flags)
    said = python(IN_A_CHROOT, part.mountpoint, "/absolute", "/relative")
    assert said.stdout.split() == [of_part, "content"], said.stderr
    with bind_mounted(part.mountpoint, tmp_path / "elsewhere") as elsewhere:
        # both lead away from the bind mount: into the mount, or to the source
        leads_to = part / "file" if mode == "rewrite" else source / "file"
        assert os.readlink(elsewhere / "absolute") == str(leads_to)
        assert (elsewhere / "relative").read_text() == "content"
        hidden = tmp_path / "hidden"
        hidden.mkdir()
        with bind_mounted(hidden, leads_to.parent):
            assert name_of(errno_of((elsewhere / "absolute").read_text)) == "ENOENT"
            assert (elsewhere / "relative").read_text() == "content"


def test_symlinks_keep_shows_links_as_they_are(source: Path, mounted: Mounter) -> None:
    (source / "inside").symlink_to(source / "file")
    mount = mounted("--symlinks", "keep")
    assert os.readlink(mount / "inside") == str(source / "file")
    assert os.lstat(mount / "inside").st_size == len(str(source / "file"))


def test_a_recursive_walk_of_a_source_with_the_mount_point_in_it_ends(source: Path) -> None:
    (source / "below" / "mnt").mkdir(parents=True)
    (source / "file").touch()
    with Mount(source, source / "below" / "mnt") as mount:
        again = mount / "below/mnt"
        assert stat.S_ISDIR(os.lstat(again).st_mode)
        assert name_of(errno_of(lambda: os.listdir(again))) == "ELOOP"
        assert name_of(errno_of((again / "file").lstat)) == "ELOOP"
        walked = [where for where, _, _ in os.walk(mount.mountpoint)]
        assert len(walked) <= 3
        found = run(["find", mount.mountpoint, "-name", "file"])
        assert found.stdout.splitlines() == [str(mount / "file")]


def test_a_bind_mount_of_the_mount_made_later_is_refused_as_well(
    source: Path, mounted: Mounter
) -> None:
    (source / "later").mkdir()
    (source / "file").touch()
    mount = mounted()
    subprocess.run(["mount", "--bind", mount.mountpoint, source / "later"], check=True)
    try:
        assert name_of(errno_of(lambda: os.listdir(mount / "later"))) == "ELOOP"
        assert (mount / "file").exists()
    finally:
        subprocess.run(["umount", "-l", source / "later"], check=True)


def test_the_whole_machine_can_be_shown(tmp_path: Path, source: Path) -> None:
    (source / "file").write_text("content")
    with Mount(Path("/"), tmp_path / "mnt") as mount:
        assert (mount / str(source).lstrip("/") / "file").read_text() == "content"
        assert set(os.listdir(mount.mountpoint)) == set(os.listdir("/"))
        # files of kernel interfaces have no usable sizes: the mount shows them as links to
        # themselves
        assert os.readlink(mount / "proc") == "/proc"
        assert os.lstat(mount / "proc").st_size == len("/proc")
        assert (mount / "proc/self/status").read_text().startswith("Name:")
        assert os.path.realpath(mount / "sys") == "/sys"
        again = mount / str(mount.mountpoint).lstrip("/")
        assert name_of(errno_of(lambda: os.listdir(again))) == "ELOOP"
        assert (mount / "usr/bin/env").read_bytes() == Path("/usr/bin/env").read_bytes()
        # links such as /bin stay inside
        assert os.path.realpath(mount / "bin").startswith(str(mount.mountpoint))


def test_what_is_local_to_the_node_is_passed_through(tmp_path: Path, source: Path) -> None:
    for name in ("shared", "local"):
        (source / name).mkdir()
        (source / name / "file").write_text("old")
    shared = ("--shared", str(source / "shared"))
    with Mount(source, tmp_path / "mnt", *shared) as mount:
        for name in ("shared", "local"):
            assert (mount / f"{name}/file").read_text() == "old"
            (source / name / "file").write_text("newer")
        eventually(
            lambda: (mount / "local/file").read_text() == "newer", "the local change is seen", 5
        )
        assert (mount / "shared/file").read_text() == "old"
