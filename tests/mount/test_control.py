"""Control protocol: the ioctls of a running mount from Python and from C, and the commands built on
them. The C program and the struct below are written from the protocol's description."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.mount.conftest import Mounter
from tests.mount.helpers import (
    BECOME,
    NOBODY,
    Mount,
    copperfs,
    errno_of,
    eventually,
    name_of,
    python,
    run,
    watch,
)

BUFFER = 8192
HEADER = struct.Struct("<IIIIQQQ")  # version, status, length, reserved, token, offset, total
HELLO, STATISTICS, RESET, CLEAR, CONFIGURATION, OBJECTS = 0x00, 0x10, 0x11, 0x12, 0x13, 0x14
CLEAR_LOCAL, ALL_STATISTICS, TREE, RESET_ALL = 0x15, 0x16, 0x17, 0x1A
SCRUB, SCRUB_STATE, RING = 0x1B, 0x1C, 0x1D
PROFILE_BEGIN, PROFILE_END = 0x1E, 0x1F
UPGRADE, UPGRADE_STATE = 0x20, 0x21
WARM_UP, WARM_UP_STATE = 0x18, 0x19
ANYBODY = [HELLO, STATISTICS]
OWNER_ONLY = [
    each for each in [HELLO, *range(STATISTICS, UPGRADE_STATE + 1)] if each not in ANYBODY
]


def number(request: int, size: int = BUFFER, direction: int = 3, kind: int = 0xC7) -> int:
    return direction << 30 | size << 16 | kind << 8 | request


def ask_part(
    fd: int, request: int, *, version: int = 1, token: int = 0, offset: int = 0, size: int = BUFFER
) -> tuple[bytes, int, int]:
    """Its token, and the length of the whole."""
    buffer = bytearray(size)
    HEADER.pack_into(buffer, 0, version, 0, 0, 0, token, offset, 0)
    fcntl.ioctl(fd, number(request, size), buffer)
    _, status, length, _, token, _, total = HEADER.unpack_from(buffer)
    assert status == 0
    return bytes(buffer[HEADER.size : HEADER.size + length]), token, total


def objects_named(path: Path, names: set[str], size: int = BUFFER) -> bool:
    listed = ask(path, OBJECTS, size)
    return {each["path"] for each in listed if each["kind"] == "object"} == names


def ask(path: Path, request: int, size: int = BUFFER) -> Any:
    fd = os.open(path, os.O_RDONLY)
    try:
        data, token, total = ask_part(fd, request, size=size)
        while len(data) < total:
            part, token, _ = ask_part(fd, request, token=token, offset=len(data), size=size)
            assert part
            data += part
        return json.loads(data)
    finally:
        os.close(fd)


# ---- requests ------------------------------------------------------------------------------------


def test_every_request_is_answered_on_files_and_on_directories(
    source: Path, mounted: Mounter
) -> None:
    (source / "file").write_bytes(b"content")
    (source / "directory").mkdir()
    mount = mounted("--tree-max", "1MiB")
    (mount / "file").read_bytes()
    for name in (".", "file", "directory"):
        hello = ask(mount / name, HELLO)
        assert hello["pid"] == mount.pid
        assert hello["uid"] == os.getuid()
        assert 1 in hello["versions"]
        assert hello["mountpoint"] == str(mount.mountpoint)
        assert ask(mount / name, STATISTICS)["version"] == 1
        assert ask(mount / name, CONFIGURATION)["tree_max_bytes"] == 1 << 20
        objects = ask(mount / name, OBJECTS)
        assert {"kind", "path", "bytes"} <= set(objects[0])
        eventually(lambda: objects_named(mount.mountpoint, {"file"}), "the file is listed")
    assert ask(mount / "file", RESET) == {"reset": True}
    assert ask(mount / "file", CLEAR)["epoch"] == 2
    assert [each for each in ask(mount / "file", OBJECTS) if each["kind"] == "object"] == []


def read_all(mount: Mount) -> set[str]:
    names = set(os.listdir(mount.source))
    for name in names:
        (mount / name).read_bytes()
    # reads by C threads enter the statistics a moment later
    eventually(lambda: objects_named(mount.mountpoint, names), "all files are listed")
    return names


def test_a_long_answer_comes_in_parts(source: Path, mounted: Mounter) -> None:
    for count in range(400):
        (source / f"a-file-with-a-rather-long-name-{count:04}").write_bytes(b"x")
    mount = mounted()
    names = read_all(mount)
    objects = ask(mount.mountpoint, OBJECTS)
    assert len(json.dumps(objects)) > 4 * BUFFER
    # in the smallest parts that make sense, and in the largest
    for size in (HEADER.size + 200, 16_383):
        assert {each["path"] for each in ask(mount.mountpoint, OBJECTS, size)} >= names


def test_the_parts_of_an_answer_are_of_one_moment(source: Path, mounted: Mounter) -> None:
    for count in range(300):
        (source / f"{count:0200}").write_bytes(b"x")
    mount = mounted()
    read_all(mount)
    fd = os.open(mount.mountpoint, os.O_RDONLY)
    data, token, total = ask_part(fd, OBJECTS)
    mount.clear()
    while len(data) < total:
        part, _, same = ask_part(fd, OBJECTS, token=token, offset=len(data))
        assert same == total
        data += part
    os.close(fd)
    assert len(json.loads(data)) >= 300


def test_reset_counts_anew(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(b"content")
    mount = mounted()
    (mount / "file").read_bytes()
    assert mount.requests() > 0
    mount.reset()
    stats = mount.stats()
    assert stats["handlers"]["requests"] == 0
    assert stats["source"]["open"] == 0
    assert stats["node"]["questions"] == 0


# ---- refusals ------------------------------------------------------------------------------------


@pytest.fixture
def fd(source: Path, mounted: Mounter) -> Any:
    (source / "file").touch()
    opened = os.open(mounted() / "file", os.O_RDONLY)
    yield opened
    os.close(opened)


def test_another_version_is_refused_but_hello_is_for_everyone(fd: int) -> None:
    assert name_of(errno_of(lambda: ask_part(fd, STATISTICS, version=2))) == "EPROTO"
    assert name_of(errno_of(lambda: ask_part(fd, STATISTICS, version=0))) == "EPROTO"
    assert b"versions" in ask_part(fd, HELLO, version=7)[0]


def test_requests_that_are_not_ours_are_refused(fd: int) -> None:
    assert name_of(errno_of(lambda: ask_part(fd, 0x22))) == "ENOTTY"
    assert name_of(errno_of(lambda: ask_part(fd, 0xFF))) == "ENOTTY"
    for foreign in (0x5401, 0x5413, number(HELLO, kind=0x66), number(HELLO, kind=0), 0x1268):
        code = errno_of(partial(fcntl.ioctl, fd, foreign, bytearray(BUFFER)))
        assert name_of(code) == "ENOTTY", hex(foreign)


def test_an_unknown_token_is_refused(fd: int) -> None:
    assert name_of(errno_of(lambda: ask_part(fd, OBJECTS, token=12345, offset=0))) == "EINVAL"


def test_an_offset_beyond_the_answer_gives_nothing(fd: int) -> None:
    data, _, total = ask_part(fd, STATISTICS, offset=1 << 60)
    assert data == b""
    assert total > 0


def test_malformed_requests_of_every_size_do_no_harm(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(b"content")
    mount = mounted()
    generator = random.Random(2)
    sizes = [*range(64), *range(64, 16_384, 509), 1023, 1024, 1025, 4095, 4096, 4097, 8191, 16_383]
    fds = [os.open(mount / name, os.O_RDONLY) for name in (".", "file")]
    allowed = {"success", "EINVAL", "ENOTTY", "EPROTO", "ENOTSUP", "EIO", "EPERM", "ENOMEM"}
    for size in sizes:
        for request in (HELLO, STATISTICS, RESET, OBJECTS, TREE, 0x1E, 0x80):
            for direction in (0, 1, 2, 3):
                buffer = bytearray(generator.randbytes(max(size, 4096)))
                if generator.random() < 0.5 and size >= 4:
                    buffer[:4] = struct.pack("<I", 1)
                command = number(request, size, direction)
                code = errno_of(partial(fcntl.ioctl, fds[size % 2], command, buffer))
                assert name_of(code) in allowed, (size, request, direction)
                if size < HEADER.size or direction != 3:
                    assert code is not None, (size, request, direction)
    for each in fds:
        os.close(each)
    assert ask(mount / "file", HELLO)["pid"] == mount.pid
    assert (mount / "file").read_bytes() == b"content"


ASK_AS_ANOTHER = f"""if True:
    for request in {ANYBODY + OWNER_ONLY}:
        buffer = bytearray({BUFFER})
        data = sys.argv[2].encode()
        struct.pack_into("<III", buffer, 0, 1, 0, len(data))
        buffer[40 : 40 + len(data)] = data
        fd = os.open(sys.argv[1], os.O_RDONLY)
        try:
            fcntl.ioctl(fd, 3 << 30 | {BUFFER} << 16 | 0xC7 << 8 | request, buffer)
        except OSError as error:
            print(errno.errorcode[error.errno])
        else:
            print("success")
"""
REFUSED = ["success"] * len(ANYBODY) + ["EPERM"] * len(OWNER_ONLY)


def test_only_the_owner_may_ask_more_than_for_counts(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(b"content")
    (source / "closed").mkdir(0o700)
    (source / "closed/secret").write_bytes(b"x" * 4711)
    mount = mounted("--allow-other")
    (mount / "file").read_bytes()
    # with a path, ring would reveal existence and size
    for data in ("", '{"path": "closed/secret"}', '{"path": "closed/none"}', '{"all": true}'):
        said = python(ASK_AS_ANOTHER, mount / "file", data, user=NOBODY)
        assert said.stdout.split() == REFUSED, said.stderr
    assert mount.stats()["epoch"] == 1
    assert mount.stats()["source"]["open"] == 1


def test_what_anybody_may_ask_names_no_file(source: Path, mounted: Mounter) -> None:
    (source / "closed").mkdir(0o700)
    (source / "closed/secret").write_bytes(b"x" * 4711)
    mount = mounted("--allow-other")
    (mount / "closed/secret").read_bytes()
    for request in ANYBODY:
        assert "secret" not in json.dumps(ask(mount.mountpoint, request))


def test_what_is_refused_is_said_in_a_sentence(mounted: Mounter) -> None:
    mount = mounted("--allow-other")
    imports = "from copperfs.cli.main import build_parser, main\nbuild_parser()\n"
    imports += "import copperfs.fuse.ioctl, rich.progress\n"
    for command in (["ring"], ["stats", "--objects"], ["stats", "--all"], ["tree"]):
        asking = f"sys.exit(main([*{command}, sys.argv[1]]))\n"
        script = imports + BECOME.format(user=NOBODY) + asking
        done = run([sys.executable, "-c", script, str(mount.mountpoint)])
        assert done.returncode == 5
        said = f"only the owner of the mount {mount.mountpoint} is on, and root, may ask for this"
        assert said in done.stderr, done.stderr


def test_the_rest_of_an_answer_is_only_for_who_asked(source: Path, mounted: Mounter) -> None:
    for count in range(100):
        (source / f"{count:0200}").write_bytes(b"x")
    mount = mounted("--allow-other")
    for name in os.listdir(source):
        (mount / name).read_bytes()
    names = set(os.listdir(source))
    eventually(lambda: objects_named(mount.mountpoint, names), "all files are listed")
    fd = os.open(mount.mountpoint, os.O_RDONLY)
    data, token, total = ask_part(fd, OBJECTS)
    assert len(data) < total
    script = f"""if True:
        buffer = bytearray({BUFFER})
        struct.pack_into("<IIIIQQQ", buffer, 0, 1, 0, 0, 0, {token}, 0, 0)
        fd = os.open(sys.argv[1], os.O_RDONLY)
        try:
            fcntl.ioctl(fd, {number(STATISTICS)}, buffer)
        except OSError as error:
            print(errno.errorcode[error.errno])
    """
    assert python(script, mount.mountpoint, user=NOBODY).stdout == "EINVAL\n"
    os.close(fd)


# ---- from C --------------------------------------------------------------------------------------

C_PROGRAM = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct copperfs_buffer {
	uint32_t version, status, length, reserved;
	uint64_t token, offset, total;
	char data[8192 - 40];
};
_Static_assert(sizeof(struct copperfs_buffer) == 8192, "as the protocol says");
#define COPPERFS(nr) _IOWR(0xC7, nr, struct copperfs_buffer)

int main(int argc, char **argv)
{
	static struct copperfs_buffer b;
	uint64_t have = 0, token = 0;
	int fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;

	if (fd < 0)
		return 2;
	do {
		memset(&b, 0, sizeof(b));
		b.version = 1;
		b.token = token;
		b.offset = have;
		if (ioctl(fd, COPPERFS(0x14), &b) != 0) {
			perror("ioctl");
			return 1;
		}
		fwrite(b.data, 1, b.length, stdout);
		have += b.length;
		token = b.token;
	} while (have < b.total);
	return 0;
}
"""


def test_a_c_program_can_ask(source: Path, mounted: Mounter, tmp_path: Path) -> None:
    for count in range(200):
        (source / f"{count:0100}").write_bytes(b"x")
    (tmp_path / "ask.c").write_text(C_PROGRAM)
    subprocess.run(
        ["gcc", "-Wall", "-Werror", "-o", tmp_path / "ask", tmp_path / "ask.c"], check=True
    )
    mount = mounted()
    for name in os.listdir(source):
        (mount / name).read_bytes()
    names = set(os.listdir(source))
    eventually(lambda: objects_named(mount.mountpoint, names), "all files are listed")
    said = subprocess.run(
        [tmp_path / "ask", mount.mountpoint], stdout=subprocess.PIPE, check=True, timeout=30
    )
    objects = {each["path"] for each in json.loads(said.stdout) if each["kind"] == "object"}
    assert objects == set(os.listdir(source))


# ---- the commands --------------------------------------------------------------------------------

STATISTICS_KEYS = {
    "version", "pid", "started", "since", "epoch", "operations", "handlers", "hits", "misses",
    "negative", "bytes", "source", "pool", "cache", "node", "front", "job", "transport",
    "tier",
}  # fmt: skip
OPERATION_KEYS = {
    "lookup", "getattr", "readlink", "read", "readdir", "statfs", "open", "ioctl", "refused",
    "other",
}  # fmt: skip


def test_the_keys_of_the_statistics_are_stable(source: Path, mounted: Mounter) -> None:
    """Programs read these keys. Adding one is fine (add it here too), removing one takes a
    version."""
    (source / "file").write_bytes(b"content")
    mount = mounted()
    (mount / "file").read_bytes()
    stats = mount.stats()
    assert stats["version"] == 1
    assert set(stats) >= STATISTICS_KEYS
    assert set(stats["operations"]) >= OPERATION_KEYS
    for kind, answers in stats["operations"].items():
        assert set(answers) == {"hit", "miss", "fetch", "bypass"}, kind
        for answer in answers.values():
            quantiles = {"p50_us", "p90_us", "p99_us"} if answer["count"] else set()
            assert set(answer) == {"count", *quantiles}
    assert set(stats["handlers"]) >= {"requests", "by_operation"}
    assert set(stats["bytes"]) >= {
        "from_memory", "from_source_files", "from_parents", "to_children",
    }  # fmt: skip
    assert set(stats["job"]) >= {"roster", "number", "connected"}
    assert set(stats["transport"]) >= {
        "sent", "sent_bytes", "received", "received_bytes", "malformed", "corrupt", "strangers",
        "unsendable", "crowded", "connections",
    }  # fmt: skip
    assert set(stats["source"]) >= {"open", "read", "read_bytes", "stat", "scandir"}
    assert set(stats["cache"]) >= {
        "budget_bytes", "held_bytes", "reserved_bytes", "held", "object_bytes", "evictions",
        "evicted_bytes",
    }  # fmt: skip
    assert set(stats["node"]) >= {
        "questions", "answered_from_cache", "joined", "fetches", "fetching", "failures", "overdue",
        "version_changes", "waited_for_room", "asks", "answers", "peer_questions", "peers_refused",
        "offers", "offered", "pushed", "fallbacks", "took_over", "spoiled",
    }  # fmt: skip
    assert set(stats["tier"]) >= {
        "hits", "ahead", "redirects", "redirected", "timeouts", "exclusions", "memory", "disk",
    }  # fmt: skip
    assert set(stats["tier"]["hits"]) >= {"memory", "nvme", "peer", "source"}
    assert set(stats["tier"]["memory"]) >= {"budget_bytes", "held_bytes", "held", "evictions"}
    assert set(stats["tier"]["disk"]) >= {
        "budget_bytes", "held_bytes", "held", "evictions", "evicted_bytes", "written",
        "written_bytes", "backlog", "backlog_bytes", "refused", "waited", "waiting", "owed",
        "owed_bytes", "read_again", "read_for_disk", "forgotten", "outgrown", "late", "erasures",
        "degradations", "degraded", "max_degraded_s",
    }  # fmt: skip
    assert set(stats["members"]) >= {
        "gone", "suspects", "deaths", "max_detection_ms", "returns", "refutations",
        "reparentings", "resent", "hedges", "detours",
    }  # fmt: skip
    assert set(stats["process"]) >= {"tasks", "threads", "descriptors", "resident_bytes"}
    assert set(stats["front"]) >= {
        "nodes", "nodes_max", "pending", "forgets", "interrupts", "overdue", "overflows",
        "protocol_errors", "notifications", "max_pages",
    }  # fmt: skip


def test_statistics_count_what_happened(source: Path, mounted: Mounter) -> None:
    (source / "file").write_bytes(b"x" * 5000)
    (source / "directory").mkdir()
    mount = mounted()
    mount.reset()
    (mount / "file").read_bytes()
    assert errno_of((mount / "absent").lstat) == errno.ENOENT
    os.listdir(mount / "directory")
    # The front reads on credit, and tells the node a moment later.
    eventually(lambda: mount.stats()["cache"]["object_bytes"] >= 5000, "the node holds the file")
    stats = mount.stats()
    assert stats["source"]["open"] == 1
    assert stats["source"]["read_bytes"] == 5000
    assert stats["source"]["scandir"] == 2
    assert stats["bytes"]["from_memory"] == 5000
    assert stats["negative"] == 1
    assert stats["misses"] >= 2
    # below the root, which was granted with everything below it
    assert stats["operations"]["readdir"]["fetch"]["count"] >= 1


def test_stats_are_shown_to_people(source: Path, mounted: Mounter) -> None:
    (source / "file [bold] \udcff").write_bytes(b"content")
    mount = mounted()
    (mount / "file [bold] \udcff").read_bytes()
    shown = copperfs("stats", mount.mountpoint)
    assert shown.returncode == 0, shown.stderr
    for word in ("Operations", "lookup", "bytes read", "held", "evicted"):
        assert word in shown.stdout
    eventually(
        lambda: objects_named(mount.mountpoint, {"file [bold] \udcff"}), "the file is listed"
    )
    objects = copperfs("stats", "--objects", mount.mountpoint)
    assert objects.returncode == 0, objects.stderr
    assert "/file [bold] \\xff" in objects.stdout
    listed = copperfs("stats", "--objects", "--json", mount / "file [bold] \udcff")
    assert "file [bold] \udcff" in {each["path"] for each in json.loads(listed.stdout)}


def test_stats_watch_shows_again_until_the_mount_is_gone(source: Path, mounted: Mounter) -> None:
    mount = mounted()
    watching = watch(mount)
    assert mount.umount().returncode == 0, "watching does not keep a mount busy"
    _, said = watching.communicate(timeout=15)
    assert "Traceback" not in said


def test_clear_says_what_it_did(source: Path, mounted: Mounter) -> None:
    mount = mounted()
    assert "epoch 2" in copperfs("clear", mount.mountpoint).stdout
    (source / "below").mkdir()
    assert copperfs("clear", mount / "below").returncode == 0


@pytest.mark.parametrize("command", ["stats", "clear"])
def test_asking_what_is_no_mount_says_so(tmp_path: Path, command: str) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        done = copperfs(command, path)
        assert done.returncode == 5
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("copperfs: ")
        assert str(path) in done.stderr


def test_the_configuration_of_a_mount_is_what_config_show_shows(
    source: Path, mounted: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPPERFS_LISTING_MAX", "77")
    mount = mounted("--tree-max", "3MiB")
    configuration = ask(mount.mountpoint, CONFIGURATION)
    assert configuration["listing_max"] == 77
    assert configuration["tree_max_bytes"] == 3 << 20
    shown = copperfs("config", "show", "--tree-max", "3MiB").stdout
    assert any("tree-max" in line and "3 MiB" in line for line in shown.splitlines())
    assert any(
        "listing-max" in line and "77" in line and "COPPERFS_LISTING_MAX" in line
        for line in shown.splitlines()
    )
