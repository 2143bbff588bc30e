"""Profile analysis: makes a report from the daemon's records by path. Pure, except ``whole``."""

import os
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

# Rows shown; the sums are of all.
PATHS_SHOWN = 2000
NAMES_SHOWN = 500


class Row(TypedDict):
    path: str
    type: str
    lookups: int
    in_vain: int
    others: int
    reads: int
    bytes: int
    wait_us: int
    max_us: int
    hits: int
    fetches: int
    misses: int
    bypasses: int


class Whole(TypedDict):
    """A directory tree's size, and how much of it was read."""

    path: str
    files: int
    bytes: int
    used_files: int
    used_bytes: int


def rows_of(document: Any) -> list[Row]:
    columns = document["columns"]
    rows: list[Row] = [dict(zip(columns, row, strict=True)) for row in document["paths"]]  # type: ignore[misc]  # the columns are those of Row
    return rows


def analyse(document: Any, wholes: Sequence[Whole] = ()) -> dict[str, Any]:
    rows = rows_of(document)
    files = [row for row in rows if row["reads"] and row["type"] != "directory"]
    directories = _directories(rows, document["listings"])
    return {
        "version": 1,
        "seconds": document["seconds"],
        "lost": document["lost"],
        "totals": {
            "requests": sum(map(requests_of, rows)),
            "lookups": sum(row["lookups"] for row in rows),
            "in_vain": sum(row["in_vain"] for row in rows),
            "reads": sum(row["reads"] for row in rows),
            "bytes": sum(row["bytes"] for row in rows),
            "wait_us": sum(row["wait_us"] for row in rows),
            "paths": len(rows),
            "files_read": len(files),
            "directories": len(directories),
        },
        "requests": document["requests"],
        "timeline": {"bin_s": document["bin_s"], "bins": document["bins"]},
        "directories": directories,
        "paths": sorted(rows, key=lambda row: -row["wait_us"])[:PATHS_SHOWN],
        "in_vain": _in_vain(rows),
        "wholes": list(wholes),
    }


def requests_of(row: Row) -> int:
    return row["lookups"] + row["others"] + row["reads"]


def _directories(rows: Sequence[Row], listings: Iterable[Any]) -> list[dict[str, Any]]:
    there = {path: (files, size) for path, _, files, size in listings}
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        # A request on a directory itself counts for it, its lookup for the parent.
        itself = row["type"] == "directory" and not row["lookups"]
        path = row["path"] if itself else posixpath.dirname(row["path"])
        sums = found.setdefault(
            path,
            {
                "path": path,
                "requests": 0,
                "lookups": 0,
                "in_vain": 0,
                "bytes": 0,
                "wait_us": 0,
                "files": None,
                "file_bytes": None,
                "used_files": 0,
                "used_bytes": 0,
            },
        )
        for key in ("lookups", "in_vain", "bytes", "wait_us"):
            sums[key] += row[key]
        sums["requests"] += requests_of(row)
        sums["used_files"] += row["type"] == "file" and row["reads"] > 0
        sums["used_bytes"] += row["bytes"] if row["type"] == "file" else 0
        if path in there:
            sums["files"], sums["file_bytes"] = there[path]
    for sums in found.values():
        if sums["file_bytes"] is not None:  # a byte read twice is used once
            sums["used_bytes"] = min(sums["used_bytes"], sums["file_bytes"])
    return sorted(found.values(), key=lambda sums: -sums["wait_us"])


def _in_vain(rows: Iterable[Row]) -> list[dict[str, Any]]:
    counts: dict[str, int] = defaultdict(int)
    waits: dict[str, int] = defaultdict(int)
    places: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["in_vain"]:
            name = posixpath.basename(row["path"])
            counts[name] += row["in_vain"]
            waits[name] += row["wait_us"]
            places[name].append(posixpath.dirname(row["path"]))
    found = [
        {
            "name": name,
            "lookups": counts[name],
            "directories": len(places[name]),
            "for_example": places[name][0],
            "wait_us": waits[name],
        }
        for name in counts
    ]
    found.sort(key=lambda each: (-counts[str(each["name"])], str(each["name"])))
    return found[:NAMES_SHOWN]


def whole(mountpoint: str, directory: str, rows: Iterable[Row]) -> Whole:
    """Walk *directory*, in the mount, and compare it with what was read."""
    top = os.path.relpath(directory, mountpoint)
    top = "" if top == "." else top
    used = {row["path"]: row["bytes"] for row in rows if row["reads"] and row["type"] == "file"}
    result = Whole(path="/" + top, files=0, bytes=0, used_files=0, used_bytes=0)
    waiting = [top]
    while waiting:
        below = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(mountpoint, below)))
        except OSError:
            continue  # a directory that cannot be listed cannot be used either
        for entry in entries:
            path = posixpath.join(below, entry.name)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif entry.is_file(follow_symlinks=False):
                size = entry.stat(follow_symlinks=False).st_size
                result["files"] += 1
                result["bytes"] += size
                if path in used:
                    result["used_files"] += 1
                    result["used_bytes"] += min(size, used[path])
    return result
