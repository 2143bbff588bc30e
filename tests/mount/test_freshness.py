"""One snapshot until ``copperfs clear``; with ``--revalidate``, changes show in time. A reader gets
the bytes of one version or a clear errno, whatever the source does."""

from __future__ import annotations

import errno
import io
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.mount.conftest import Mounter
from tests.mount.helpers import (
    Mount,
    errno_of,
    eventually,
    name_of,
    outcome_of,
    start_python,
    told_of_a_read,
)
from tests.standin import StandIn

# For a reader whose looked-up file has changed or is gone.
CHANGED = {"ESTALE", "ENOENT", "ENOTDIR"}
REVALIDATE_S = 0.5


def replace(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    os.replace(new, path)


def picture(root: Path) -> dict[str, object]:
    seen: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        size = None if path.is_dir() else status.st_size
        seen[str(path.relative_to(root))] = (status.st_mode, size, status.st_mtime_ns, content)
    return seen


def read_to_its_end(file: io.FileIO) -> tuple[bytes, str | None]:
    """The bytes, and the name of the error that ended the read, if one did."""
    data = b""
    try:
        while part := file.read(1 << 20):
            data += part
    except OSError as error:
        return data, name_of(error.errno)
    return data, None


def grow_a_tree(source: Path) -> None:
    (source / "directory" / "below").mkdir(parents=True)
    (source / "changed").write_bytes(b"old")
    (source / "removed").write_bytes(b"here")
    (source / "directory" / "file").write_bytes(b"in the directory")
    (source / "directory" / "below" / "deep").write_bytes(b"deep")
    (source / "link").symlink_to("changed")


def change_the_tree(source: Path) -> None:
    (source / "changed").write_bytes(b"new and longer")
    (source / "removed").unlink()
    (source / "created").write_bytes(b"created")
    (source / "link").unlink()
    (source / "link").symlink_to("created")
    # one directory replaces another, and a directory a file
    shutil.rmtree(source / "directory")
    (source / "directory").mkdir()
    (source / "directory" / "below").write_bytes(b"a file now")
    (source / "directory" / "file").mkdir()
    (source / "absent directory").mkdir()
    (source / "absent directory" / "file").write_bytes(b"found")


def look_for_what_is_not_there(root: Path) -> None:
    for name in ("created", "absent directory", "absent directory/file"):
        assert name_of(errno_of((root / name).lstat)) == "ENOENT"


# ---- the snapshot --------------------------------------------------------------------------------


def test_what_was_looked_at_stays_as_it_was_until_clear(source: Path, mounted: Mounter) -> None:
    grow_a_tree(source)
    mount = mounted()
    before = picture(mount.mountpoint)
    assert before == picture(source)
    look_for_what_is_not_there(mount.mountpoint)
    change_the_tree(source)
    assert picture(mount.mountpoint) == before
    look_for_what_is_not_there(mount.mountpoint)
    mount.clear()
    assert picture(mount.mountpoint) == picture(source)


def test_clear_begins_an_epoch_and_says_so(source: Path, mounted: Mounter) -> None:
    grow_a_tree(source)
    mount = mounted()
    picture(mount.mountpoint)
    # The node learns a moment later what the front has read by itself, also after a clear.
    read = sum(
        each.stat().st_size
        for each in source.rglob("*")
        if each.is_file() and not each.is_symlink()
    )
    eventually(lambda: mount.stats()["cache"]["object_bytes"] >= read, "the node knows of all")
    epoch = mount.stats()["epoch"]
    assert mount.clear()["epoch"] == epoch + 1
    stats = mount.stats()
    assert stats["epoch"] == epoch + 1
    assert stats["cache"]["object_bytes"] == 0
    assert stats["cache"]["held_bytes"] < 10_000


@pytest.mark.parametrize("flags", [(), ("--listing-max", "1")], ids=["listed", "looked up"])
def test_clear_shows_changes_again_and_again(
    source: Path, mounted: Mounter, flags: tuple[str, ...]
) -> None:
    (source / "file").write_bytes(b"0")
    (source / "other").touch()
    mount = mounted(*flags)
    for number in range(1, 15):
        assert (mount / "file").read_bytes() == b"%d" % (number - 1)
        assert name_of(errno_of((mount / f"{number}").lstat)) == "ENOENT"
        replace(source / "file", b"%d" % number)
        (source / f"{number}").touch()
        mount.clear()
        assert (mount / "file").read_bytes() == b"%d" % number
        assert (mount / f"{number}").exists()
        assert f"{number}" in os.listdir(mount.mountpoint)


def test_an_in_place_change_of_the_same_size_is_shown_after_clear(
    source: Path, mounted: Mounter
) -> None:
    (source / "file").write_bytes(b"old bytes")
    mount = mounted()
    with (mount / "file").open("rb", buffering=0) as held:
        assert held.read() == b"old bytes"
        (source / "file").write_bytes(b"new bytes")
        mount.clear()
        assert (mount / "file").read_bytes() == b"new bytes"


# ---- revalidation --------------------------------------------------------------------------------


def test_with_revalidate_changes_show_by_themselves(source: Path, mounted: Mounter) -> None:
    grow_a_tree(source)
    mount = mounted("--revalidate", str(REVALIDATE_S))
    assert picture(mount.mountpoint) == picture(source)
    look_for_what_is_not_there(mount.mountpoint)
    change_the_tree(source)
    differing: dict[str, object] = {}

    def agrees() -> bool:
        try:
            differing.clear()
            shown, true = picture(mount.mountpoint), picture(source)
            differing.update(
                {
                    n: (shown.get(n), true.get(n))
                    for n in shown | true
                    if shown.get(n) != true.get(n)
                }
            )
            return shown == true
        except OSError as error:
            # a reader that looks it up across the change gets this error
            if name_of(error.errno) not in CHANGED:
                raise
            return False

    eventually(agrees, lambda: f"the mount shows the source: {differing}", REVALIDATE_S + 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(mount.mountpoint)
        assert Path("created").read_bytes() == b"created"


def test_with_revalidate_an_unchanged_file_is_not_read_again(
    source: Path, mounted: Mounter
) -> None:
    (source / "file").write_bytes(b"unchanged")
    mount = mounted("--revalidate", "0.2")
    (mount / "file").read_bytes()
    looked_at = mount.stats()["source"]["scandir"]
    assert mount.stats()["source"]["open"] == 1

    def was_revalidated() -> bool:
        assert (mount / "file").read_bytes() == b"unchanged"
        return bool(mount.stats()["source"]["scandir"] > looked_at + 1)

    eventually(was_revalidated, "the directory was scanned again")
    assert mount.stats()["source"]["open"] == 1


# ---- never two versions --------------------------------------------------------------------------

SIZE = 6 << 20


def versions_in(data: bytes) -> set[int]:
    return set(data)


@pytest.mark.parametrize("tree_max", ["10MiB", "1MiB"], ids=["whole", "large"])
@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_a_reader_of_a_file_that_keeps_changing_never_sees_two_versions(
    source: Path, mounted: Mounter, tree_max: str, how: str
) -> None:
    path = source / "file"
    path.write_bytes(bytes([1]) * (SIZE - 1000))
    mount = mounted("--tree-max", tree_max, "--revalidate", "0.1")
    stop = threading.Event()

    def keep_changing() -> None:
        version = 1
        while not stop.is_set():
            version = version % 250 + 1
            size = SIZE - version * 1000
            if how == "replaced":
                replace(path, bytes([version]) * size)
            else:
                # within one write no reader of the source itself sees a whole version
                with path.open("r+b") as file:
                    file.truncate(0)
                    file.write(bytes([version]) * size)
            stop.wait(0.15)

    writer = threading.Thread(target=keep_changing)
    writer.start()
    whole, told = 0, set()
    deadline = time.monotonic() + 3
    try:
        while time.monotonic() < deadline:
            try:
                fd = os.open(mount / "file", os.O_RDONLY)
                try:
                    size = os.fstat(fd).st_size
                    data = b""
                    while part := os.read(fd, 1 << 20):
                        data += part
                finally:
                    os.close(fd)
            except OSError as error:
                told.add(name_of(error.errno))
                continue
            if how == "replaced":
                assert len(versions_in(data)) == 1, "bytes of two versions"
                assert len(data) == SIZE - data[0] * 1000
                whole += 1
            elif len(data) == size == SIZE - 1000 * (data[0] if data else 0):
                assert len(versions_in(data)) == 1, "bytes of two versions"
                whole += 1
    finally:
        stop.set()
        writer.join()
    assert told <= CHANGED
    assert whole > 0


def test_a_large_file_that_changes_under_its_reader_gives_an_error_not_a_mixture(
    source: Path, mounted: Mounter
) -> None:
    path = source / "large"
    path.write_bytes(b"1" * (8 << 20))
    mount = mounted("--tree-max", "1MiB")
    with (mount / "large").open("rb", buffering=0) as file:
        assert file.read(4096) == b"1" * 4096
        path.write_bytes(b"2" * (8 << 20))
        rest, code = read_to_its_end(file)
        assert b"2" not in rest
        assert code == name_of(told_of_a_read(errno.ESTALE)), (
            "what is not in the kernel's cache is nowhere any more"
        )


def test_a_large_file_that_was_replaced_or_removed_gives_its_reader_an_error(
    source: Path, mounted: Mounter
) -> None:
    for name in ("replaced", "removed"):
        (source / name).write_bytes(b"1" * (8 << 20))
    mount = mounted("--tree-max", "1MiB")
    with (
        (mount / "replaced").open("rb", buffering=0) as replaced,
        (mount / "removed").open("rb", buffering=0) as removed,
    ):
        for file in (replaced, removed):
            assert file.read(4096) == b"1" * 4096
        replace(source / "replaced", b"2" * (8 << 20))
        (source / "removed").unlink()
        # both change the old file's change time, as a write would
        for file, wanted in ((replaced, errno.ESTALE), (removed, errno.ENOENT)):
            data, code = read_to_its_end(file)
            assert set(data) <= set(b"1")
            assert code == name_of(told_of_a_read(wanted))


@pytest.mark.parametrize("change", ["grown", "shrunk", "emptied", "replaced", "same size"])
def test_what_was_looked_up_and_then_changed_is_refused_until_looked_at_again(
    source: Path, mounted: Mounter, change: str
) -> None:
    path = source / "file"
    path.write_bytes(b"version one")
    mount = mounted()
    os.lstat(mount / "file")  # looked up, not read
    new = {"grown": b"version one and two", "shrunk": b"two", "emptied": b""}.get(
        change, b"version two"
    )
    if change == "replaced":
        replace(path, new)
    else:
        path.write_bytes(new)
    assert outcome_of((mount / "file").read_bytes) == "ESTALE"
    # the error made the daemon look it up again
    eventually(lambda: (mount / "file").read_bytes() == new, "the new version is shown", 2)


def test_what_vanished_before_it_was_read_is_not_there(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(b"soon gone")
    (source / "directory").mkdir()
    (source / "directory" / "file").touch()
    mount = mounted()
    os.lstat(mount / "file")
    os.lstat(mount / "directory")
    (source / "file").unlink()
    shutil.rmtree(source / "directory")
    assert outcome_of((mount / "file").read_bytes) == "ENOENT"
    assert outcome_of(lambda: os.listdir(mount / "directory")) == "ESTALE"
    eventually(
        lambda: errno_of((mount / "file").lstat) == errno.ENOENT, "the name is gone as well", 2
    )


def test_what_became_another_kind_of_thing_is_never_opened(source: Path, mounted: Mounter) -> None:
    for name in ("fifo", "directory", "link"):
        (source / name).write_bytes(b"a file")
    (source / "secret").write_bytes(b"secret")
    mount = mounted()
    for name in ("fifo", "directory", "link"):
        os.lstat(mount / name)
        (source / name).unlink()
    os.mkfifo(source / "fifo")
    (source / "directory").mkdir()
    (source / "link").symlink_to("secret")
    for name in ("fifo", "directory", "link"):
        fd = os.open(mount / name, os.O_RDONLY)
        outcome = outcome_of(partial(os.read, fd, 10))
        os.close(fd)
        assert outcome == "ESTALE", name
    assert name_of(errno_of(lambda: os.listdir(mount / "directory"))) == "success"
    assert (mount / "link").read_bytes() == b"secret"


def test_a_file_held_open_keeps_its_version_also_after_a_clear(
    source: Path, mounted: Mounter
) -> None:
    content = os.urandom(1 << 20)
    (source / "file").write_bytes(content)
    mount = mounted()
    fd = os.open(mount / "file", os.O_RDONLY)
    assert os.pread(fd, 4096, 0) == content[:4096]
    replace(source / "file", b"new")
    assert os.pread(fd, 1 << 20, 0) == content
    mount.clear()
    assert os.pread(fd, 1 << 20, 0) == content, "bytes of a version are true at any time"
    os.close(fd)
    assert (mount / "file").read_bytes() == b"new"


# ---- hazard 7: mappings while the source cannot be read ------------------------------------------

MAPPER = """if True:
    import mmap, sys
    with open(sys.argv[1], "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    whole = mapped[:]
    print("mapped")
    for _ in sys.stdin:
        print("same" if mapped[:] == whole else "different")
"""


def test_who_has_mapped_a_file_survives_clear_while_the_source_cannot_be_read(
    source: Path, mounted: Mounter, tmp_path: Path
) -> None:
    (source / "file").write_bytes(os.urandom(1 << 20))
    with StandIn(source) as standin, Mount(standin.mountpoint, tmp_path / "mnt") as mount:
        user = start_python(MAPPER, mount / "file")
        assert user.stdin is not None
        assert user.stdout is not None
        try:
            assert user.stdout.readline() == "mapped\n"
            standin.fail("**", errno.EIO)
            subprocess.run(
                [sys.executable, "-P", "-m", "copperfs.cli.main", "clear", mount.mountpoint],
                check=False,  # the mapping may fail, but no process may die of it
                timeout=60,
            )
            user.stdin.write("look\n")
            user.stdin.flush()
            answer = user.stdout.readline()
            assert answer == "same\n", f"it died: {user.wait(10)}"
        finally:
            standin.heal()
            user.stdin.close()
            user.wait(10)
            user.stdout.close()
        assert (mount / "file").read_bytes() == (source / "file").read_bytes()


def test_a_mapping_is_coherent_across_clear(source: Path, mounted: Mounter) -> None:
    """Changed in place: a mapping may show either version, whole."""
    (source / "file").write_bytes(b"1" * 65536)
    mount = mounted()
    with (
        (mount / "file").open("rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped,
    ):
        assert mapped[:] == b"1" * 65536
        replace(source / "file", b"2" * 65536)
        mount.clear()
        assert (mount / "file").read_bytes() == b"2" * 65536
        # the old inode's pages; SIGBUS would end this process
        check: Callable[[], bytes] = lambda: mapped[:]  # noqa: E731
        assert check() == b"1" * 65536


# ---- programs that follow a file (promises.md) ---------------------------------------------------


def test_a_program_that_compares_inodes_does_not_see_a_file_grow_and_one_that_opens_anew_does(
    source: Path, mounted: Mounter
) -> None:
    """Both versions show the source's inode number, so ``tail -F`` keeps its own."""
    log = source / "log"
    log.write_text("first\n")
    mount = mounted("--revalidate", "0.1")
    tail = subprocess.Popen(
        ["tail", "-F", "-s", "0.05", "--max-unchanged-stats=1", mount / "log"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert tail.stdout is not None
        assert tail.stdout.readline() == "first\n"
        with (mount / "log").open() as held:
            with log.open("a") as file:
                file.write("second\n")
            eventually(lambda: (mount / "log").read_text() == "first\nsecond\n", "opened anew")
            old, new = os.fstat(held.fileno()), (mount / "log").stat()
            assert (old.st_dev, old.st_ino) == (new.st_dev, new.st_ino)
            assert new.st_ino == log.stat().st_ino, "what stat shows stays the source's"
            assert (old.st_size, new.st_size) == (6, 13)
            assert held.read() == "first\n"
        # a file that is replaced, as logs are rotated, is another file for every reader
        replace(log, b"third\n")
        assert tail.stdout.readline() == "third\n", "and never the second line"
    finally:
        tail.kill()
        tail.communicate(timeout=10)
