"""How a daemon that cannot be asked is found by who unmounts."""

import os

import pytest

from copperfs.fuse.mounting import FSTYPE, Mount, announce, announced


def mount(device: int, owner: str = f"rw,user_id={os.geteuid()},group_id=0") -> Mount:
    # No kernel hands out such a minor number.
    return Mount(b"/mnt", f"0:{(1 << 40) + os.getpid() * 100 + device}", FSTYPE, "/src", owner)


def test_it_is_found_while_it_is_there() -> None:
    assert announced(mount(1)) is None
    with announce(mount(1)):
        assert announced(mount(1)) == os.getpid()
        assert announced(mount(2)) is None
    assert announced(mount(1)) is None


@pytest.mark.parametrize("owner", ["rw,user_id=12345", "rw", "rw,xuser_id=0"])
def test_a_process_of_somebody_else_is_not_believed(owner: str) -> None:
    with announce(mount(3)):
        assert announced(mount(3, owner)) is None


def test_a_name_that_is_taken_ends_nobody() -> None:
    with announce(mount(4)), announce(mount(4)):
        assert announced(mount(4)) == os.getpid()
