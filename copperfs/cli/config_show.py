"""``copperfs config show``: prints the settings of a mount with these flags, and their origins."""

import argparse
from typing import Any

from copperfs.cli.options import add_option_flags, resolve_options
from copperfs.cli.output import print_json, print_table
from copperfs.config.settings import OPTIONS, Origin, Resolved
from copperfs.fuse.ioctl import IoctlRequest, ask_mount

NAME = "config show"
HELP = "print each setting with its value and origin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    parser.add_argument(
        "--of", metavar="MNT", help="show the settings of this mount, whatever else is given"
    )
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.of is not None:
        return _show_mount(arguments.of, as_json=arguments.json)
    resolved = resolve_options(arguments)
    if arguments.json:
        print_json({entry.option.key: _as_json(entry) for entry in resolved})
    else:
        rows = [
            (entry.option.key, entry.text or "automatic", _origin_text(entry)) for entry in resolved
        ]
        print_table(("setting", "value", "origin"), rows)
    return 0


def _show_mount(path: str, *, as_json: bool) -> int:
    told: Any = ask_mount(path, IoctlRequest.CONFIGURATION)
    values = {option.key: (option, told[option.name]) for option in OPTIONS if option.name in told}
    if as_json:
        print_json({key: {"value": value} for key, (_, value) in values.items()})
        return 0
    rows = [
        (key, option.format(tuple(value) if option.multi else value))
        for key, (option, value) in values.items()
    ]
    print_table(("setting", "value"), rows)
    return 0


def _as_json(entry: Resolved) -> dict[str, object]:
    return {"value": entry.value, "origin": entry.origin.value, "where": entry.where}


def _origin_text(entry: Resolved) -> str:
    return entry.where if entry.origin is Origin.DEFAULT else f"{entry.origin.value} {entry.where}"
