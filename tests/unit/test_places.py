"""Which paths are what, from the settings and the mounts of a machine."""

import os
from itertools import pairwise
from pathlib import Path as FilePath

import pytest

from copperfs.config import ConfigFile, Settings, resolve, settings_of
from copperfs.core.policy import Place, Policy
from copperfs.fuse.mounting import FSTYPE, Mount, mounts
from copperfs.runtime.places import OwnMounts, below_source, policy_for, ring_prefix
from copperfs.types import Path


def settings(source: str = "/", mountpoint: str = "/mnt", **others: object) -> Settings:
    resolved = resolve(
        flags={"source": source, **others},  # type: ignore[dict-item]  # each test knows its types
        environ={},
        file=ConfigFile("/none", ""),
        memory_bytes=1 << 34,
    )
    return settings_of(mountpoint, resolved)


def mount(mountpoint: bytes, fstype: str) -> Mount:
    return Mount(mountpoint, "0:1", fstype, "none", "rw")


MACHINE = [
    mount(b"/", "ext4"),
    mount(b"/proc", "proc"),
    mount(b"/sys", "sysfs"),
    mount(b"/lus", "lustre"),
    mount(b"/home", "nfs4"),
    mount(b"/lus/jail/proc", "proc"),
]


def policy(source: str = "/", mountpoint: str = "/mnt", **others: object) -> Policy:
    return policy_for(settings(source, mountpoint, **others), MACHINE, os.fsencode(source))


def paths(*each: bytes) -> tuple[Path, ...]:
    return tuple(map(Path, each))


def test_below_the_root_the_network_filesystems_are_shared() -> None:
    chosen = policy()
    assert chosen.shared == paths(b"lus", b"home")
    assert chosen.place(Path(b"etc")) is Place.LOCAL


def test_a_source_that_was_named_is_shared_wherever_it_lies() -> None:
    assert policy("/data").shared == paths(b"")
    assert policy("/lus").shared == paths(b"")


def test_without_a_network_filesystem_all_but_the_kernels_places_are_shared() -> None:
    chosen = policy_for(settings(), MACHINE[:3], b"/")
    assert chosen.shared == paths(b"")
    assert chosen.local == paths(b"proc", b"sys", b"dev", b"run")
    assert chosen.place(Path(b"etc")) is Place.SHARED
    assert chosen.place(Path(b"dev/shm")) is Place.LOCAL


def test_prefixes_that_were_named_are_the_shared_ones() -> None:
    chosen = policy(shared=("/opt/soft", "/lus/"))
    assert chosen.shared == paths(b"opt/soft", b"lus")


def test_a_prefix_that_holds_the_source_makes_all_of_it_shared() -> None:
    assert policy("/lus/project", shared=("/lus",)).shared == paths(b"")
    assert policy("/lus/project", shared=("/lus/project",)).shared == paths(b"")


def test_a_prefix_beside_the_source_is_none_of_it() -> None:
    assert policy("/lus", shared=("/home", "/lus/a", "/lustre")).shared == paths(b"a")


def test_kernel_interfaces_are_known_by_their_filesystem() -> None:
    assert policy().pseudo == {b"proc", b"sys", b"lus/jail/proc"}
    assert policy("/lus").pseudo == {b"jail/proc"}
    assert policy("/proc").pseudo == frozenset()


def test_the_mount_point_is_refused_where_it_is_below_the_source() -> None:
    assert policy().refused == {b"mnt"}
    assert policy("/lus", "/lus/a/mnt").refused == {b"a/mnt"}
    assert policy("/lus", "/mnt").refused == frozenset()
    assert policy("/lus", "/lustre").refused == frozenset()


def test_what_the_settings_say_is_passed_on() -> None:
    chosen = policy(symlinks="keep", revalidate_s=5.0)
    assert (chosen.rewrite_symlinks, chosen.revalidate_s) == (False, 5.0)
    assert policy().rewrite_symlinks


@pytest.mark.parametrize(
    ("source", "named", "ring", "prefix"),
    [
        ("/", "/", "/lus/data", b"lus/data"),
        ("/lus", "/lus", "/lus/data/", b"data"),
        ("/lus", "/lus", "/lus", b""),
        ("/lus/real", "/data", "/data/set", b"set"),
        ("/lus/real", "/data", "/lus/real/./set", b"set"),
        ("/lus", "/lus", "/lustre", None),
    ],
)
def test_a_dataset_is_named_by_where_the_source_is(
    source: str, named: str, ring: str, prefix: bytes | None
) -> None:
    chosen = settings(named, ring=(ring,))
    assert ring_prefix(chosen, os.fsencode(source), ring) == prefix
    shown = policy_for(chosen, MACHINE, os.fsencode(source))
    assert shown.ring == (() if prefix is None else paths(prefix))


@pytest.mark.parametrize(
    ("source", "absolute", "below"),
    [
        (b"/", b"/", b""),
        (b"/", b"/a/b", b"a/b"),
        (b"/a", b"/a", b""),
        (b"/a", b"/a/b/c", b"b/c"),
        (b"/a", b"/ab", None),
        (b"/a", b"/", None),
        (b"/a/", b"/a/b", b"b"),
    ],
)
def test_an_absolute_path_is_below_the_source_or_not(
    source: bytes, absolute: bytes, below: bytes | None
) -> None:
    assert below_source(source, absolute) == below


# ---- the daemon's own mounts ---------------------------------------------------------------------


def test_own_mounts_are_found_by_their_device() -> None:
    root = next(each for each in reversed(mounts()) if each.mountpoint == b"/")
    told: list[frozenset[Path]] = []
    own = OwnMounts(b"/", root.device, told.append)
    try:
        assert b"" in own()
        assert told[-1] == own.paths
        assert own() == own.paths
        assert all(a != b for a, b in pairwise(told)), "told only of changes"
    finally:
        own.close()


def test_other_mounts_of_copperfs_may_lead_back_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def ours(mountpoint: bytes, device: str) -> Mount:
        return Mount(mountpoint, device, FSTYPE, "none", "ro")

    found = [*MACHINE, ours(b"/mnt", "0:7"), ours(b"/other", "0:8"), ours(b"/lus", "0:9")]
    monkeypatch.setattr("copperfs.runtime.places.mounts", lambda: found)
    for source, wanted in ((b"/", {b"mnt", b"other", b"lus"}), (b"/lus", set())):
        own = OwnMounts(source, "0:7", lambda _: None)
        try:
            assert own() == wanted, "a mount that is the source itself can be shown"
        finally:
            own.close()


def test_mounts_outside_the_source_do_not_lead_back(tmp_path: FilePath) -> None:
    root = next(each for each in reversed(mounts()) if each.mountpoint == b"/")
    own = OwnMounts(bytes(tmp_path), root.device, lambda _: pytest.fail("nothing has changed"))
    try:
        assert own() == frozenset()
    finally:
        own.close()
