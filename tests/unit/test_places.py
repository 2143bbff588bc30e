"""Path policy: the class of each path, from the settings and the mounts of a machine."""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path as FilePath

import pytest

from copperfs.config.settings import ConfigFile, Settings, resolve, settings_of
from copperfs.daemon import path_policy_from_mounts
from copperfs.daemon.path_policy_from_mounts import (
    NETWORK_FILESYSTEMS,
    OwnMounts,
    PathClasses,
    are_apart,
    below_source,
    check_shared,
    compared_prefixes,
    path_classes_for,
    policy_for,
    policy_of,
    ring_prefix,
)
from copperfs.fuse.mounting import FSTYPE, Mount, mounts
from copperfs.model.errors import MountError
from copperfs.model.roster import Member, Roster
from copperfs.model.types import Path
from copperfs.node.requests.path_policy import Place, Policy
from tests.descriptors import no_descriptor_left


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


APART = [
    *MACHINE,
    mount(b"/tmp", "tmpfs"),
    mount(b"/lus/scratch", "xfs"),
    mount(b"/lus/scratch/all", "beegfs"),
    mount(b"/home/me", "nfs4"),
    mount(b"/site", "fuse.something"),
]


def apart(source: str = "/", all_mounts: list[Mount] = APART, **others: object) -> Policy:
    chosen = settings(source, "/mnt", **others)
    return policy_for(chosen, all_mounts, os.fsencode(source), apart=True)


def test_several_machines_share_network_filesystems_and_no_disk() -> None:
    chosen = apart()
    assert chosen.shared == paths(b"home", b"lus", b"lus/scratch/all")
    assert chosen.local == paths(b"lus/scratch")
    for path in (b"etc/passwd", b"tmp/x", b"lus/scratch/x", b"site/x"):
        assert chosen.place(Path(path)) is Place.LOCAL
    assert chosen.place(Path(b"lus/scratch/all/x")) is Place.SHARED


def test_a_source_on_a_network_filesystem_or_one_that_is_not_known_is_shared() -> None:
    assert apart("/lus").shared == paths(b"", b"scratch/all")
    assert apart("/lus").local == paths(b"scratch")
    assert apart("/home/me/env").shared == paths(b"")
    assert apart("/site").shared == paths(b"")


@pytest.mark.parametrize("source", ["/", "/opt", "/tmp", "/lus/scratch", "/proc"])
def test_several_machines_without_anything_to_share_are_refused(source: str) -> None:
    disks = [each for each in APART if each.fstype not in NETWORK_FILESYSTEMS]
    with pytest.raises(MountError, match=f"^{source} is on a disk of this node alone .*--shared"):
        apart(source, disks)
    assert policy_for(settings(source), disks, os.fsencode(source)).shared == paths(b"")
    assert apart(source, disks, shared=(source,)).shared == paths(b"")


def test_what_an_automounter_has_mounted_at_the_moment_makes_no_difference() -> None:
    home = Mount(b"/home", "0:2", "autofs", "auto.home", "rw,fd=6,indirect")
    kernel = Mount(b"/proc/sys/fs/binfmt_misc", "0:3", "autofs", "systemd-1", "rw,direct")
    machine = [*APART[:3], home, kernel]
    visited = [*machine, mount(b"/home/me", "nfs4"), mount(b"/home/you", "nfs4")]
    assert apart(all_mounts=machine) == apart(all_mounts=visited)
    assert apart(all_mounts=machine).shared == paths(b"home")


def test_a_direct_automount_is_shared_whether_or_not_it_was_triggered() -> None:
    data = Mount(b"/data", "0:4", "autofs", "systemd-1", "rw,fd=59,direct")
    below = Mount(b"/lus/tools", "0:5", "autofs", "auto.direct", "rw,fd=6,direct")
    machine = [*APART[:4], data, below]
    triggered = [*machine, mount(b"/data", "nfs4"), mount(b"/lus/tools", "nfs")]
    assert apart(all_mounts=machine) == apart(all_mounts=triggered)
    assert apart(all_mounts=machine).shared == paths(b"data", b"lus")
    assert apart("/data", machine) == apart("/data", triggered)
    disk = [*machine, mount(b"/data", "ext4")]
    assert apart(all_mounts=disk).shared == paths(b"lus"), "a disk of one machine stays its own"


def test_what_systemd_mounts_to_boot_from_is_of_one_machine() -> None:
    machine = [*APART[:4]]
    efi = Mount(b"/boot/efi", "0:6", "autofs", "systemd-1", "rw,fd=60,direct")
    triggered = [*machine, efi, mount(b"/boot/efi", "vfat")]
    assert apart(all_mounts=[*machine, efi]) == apart(all_mounts=triggered)
    assert apart(all_mounts=triggered) == apart(all_mounts=machine)


def test_what_is_mounted_over_another_hides_it() -> None:
    machine = [*APART[:3], mount(b"/data", "ext4"), mount(b"/data", "nfs")]
    assert apart(all_mounts=machine).shared == paths(b"data")
    assert apart("/data", machine).shared == paths(b"")


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        (("tcp://127.0.0.1:1", "tcp://127.0.0.2:1"), False),
        (("tcp://[::1]:1", "tcp://localhost:2"), False),
        (("tcp://10.0.0.1:1", "tcp://10.0.0.1:2"), False),
        (("tcp://[fd00::1]:1", "tcp://[fd00::1]:2"), False),
        (("tcp://10.0.0.1:1", "tcp://10.0.0.2:1"), True),
        (("tcp://node1:4711", "tcp://node2:4711"), True),
    ],
)
def test_nodes_are_on_one_machine_if_they_have_one_address(
    endpoints: tuple[str, ...], expected: bool
) -> None:
    members = tuple(Member(f"n{number}", each) for number, each in enumerate(endpoints))
    assert are_apart(Roster("job", members)) is expected


def test_a_prefix_that_is_not_there_is_refused_and_one_elsewhere_told_of(
    tmp_path: FilePath, expected_warnings: Callable[[str], None]
) -> None:
    source, other = tmp_path / "source", tmp_path / "other"
    (source / "there").mkdir(parents=True)
    other.mkdir()
    (tmp_path / "link").symlink_to(source / "there")

    def check(shared: FilePath) -> None:
        check_shared(settings(str(source), shared=(str(shared),)), os.fsencode(source))

    for good in (source, source / "there", tmp_path, tmp_path / "link"):
        check(good)
    with pytest.raises(MountError, match="absent does not exist on this node"):
        check(source / "absent")
    expected_warnings(
        "nothing of .*/source is shared with other nodes: --shared names only .*other"
    )
    check(other)


def test_a_prefix_is_where_its_links_lead(tmp_path: FilePath) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    chosen = policy(str(tmp_path), shared=(str(tmp_path / "link"),))
    assert chosen.shared == paths(b"real")


def test_a_successor_asks_no_filesystem_which_places_are_shared(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An automount may have expired meanwhile, and a filesystem may hang."""
    root = os.fsencode(tmp_path)
    for name in ("lus", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "named").symlink_to("lus")
    one = settings(str(tmp_path), shared=[str(tmp_path / "named")])
    found = [mount(b"/", "ext4"), mount(root + b"/lus", "fuse.sshfs"), mount(root + b"/p", "proc")]
    monkeypatch.setattr(path_policy_from_mounts, "mounts", lambda: found)
    before = path_classes_for(one, root)
    assert before == PathClasses(paths(b"lus"), (), paths(b"p"), paths(b"lus"), ignores_inodes=True)
    del found[1:]
    (tmp_path / "named").unlink()
    (tmp_path / "named").symlink_to("home")

    def goes_on(now: Settings, *changed: str) -> PathClasses:
        return path_classes_for(now, root, before=before, changed=changed)

    assert goes_on(one) is before
    assert policy_of(one, root, before).shared == paths(b"lus")
    assert goes_on(replace(one, inodes="compare"), "inodes") == replace(
        before, ignores_inodes=False
    )
    assert goes_on(one, "shared") == PathClasses(
        paths(b"home"), (), (), paths(b"home"), ignores_inodes=False
    )


def test_prefixes_that_were_named_are_the_shared_ones() -> None:
    chosen = policy(shared=("/opt/soft", "/lus/"))
    assert chosen.shared == paths(b"opt/soft", b"lus")


@pytest.mark.parametrize(
    ("source", "shared", "expected"),
    [
        ("/", "/lus/data/sets", paths(b"lus/data/sets")),
        ("/lus", "/lus/data/sets", paths(b"data/sets")),
        ("/lus", "/opt", ()),
        ("/", "/lus", paths(b"lus", b"lus/scratch/all")),
        ("/home", "/home", paths(b"", b"me")),
        ("/auto", "/auto", ()),
    ],
)
def test_inode_numbers_are_compared_in_what_is_shared(
    source: str, shared: str, expected: tuple[Path, ...]
) -> None:
    """Also in the middle of a filesystem; the comparison mounts nothing."""
    machine = [*APART, mount(b"/auto", "autofs")]
    chosen = apart(source, machine, shared=(shared,))
    assert compared_prefixes(machine, chosen) == expected


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
    monkeypatch.setattr("copperfs.daemon.path_policy_from_mounts.mounts", lambda _: found)
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


def test_mounts_are_followed_when_no_descriptor_is_left(tmp_path: FilePath) -> None:
    told: list[frozenset[Path]] = []
    own = OwnMounts(os.fsencode(tmp_path), "0:0", told.append)
    with no_descriptor_left():
        own._read()
    own.close()
    assert told == []
