"""Start of the mount process, when that process misbehaves."""

import sys

import pytest

from copperfs.fuse import daemon_start as module
from copperfs.fuse.daemon_start import starting
from copperfs.model.errors import MountError


def test_a_process_that_does_not_hear_what_it_is_told_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HEARS_WITHIN_S", 0.2)
    monkeypatch.setattr(module, "ENDS_WITHIN_S", 0.2)
    hangs = [sys.executable, "-c", "import time; time.sleep(60)"]
    roster = "x" * (4 << 20)  # of thousands of nodes: more than a socket's buffer takes
    with (
        pytest.raises(MountError, match="the process for /mnt did not begin within 0 s"),
        starting("nothing", [roster], shown="/mnt", stderr=None, inside=hangs),
    ):
        raise AssertionError("it was told")
