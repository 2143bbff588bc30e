"""The checks of ``copperfs doctor``, run on machines that lack a requirement."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from copperfs.cli import doctor_checks as examination
from copperfs.cli import doctor_peer_checks as examination_peers
from copperfs.cli.doctor_checks import Check, CheckedMachine, CheckVerdict
from copperfs.cli.subprocess_deadline import python_aside, run_aside
from copperfs.config.settings import GIB, Settings

SETTINGS = Settings(mountpoint="/dev/null", memory_bytes=GIB)
MACHINE = CheckedMachine(SETTINGS, uid=1000)


def one(found: Iterator[Check]) -> Check:
    (check,) = found
    assert bool(check.remedy) == (check.verdict is not CheckVerdict.OK), (
        "what is not well has a remedy"
    )
    return check


def test_without_the_device_nothing_can_be_mounted(tmp_path: Path) -> None:
    check = one(examination.device(replace(MACHINE, fuse_device=str(tmp_path / "fuse"))))
    assert check.verdict is CheckVerdict.FAILED
    assert "modprobe fuse" in check.remedy


def test_only_root_can_do_without_fusermount3(tmp_path: Path) -> None:
    bare = replace(MACHINE, path=str(tmp_path), libfuse="/dev/null")
    assert one(examination.fusermount(bare)).verdict is CheckVerdict.FAILED
    assert one(examination.fusermount(replace(bare, uid=0))).verdict is CheckVerdict.OK


def test_fusermount3_is_found_where_libfuse_looks_for_it(tmp_path: Path) -> None:
    """PATH of a job may lack its directory, and mounts work all the same."""
    program = tmp_path / "bin" / "fusermount3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho fusermount3 version: 3.99\n")
    program.chmod(0o4755)
    library = tmp_path / "libfuse3.so.3"
    library.write_bytes(b"\x7fELF\0/absent/fusermount3\0" + os.fsencode(program) + b"\0more")
    machine = CheckedMachine(SETTINGS, uid=1000, path=str(tmp_path), libfuse=str(library))
    check = one(examination.fusermount(machine))
    assert (check.verdict, check.found) == (CheckVerdict.OK, f"{program} 3.99")


def test_fusermount3_has_to_be_setuid_for_others_than_root(tmp_path: Path) -> None:
    program = tmp_path / "fusermount3"
    program.write_text("#!/bin/sh\necho fusermount3 version: 3.99\n")
    program.chmod(0o755)
    machine = replace(MACHINE, path=str(tmp_path))
    check = one(examination.fusermount(machine))
    assert (check.verdict, "not setuid root" in check.found) == (CheckVerdict.FAILED, True)
    program.chmod(0o4755)
    assert one(examination.fusermount(machine)).found == f"{program} 3.99"


@pytest.mark.parametrize(
    ("conf", "allow_other", "uid", "verdict"),
    [
        ("user_allow_other\n", True, 1000, CheckVerdict.OK),
        ("#user_allow_other\n", True, 1000, CheckVerdict.FAILED),
        ("#user_allow_other\n", True, 0, CheckVerdict.OK),
        ("#user_allow_other\n", False, 1000, CheckVerdict.OK),
    ],
)
def test_user_allow_other_matters_to_who_wants_it(
    tmp_path: Path, conf: str, allow_other: bool, uid: int, verdict: CheckVerdict
) -> None:
    (tmp_path / "fuse.conf").write_text(conf)
    settings = replace(SETTINGS, allow_other=allow_other)
    machine = CheckedMachine(settings, uid=uid, fuse_conf=str(tmp_path / "fuse.conf"))
    assert one(examination.user_allow_other(machine)).verdict is verdict


@pytest.mark.parametrize(
    ("release", "verdict"),
    [
        ("6.18.44-x", CheckVerdict.OK),
        ("5.1.0", CheckVerdict.OK),
        ("4.18.0-513.el8", CheckVerdict.WARNING),
    ],
)
def test_old_kernels_are_told_of(release: str, verdict: CheckVerdict) -> None:
    assert one(examination.kernel(replace(MACHINE, release=release))).verdict is verdict


@pytest.mark.parametrize(
    ("available_kib", "verdict"),
    [
        (8 << 20, CheckVerdict.OK),
        ((3 << 20) // 2, CheckVerdict.WARNING),
        (1 << 19, CheckVerdict.FAILED),
    ],
)
def test_memory_is_compared_with_what_is_asked_for(
    tmp_path: Path, available_kib: int, verdict: CheckVerdict
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {available_kib} kB\n")
    machine = replace(MACHINE, meminfo=str(tmp_path / "meminfo"))
    assert one(examination.memory(machine)).verdict is verdict


def test_the_limit_of_the_jobs_cgroup_is_memory_as_well(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(f"MemAvailable: {8 << 20} kB\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{GIB // 2}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    )
    machine = replace(MACHINE, meminfo=str(tmp_path / "meminfo"), root=str(tmp_path))
    check = one(examination.memory(machine))
    assert check.verdict is CheckVerdict.FAILED
    assert "the job's cgroup has 0.5 GiB (/sys/fs/cgroup/job/memory.max)" in check.found


def test_low_limits_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    real = resource.getrlimit
    low = {resource.RLIMIT_NOFILE: (256, 1024), resource.RLIMIT_AS: (GIB, GIB)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: low.get(kind) or real(kind))
    found = list(examination.limits(MACHINE))
    assert [each.verdict for each in found] == [CheckVerdict.WARNING] * 2
    assert found[0].found == "at most 1024 descriptors"
    assert "ulimit -v" in found[1].remedy


def test_more_descriptors_are_wanted_by_more_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = resource.getrlimit
    of_debian = {resource.RLIMIT_NOFILE: (1024, 8192), resource.RLIMIT_NPROC: (-1, -1)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: of_debian.get(kind) or real(kind))
    assert one(examination.limits(replace(MACHINE, nodes=2000))).verdict is CheckVerdict.OK
    [found] = examination.limits(replace(MACHINE, nodes=8300))
    assert found.verdict is CheckVerdict.WARNING
    assert "10348 or more" in found.remedy


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    machine = CheckedMachine(replace(SETTINGS, source=str(tmp_path / "gone")))
    assert one(examination.source(machine)).verdict is CheckVerdict.FAILED
    machine = CheckedMachine(replace(SETTINGS, source=str(tmp_path)))
    assert one(examination.source(machine)).verdict is CheckVerdict.OK


def test_peers_that_answer_refuse_or_are_unknown() -> None:
    with socket.socket() as listening, socket.socket() as taken:
        for each in (listening, taken):
            each.bind(("127.0.0.1", 0))
        listening.listen()
        open_port, closed_port = (each.getsockname()[1] for each in (listening, taken))
        names = [f"127.0.0.1:{open_port}", f"127.0.0.1:{closed_port}", "no-such-host.invalid"]
        found = list(examination_peers.peers(replace(MACHINE, peers=names)))
    assert [each.verdict for each in found] == [
        CheckVerdict.OK,
        CheckVerdict.OK,
        CheckVerdict.FAILED,
    ]
    assert found[0].found == f"{names[0]} answers"
    assert "nothing listens there yet" in found[1].found
    assert "not known here" in found[2].found


def test_a_path_that_is_no_mount_is_told_in_a_sentence(tmp_path: Path) -> None:
    machine = replace(MACHINE, mountpoint=str(tmp_path))
    (check,) = examination_peers.peers(machine)
    assert check.found.startswith(f"{tmp_path} is not on a mount of copperfs")


def test_an_address_that_others_cannot_use_is_told_of() -> None:
    local = replace(MACHINE, settings=replace(SETTINGS, listen="lo"))
    assert one(examination_peers.resolution(local)).verdict is CheckVerdict.WARNING
    wrong = replace(MACHINE, settings=replace(SETTINGS, listen="no0"))
    check = one(examination_peers.resolution(wrong))
    assert check.verdict is CheckVerdict.FAILED
    assert check.found.startswith("--listen no0 is neither an address")


@pytest.mark.parametrize("check", [*examination.LOCAL_CHECKS, *examination_peers.PEER_CHECKS])
def test_each_check_finds_something_on_this_machine(
    check: Callable[[CheckedMachine], Iterator[Check]],
) -> None:
    assert list(check(CheckedMachine(SETTINGS)))


def test_what_hangs_is_left_behind() -> None:
    assert run_aside(python_aside("import time; time.sleep(60)"), 0.2).code is None
    assert run_aside(["/no/such/program"], 1).code == 127
