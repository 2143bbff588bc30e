"""``copperfs stats``: shows what a mount did, or with ``--all`` a job, as tables or as JSON.

The JSON is the daemon's own document; ``docs/statistics.md`` explains its keys.
"""

import argparse
import time
from typing import TYPE_CHECKING, Any

from copperfs.cli.output import (
    ask,
    bytes_text,
    console,
    print_document,
    print_json,
    refuse_missing,
    table,
    waiting,
)
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

NAME = "stats"
HELP = "show what a mount, or a job, did: operations, hits, bytes, what reached the source"

WATCH_INTERVAL_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="MNT", help="the mount point, or any path below it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--watch", action="store_true", help="show again each second, until interrupted"
    )
    parser.add_argument(
        "--reset", action="store_true", help="start counting anew; for the mount's owner only"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--all",
        action="store_true",
        help="all nodes of the job together, and one by one; with --reset, reset them all",
    )
    what.add_argument(
        "--objects", action="store_true", help="list what is cached instead, oldest first"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.reset:
        return _reset(arguments)
    if arguments.objects:
        objects = ask(arguments.path, IoctlRequest.OBJECTS)
        print_document(objects, _objects, as_json=arguments.json)
        return 0
    if arguments.watch and not arguments.json:
        _watch(arguments)
        return 0
    with waiting(f"asking {arguments.path}"):
        document = _ask(arguments)
    while arguments.json and arguments.watch:
        print_json(document)
        time.sleep(WATCH_INTERVAL_S)
        document = _ask(arguments)
    print_document(document, _shown, as_json=arguments.json)
    return 0


def _shown(document: Any) -> "Group":
    from copperfs.cli.stats_view import shown

    return shown(document)


def _ask(arguments: argparse.Namespace) -> Any:
    request = IoctlRequest.ALL_STATISTICS if arguments.all else IoctlRequest.STATISTICS
    return ask_mount(arguments.path, request)


def _reset(arguments: argparse.Namespace) -> int:
    request = IoctlRequest.RESET_ALL if arguments.all else IoctlRequest.RESET
    outcome: Any = ask(arguments.path, request)
    if arguments.json:
        print_json(outcome)
    refuse_missing(outcome, "say that they count anew")
    return 0


def _watch(arguments: argparse.Namespace) -> None:
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, screen=False) as live:
        while True:
            try:
                live.update(_shown(_ask(arguments)), refresh=True)
            except ControlError:
                return  # unmounted
            time.sleep(WATCH_INTERVAL_S)


def _objects(objects: Any) -> "Table":
    rows = [(each["kind"], bytes_text(each["bytes"]), "/" + each["path"]) for each in objects]
    return table(("kind", "size", "path"), rows, right=("size",))
