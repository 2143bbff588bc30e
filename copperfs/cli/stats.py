"""``copperfs stats``: what a mount did, as tables or as JSON.

The JSON is the daemon's own document; ``docs/statistics.md`` explains its keys.
"""

import argparse
import time
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from copperfs.cli.output import console, print_json, table
from copperfs.config import format_size
from copperfs.errors import ControlError

NAME = "stats"
HELP = "show what a mount did: operations, hits, bytes, what reached the source"

WATCH_INTERVAL_S = 1.0
KIB = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="MNT", help="the mount point, or any path below it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--watch", action="store_true", help="show again each second, until interrupted"
    )
    parser.add_argument(
        "--reset", action="store_true", help="start counting anew; for the mount's owner only"
    )
    parser.add_argument(
        "--objects", action="store_true", help="list what is cached instead, oldest first"
    )


def run(arguments: argparse.Namespace) -> int:
    from copperfs.fuse.ioctl import Request, ask_mount

    if arguments.reset:
        outcome = ask_mount(arguments.path, Request.RESET)
        if arguments.json:
            print_json(outcome)
        return 0
    if arguments.objects:
        _show_objects(ask_mount(arguments.path, Request.OBJECTS), as_json=arguments.json)
        return 0
    if arguments.watch and not arguments.json:
        _watch(arguments.path)
        return 0
    document = ask_mount(arguments.path, Request.STATISTICS)
    while arguments.json and arguments.watch:
        print_json(document)
        time.sleep(WATCH_INTERVAL_S)
        document = ask_mount(arguments.path, Request.STATISTICS)
    if arguments.json:
        print_json(document)
    else:
        console().print(_tables(document))
    return 0


def _watch(path: str) -> None:
    from copperfs.fuse.ioctl import Request, ask_mount

    with Live(console=console(), auto_refresh=False, screen=False) as live:
        while True:
            try:
                live.update(_tables(ask_mount(path, Request.STATISTICS)), refresh=True)
            except ControlError:
                return  # unmounted
            time.sleep(WATCH_INTERVAL_S)


def _show_objects(objects: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(objects)
        return
    rows = [(each["kind"], _bytes(each["bytes"]), "/" + each["path"]) for each in objects]
    console().print(table(("kind", "size", "path"), rows, right=("size",)))


def _tables(document: Any) -> Group:
    hits, misses = document["hits"], document["misses"]
    share = f"{hits / (hits + misses):.1%}" if hits + misses else "-"
    cache, source = document["cache"], document["source"]
    summary = Text(
        f"{hits} hits, {misses} misses ({share} answered without Python), "
        f"{document['negative']} lookups of names that do not exist, "
        f"epoch {document['epoch']}, pid {document['pid']}"
    )
    operations = [
        (
            kind if not index else "",
            answer,
            str(int(each["count"])),
            *(f"{each[name]:.1f}" for name in ("p50_us", "p90_us", "p99_us")),
        )
        for kind, answers in document["operations"].items()
        for index, (answer, each) in enumerate(
            (answer, each) for answer, each in answers.items() if each["count"]
        )
    ]
    at_source = [
        ("opens", str(source["open"])),
        ("reads", str(source["read"])),
        ("bytes read", _bytes(source["read_bytes"])),
        ("stats", str(source["stat"])),
        ("directories scanned", str(source["scandir"])),
        ("bytes read past the cache", _bytes(document["bytes"]["from_source_files"])),
    ]
    memory = [
        ("held", f"{_bytes(cache['held_bytes'])} of {_bytes(cache['budget_bytes'])}"),
        ("things held", str(cache["held"])),
        ("bytes of files", _bytes(cache["object_bytes"])),
        ("on its way", _bytes(cache["reserved_bytes"])),
        ("evicted", f"{cache['evictions']} things, {_bytes(cache['evicted_bytes'])}"),
        ("given out from memory", _bytes(document["bytes"]["from_memory"])),
    ]
    numbers = ("count", "p50 us", "p90 us", "p99 us")
    return Group(
        summary,
        table(("operation", "answer", *numbers), operations, right=numbers, title="Operations"),
        table(("at the source", "count"), at_source, right=("count",), title="Source"),
        table(("memory", "amount"), memory, right=("amount",), title="Cache"),
    )


def _bytes(count: int) -> str:
    """Rounded for people: three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < KIB or unit == "GiB":
            return f"{count:.3g} {unit}" if unit != "B" else format_size(count)
        count /= KIB  # type: ignore[assignment]  # a share of the unit from here on
    raise AssertionError("unreachable")
