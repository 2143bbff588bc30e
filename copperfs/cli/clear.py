"""``copperfs clear``: a new epoch; everything is looked up and read again when asked for."""

import argparse

from copperfs.cli.output import console, print_json

NAME = "clear"
HELP = "drop all caches, the daemon's and the kernel's"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="MNT", help="the mount point, or any path below it")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.fuse.ioctl import Request, ask_mount

    cleared = ask_mount(arguments.path, Request.CLEAR)
    if arguments.json:
        print_json(cleared)
    elif isinstance(cleared, dict):
        console().print(
            f"cleared; epoch {cleared['epoch']}, {cleared['names_invalidated']} names are looked "
            "up again"
        )
    return 0
