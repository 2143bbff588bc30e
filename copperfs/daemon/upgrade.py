"""Upgrade: lets another installation, or this one with other settings, take over a live mount.

``copperfs upgrade`` gives the command that starts a standby of its own installation, and the
settings that change. The keeper starts that standby and asks it whether it can go on with what
this daemon leaves. If it can, this daemon gives its last word and ends; nothing is unmounted. If
not, all stays as it was (``startup/keeper.c``).

A command that comes by an ioctl is run, so the daemon looks at who asks: a process of its own user,
in its own namespace of users. Such a process could trace this one. A container that shows the mount
may hold one that could not, although its user is the owner.

The kernel resends a request that was not answered, so a successor may be asked for the upgrade by
which it came. It knows the number of that one, and begins nothing.
"""

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

import trio

from copperfs import __version__
from copperfs.config.settings import OPTIONS, Settings
from copperfs.daemon.agreement import AGREED
from copperfs.daemon.succession import Succession, UpgradeRequest
from copperfs.fuse.ioctl import Asked

# A daemon that has just begun starts its keeper soon.
KEEPER_WITHIN_S = 10.0
# Of the mount itself, of its processes, and of the launch, which is over.
FIXED = frozenset(
    {"source", "mountpoint", "allow_other", "foreground", "takeover", "takeover_by"}
) | {each.name for each in OPTIONS if each.group.startswith(("Launch", "In place"))}
FIXED_IN_A_JOB = frozenset(AGREED) | {"shared", "domains"}
# Whether an overlay covers, and links are shown as they are.
FIXED_IN_PLACE = frozenset({"revalidate_s", "symlinks"})


@dataclass(slots=True)
class Upgrades:
    settings: Settings
    succession: Succession
    is_in_job: bool
    is_in_place: bool

    async def begin(self, asked: Asked) -> object:
        """``begun``, or ``error`` with the reason."""
        try:
            wanted = UpgradeRequest.of(asked.data)
        except (ValueError, KeyError, TypeError):
            return {"error": "the daemon does not understand this command's request"}
        if self.succession.has_begun(wanted):
            return {"begun": True}
        error = self._why_not(asked, wanted)
        if error is None:
            with trio.move_on_after(KEEPER_WITHIN_S):
                await self.succession.is_settled.wait()
            error = self.succession.begin_upgrade(wanted)
        return {"begun": True} if error is None else {"error": error}

    async def state(self) -> object:
        return self.succession.state_of_upgrade() | {"pid": os.getpid(), "release": __version__}

    def _why_not(self, asked: Asked, wanted: UpgradeRequest) -> str | None:
        if not _is_beside_us(asked.pid):
            return (
                "only the user who has mounted it may upgrade it, and not from within a container "
                "or an in-place run"
            )
        if self.settings.foreground:
            return (
                "it runs with --foreground, and the end of its daemon would be taken for the end "
                "of the mount; start it again instead"
            )
        if not self.settings.takeover:
            return (
                "it was mounted with --no-takeover, so nothing else can take it over; unmount it, "
                "and mount it again"
            )
        return self._why_not_changed(wanted.changes)

    def _why_not_changed(self, changes: dict[str, Any]) -> str | None:
        mine = json.loads(json.dumps(asdict(self.settings)))
        changed = {name for name, value in changes.items() if mine.get(name) != value}
        for fixed, why in (
            (FIXED, "of a mount that is there"),
            (FIXED_IN_A_JOB if self.is_in_job else frozenset(), "while the job's other nodes run"),
            (FIXED_IN_PLACE if self.is_in_place else frozenset(), "of an in-place run"),
        ):
            if found := changed & fixed:
                return f"{_flags(found)} cannot change {why}"
        return None


def _flags(names: set[str]) -> str:
    flags = {each.name: each.flag for each in OPTIONS}
    return " and ".join(sorted(flags.get(each, each) for each in names))


def _is_beside_us(pid: int) -> bool:
    """In our namespace of users, and ours to look into."""
    try:
        theirs, ours = os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")
        return pid > 0 and os.path.samestat(theirs, ours)
    except OSError:
        return False
