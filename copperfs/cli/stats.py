"""``copperfs stats``: shows what a mount did, or with ``--all`` a job, as tables or as JSON.

The JSON is the daemon's own document; ``docs/statistics.md`` explains its keys.
"""

import argparse
import time
from typing import Any

from copperfs.cli.output import (
    ask,
    bytes_text,
    console,
    missing_names,
    print_json,
    table,
    waiting,
)
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError

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
        _show_objects(ask(arguments.path, IoctlRequest.OBJECTS), as_json=arguments.json)
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
    if arguments.json:
        print_json(document)
    else:
        from copperfs.cli.stats_view import shown

        console().print(shown(document))
    return 0


def _ask(arguments: argparse.Namespace) -> Any:
    request = IoctlRequest.ALL_STATISTICS if arguments.all else IoctlRequest.STATISTICS
    return ask_mount(arguments.path, request)


def _reset(arguments: argparse.Namespace) -> int:
    request = IoctlRequest.RESET_ALL if arguments.all else IoctlRequest.RESET
    outcome: Any = ask(arguments.path, request)
    if arguments.json:
        print_json(outcome)
    if missing := outcome.get("missing"):
        raise ControlError(
            f"{len(missing)} of {outcome['roster']} nodes did not say that they count anew: "
            f"{missing_names(missing)}"
        )
    return 0


def _watch(arguments: argparse.Namespace) -> None:
    from rich.live import Live

    from copperfs.cli.stats_view import shown

    with Live(console=console(), auto_refresh=False, screen=False) as live:
        while True:
            try:
                live.update(shown(_ask(arguments)), refresh=True)
            except ControlError:
                return  # unmounted
            time.sleep(WATCH_INTERVAL_S)


def _show_objects(objects: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(objects)
        return
    rows = [(each["kind"], bytes_text(each["bytes"]), "/" + each["path"]) for each in objects]
    console().print(table(("kind", "size", "path"), rows, right=("size",)))
