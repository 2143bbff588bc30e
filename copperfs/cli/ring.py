"""``copperfs ring``: shows which chunks each node owns and holds."""

import argparse
import json
import os
from typing import Any

from rich.console import Group

from copperfs.cli.fitted_table import ElidedLine
from copperfs.cli.output import answered_text, ask, print_document, printable, table
from copperfs.cli.which_mount import add_mount_argument, mount_and_paths
from copperfs.config.settings import bytes_text
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError

NAME = "ring"
HELP = "show each node's part of the data tier, or the owners of a file"

LINES_MAX = 64
COLUMNS = ("owns", "in memory", "on disk")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mount_argument(parser, "the mount whose data tier is shown")
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="files in the mount: show the owners of their chunks instead",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    mountpoint, paths = mount_and_paths(arguments.mountpoint, arguments.paths)
    document: Any = ask(mountpoint, IoctlRequest.RING)
    if document["placement"] is None and not document["chunk_bytes"]:
        raise ControlError(
            "no node keeps chunks: give --tier-dir, or in a job of several nodes --tier-memory"
        )
    document |= imbalance(document["members"])
    if paths:
        document["paths"] = [_owners(mountpoint, each) for each in paths]
    print_document(document, _path_tables if paths else _tables, as_json=arguments.json)
    return 0


def _owners(mountpoint: str, path: str) -> dict[str, Any]:
    top = os.path.realpath(mountpoint)
    full = os.path.realpath(path)
    if not full.startswith(f"{top}/") and not os.path.isabs(path):
        full = os.path.realpath(os.path.join(top, path))
    if not full.startswith(f"{top}/"):
        raise ControlError(f"{path} is not below {mountpoint}")
    request = json.dumps({"path": os.path.relpath(full, top)}).encode()
    answer = ask_mount(mountpoint, IoctlRequest.RING, request)
    assert isinstance(answer, dict)
    if "error" in answer:
        raise ControlError(f"{path}: {answer['error']}")
    return {"path": path} | answer


def imbalance(members: list[dict[str, Any]]) -> dict[str, Any]:
    """Maximum over mean of the nodes that own chunks; None if undefined."""
    owning = [each for each in members if each["share"]]
    found: dict[str, float | None] = {}
    for key in ("share", "memory_bytes", "disk_bytes"):
        values = [each.get(key, 0) for each in owning]
        mean = sum(values) / len(values) if values else 0
        found[key] = round(max(values) / mean, 3) if mean else None
    return {"max_to_mean": found}


def _tables(document: Any) -> Group:
    rows = [_row(each) for each in document["members"][:LINES_MAX]]
    more = len(document["members"]) - len(rows)
    most = document["max_to_mean"]
    said = ", ".join(
        f"{what} {most[key]:.2f}"
        for key, what in (("share", "owned"), ("memory_bytes", "memory"), ("disk_bytes", "disk"))
        if most[key] is not None
    )
    return Group(
        answered_text(document),
        table(("node", *COLUMNS), rows, right=COLUMNS, title="Data tier"),
        *([f"and {more} more nodes"] if more > 0 else []),
        *([f"maximum over mean: {said}"] if said else []),
        *_protected(document),
    )


def _protected(document: Any) -> list[str]:
    if not document["protect"]:
        return []
    due = sum(each.get("copies_due", 0) for each in document["members"])
    few = f"{due} chunks have too few copies" if due else "all chunks that were read are protected"
    return [f"protected: {', '.join(map(printable, document['protect']))}; {few}"]


def _row(each: Any) -> tuple[str, ...]:
    if "memory_bytes" not in each:
        return each["name"], f"{each['share']:.2%}", "gone" if each["gone"] else "missing"
    return (
        each["name"],
        f"{each['share']:.2%}",
        f"{bytes_text(each['memory_bytes'])}, {each['memory_chunks']} chunks",
        f"{bytes_text(each['disk_bytes'])}, {each['disk_chunks']} chunks",
    )


def _path_tables(document: Any) -> Group:
    names = {each["number"]: each["name"] for each in document["members"]}
    return Group(*(_path_table(each, names) for each in document["paths"]))


def _path_table(found: Any, names: dict[int, str]) -> Group:
    shown = printable(found["path"])
    if not found["chunks"]:
        return Group(ElidedLine(f"{shown}: {bytes_text(found['size'])}, not read in chunks"))
    rows = [(names[each["number"]], str(each["chunks"])) for each in found["owners"][:LINES_MAX]]
    copies = f", {found['copies']} copies of each" if found["copies"] > 1 else ""
    more = len(found["owners"]) - len(rows)
    return Group(
        ElidedLine(f"{shown}: {bytes_text(found['size'])} in {found['chunks']} chunks{copies}"),
        table(("owner", "chunks"), rows, right=("chunks",)),
        *([f"and {more} more nodes"] if more > 0 else []),
    )
