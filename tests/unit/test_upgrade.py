"""What a daemon refuses to be upgraded to."""

import json
import os
from dataclasses import replace
from typing import Any

import pytest
import trio

from copperfs.config.settings import Settings
from copperfs.daemon.agreement import AGREED
from copperfs.daemon.succession import Succession
from copperfs.daemon.upgrade import Upgrades
from copperfs.fuse.ioctl import Asked, IoctlRequest
from copperfs.model.errors import ConfigError

SETTINGS = Settings(mountpoint="/mnt", memory_bytes=1 << 30, takeover=True)


def begun(
    changes: dict[str, object] | None = None,
    *,
    settings: Settings = SETTINGS,
    pid: int | None = None,
    job: bool = False,
) -> Any:
    words = {"number": "1", "command": ["/bin/true"], "settings": changes or {}}
    return told(json.dumps(words).encode(), settings=settings, pid=pid, job=job)


def told(
    data: bytes, *, settings: Settings = SETTINGS, pid: int | None = None, job: bool = False
) -> Any:
    succession = Succession(settings, None, None)
    succession.is_settled.set()
    upgrades = Upgrades(settings, succession, job, is_in_place=False)
    pid = os.getpid() if pid is None else pid
    asked = Asked(1, os.getuid(), IoctlRequest.UPGRADE, 0, 0, 8000, data, pid)
    return trio.run(upgrades.begin, asked).get("error")  # type: ignore[attr-defined]


def test_settings_of_the_job_do_not_change_on_one_node() -> None:
    for name in AGREED:
        assert "cannot change" in begun({name: "another"}, job=True)
    assert "--shared cannot change while the job's other nodes run" in begun(
        {"shared": ["/"]}, job=True
    )
    assert "no keeper" in begun({"memory_bytes": 1}, job=True)
    assert "no keeper" in begun({"fanout": 3})
    same = {"fanout": SETTINGS.fanout, "shared": list(SETTINGS.shared)}
    assert "no keeper" in begun(same, job=True)


@pytest.mark.parametrize("pid", [0, 1 << 30])
def test_a_process_that_is_not_seen_here_is_refused(pid: int) -> None:
    assert "not from within a container" in begun(pid=pid)


def test_a_mount_whose_daemon_is_waited_for_is_refused() -> None:
    assert "--foreground" in begun(settings=replace(SETTINGS, foreground=True))
    assert "with --no-takeover" in begun(settings=replace(SETTINGS, takeover=False))


@pytest.mark.parametrize(
    "words",
    [
        {}, [], {"number": 1, "command": ["x"], "settings": {}},
        {"number": "1", "command": [], "settings": {}},
        {"number": "1", "command": ["a\0b"], "settings": {}},
        {"number": "1", "command": [1], "settings": {}},
        {"number": "1", "command": ["x"], "settings": 7},
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused(words: object) -> None:
    assert "does not understand" in told(json.dumps(words).encode())
    assert "does not understand" in told(b"\xff")


def test_settings_of_another_version_are_read() -> None:
    values = json.loads(SETTINGS.to_json())
    del values["fanout"]
    assert Settings.of_another_version(values | {"new": 1}) == SETTINGS
    del values["mountpoint"]
    with pytest.raises(ConfigError, match="no mountpoint"):
        Settings.of_another_version(values)
