"""``copperfs warmup``: bring a set of files into the memory of every node, before they are wanted.

The daemon of this node plans and watches it; the roots of the trees read and push. The paths go to
it in a file, which only this user can read."""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from copperfs.cli.output import console, print_json
from copperfs.errors import ControlError

NAME = "warmup"
HELP = "bring files into the memory of every node"
POLL_EVERY_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="files and directories below the mount point, also as they are called without it; a "
        "directory is taken with all that is in it",
    )
    parser.add_argument("--manifest", metavar="FILE", help="what 'copperfs record' wrote")
    parser.add_argument(
        "--check", action="store_true", help="only tell which nodes hold it; exit code 1 if not all"
    )
    parser.add_argument(
        "--evict", action="store_true", help="let what is older go, if there is no room otherwise"
    )
    parser.add_argument("--json", action="store_true", help="the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    mountpoint = os.path.abspath(arguments.mountpoint)
    wanted = Wanted([_below(mountpoint, path) for path in arguments.paths], [])
    if arguments.manifest is not None:
        wanted.add(read_manifest(arguments.manifest))
    if not wanted.paths and not wanted.listings:
        raise ControlError("nothing to warm up; name paths, or a --manifest")
    request = asdict(wanted) | {"check": arguments.check, "evict": arguments.evict}
    quiet = arguments.json or not sys.stdout.isatty()
    outcome = _warm_up(mountpoint, request, quiet=quiet)
    if outcome["phase"] == "failed":
        raise ControlError(outcome["error"])
    complete = outcome["nodes_complete"] == outcome["roster"]
    if arguments.json:
        print_json(outcome)
    else:
        console().print(_sentence(outcome, check=arguments.check))
    return 0 if complete else 1


def _below(mountpoint: str, path: str) -> str:
    """*path* as the daemon knows it: below the mount point, which may be left out."""
    absolute = os.path.normpath(os.path.join(mountpoint, path))
    relative = os.path.relpath(absolute, mountpoint)
    if relative == ".." or relative.startswith("../"):
        raise ControlError(f"{path} is not below {mountpoint}")
    return "" if relative == "." else relative


def _warm_up(mountpoint: str, request: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    from copperfs.fuse.ioctl import Request, ask_mount

    with tempfile.NamedTemporaryFile("w", prefix="copperfs-warmup-", encoding="ascii") as file:
        json.dump(request, file)
        file.flush()
        named = json.dumps({"file": file.name}).encode()
        state = _state(ask_mount(mountpoint, Request.WARM_UP, named))
    with _progress(quiet) as progress:
        task = progress.add_task("planning", total=None)
        while state["phase"] not in ("done", "failed"):
            time.sleep(POLL_EVERY_S)
            state = _state(ask_mount(mountpoint, Request.WARM_UP_STATE))
            progress.update(
                task,
                description=state["phase"],
                total=state["total_bytes"] or None,
                completed=state["done_bytes"],
            )
    return state


def _progress(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console(),
        transient=True,
        disable=quiet,
    )


def _state(answer: object) -> dict[str, Any]:
    assert isinstance(answer, dict)
    if "phase" not in answer:
        raise ControlError(str(answer.get("error", "the daemon gave no answer")))
    return answer


def _sentence(outcome: dict[str, Any], *, check: bool) -> str:
    size = f"{outcome['objects']:,} files, {outcome['total_bytes'] / (1 << 20):.1f} MiB"
    nodes, roster = outcome["nodes_complete"], outcome["roster"]
    said = f"{size}: held by {nodes} of {roster} node{'s' * (roster != 1)}"
    if nodes < roster and not check:
        said += f"; one holds only {outcome['least_objects']:,} files"
    if outcome["too_large"]:
        said += f" ({outcome['too_large']:,} larger than --tree-max are left to each node)"
    if outcome["failed"]:
        said += f" ({outcome['failed']:,} could not be read)"
    return said


# --- manifests -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Wanted:
    """Paths below the mount point."""

    paths: list[str]
    """Files, and directories with all that is in them."""
    listings: list[str]
    """Directories of which only the names are wanted."""

    def add(self, other: "Wanted") -> None:
        self.paths += other.paths
        self.listings += other.listings


def read_manifest(file: str) -> Wanted:
    """One JSON object a line: a path, and ``object`` or ``listing`` for its kind."""
    wanted = Wanted([], [])
    try:
        with open(file, encoding="ascii") as lines:
            for line in filter(str.strip, lines):
                each = json.loads(line)
                listing = each.get("kind") == "listing"
                (wanted.listings if listing else wanted.paths).append(str(each["path"]))
    except OSError as error:
        raise ControlError(f"the manifest {file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ControlError(
            f"{file} is no manifest: it has one JSON object with a path on each line, as 'copperfs "
            "record' writes it"
        ) from None
    return wanted
