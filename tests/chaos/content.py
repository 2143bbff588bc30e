"""Content of the chaos test: 2,000 files whose every byte is known, and a package to import. Half
of the files go to owners on the ring, the others up a tree.

Each file is a slice of one file beside the source, which the readers map: sixteen readers compare
every byte without sixteen copies.
"""

from __future__ import annotations

import json
import random
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

BELOW = "fs"
FILES = 2000
DIRECTORIES = 50
# Mostly small, a few in several parts. Together some 45 MB: all fit into each node's memory.
SIZES = ((0.90, 100, 16 << 10), (0.09, 16 << 10, 256 << 10), (0.01, 256 << 10, 3 << 20))
# Larger than a chunk, over several owners; read in pieces.
LARGE_SIZES = (5 << 20, 40 << 20)
WALK = "walk"
LARGE = "large"
PACKAGES = ("markdown_it", "mdurl")
IMPORT = "import markdown_it.main, markdown_it.renderer, markdown_it.presets.commonmark"


@dataclass(frozen=True, slots=True)
class Content:
    source: Path
    known: Path
    index: Path
    """JSON: for each file its path, where it begins, its size."""
    kept: tuple[str, ...] = tuple(f"kept{number:03}" for number in range(300))
    """Names in ``WALK`` that exist all the time."""
    passing: tuple[str, ...] = tuple(f"passing{number:03}" for number in range(120))
    """Names in ``WALK`` that come and go."""
    packages: str = "packages"


def datasets(source: Path) -> list[str]:
    """Every second one goes through the data tier."""
    return [str(source / "data" / f"d{number:02}") for number in range(0, DIRECTORIES, 2)]


def make_content(directory: Path, seed: int = 0, files: int = FILES, large: int = 0) -> Content:
    numbers = random.Random(f"content {seed}")
    # As on a cluster, where the filesystem is one of several below the source.
    source = directory / "source" / BELOW
    content = Content(source, directory / "known", directory / "index.json")
    directories = min(DIRECTORIES, files)
    for number in range(directories):
        (content.source / "data" / f"d{number:02}").mkdir(parents=True)
    index = []
    with content.known.open("wb") as known:
        for number in range(files):
            path = f"data/d{number % directories:02}/f{number:04}"
            shape = numbers.choices(SIZES, [share for share, _, _ in SIZES])[0]
            size = int(shape[1] * (shape[2] / shape[1]) ** numbers.random())
            data = numbers.randbytes(size)
            index.append((path, known.tell(), size))
            known.write(data)
            (content.source / path).write_bytes(data)
        for number in range(large):
            path = f"data/d{number % directories:02}/{LARGE}{number}"
            data = numbers.randbytes(numbers.randint(*LARGE_SIZES))
            index.append((path, known.tell(), len(data)))
            known.write(data)
            (content.source / path).write_bytes(data)
    (content.source / WALK).mkdir()
    names = [*content.kept, *content.passing]
    numbers.shuffle(names)
    for name in names:
        (content.source / WALK / name).touch()
    content.index.write_text(json.dumps(index))
    installed = Path(sysconfig.get_path("purelib"))
    for name in PACKAGES:
        shutil.copytree(installed / name, content.source / content.packages / name)
    return content
