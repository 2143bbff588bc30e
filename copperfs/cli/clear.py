"""``copperfs clear``: starts a new epoch, so that everything is read again on demand."""

import argparse
from typing import Any

from copperfs.cli.output import ask, print_document, refuse_missing
from copperfs.cli.which_mount import add_mount_argument, which_mount
from copperfs.fuse.ioctl import IoctlRequest

NAME = "clear"
HELP = "drop the caches of daemons and kernels on all nodes of the job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mount_argument(parser, "the mount whose caches are dropped", dest="path")
    parser.add_argument(
        "--local",
        action="store_true",
        help="this node only; its parents keep their caches",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    request = IoctlRequest.CLEAR_LOCAL if arguments.local else IoctlRequest.CLEAR
    cleared: Any = ask(which_mount(arguments.path), request)
    print_document(cleared, _sentence, as_json=arguments.json)
    refuse_missing(cleared, "confirm, and may keep their caches")
    return 0


def _sentence(cleared: Any) -> str:
    several = cleared.get("roster", 1) > 1
    where = f"{cleared['nodes']} of {cleared['roster']} nodes" if several else "this node"
    return (
        f"cleared {where}; epoch {cleared['epoch']}, {cleared['names_invalidated']} names are "
        "looked up again"
    )
