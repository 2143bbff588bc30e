"""``copperfs profile``: shows what each path costs, which lookups failed, and what is used at all.

Before a command it drops the caches of this node and its kernel, so that every use is seen.
"""

import argparse
import os
import time
from typing import Any

from rich.console import Group
from rich.text import Text

from copperfs.cli.output import (
    console,
    print_error,
    print_json,
    print_progress,
    table,
    waiting,
    write_file,
)
from copperfs.cli.which_mount import add_mount_argument, which_mount
from copperfs.config.settings import bytes_text
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError, CopperError, UsageError

NAME = "profile"
HELP = "show what each path costs, which lookups failed, and what is used at all"
EPILOG = """\
Only the mount's owner can profile, one at a time. What others do on this node is seen as well.

exit codes: with a command its own (128 and the number of the signal that ended it), 125 if copperfs
failed, 2 for wrong usage; with --attach 0, or 5 if the mount refuses.
"""
FAILED = 125
ROWS_SHOWN = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_mount_argument(parser, "the mount through which the command reads")
    parser.add_argument("--html", metavar="FILE", help="also write a report for a browser")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - prints it")
    parser.add_argument(
        "--whole",
        metavar="DIR",
        action="append",
        default=[],
        help="also show how much is used of all below DIR, a path in the mount, which is walked "
        "at the end; repeatable",
    )
    parser.add_argument("--warm", action="store_true", help="keep the caches")
    parser.add_argument(
        "--attach",
        metavar="SECONDS",
        nargs="?",
        type=float,
        const=0.0,
        help="watch other processes for so long, or until interrupted",
    )
    parser.add_argument("program", metavar="COMMAND", nargs="*", help="after --, as on its own")


def run(arguments: argparse.Namespace) -> int:
    if (arguments.attach is None) == (not arguments.program):
        raise UsageError("nothing to profile; give a command after --, or --attach")
    if arguments.attach is not None:
        _profile(arguments)
        return 0
    try:
        return _profile(arguments)
    except CopperError as error:
        print_error(str(error))
        return FAILED


def _profile(arguments: argparse.Namespace) -> int:
    from copperfs.cli.profile_analysis import analyse, rows_of, whole
    from copperfs.fuse.mounting import absolute

    mountpoint = absolute(which_mount(arguments.mountpoint))
    for path in (arguments.html, arguments.json):
        if path not in (None, "-"):
            write_file(path, "")  # better fail now than after the command
    wholes = [_inside(each, mountpoint) for each in arguments.whole]
    if not arguments.warm and arguments.attach is None:
        ask_mount(mountpoint, IoctlRequest.CLEAR_LOCAL)
    ask_mount(mountpoint, IoctlRequest.PROFILE_BEGIN, f"{os.getpid()}".encode())
    code = _watch(arguments.attach) if arguments.attach is not None else _run(arguments.program)
    document: Any = ask_mount(mountpoint, IoctlRequest.PROFILE_END)
    if document is None:
        raise ControlError("another profile of this mount was taken meanwhile; take it again")
    rows = rows_of(document)
    with waiting("walking what --whole names"):
        shares = [whole(mountpoint, each, rows) for each in wholes]
    report = analyse(document, shares)
    report |= {"mountpoint": mountpoint, "command": arguments.program or None, "exit_code": code}
    if arguments.html is not None:
        from copperfs.cli.profile_html import render

        write_file(arguments.html, render(report))
    if arguments.json == "-":
        print_json(report)
    elif arguments.json is not None:
        import json

        write_file(arguments.json, json.dumps(report, indent=1) + "\n")
    if arguments.json != "-":
        console().print(shown(report))
    if report["lost"]:
        print_progress(f"{report['lost']:,} requests came too fast to be recorded")
    return code


def _inside(directory: str, mountpoint: str) -> str:
    path = os.path.abspath(directory)
    if path == mountpoint or path.startswith(mountpoint + "/"):
        return path
    raise ControlError(f"--whole {directory} is not in {mountpoint}; name it as it is called there")


def _run(command: list[str]) -> int:
    from copperfs.cli.child_command import run_command

    try:
        return run_command(command, os.environ)
    except OSError as error:
        raise ControlError(f"{command[0]} cannot be started: {error.strerror}") from None


def _watch(seconds: float) -> int:
    print_progress(f"watching{f' for {seconds:g} s' if seconds else ''}; end it with Ctrl-C")
    try:
        time.sleep(seconds or 10**9)
    except KeyboardInterrupt:
        return 0
    return 0


# ---- for people ----------------------------------------------------------------------------------


def shown(report: Any) -> Group:
    totals = report["totals"]
    head = Text(
        f"{totals['requests']:,} requests in {report['seconds']:.2f} s, which waited "
        f"{_ms(totals['wait_us'])} ms together; {totals['files_read']:,} files read, "
        f"{bytes_text(totals['bytes'])}; {totals['in_vain']:,} of {totals['lookups']:,} lookups "
        "failed"
    )
    columns = ("directory", "requests", "failed", "read", "waited ms", "files used")
    directories = [
        (
            "/" + each["path"],
            f"{each['requests']:,}",
            f"{each['in_vain']:,}",
            bytes_text(each["bytes"]),
            _ms(each["wait_us"]),
            _share(each["used_files"], each["files"]),
        )
        for each in report["directories"][:ROWS_SHOWN]
    ]
    paths = [
        ("/" + each["path"], bytes_text(each["bytes"]), _ms(each["wait_us"]), _ms(each["max_us"]))
        for each in report["paths"][:ROWS_SHOWN]
    ]
    vain = [
        (each["name"], f"{each['lookups']:,}", f"{each['directories']:,}", _ms(each["wait_us"]))
        for each in report["in_vain"][:ROWS_SHOWN]
    ]
    parts: list[Any] = [
        head,
        table(columns, directories, right=columns[1:], title="Directories, by time waited"),
        table(
            ("path", "read", "waited ms", "longest ms"),
            paths,
            right=("read", "waited ms", "longest ms"),
            title="Paths, by time waited",
        ),
    ]
    if vain:
        names = ("name", "lookups", "directories", "waited ms")
        parts.append(table(names, vain, right=names[1:], title="Failed lookups (ENOENT)"))
    if report["wholes"]:
        rows = [
            (
                each["path"],
                _share(each["used_files"], each["files"]),
                f"{bytes_text(each['used_bytes'])} of {bytes_text(each['bytes'])}",
            )
            for each in report["wholes"]
        ]
        shares = ("all below", "files used", "bytes used")
        parts.append(table(shares, rows, right=shares[1:], title="Share that is used"))
    return Group(*parts)


def _ms(microseconds: int) -> str:
    return f"{microseconds / 1000:,.1f}"


def _share(used: int, there: int | None) -> str:
    return f"{used:,} of {'?' if there is None else f'{there:,}'}"
