"""Goldens of what users and their programs read: ``--help``, and the keys of the JSON documents.

A document's keys are frozen with the types of their values, a list by the keys of its elements.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from copperfs.cli.main import build_parser
from copperfs.cli.parser_outline import pages
from tests.cluster.helpers import Cluster
from tests.mount.helpers import copperfs

HELP_COLUMNS = "80"
MOUNTED = ("stats", "stats --all", "tree", "clear", "ring", "scrub", "scrub --all", "top --count 1")
UNMOUNTED = (
    "config show",
    "sim run --nodes 4 --workload dataset:10:100000:1",
    "sim replay --seed 3",
)


def help_texts() -> str:
    """As on a terminal of 80 columns."""
    os.environ["COLUMNS"] = HELP_COLUMNS
    names = ["", *(page.name for page in pages(build_parser()))]
    groups = {name.rpartition(" ")[0] for name in names if " " in name}
    texts = []
    for name in sorted({*names, *groups}):
        done = copperfs(*name.split(), "--help")
        texts.append(f"$ copperfs {name} --help\n{done.stdout}{done.stderr}")
    return "\n".join(texts)


def documents() -> str:
    with tempfile.TemporaryDirectory(prefix="copperfs-goldens-") as directory:
        return "\n".join(_documents(Path(directory)))


def _documents(directory: Path) -> Iterator[str]:
    source = directory / "source"
    source.mkdir()
    (source / "large").write_bytes(bytes(3 << 20))
    (source / "small").write_bytes(b"small")
    tier = ("--tier-dir", str(directory / "tier" / "%h"), "--tree-max", "1MiB")
    (directory / "tier").mkdir()
    for command in UNMOUNTED:
        yield _described(command, copperfs(*command.split(), "--json").stdout)
    with Cluster(directory / "cluster", 3, source, *tier) as cluster:
        for mountpoint in cluster.mountpoints:
            (mountpoint / "small").read_bytes()
            (mountpoint / "large").read_bytes()
        for command in MOUNTED:
            done = copperfs(*command.split(), "--json", cluster.mnt(1))
            yield _described(f"{command} MNT", done.stdout)
        done = copperfs("ring", "--json", cluster.mnt(1), "large")
        yield _described("ring MNT large", done.stdout)
        status = copperfs("cluster", "status", "--json", "--dir", cluster.directory)
        yield _described("cluster status", status.stdout)


def _described(command: str, text: str) -> str:
    keys = "\n".join(sorted(set(keys_of(json.loads(text)))))
    return f"$ copperfs {command} --json\n{keys}\n"


def keys_of(value: Any, at: str = "") -> Iterator[str]:
    """``.node.asks: int``; ``[]`` stands for each element of a list."""
    if isinstance(value, dict):
        yield f"{at or '.'}: {{}}"
        for key, inner in value.items():
            yield from keys_of(inner, f"{at}.{key}")
    elif isinstance(value, list):
        yield f"{at or '.'}: []"
        for inner in value:
            yield from keys_of(inner, f"{at}[]")
    else:
        yield f"{at or '.'}: {type(value).__name__}"
