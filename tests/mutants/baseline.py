"""Baseline: which test and which seed of the healthy tree executes which statement, and how long.

Every test runs twice, once with probes and once as in a trial. A test that fails there, or takes
too long to run for every mutant, is left out, and is named. The baseline is kept in a file, and
measured anew when a module or a test has changed.
"""

import ast
import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.loading import ROOT, modules, name_of, numbers
from tests.mutants.operators import MODULE_LEVEL, Mutation
from tests.mutants.trial import Limit, observe

SEEDS = range(1, 51)
TEST_CPU_S_MAX = 3.0
TESTS = ("tests/unit", "tests/sim")
# Seeds are a separate step; two runs of one mutant are as equal as those of a healthy tree.
LEFT_OUT = ("test_seeds.py", "test_determinism.py", "test_mutants.py")
_USES = re.compile(
    r"copperfs\.(node|model|driver|wire|lab|daemon|transport)\b|node_lab|simulated_job"
)


@dataclass(frozen=True, slots=True)
class Baseline:
    reach: dict[str, frozenset[int]]
    limits: dict[str, Limit]
    imported: frozenset[int]
    """Every test depends on statements that an import executes."""
    first: dict[str, int]
    libraries: tuple[str, ...]
    left_out: dict[str, str]

    def reaching(self, mutation: Mutation) -> list[str]:
        """The quickest and most specific first."""
        number = self.first[mutation.module] + mutation.statement
        if mutation.statement == MODULE_LEVEL or number in self.imported:
            near = self._near(mutation.module)
            found = [name for name, hit in self.reach.items() if not near.isdisjoint(hit)]
        else:
            found = [name for name, hit in self.reach.items() if number in hit]
        return sorted(found, key=self._rank)

    def _rank(self, name: str) -> tuple[float, int]:
        return round(self.limits[name].cpu_s, 2), len(self.reach[name])

    def _near(self, module: str) -> frozenset[int]:
        ends = sorted([*self.first.values()])
        near: set[int] = set()
        for each, source in modules().items():
            if each == module or _imports(source, name_of(module)):
                begin = self.first[each]
                near.update(range(begin, next((at for at in ends if at > begin), begin)))
        return frozenset(near)


def _imports(source: bytes, name: str) -> bool:
    return any(
        isinstance(node, ast.ImportFrom) and node.module == name
        for node in ast.walk(ast.parse(source))
    )


def files_of(places: Collection[str]) -> list[str]:
    """Files of tests that could use the node or the codec in their own process."""
    found = sorted(path for place in places for path in (ROOT / place).glob("test_*.py"))
    return [
        str(path.relative_to(ROOT))
        for path in found
        if path.name not in LEFT_OUT and _USES.search(path.read_text())
    ]


def measure(directory: Path, files: Sequence[str], seeds: Sequence[int]) -> Baseline:
    digest = hashlib.sha256(repr((sorted(seeds), modules())).encode())
    for path in [*sorted((ROOT / "copperfs").rglob("*.py")), *(ROOT / each for each in files)]:
        digest.update(path.read_bytes())
    kept = directory / "baseline.json"
    if not kept.exists() or json.loads(kept.read_text())["digest"] != digest.hexdigest():
        told = []
        for with_probes in (True, False):
            told.append(observe(files, (), directory, with_probes=with_probes))
            told.append(observe((), seeds, directory, with_probes=with_probes) if seeds else [])
        kept.write_text(json.dumps({"digest": digest.hexdigest(), "told": told}))
    told = json.loads(kept.read_text())["told"]
    return _baseline(told[0] + told[1], told[2] + told[3])


def _baseline(probed: list[dict[str, Any]], plain: list[dict[str, Any]]) -> Baseline:
    begun: dict[str, list[Any]] = next(
        (each for each in probed if "imported" in each), {"imported": [], "modules": []}
    )
    hits = {each["ended"]: frozenset(each["hit"]) for each in probed if "ended" in each}
    limits = {
        each["ended"]: Limit(each["cpu_s"], each["wall_s"]) for each in plain if "ended" in each
    }
    left_out = {
        str(each.get("failed") or each.get("skipped")): str(each["detail"])
        for each in probed + plain
        if "failed" in each or "skipped" in each
    }
    for name, limit in limits.items():
        if limit.cpu_s > TEST_CPU_S_MAX and not name.startswith("seed"):
            left_out[name] = f"takes {limit.cpu_s:.1f} s"
    kept = [name for name, hit in hits.items() if hit and name in limits and name not in left_out]
    ours = ("copperfs", "tests", "__main__")
    return Baseline(
        {name: hits[name] for name in kept},
        {name: limits[name] for name in kept},
        frozenset(begun["imported"]),
        numbers(modules()),
        tuple(name for name in begun["modules"] if name.partition(".")[0] not in ours),
        left_out,
    )
