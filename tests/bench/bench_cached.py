"""`kernel-cached`: operations that the kernel answers by itself if the filesystem lets it.

stat, open + read + close of a small file, and the listing of a large directory, each repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.contestants import Contestant, standard
from tests.bench.lab import Context, make_file
from tests.bench.results import Measure, at_most

ENTRIES = 10_000
SMALL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Loop:
    """The count makes a loop of the client last about a tenth of a second warm."""

    name: str
    verb: str
    path: str
    count: int


LOOPS = (
    Loop("stat", "stat", "sub/directory/small", 100_000),
    Loop("open, read 4 KiB, close", "open", "sub/directory/small", 30_000),
    Loop(f"readdir of {ENTRIES:,} entries", "list", "many", 20),
)


def run(context: Context) -> Iterator[Measure]:
    tree = _tree(context.cache / "trees" / "cached")
    with context.all_mounted(context.taking_part(standard(context.cache)), tree) as places:
        for loop in LOOPS:

            def sample(contestant: Contestant, loop: Loop = loop) -> dict[str, float]:
                path = places[contestant].path / loop.path
                return {loop.name: context.client.run(loop.verb, path, loop.count)}

            taken = context.interleave(f"kernel-cached {loop.name}", list(places), sample)
            yield Measure(
                "kernel-cached", loop.name, "ns", taken.get(loop.name, {}), target=at_most(1.1)
            )


def _tree(tree: Path) -> Path:
    make_file(tree / "sub" / "directory" / "small", SMALL_BYTES)
    many = tree / "many"
    many.mkdir(exist_ok=True)
    if sum(1 for _ in many.iterdir()) != ENTRIES:
        for index in range(ENTRIES):
            # The names have the length of those in packages, since names fill a listing.
            (many / f"some_module_{index:05}.cpython-311.pyc").touch()
    return tree
