"""``copperfs upgrade``: lets this installation, or other settings, take over a live mount.

The daemon of the mount is asked to let a standby of this installation go on
(``daemon/upgrade.py``). Applications see nothing of it but a moment's wait.
"""

import argparse
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from copperfs.cli.options import add_setting_flags, given_flags
from copperfs.cli.output import console, print_error, print_json, printable, waiting
from copperfs.cli.which_mount import add_mount_argument, which_mount
from copperfs.config.settings import RUN_ONLY, Settings, Value, check_tier
from copperfs.fuse.ioctl import DATA_BYTES, IoctlRequest, ask_mount
from copperfs.model.errors import ControlError, CopperError, UsageError

Found = TypeVar("Found")

NAME = "upgrade"
HELP = "let this version of copperfs, or other settings, take over live mounts"

# Its standby may take 60 s, and a successor that fails is replaced.
DONE_WITHIN_S = 180.0
ANSWERS_WITHIN_S = 10.0
LOOKS_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Upgraded:
    mountpoint: str
    pid: int
    release_before: str
    release: str
    took_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mount_argument(parser, "the mount that goes on with this version")
    parser.add_argument(
        "--all",
        action="store_true",
        help="all mounts of this user on this node, also those of in-place runs",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_setting_flags(parser, without=RUN_ONLY)


def run(arguments: argparse.Namespace) -> int:
    if arguments.mountpoint is not None and arguments.all:
        raise UsageError("give one mount point, or --all")
    flags = given_flags(arguments)
    places = _all_mounts() if arguments.all else [_place(which_mount(arguments.mountpoint))]
    upgraded: list[Upgraded] = []
    failed: dict[str, str] = {}
    for mountpoint, path in places:
        try:
            with waiting(f"upgrading {mountpoint}"):
                upgraded.append(_upgrade(mountpoint, path, flags))
        except CopperError as error:
            failed[mountpoint] = str(error)
    if arguments.json:
        print_json(_document(upgraded, failed))
    else:
        for each in upgraded:
            console().print(_sentence(each))
        if not places:
            console().print("no mount of copperfs is yours on this node")
    for why in failed.values():
        print_error(why)
    return 1 if failed else 0


def _document(upgraded: list[Upgraded], failed: dict[str, str]) -> dict[str, object]:
    done = [{name: getattr(each, name) for name in Upgraded.__slots__} for each in upgraded]
    not_done = [{"mountpoint": where, "error": why} for where, why in failed.items()]
    return {"version": 1, "upgraded": done, "failed": not_done}


def _sentence(done: Upgraded) -> str:
    release = f"copperfs {done.release}"
    if done.release != done.release_before:
        release = f"copperfs {done.release} in place of {done.release_before}"
    where = printable(done.mountpoint)
    return f"{where}: {release}, process {done.pid}; no answers for {done.took_s:.3f} s"


# ---- which mounts --------------------------------------------------------------------------------


def _place(mountpoint: str) -> tuple[str, str]:
    from copperfs.fuse.mounting import absolute

    where = absolute(mountpoint)
    return where, where


def _all_mounts() -> list[tuple[str, str]]:
    """Their mount points, and paths that lead there from here."""
    from copperfs.fuse.inside_mounts import inside_mounts
    from copperfs.fuse.mounting import FSTYPE, mounts, owner_of

    mine = [each for each in mounts() if each.fstype == FSTYPE and owner_of(each) == os.geteuid()]
    by_device = {each.device: os.fsdecode(each.mountpoint) for each in reversed(mine)}
    here = [(where, where) for where in reversed(by_device.values())]
    return here + [(each.mountpoint, each.path) for each in inside_mounts()]


# ---- one mount -----------------------------------------------------------------------------------


def _upgrade(mountpoint: str, path: str, flags: dict[str, Value]) -> Upgraded:
    hello: Any = _within(lambda: ask_mount(path, IoctlRequest.HELLO), mountpoint, ANSWERS_WITHIN_S)
    before = hello.get("release")
    if before is None:
        raise ControlError(
            f"{mountpoint} is of a version of copperfs that cannot be upgraded while it is "
            "mounted; unmount it, and mount it again"
        )
    changes = _changes(mountpoint, path, flags)
    number = uuid.uuid4().hex
    words = {"number": number, "command": _standby_command(), "settings": changes}
    data = json.dumps(words).encode()
    if len(data) > DATA_BYTES:
        raise ControlError("these settings are too long for a live mount; change fewer at a time")
    answer: Any = _within(lambda: ask_mount(path, IoctlRequest.UPGRADE, data), mountpoint)
    if error := answer.get("error"):
        raise ControlError(f"{mountpoint} is not upgraded: {error}")
    state: Any = _within(lambda: _end_of(path, number), mountpoint)
    if state["number"] != number:
        raise ControlError(
            f"{mountpoint} is not upgraded: the daemon that was to go on has ended, and the mount "
            "goes on as before; see the log of its daemon"
        )
    if state["phase"] != "done":
        raise ControlError(f"{mountpoint} is not upgraded: {state['error']}")
    return Upgraded(mountpoint, state["pid"], before, state["release"], state["took_s"])


def _changes(mountpoint: str, path: str, flags: dict[str, Value]) -> dict[str, object]:
    """What differs from the settings of the mount."""
    if not flags:
        return {}
    from copperfs.cli.preflight import at_mountpoint, on_this_node

    told: Any = _within(lambda: ask_mount(path, IoctlRequest.CONFIGURATION), mountpoint)
    now = Settings.of_another_version(told)
    wanted = at_mountpoint(on_this_node(replace(now, **flags)), mountpoint)  # type: ignore[arg-type]
    check_tier(wanted)
    return {name: getattr(wanted, name) for name in flags}


def _standby_command() -> list[str]:
    """The keeper starts it, with an environment of its own."""
    from copperfs.startup.bundle import environment_elsewhere, environment_python

    found = environment_elsewhere(os.environ).get("PYTHONPATH")
    env = shutil.which("env") or "/usr/bin/env"
    variable = [f"PYTHONPATH={found}"] if found else ["-u", "PYTHONPATH"]
    return [env, *variable, environment_python(), "-P", "-m", "copperfs.daemon.standby"]


def _end_of(path: str, number: str) -> object:
    while True:
        state: Any = ask_mount(path, IoctlRequest.UPGRADE_STATE)
        if state["number"] != number or state["phase"] != "begun":
            return state
        time.sleep(LOOKS_EVERY_S)


def _within(ask: Callable[[], Found], mountpoint: str, within_s: float = DONE_WITHIN_S) -> Found:
    """A mount that hangs answers only to the end of this process."""
    found: list[Found] = []
    failed: list[CopperError] = []

    def run() -> None:
        try:
            found.append(ask())
        except CopperError as error:
            failed.append(error)

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(within_s)
    if failed:
        raise failed[0]
    if not found:
        raise ControlError(
            f"the daemon of {mountpoint} did not answer within {within_s:.0f} s; see its log"
        )
    return found[0]
