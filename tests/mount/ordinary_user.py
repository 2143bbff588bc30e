"""Ordinary user: runs commands as a user without rights, in a mount namespace in which that user
may open ``/dev/fuse`` and can execute this Python, even if it is installed below ``/root``.

Needs root, and changes nothing outside of the namespace.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mount.helpers import PROJECT

USER, GROUP, SUPPLEMENTARY = 61234, 61234, 61235


def as_user(command: Sequence[str | Path]) -> list[str]:
    """*command*, to be started by root."""
    script = "\n".join([*_reachable(), *_fuse_for_all(), 'exec setpriv "$@"'])
    become = [f"--reuid={USER}", f"--regid={GROUP}", f"--groups={GROUP},{SUPPLEMENTARY}", "--"]
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh"]
    return [*alone, *become, *map(str, command)]


def _reachable() -> list[str]:
    """Each closed directory above what is needed is replaced by an open one that holds nothing
    else."""
    needed = [PROJECT, Path(sys.base_prefix).resolve(), Path(sys.prefix)]
    closed: dict[Path, list[Path]] = {}
    for each in needed:
        for above in reversed(each.parents):
            if not os.stat(above).st_mode & stat.S_IXOTH:
                closed.setdefault(above, []).append(each)
                break
    lines = []
    for directory, below in closed.items():
        closed_path = shlex.quote(str(directory))
        lines += ["aside=$(mktemp -d)", f"mount --rbind {closed_path} $aside"]
        lines.append(f"mount -t tmpfs -o mode=755 none {closed_path}")
        for each in below:
            path, inside = (shlex.quote(str(p)) for p in (each, each.relative_to(directory)))
            lines += [f"mkdir -p {path}", f"mount --rbind $aside/{inside} {path}"]
        lines += ["umount -l $aside", "rmdir $aside"]
    return lines


def _fuse_for_all() -> list[str]:
    """A node of the device on a filesystem of its own, over the system's."""
    major, minor = os.major(os.stat("/dev/fuse").st_rdev), os.minor(os.stat("/dev/fuse").st_rdev)
    return [
        "mount -t tmpfs -o mode=755 none /mnt",
        f"mknod -m 0666 /mnt/fuse c {major} {minor}",
        "mount --bind /mnt/fuse /dev/fuse",
        "umount -l /mnt",
    ]
