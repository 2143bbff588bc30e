"""``copperfs record``: records what a command reads through the mount, as a manifest for ``copperfs
warmup``.

It first drops the caches of this node and its kernel, so that all reads come through the daemon,
which then lists what it holds: also other processes' reads, but not what exceeded the budget.
"""

import argparse
import json
import subprocess

from copperfs.cli.output import print_error, print_progress, write_file
from copperfs.cli.which_mount import add_mount_argument, which_mount
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError, CopperError, UsageError

NAME = "record"
HELP = "record what a command reads through the mount"


EPILOG = """\
exit codes: that of the command; 128 and the number of the signal that ended it; 125 if copperfs
failed; 2 wrong usage.
"""
FAILED = 125


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_mount_argument(parser, "the mount through which the command reads")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the manifest to write"
    )
    parser.add_argument("program", metavar="COMMAND", nargs="*", help="after --, as on its own")


def run(arguments: argparse.Namespace) -> int:
    if not arguments.program:
        raise UsageError("record: no command is given; write it after --")
    try:
        return _record(arguments)
    except CopperError as error:
        print_error(str(error))
        return FAILED


def _record(arguments: argparse.Namespace) -> int:
    from copperfs.fuse.mounting import absolute

    command: list[str] = arguments.program
    mountpoint = absolute(which_mount(arguments.mountpoint))
    write_file(arguments.output, "")  # better fail now than after the command
    ask_mount(mountpoint, IoctlRequest.CLEAR_LOCAL)
    evicted = _evictions(ask_mount(mountpoint, IoctlRequest.STATISTICS))
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        raise ControlError(f"{command[0]} could not be started: {error.strerror}") from None
    held = ask_mount(mountpoint, IoctlRequest.OBJECTS)
    assert isinstance(held, list)
    lines = sorted(
        (each["path"], each["kind"]) for each in held if each["kind"] in ("object", "listing")
    )
    manifest = (json.dumps({"path": path, "kind": kind}) + "\n" for path, kind in lines)
    write_file(arguments.output, "".join(manifest))
    files = sum(kind == "object" for _, kind in lines)
    print_progress(f"{files:,} files and {len(lines) - files:,} directories in {arguments.output}")
    if _evictions(ask_mount(mountpoint, IoctlRequest.STATISTICS)) > evicted:
        print_progress("not all of it: some was evicted again; give the mount a larger --memory")
    return code if code >= 0 else 128 - code


def _evictions(statistics: object) -> int:
    assert isinstance(statistics, dict)
    return int(statistics["cache"]["evictions"])
