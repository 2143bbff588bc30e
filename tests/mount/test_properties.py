"""Property tests: after random changes, the mount and a read-only bind mount of a random tree
agree.

In snapshot mode they agree after ``clear``, and between two clears the mount has to repeat itself.
With ``--revalidate`` they agree once the time has passed; until then the mount may show what was
true before, or return that something changed.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from tests.mount.helpers import Mount, bind_mounted

NAMES = st.sampled_from([b"a", b"b", b"c", b"\xff", b"quite-a-long-name"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
SIZES = st.sampled_from([0, 1, 4095, 4096, 4097, 70_000, 300_000])
TIMES = st.sampled_from([-5 * 10**9 + 7, 0, 1, 10**18 + 123_456_789])

Change = Callable[[bytes], None]


def tolerant(action: Callable[[], object]) -> None:
    """A change that is impossible in this tree is left out."""
    try:
        action()
    except OSError as error:
        expected = (
            errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EXDEV,
            errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EPERM, errno.EAGAIN,
        )  # fmt: skip
        if error.errno not in expected:
            raise


def write(path: bytes, size: int, fill: int) -> Change:
    def change(root: bytes) -> None:
        where = os.path.join(root, path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(where, flags, 0o644)
        with open(fd, "wb") as file:
            file.write(bytes([fill]) * size)

    return change


def make_directory(path: bytes) -> Change:
    return lambda root: os.makedirs(os.path.join(root, path))


def remove(path: bytes) -> Change:
    def change(root: bytes) -> None:
        where = os.path.join(root, path)
        if os.path.isdir(where) and not os.path.islink(where):
            shutil.rmtree(where)
        else:
            os.unlink(where)

    return change


def rename(path: bytes, other: bytes) -> Change:
    return lambda root: os.rename(os.path.join(root, path), os.path.join(root, other))


def link(path: bytes, other: bytes) -> Change:
    return lambda root: os.link(
        os.path.join(root, path), os.path.join(root, other), follow_symlinks=False
    )


def symlink(path: bytes, target: bytes) -> Change:
    return lambda root: os.symlink(target, os.path.join(root, path))


def fifo(path: bytes) -> Change:
    return lambda root: os.mkfifo(os.path.join(root, path))


def chmod(path: bytes, mode: int) -> Change:
    return lambda root: os.chmod(os.path.join(root, path), mode)


def set_times(path: bytes, time_ns: int) -> Change:
    return lambda root: os.utime(
        os.path.join(root, path), ns=(time_ns, time_ns), follow_symlinks=False
    )


CHANGES = st.one_of(
    st.builds(write, PATHS, SIZES, st.integers(0, 255)),
    st.builds(write, PATHS, SIZES, st.integers(0, 255)),
    st.builds(make_directory, PATHS),
    st.builds(remove, PATHS),
    st.builds(rename, PATHS, PATHS),
    st.builds(link, PATHS, PATHS),
    st.builds(symlink, PATHS, PATHS),
    st.builds(fifo, PATHS),
    st.builds(chmod, PATHS, st.sampled_from([0o644, 0o4755, 0o000])),
    st.builds(set_times, PATHS, TIMES),
)

Question = Callable[[bytes], object]


def asked(question: Question, root: bytes) -> object:
    try:
        return question(root)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def attributes(path: bytes) -> Question:
    def question(root: bytes) -> object:
        status = os.lstat(os.path.join(root, path))
        return (
            status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_size,
            status.st_mtime_ns, status.st_ctime_ns, status.st_ino,
        )  # fmt: skip

    return question


def listing(path: bytes) -> Question:
    return lambda root: sorted(os.listdir(os.path.join(root, path)))


def types(path: bytes) -> Question:
    return lambda root: sorted(
        (each.name, each.is_dir(follow_symlinks=False), each.is_symlink(), each.inode())
        for each in os.scandir(os.path.join(root, path))
    )


def target(path: bytes) -> Question:
    return lambda root: os.readlink(os.path.join(root, path))


def content(path: bytes, offset: int, size: int) -> Question:
    def question(root: bytes) -> object:
        fd = os.open(os.path.join(root, path), os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    return question


def access(path: bytes) -> Question:
    where = path
    return lambda root: [
        os.access(os.path.join(root, where), mode) for mode in (os.R_OK, os.W_OK, os.X_OK)
    ]


QUESTIONS = st.one_of(
    st.builds(attributes, PATHS),
    st.builds(listing, PATHS),
    st.builds(types, st.just(b".")),
    st.builds(target, PATHS),
    st.builds(content, PATHS, st.sampled_from([0, 1, 4096, 69_999]), SIZES),
    st.builds(access, PATHS),
)
ROUNDS = st.lists(
    st.tuples(st.lists(CHANGES, max_size=6), st.lists(QUESTIONS, min_size=1, max_size=12)),
    min_size=1,
    max_size=4,
)
FIRST = st.lists(CHANGES, min_size=3, max_size=25)

FOUND_CHANGED = ("ESTALE", "ENOENT", "ENOTDIR")
MODES = {
    "snapshot": (),
    "bare": ("--listing-max", "1"),
    "large": ("--tree-max", "4096"),
    "small": ("--memory", "64KiB"),
}
REVALIDATE_S = 0.1


def apply(changes: list[Change], root: bytes) -> None:
    for change in changes:
        tolerant(partial(change, root))


def empty(root: Path) -> None:
    for path in root.iterdir():
        remove(os.fsencode(path.name))(os.fsencode(root))


def check_snapshot(mode: str, examples: int) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        bind_mounted(_made(Path(name) / "source"), Path(name) / "bind") as bind,
        Mount(Path(name) / "source", Path(name) / "mnt", *MODES[mode]) as mount,
    ):
        source, theirs = os.fsencode(mount.source), os.fsencode(bind)
        ours = os.fsencode(mount.mountpoint)

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
        @given(first=FIRST, rounds=ROUNDS)
        def equal(first: list[Change], rounds: list[tuple[list[Change], list[Question]]]) -> None:
            empty(mount.source)
            apply(first, source)
            for changes, questions in rounds:
                mount_clear(ours)
                answers = [asked(each, ours) for each in questions]
                assert answers == [asked(each, theirs) for each in questions]
                apply(changes, source)
                # the snapshot covers only what was asked for; the rest may show as it is now, or be
                # found changed
                for question, before in zip(questions, answers, strict=True):
                    again = asked(question, ours)
                    assert (
                        again == before
                        or again in FOUND_CHANGED
                        or (again == asked(question, theirs))
                    )

        equal()


def check_revalidate(examples: int) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        bind_mounted(_made(Path(name) / "source"), Path(name) / "bind") as bind,
        Mount(
            Path(name) / "source", Path(name) / "mnt", "--revalidate", str(REVALIDATE_S)
        ) as mount,
    ):
        source, theirs = os.fsencode(mount.source), os.fsencode(bind)
        ours = os.fsencode(mount.mountpoint)

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
        @given(first=FIRST, rounds=ROUNDS)
        def equal(first: list[Change], rounds: list[tuple[list[Change], list[Question]]]) -> None:
            empty(mount.source)
            apply(first, source)
            for changes, questions in rounds:
                # the promised time, and a little for the kernel's clock ticks
                changed = time.monotonic()
                while time.monotonic() < changed + 2 * REVALIDATE_S + 0.02:
                    for question in questions:
                        asked(question, ours)
                    time.sleep(0.005)
                for question in questions:
                    asked(question, ours)  # one error that it was found changed
                answers = [asked(each, ours) for each in questions]
                assert answers == [asked(each, theirs) for each in questions]
                apply(changes, source)

        equal()


def mount_clear(root: bytes) -> None:
    """By ioctl, which is quicker than a process."""
    ask_mount(os.fsdecode(root), IoctlRequest.CLEAR)


def _made(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("mode", MODES)
def test_after_clear_the_mount_says_what_a_bind_mount_says(mode: str) -> None:
    check_snapshot(mode, examples=40)


def test_with_revalidate_the_mount_says_so_in_time() -> None:
    check_revalidate(examples=20)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_after_clear_the_mount_says_what_a_bind_mount_says_at_length(mode: str) -> None:
    check_snapshot(mode, examples=1000)


@pytest.mark.long
def test_with_revalidate_the_mount_says_so_in_time_at_length() -> None:
    # Half a second each: 300 took 164 s.
    check_revalidate(examples=120)
