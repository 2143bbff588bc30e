"""`memory`: the daemon's memory after one import, against the bytes that it had to hold.

It is the Pss of the daemon's processes. The budget of issue 2: 1.3 times the bytes of the opened
files up to `--tree-max`, plus 60 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.contestants import Contestant, standard
from tests.bench.lab import Context
from tests.bench.packages import PackageSet, import_once, touched
from tests.bench.processes import pss_bytes
from tests.bench.results import MIB, Measure, at_most

TREE_MAX_BYTES = 10 * MIB
FACTOR = 1.3
BASE_BYTES = 60 * MIB


def run(context: Context) -> Iterator[Measure]:
    # A bind mount has no daemon.
    contestants = [one for one in standard(context.cache) if one.name != "bind"]
    taking_part = context.taking_part(contestants)
    for packages in context.package_sets:
        sizes = touched(packages).file_bytes.values()
        held_bytes = sum(size for size in sizes if size <= TREE_MAX_BYTES)
        name = f"after importing {packages.name}"

        def sample(
            contestant: Contestant, name: str = name, packages: PackageSet = packages
        ) -> dict[str, float]:
            with contestant.mounted(packages.tree) as mounted:
                import_once(mounted.path, packages.statement)
                return {name: pss_bytes(mounted.pids)}

        taken = context.interleave(f"memory {name}", taking_part, sample)
        yield Measure(
            "memory",
            name,
            "bytes",
            taken.get(name, {}),
            yardstick=None,
            target=at_most(FACTOR * held_bytes + BASE_BYTES, of="value"),
            details={"bytes of opened files up to tree-max": float(held_bytes)},
        )
