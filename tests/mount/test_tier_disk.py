"""The disk of the data tier, on real mounts: kept for the next mount, refused, damaged, full."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from copperfs.config.settings import MIB
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from tests.mount.conftest import Mounter
from tests.mount.helpers import COPPERFS, Mount, copperfs, eventually, is_mounted, outcome_of
from tests.standin import StandIn
from tests.store.lab import many

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

CHUNKS = 6


@pytest.fixture
def content(source: Path) -> bytes:
    data = random.Random("large").randbytes((CHUNKS - 1) * MIB + 12_345)
    path = source / "large"
    path.write_bytes(data)
    os.utime(path, ns=(10**18, 10**18))
    return data


@pytest.fixture
def standin(source: Path, content: bytes) -> Iterator[StandIn]:
    with StandIn(source) as running:
        yield running


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    return ("--tree-max", "1MiB", "--tier-dir", str(tmp_path / "tier"))


def tier(mount: Mount) -> Any:
    return mount.stats()["tier"]


def is_written(mount: Mount) -> None:
    eventually(lambda: tier(mount)["disk"]["held"] == CHUNKS, lambda: f"written: {tier(mount)}")


def files_of(directory: Path) -> list[Path]:
    return sorted((directory / "chunks").glob("*/*"))


def test_what_lies_on_the_disk_is_not_read_from_the_source_again(
    mounted: Mounter, standin: StandIn, content: bytes, flags: tuple[str, ...], tmp_path: Path
) -> None:
    with Mount(standin.mountpoint, tmp_path / "first", *flags) as mount:
        assert (mount / "large").read_bytes() == content
        hits = tier(mount)["hits"]
        assert (hits["source"], hits["nvme"]) == (CHUNKS, 0)
    standin.reset()
    mount = mounted(*flags, of=standin.mountpoint)
    assert (mount / "large").read_bytes() == content
    hits = tier(mount)["hits"]
    assert (hits["source"], hits["nvme"]) == (0, CHUNKS)
    assert standin.counts().total("read") == 0
    assert standin.counts().total("open") == 0


def test_also_after_a_daemon_that_was_killed(
    standin: StandIn, mounted: Mounter, content: bytes, flags: tuple[str, ...]
) -> None:
    mount = mounted(*flags, of=standin.mountpoint)
    assert (mount / "large").read_bytes() == content
    is_written(mount)
    mount.kill()
    mount.remove()
    standin.reset()
    again = mounted(*flags, of=standin.mountpoint)
    assert (again / "large").read_bytes() == content
    assert standin.counts().total("read") == 0


def test_a_file_that_has_changed_meanwhile_is_read_again(
    source: Path, mounted: Mounter, content: bytes, flags: tuple[str, ...]
) -> None:
    mount = mounted(*flags)
    assert (mount / "large").read_bytes() == content
    mount.remove()
    other = content[::-1]
    (source / "large").write_bytes(other)
    mount = mounted(*flags)
    assert (mount / "large").read_bytes() == other
    assert tier(mount)["hits"]["nvme"] == 0


def test_damaged_chunks_are_dropped_counted_and_read_again(
    mounted: Mounter, content: bytes, flags: tuple[str, ...], tmp_path: Path
) -> None:
    mount = mounted(*flags)
    assert (mount / "large").read_bytes() == content
    mount.remove()
    files = files_of(tmp_path / "tier")
    assert len(files) == CHUNKS
    with files[0].open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"what the disk made of it")
    os.truncate(files[1], files[1].stat().st_size - 1)
    mount = mounted(*flags)
    assert (mount / "large").read_bytes() == content
    found = tier(mount)
    assert found["disk"]["erasures"] == 2
    assert (found["hits"]["nvme"], found["hits"]["source"]) == (CHUNKS - 2, 2)
    is_written(mount)


def refusal(source: Path, tmp_path: Path, *flags: str | Path) -> str:
    mountpoint = tmp_path / "refused"
    mountpoint.mkdir(exist_ok=True)
    done = copperfs("mount", mountpoint, "--source", source, *flags)
    assert done.returncode in (1, 2, 4), done.stderr
    assert not is_mounted(mountpoint)
    assert done.stderr.count("\n") == 1, "one sentence"
    return done.stderr


def test_a_directory_that_another_daemon_uses_is_refused(
    source: Path, mounted: Mounter, flags: tuple[str, ...], tmp_path: Path
) -> None:
    mounted(*flags)
    assert refusal(source, tmp_path, *flags) == (
        f"copperfs: Another copperfs daemon keeps its chunks in {tmp_path}/tier: give each its own "
        "--tier-dir.\n"
    )
    mounted("--tier-dir", str(tmp_path / "tier-%h"), "--node-name", "n7")
    assert (tmp_path / "tier-n7" / "lock").exists()


def test_what_cannot_be_a_tier_is_told_in_one_sentence(source: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir(mode=0o700)
    (tmp_path / "full" / "file").touch()
    said = refusal(source, tmp_path, "--tier-dir", tmp_path / "full")
    assert "is not empty and holds no chunks of copperfs: give a --tier-dir of its own" in said
    said = refusal(source, tmp_path, "--tier-dir", "/proc/self/tier")
    assert "Give a --tier-dir that you can write to" in said
    assert "there is no --tier-dir: give one" in refusal(source, tmp_path, "--tier-size", "1GiB")
    said = refusal(source, tmp_path, "--tier-dir", tmp_path / "refused" / "t")
    assert "lies in the mount point" in said
    assert "--ring /elsewhere is not below the source" in refusal(
        source, tmp_path, "--ring", "/elsewhere"
    )


@pytest.mark.parametrize("deeper", ["", "data/"], ids=["one missing", "two missing"])
def test_the_refusal_names_the_directory_that_is_missing(
    source: Path, tmp_path: Path, deeper: str
) -> None:
    """The message names the parent of the node's directory, which copperfs would have made."""
    tier = f"{tmp_path}/nvme/{deeper}%h"
    said = refusal(source, tmp_path, "--tier-dir", tier, "--node-name", "n7")
    above = f"{tmp_path}/nvme/{deeper}".rstrip("/")
    assert f"{tmp_path}/nvme does not exist." in said
    assert f"make {above} on a disk of this node" in said


def test_a_relative_directory_is_where_the_command_is_called(
    source: Path, tmp_path: Path, mounted: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mounted("--tier-dir", "here")
    assert (tmp_path / "here" / "lock").exists()


def test_without_a_size_it_is_half_of_what_is_free(
    mounted: Mounter, flags: tuple[str, ...], tmp_path: Path
) -> None:
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    budget = tier(mounted(*flags))["disk"]["budget_bytes"]
    assert budget == pytest.approx(free / 2, rel=0.2), "others write to this disk, too"


@as_root
def test_a_disk_that_others_need_takes_nothing_and_nobody_sees_an_error(
    mounted: Mounter, content: bytes, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "none", disk], check=True, timeout=30)
    try:
        flags = ("--tree-max", "1MiB", "--tier-dir", str(disk / "tier"))
        with Mount(tmp_path / "source", tmp_path / "mnt", *flags) as mount:
            assert (mount / "large").read_bytes() == content
            eventually(lambda: tier(mount)["disk"]["degraded"], "it takes nothing")
            found = tier(mount)["disk"]
            assert (found["held"], found["backlog"], found["written"]) == (0, 0, 0)
            assert "the disk takes nothing" in copperfs("stats", mount.mountpoint).stdout
            assert "nothing more is written to" in mount.log.read_text()
            assert not files_of(disk / "tier")
    finally:
        subprocess.run(["umount", "-l", disk], check=True, timeout=30)


def test_the_counts_begin_anew_and_what_is_held_stays(
    mounted: Mounter, content: bytes, flags: tuple[str, ...]
) -> None:
    mount = mounted(*flags)
    assert (mount / "large").read_bytes() == content
    is_written(mount)
    before = tier(mount)
    assert before["disk"]["written_bytes"] == len(content)
    mount.reset()
    after = tier(mount)
    assert sum(after["hits"].values()) == after["disk"]["written"] == 0
    assert after["disk"]["held_bytes"] == before["disk"]["held_bytes"] > len(content)
    assert after["memory"] == before["memory"] | {"evictions": 0}


def test_stats_tell_people_what_the_tier_has(
    mounted: Mounter, content: bytes, flags: tuple[str, ...]
) -> None:
    mount = mounted(*flags)
    assert "Data tier" in copperfs("stats", mount.mountpoint).stdout
    assert (mount / "large").read_bytes() == content
    is_written(mount)
    shown = copperfs("stats", mount.mountpoint).stdout
    assert re.search(rf"^from the source +{CHUNKS}$", shown, re.MULTILINE)
    assert f", {CHUNKS} chunks" in shown


def scrub(mount: Mount, *flags: str) -> Any:
    done = copperfs("scrub", mount.mountpoint, "--json", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("flags_of_scrub", [(), ("--all",), ("--rate", "1GiB")])
def test_scrub_finds_what_is_damaged_before_anybody_reads_it(
    flags_of_scrub: tuple[str, ...],
    mounted: Mounter,
    content: bytes,
    flags: tuple[str, ...],
    tmp_path: Path,
) -> None:
    mount = mounted(*flags)
    assert (mount / "large").read_bytes() == content
    is_written(mount)
    for file in files_of(tmp_path / "tier")[:2]:
        with file.open("r+b") as damaged:
            damaged.seek(-10, os.SEEK_END)
            damaged.write(b"wrong")
    found = scrub(mount, *flags_of_scrub)
    assert (found["chunks"], found["damaged"], found["busy"]) == (CHUNKS, 2, 0)
    assert found["done_bytes"] == found["total_bytes"] > len(content)
    again = scrub(mount, *flags_of_scrub)
    assert (again["chunks"], again["damaged"]) == (CHUNKS - 2, 0)
    assert tier(mount)["disk"]["erasures"] == 2
    shown = copperfs("scrub", mount.mountpoint).stdout
    assert re.fullmatch(r"4 chunks, \S+ MiB: all are as they were written\n", shown)


def test_who_scrubs_while_it_is_under_way_joins(
    mounted: Mounter, content: bytes, flags: tuple[str, ...]
) -> None:
    mount = mounted(*flags)
    assert (mount / "large").read_bytes() == content
    is_written(mount)
    slow = subprocess.Popen(
        [*COPPERFS, "scrub", mount.mountpoint, "--rate", "4MiB", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: scrub_state(mount)["busy"], "it has begun")
    assert scrub(mount)["chunks"] == CHUNKS
    said, _ = slow.communicate(timeout=60)
    assert json.loads(said)["chunks"] == CHUNKS


def scrub_state(mount: Mount) -> Any:
    return ask_mount(str(mount.mountpoint), IoctlRequest.SCRUB_STATE)


def test_without_a_disk_there_is_nothing_to_scrub(mounted: Mounter) -> None:
    done = copperfs("scrub", mounted().mountpoint)
    assert done.returncode == 5
    assert done.stderr == "copperfs: this node does not keep chunks on a disk (--tier-dir)\n"


def test_ring_of_a_node_alone_is_its_own(
    source: Path, mounted: Mounter, content: bytes, flags: tuple[str, ...]
) -> None:
    (source / "small").write_bytes(b"x" * 1000)
    mount = mounted(*flags)
    assert (mount / "large").read_bytes() == content
    is_written(mount)

    def ring(*paths: str | Path) -> Any:
        done = copperfs("ring", "--json", mount.mountpoint, *paths)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found = ring()
    assert (found["placement"], found["chunk_bytes"]) == (None, MIB)
    (member,) = found["members"]
    assert (member["share"], member["disk_chunks"], member["gone"]) == (1.0, CHUNKS, False)
    assert member["disk_bytes"] > len(content)
    large, small = ring("large", mount / "small")["paths"]
    assert large["owners"] == [{"number": 0, "chunks": CHUNKS}]
    assert large["ranges"] == [{"number": 0, "first": 0, "last": CHUNKS - 1}]
    assert (small["size"], small["chunks"]) == (1000, 0)
    shown = copperfs("ring", mount.mountpoint, "large", "small").stdout
    assert "large: 5.01 MiB in 6 chunks" in shown
    assert "small: 1000 B, not read in chunks" in shown
    for wrong, why in (("missing", "it is no file"), (".", "is not below"), ("/etc", "not below")):
        done = copperfs("ring", mount.mountpoint, wrong)
        assert (done.returncode, why in done.stderr) == (5, True), done.stderr
    assert "no node keeps chunks" in copperfs("ring", mounted().mountpoint).stderr


def test_without_a_tier_nothing_is_said_of_one(mounted: Mounter, content: bytes) -> None:
    mount = mounted("--tree-max", "1MiB")
    assert (mount / "large").read_bytes() == content
    found = tier(mount)
    assert not any(found["hits"].values())
    assert found["memory"]["budget_bytes"] == found["disk"]["budget_bytes"] == 0
    assert "Data tier" not in copperfs("stats", mount.mountpoint).stdout


# ---- kill -9 while chunks are written ------------------------------------------------------------

FILES, FILE_BYTES = 12, 4 * MIB + 777


def last_written(top: Path) -> int:
    return max((int(each.name.split(".")[1], 16) for each in files_of(top)), default=0)


def killed_while_it_writes(standin: StandIn, source: Path, top: Path, times: int) -> int:
    """Daemons are killed while they read a dataset and write it to the disk; return how often one
    was really writing. Each begins with what the others left, and has room for half of the dataset.
    Every byte that is read is compared."""
    contents = {f"f{n}": random.Random(n).randbytes(FILE_BYTES) for n in range(FILES)}
    for name, data in contents.items():
        (source / name).write_bytes(data)
    flags = (
        *("--ring", str(standin.mountpoint), "--tier-dir", str(top)),
        *("--tier-size", str(FILES * FILE_BYTES // 2), "--tier-memory", "0"),
    )
    wrong: list[str] = []
    errors: list[str] = []

    def read(mount: Mount, names: list[str]) -> None:
        def compare() -> None:
            wrong.extend(n for n in names if (mount / n).read_bytes() != contents[n])

        errors.append(outcome_of(compare))

    busy = 0
    for seed in range(times):
        rng = random.Random(seed)
        names = rng.sample(sorted(contents), FILES)
        with Mount(standin.mountpoint, top.parent / f"killed{seed}", *flags) as mount:
            before = last_written(top)
            reader = threading.Thread(target=read, args=(mount, names))
            reader.start()
            until = before + rng.randrange(1, 20)
            while last_written(top) < until and reader.is_alive():
                time.sleep(0.001)
            time.sleep(rng.random() * 0.01)  # at any moment of the next one
            mount.kill()
            busy += last_written(top) > before
            mount.remove()
            reader.join()
    # The daemon was killed during the read, or before it; or the path was below the bare mount
    # point.
    assert set(errors) <= {"ECONNABORTED", "ENOTCONN", "ENOENT", "success"}
    errors.clear()
    with Mount(standin.mountpoint, top.parent / "last", *flags) as mount:
        assert not list((top / "tmp").iterdir()), "what was not finished is gone"
        assert tier(mount)["disk"]["held"] == len(files_of(top)) > 0
        read(mount, sorted(contents))
        assert errors == ["success"]
        eventually(lambda: not tier(mount)["disk"]["backlog"], "all is written")
        assert tier(mount)["disk"]["held_bytes"] <= FILES * FILE_BYTES // 2
        assert tier(mount)["hits"]["nvme"] > 0
        assert tier(mount)["disk"]["erasures"] == 0, "what a killed process wrote, the kernel has"
    assert not wrong
    return busy


def test_killed_in_the_middle_of_writing_it_serves_no_wrong_byte(
    standin: StandIn, source: Path, tmp_path: Path
) -> None:
    assert killed_while_it_writes(standin, source, tmp_path / "tier", 4) > 2


@pytest.mark.long
def test_killed_in_the_middle_of_writing_forty_times(
    standin: StandIn, source: Path, tmp_path: Path
) -> None:
    times = many(40)
    assert killed_while_it_writes(standin, source, tmp_path / "tier", times) > 0.75 * times


# --- a disk that is slower than the source --------------------------------------------------------

SLOW_CHUNKS = 160
"""More than memory (32 MiB of own chunks) and the write backlog (64 MiB) hold."""


@pytest.fixture
def slow_content(source: Path) -> bytes:
    data = random.Random("slow").randbytes(SLOW_CHUNKS * MIB)
    path = source / "slow"
    path.write_bytes(data)
    os.utime(path, ns=(10**18, 10**18))
    return data


def read_anew(path: Path) -> bytes:
    """A write makes the kernel drop the file's pages."""
    data = path.read_bytes()
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return data


def test_a_disk_slower_than_the_source_has_all_of_it_for_the_second_pass(
    slow_content: bytes, mounted: Mounter, standin: StandIn, flags: tuple[str, ...]
) -> None:
    slow = ("--tier-memory", "64MiB", "--mover-rate", "40MiB")
    mount = mounted(*flags, *slow, of=standin.mountpoint)
    for _ in range(2):
        assert read_anew(mount / "slow") == slow_content
    assert standin.counts().read_bytes["slow"] == len(slow_content)
    stats = tier(mount)
    assert stats["hits"]["source"] == SLOW_CHUNKS
    assert (stats["disk"]["refused"], stats["disk"]["read_again"]) == (0, 0)
    assert stats["disk"]["waited"] > 0
    assert "reads throttled by the disk" in copperfs("stats", mount.mountpoint).stdout


def test_with_later_nobody_waits_and_the_disk_has_all_of_it_in_the_end(
    slow_content: bytes, mounted: Mounter, standin: StandIn, flags: tuple[str, ...]
) -> None:
    slow = ("--tier-memory", "64MiB", "--mover-rate", "40MiB", "--tier-write", "later")
    mount = mounted(*flags, *slow, of=standin.mountpoint)
    assert read_anew(mount / "slow") == slow_content
    disk = tier(mount)["disk"]
    assert disk["waited"] == 0
    assert disk["owed_bytes"] > 0
    eventually(lambda: tier(mount)["disk"]["held"] == SLOW_CHUNKS, lambda: f"all: {tier(mount)}")
    disk = tier(mount)["disk"]
    assert (disk["owed"], disk["owed_bytes"], disk["refused"]) == (0, 0, 0)
    again = standin.counts().read_bytes["slow"] - len(slow_content)
    assert 0 < again == disk["read_again"] * MIB, "counted, and shown"
    assert read_anew(mount / "slow") == slow_content
    assert tier(mount)["disk"]["read_again"] * MIB == again, "the disk has all of it"
    assert "read from the source again" in copperfs("stats", mount.mountpoint).stdout


def test_a_disk_that_breaks_while_readers_wait_for_it_holds_them_up_no_longer(
    slow_content: bytes, mounted: Mounter, flags: tuple[str, ...], tmp_path: Path
) -> None:
    mount = mounted(*flags, "--tier-memory", "64MiB", "--mover-rate", "1MiB")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((mount / "slow").read_bytes()))
    reader.start()
    eventually(lambda: tier(mount)["disk"]["waiting"], "it waits for the disk")
    shutil.rmtree(tmp_path / "tier")
    reader.join(30.0)  # at the pace of the disk it would be 96 s
    assert read == [slow_content]
    hits, disk = tier(mount)["hits"], tier(mount)["disk"]
    # The disk lost its backlog, and memory had evicted some of that before it was read.
    assert hits["source"] - SLOW_CHUNKS == disk["read_again"]
    assert disk["degradations"] >= 1
    assert disk["waiting"] == 0
