"""``copperfs scrub``: checks the chunks on the disks of the data tier."""

import argparse
import json
import time
from typing import Any

from copperfs.cli.options import argument_type
from copperfs.cli.output import console, print_document, refuse_missing, transfer_progress
from copperfs.cli.which_mount import add_mount_argument, which_mount
from copperfs.config.settings import parse_size
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError

NAME = "scrub"
HELP = "check the chunks on the disk of a node, or of all, and drop damaged ones"

POLL_EVERY_S = 0.2
POLL_ALL_EVERY_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mount_argument(parser, "the mount whose disk is checked", dest="path")
    parser.add_argument("--all", action="store_true", help="all nodes of the job")
    parser.add_argument(
        "--rate",
        type=argument_type(parse_size),
        default=0,
        metavar="SIZE",
        help="bytes a second to read from each disk at most (no limit)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    arguments.path = which_mount(arguments.path)
    request = json.dumps({"all": arguments.all, "rate": arguments.rate}).encode()
    state: Any = ask_mount(arguments.path, IoctlRequest.SCRUB, request)
    if not state["disks"]:
        who = "no node of this job" if arguments.all else "this node does not"
        raise ControlError(f"{who} keep{'s' * arguments.all} chunks on a disk (--tier-dir)")
    with transfer_progress(console(), shown=not arguments.json) as progress:
        task = progress.add_task("checking", total=None)
        while state["busy"]:
            time.sleep(POLL_ALL_EVERY_S if arguments.all else POLL_EVERY_S)
            state = ask_mount(arguments.path, IoctlRequest.SCRUB_STATE, request)
            progress.update(task, total=state["total_bytes"], completed=state["done_bytes"])
    print_document(state, _sentence, as_json=arguments.json)
    refuse_missing(state, "answer")
    return 0


def _sentence(state: Any) -> str:
    chunks, damaged = state["chunks"], state["damaged"]
    said = f"{chunks:,} chunks, {state['done_bytes'] / (1 << 20):.1f} MiB"
    said += f" on {state['disks']} disks" if state["disks"] > 1 else ""
    if not damaged:
        return f"{said}: all are as they were written"
    return f"{said}: {damaged:,} damaged, dropped; they will be read from the source again"
