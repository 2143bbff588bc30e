"""``copperfs bugreport``: archives what helps to find a fault, even while mounts hang."""

import argparse
import os
import platform
import time

from copperfs.cli.output import console, print_json, print_progress, printable, waiting

NAME = "bugreport"
HELP = "collect what helps to find a fault into one archive, within ten seconds"
EPILOG = """\
It holds versions, settings, the output of copperfs doctor, and of this user's mounts the state, the
daemons' threads and the ends of their logs. It has no contents of files and no keys, but it has
paths: look into it before you send it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "mountpoints", metavar="MNT", nargs="*", help="mounts to look into (all of this user, here)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="a .tar.gz (a new one in /tmp, for its owner only)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cli.bugreport_archive import DEADLINE_S, gather, write
    from copperfs.fuse.mounting import FSTYPE, absolute, mounts, owner_of

    mountpoints = [absolute(each) for each in arguments.mountpoints] or [
        os.fsdecode(each.mountpoint)
        for each in mounts()
        if each.fstype == FSTYPE and os.geteuid() in (0, owner_of(each))
    ]
    host = platform.node().partition(".")[0]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = arguments.output or f"/tmp/copperfs-bugreport-{host}-{stamp}-{os.getpid()}.tar.gz"
    with waiting(f"gathering, for up to {DEADLINE_S:g} s"):
        gathered = gather(mountpoints, os.environ)
        write(gathered, path, new=arguments.output is None)
    if arguments.json:
        print_json(
            {
                "version": 1,
                "archive": path,
                "bytes": os.stat(path).st_size,
                "files": sorted(gathered.files),
                "silent": gathered.silent,
            }
        )
        return 0
    console().print(printable(path), soft_wrap=True)
    if gathered.silent:
        print_progress(f"did not answer in time: {', '.join(gathered.silent)}")
    return 0
