"""``copperfs clear``: starts a new epoch; everything is looked up and read again on demand."""

import argparse
from typing import Any

from copperfs.cli.output import ask, console, missing_names, print_json
from copperfs.fuse.ioctl import IoctlRequest
from copperfs.model.errors import ControlError

NAME = "clear"
HELP = "drop all caches, the daemons' and the kernels', on all nodes of the job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="MNT", help="the mount point, or any path below it")
    parser.add_argument(
        "--local",
        action="store_true",
        help="this node only; it gets again from its parents what they hold",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    request = IoctlRequest.CLEAR_LOCAL if arguments.local else IoctlRequest.CLEAR
    cleared: Any = ask(arguments.path, request)
    if arguments.json:
        print_json(cleared)
    else:
        console().print(
            f"cleared {_where(cleared)}; epoch {cleared['epoch']}, "
            f"{cleared['names_invalidated']} names are looked up again"
        )
    if missing := cleared.get("missing"):
        raise ControlError(
            f"{len(missing)} of {cleared['roster']} nodes did not say that they cleared, and may "
            f"go on with what they hold: {missing_names(missing)}"
        )
    return 0


def _where(cleared: Any) -> str:
    if cleared.get("roster", 1) > 1:
        return f"{cleared['nodes']} of {cleared['roster']} nodes"
    return "this node"
