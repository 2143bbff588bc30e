"""``copperfs stats``: shows what a mount or a job did; ``docs/statistics.md`` explains the JSON's
keys."""

import argparse
import time
from typing import TYPE_CHECKING, Any

from copperfs.cli.output import (
    ask,
    console,
    print_document,
    print_json,
    refuse_missing,
    table,
    waiting,
)
from copperfs.cli.which_mount import add_mount_argument, which_mount
from copperfs.config.settings import bytes_text
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError

if TYPE_CHECKING:
    from rich.console import Group

    from copperfs.cli.fitted_table import FittedTable

NAME = "stats"
HELP = "show what a mount or a job did: operations, hits, bytes, reads of the source"

WATCH_INTERVAL_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mount_argument(parser, "the mount to ask", dest="path")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--watch", action="store_true", help="repeat each second until interrupted")
    parser.add_argument(
        "--reset", action="store_true", help="count from zero; for the mount's owner only"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--all",
        action="store_true",
        help="all nodes of the job, together and one by one; also with --reset",
    )
    what.add_argument("--objects", action="store_true", help="list what is cached, oldest first")


def run(arguments: argparse.Namespace) -> int:
    arguments.path = which_mount(arguments.path)
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
    refuse_missing(outcome, "confirm the reset")
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


def _objects(objects: Any) -> "FittedTable":
    rows = [(each["kind"], bytes_text(each["bytes"]), "/" + each["path"]) for each in objects]
    return table(("kind", "size", "path"), rows, right=("size",))
