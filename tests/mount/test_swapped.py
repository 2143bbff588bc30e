"""A directory is replaced while the mount knows it: the rights of the old directory show nothing of
the new one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.mount.conftest import Mounter
from tests.mount.helpers import BECOME, NOBODY, errno_of, python, start_python

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# Lists its own directory through the mount, has it replaced, and tries what a thief would.
THIEF = """if True:
    def say(what, action):
        try:
            print(what, action())
        except OSError as error:
            print(what, errno.errorcode[error.errno])
    own, shown, private, below = sys.argv[1:]
    os.stat(shown + below)
    os.rename(own, own + "-away")
    os.symlink(private, own)
    try:
        fd = os.open(shown + below, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        fd = -1  # the kernel has dropped what it knew: as good
    for _ in range(3):
        say("list", lambda: os.listdir(fd))
        say("list", lambda: os.listdir(shown + below))
        say("look", lambda: os.stat(shown + below + "/secret").st_size)
        say("read", lambda: open(shown + below + "/secret").read())
        say("look", lambda: os.stat("secret", dir_fd=fd).st_size)
        say("read", lambda: open(os.open("secret", os.O_RDONLY, dir_fd=fd)).read())
"""
REFUSED = {"ESTALE", "EACCES", "ENOENT", "EBADF"}


@as_root
@pytest.mark.parametrize("below", ["", "/inner"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_a_user_who_swaps_his_directory_for_a_link_sees_nothing_private(
    source: Path, tmp_path: Path, mounted: Mounter, below: str, inside: bool
) -> None:
    """Only the directory of the readable file keeps others out."""
    private = (source if inside else tmp_path) / "private"
    (private / "inner").mkdir(parents=True)
    for directory in (private, private / "inner"):
        (directory / "secret").write_text("a secret of root")
    private.chmod(0o700)
    home = source / "home"
    (home / "own" / "inner").mkdir(parents=True)
    for each in (home, home / "own", home / "own" / "inner"):
        os.chown(each, NOBODY, NOBODY)
    mount = mounted("--allow-other")
    said = python(
        THIEF, home / "own", mount / "home/own", private, below, user=NOBODY, timeout_s=30
    )
    tried = [line.split(" ", 1)[1] for line in said.stdout.splitlines()]
    assert len(tried) == 18, said.stderr
    assert set(tried) <= REFUSED, said.stdout


@as_root
@pytest.mark.parametrize("names", [1, 200], ids=["small", "large"])
def test_a_closed_directory_in_the_place_of_an_open_one_is_closed(
    source: Path, mounted: Mounter, names: int
) -> None:
    (source / "top" / "dir").mkdir(parents=True)
    mount = mounted("--allow-other", "--listing-max", "100")
    looked = python("os.stat(sys.argv[1])", mount / "top/dir", user=NOBODY)
    assert looked.returncode == 0, looked.stderr
    (source / "top" / "dir").rename(source / "top" / "moved")
    (source / "top" / "dir").mkdir(mode=0o700)
    for number in range(names):
        (source / "top" / "dir" / f"secret{number}").write_text("a secret of root")
    for _ in range(3):
        for action in (
            "print(os.listdir(sys.argv[1]))",
            "print(os.stat(sys.argv[1] + '/secret0'))",
        ):
            said = python(action, mount / "top/dir", user=NOBODY)
            assert not said.stdout
            assert "Errno" in said.stderr
    assert len(os.listdir(mount / "top/dir")) == names


INSIDER = """if True:
    fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
    print("in", flush=True)
    sys.stdin.readline()
    for _ in range(3):
        for action in (
            lambda: os.stat("secret0", dir_fd=fd).st_size,
            lambda: open(os.open("secret0", os.O_RDONLY, dir_fd=fd)).read(),
            lambda: os.listdir(fd),
        ):
            try:
                print(action())
            except OSError as error:
                print(errno.errorcode[error.errno])
"""


@as_root
@pytest.mark.parametrize("names", [1, 200], ids=["small", "large"])
@pytest.mark.parametrize("above", [False, True], ids=["itself", "above"])
def test_who_is_in_a_directory_that_was_replaced_sees_nothing_of_the_closed_one(
    source: Path, mounted: Mounter, names: int, above: bool
) -> None:
    """Also for a large directory, whose names are looked up one by one."""
    inner = Path("top/dir/inner")
    (source / inner).mkdir(parents=True)
    mount = mounted("--allow-other", "--listing-max", "100")
    script = BECOME.format(user=NOBODY) + INSIDER
    with start_python(script, mount / str(inner)) as insider:
        assert insider.stdin is not None
        assert insider.stdout is not None
        assert insider.stdout.readline() == "in\n"
        (source / "top" / "dir").rename(source / "moved")
        (source / inner).mkdir(parents=True)
        (source / (inner.parent if above else inner)).chmod(0o700)
        for number in range(names):
            (source / inner / f"secret{number}").write_text("a secret of root")
        for _ in range(3):  # the first may get the error that it is another one
            with suppress(OSError):
                os.listdir(mount / str(inner))
        assert (mount / str(inner / "secret0")).read_text() == "a secret of root"
        said, _ = insider.communicate("\n", timeout=30)
    assert set(said.split()) == {"ESTALE"}, said


def replace_by_link(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    directory.symlink_to("moved")


def replace_by_directory(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    (directory / "inner").mkdir(parents=True)
    (directory / "inner" / "file").write_text("another")


def replace_by_closed_directory(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    directory.mkdir(mode=0o700)
    (directory / "secret").write_text("another")


def replace_by_file(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    directory.write_text("no directory any more")


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_directory])
def test_a_path_through_a_directory_that_was_replaced_leads_to_what_is_there_now(
    source: Path, mounted: Mounter, replace: Callable[[Path], None]
) -> None:
    """The kernel looks the directories on the way up again, and no reader gets an error."""
    (source / "top" / "dir" / "inner").mkdir(parents=True)
    (source / "top" / "dir" / "inner" / "file").write_text("content")
    mount = mounted()
    (mount / "top/dir/inner").stat()
    replace(source / "top" / "dir")
    expected = (source / "top/dir/inner/file").read_text()
    assert (mount / "top/dir/inner/file").read_text() == expected
    assert os.listdir(mount / "top/dir/inner") == ["file"]


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_closed_directory, replace_by_file])
def test_an_open_directory_that_was_replaced_is_stale_and_the_next_open_is_right(
    source: Path, mounted: Mounter, replace: Callable[[Path], None]
) -> None:
    (source / "top" / "dir").mkdir(parents=True)
    (source / "top" / "dir" / "file").write_text("content")
    mount = mounted("--allow-other")
    fd = os.open(mount / "top/dir", os.O_RDONLY | os.O_DIRECTORY)
    try:
        replace(source / "top" / "dir")
        assert errno_of(lambda: os.listdir(fd)) == errno.ESTALE
        assert errno_of(lambda: os.stat("file", dir_fd=fd)) == errno.ESTALE
        assert errno_of(lambda: os.stat("secret", dir_fd=fd)) == errno.ESTALE
    finally:
        os.close(fd)
    assert (mount / "top/dir").is_dir() == (source / "top/dir").is_dir()
    if (source / "top/dir").is_dir():
        assert os.listdir(mount / "top/dir") == os.listdir(source / "top/dir")


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_closed_directory])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "others"])
def test_who_stays_in_a_directory_that_was_replaced_has_nothing_above_listed_again(
    source: Path, mounted: Mounter, replace: Callable[[Path], None], others: bool
) -> None:
    """With or without lookups of the new directory by others."""
    (source / "top" / "dir" / "inner").mkdir(parents=True)
    mount = mounted("--allow-other")

    fd = os.open(mount / "top/dir", os.O_RDONLY | os.O_DIRECTORY)
    try:
        replace(source / "top" / "dir")
        for number in range(60):
            assert errno_of(lambda: os.listdir(fd)) == errno.ESTALE
            look = partial(os.stat, f"name{number}", dir_fd=fd)
            assert errno_of(look) == errno.ESTALE
            if others:
                (mount / "top/dir").lstat()
            (mount / "top").stat()
    finally:
        os.close(fd)
    # once for each way to find it out, and again after REPLACED_AGAIN_S on a busy machine
    assert mount.stats()["node"]["version_changes"] < 10
