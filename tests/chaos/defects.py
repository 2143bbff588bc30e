"""``python -m tests.chaos.defects``: puts an old defect back, and checks that the lab finds it.

Each defect is a list of texts in the code with their replacements
(``tests/unit/test_chaos_mixture.py`` checks them). The program changes and compiles a copy of the
tree, and runs schedules on it until one is bad. It is no part of CI: a defect takes half a minute
to some minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mount.helpers import PROJECT

BUILD = "from setuptools import setup; setup()"
BUILDS_WITHIN_S = 600.0
COPIED = ("copperfs", "tests", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True, slots=True)
class Change:
    path: str
    there: str
    """The file has it once."""
    instead: str


DEFECTS = {
    # Files on a filesystem below the source's root are ESTALE to nodes with another client.
    "device-numbers": (
        Change(
            "copperfs/native/source/scan.c",
            "\t\t.ino = status->st_ino,",
            "\t\t.ino = status->st_ino ^ status->st_dev * 0x9e3779b97f4a7c15u,",
        ),
        Change(
            "copperfs/native/source/read.c",
            "(version->ino && now.st_ino != version->ino)",
            "(version->ino && (now.st_ino ^ now.st_dev * 0x9e3779b97f4a7c15u) != version->ino)",
        ),
    ),
    # One name that the source cannot look up fails the listing and all siblings.
    "sick-name": (
        Change(
            "copperfs/native/source/scan.c",
            "\t\tif (is_answered && all[i].error == ENOENT)\n\t\t\tcontinue;\n",
            "\t\tif (is_answered && all[i].error == ENOENT)\n\t\t\tcontinue;\n"
            "\t\tif (is_answered && all[i].error)\n\t\t\treturn all[i].error;\n",
        ),
    ),
    # A walk that continues at a position misses names after others were removed.
    "positions": (
        Change(
            "copperfs/native/front/readdir_cookies.c",
            "\t*cookie = listing->cookies ? listing->cookies[place] : cookie_of(row);",
            "\t*cookie = COOKIE_NAMES + place;",
        ),
        Change(
            "copperfs/native/front/readdir_cookies.c",
            "\tuint32_t begin = 0, end = listing->names;\n",
            "\tuint32_t begin = 0, end = listing->names;\n\n"
            "\tif (cookie < COOKIE_NAMES)\n\t\treturn 0;\n"
            "\tcookie -= COOKIE_NAMES - 1;\n"
            "\tif (cookie <= end)\n\t\treturn (uint32_t)cookie;\n",
        ),
    ),
    # Strangers take all descriptors, and readers get EMFILE.
    "strangers": (
        Change(
            "copperfs/node/peer/connection_limits.py",
            "        return ungreeted > self.ungreeted or (\n"
            "            ungreeted > UNGREETED_MIN and descriptor >= self.descriptors\n        )",
            "        return False",
        ),
        Change(
            "copperfs/transport/descriptor_limits.py",
            "            return error.errno in _NONE_LEFT\n        return",
            "            return False\n        return",
        ),
        Change(
            "copperfs/native/source/pool.c",
            "\treturn error == EMFILE || error == ENFILE || error == ENOMEM;",
            "\treturn error < 0;",
        ),
    ),
}


def changed(text: str, change: Change) -> str:
    """ValueError unless the file has it exactly once."""
    if text.count(change.there) != 1:
        raise ValueError(f"{change.path} has this {text.count(change.there)} times: {change.there}")
    return text.replace(change.there, change.instead)


def put_back(name: str, tree: Path) -> None:
    """Copy the working tree to *tree* with the defect in it, and compile it."""
    for each in COPIED:
        ours = PROJECT / each
        if ours.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "build")
            shutil.copytree(ours, tree / each, ignore=ignored)
        else:
            shutil.copy(ours, tree / each)
    for change in DEFECTS[name]:
        path = tree / change.path
        path.write_text(changed(path.read_text(), change))
    done = subprocess.run(
        [sys.executable, "-c", BUILD, "-q", "build_ext", "--inplace"],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=BUILDS_WITHIN_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.defects",
        description="Put old defects back, and see whether schedules find them. What follows -- is "
        "for python -m tests.chaos.",
    )
    parser.add_argument("defects", nargs="*", default=list(DEFECTS), metavar="DEFECT")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the first schedule")
    parser.add_argument(
        "--schedules", type=int, default=20, metavar="N", help="the limit for a defect"
    )
    own = sys.argv[1:]
    more: list[str] = []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    missed = []
    for name in options.defects:
        if name not in DEFECTS:
            parser.error(f"there is no defect {name}; there are {', '.join(DEFECTS)}")
        with tempfile.TemporaryDirectory(prefix="copperfs-defect-") as directory:
            put_back(name, Path(directory))
            print(f"==== {name}", flush=True)
            seeds = ["--seed", str(options.seed), "--schedules", str(options.schedules)]
            done = subprocess.run(
                [sys.executable, "-m", "tests.chaos", "--until-found", *seeds, *more],
                cwd=directory,
                # before where copperfs is installed
                env=os.environ | {"PYTHONPATH": directory},
                check=False,
            )
            if done.returncode == 0:
                missed.append(name)
    print(f"not found: {', '.join(missed)}" if missed else "all were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
