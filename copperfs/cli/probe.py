"""``copperfs probe``: says OK if all mounts of this node answer; for health checks."""

import argparse

from copperfs.cli.output import console, print_error, print_json, printable

NAME = "probe"
HELP = "say whether your mounts on this node answer, for health checks"
EPILOG = """\
For root it asks the mounts of all users. It waits for some seconds, even if a mount hangs, and
changes nothing.

exit codes: 0 if all answer, or there is none; 5 if one does not; 2 wrong usage.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cli.mounts_here import OK, mounts_here
    from copperfs.model.errors import ControlError

    found = mounts_here()
    bad = [each for each in found if each.state != OK]
    if arguments.json:
        states = [{"mountpoint": each.mountpoint, "state": each.state} for each in found]
        print_json({"version": 1, "ok": not bad, "mounts": states})
    elif not bad:
        console().print(f"OK: {len(found)} mount{'s' * (len(found) != 1)}")
    else:
        for each in bad:
            print_error(f"{printable(each.mountpoint)}: {each.state}")
    return ControlError.exit_code if bad else 0
