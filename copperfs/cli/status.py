"""``copperfs status``: lists the mounts of this node."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from copperfs.cli.output import print_document, table

if TYPE_CHECKING:
    from copperfs.cli.fitted_table import FittedTable

NAME = "status"
HELP = "list your mounts on this node"
EPILOG = """\
For root it lists those of all users. 'hits' is the share of the requests of applications that were
answered from the cache.

exit codes: 0, also if a mount does not answer (copperfs probe tells); 2 wrong usage.
"""
COLUMNS = ("mount", "state", "source", "pid", "age", "hits", "log")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cli.mounts_here import mounts_here

    found = mounts_here()
    document = {
        "version": 1,
        "mounts": [{**asdict(each), "hit_ratio": each.hit_ratio} for each in found],
    }
    print_document(document, _shown, as_json=arguments.json)
    return 0


def _shown(document: Any) -> "FittedTable | str":
    if not document["mounts"]:
        return "no mount of copperfs is yours on this node"
    rows = [
        (
            each["mountpoint"],
            each["state"],
            each["source"] or "-",
            "-" if each["pid"] is None else str(each["pid"]),
            "-" if each["age_s"] is None else age_text(each["age_s"]),
            "-" if each["hit_ratio"] is None else f"{each['hit_ratio']:.1%}",
            each["log_file"] or "-",
        )
        for each in document["mounts"]
    ]
    return table(COLUMNS, rows, right=("pid", "age", "hits"), drop=("log", "source"))


def age_text(seconds: float) -> str:
    """``45s``, ``12m``, ``3h05m`` or ``2d04h``."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 60:
        return f"{seconds:.0f}s"
    if hours < 1:
        return f"{minutes:.0f}m"
    if days < 1:
        return f"{hours:.0f}h{minutes % 60:02.0f}m"
    return f"{days:.0f}d{hours % 24:02.0f}h"
