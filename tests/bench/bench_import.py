"""`import`: imports real packages: warm for the second time, and cold on a fresh mount.

CPU counts the importing processes (with the kernel's work for them) and the daemon that served
them. Cold means a fresh mount over a source that is in the page cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.contestants import Contestant, Copperfs, Mounted, standard
from tests.bench.lab import FAILURES, Context, Samples
from tests.bench.packages import PackageSet, Touched, check_origin, import_once, touched
from tests.bench.processes import cpu_seconds
from tests.bench.results import JUDGED, Measure, Target, Unit, at_most

# The daemon's work after the answer (readahead, eviction) belongs to the cold import.
SETTLE_S = 0.2
REQUESTS = "requests that reached Python"
UNITS: dict[str, Unit] = {"wall": "s", "CPU": "s", REQUESTS: "requests"}


def run(context: Context) -> Iterator[Measure]:
    contestants = context.taking_part(standard(context.cache))
    for packages in context.package_sets:
        least = touched(packages)
        for processes in context.process_counts:
            bench = _ImportBench(context, packages, processes)
            yield from bench.rows("warm", bench.warm(contestants), least)
            yield from bench.rows("cold", bench.cold(contestants), least)


@dataclass(frozen=True, slots=True)
class _ImportBench:
    context: Context
    packages: PackageSet
    processes: int

    def warm(self, contestants: list[Contestant]) -> Samples:
        with self.context.all_mounted(contestants, self.packages.tree) as places:
            ready = []
            for contestant, mounted in places.items():
                try:  # this is also the first import, after which the mount is warm
                    check_origin(mounted.path, self.packages.statement)
                except FAILURES as error:
                    self.context.note(f"{self._label('warm')}: {contestant.name}: {error}")
                else:
                    ready.append(contestant)
            return self.context.interleave(
                self._label("warm"), ready, lambda one: self._sample(one, places[one])
            )

    def cold(self, contestants: list[Contestant]) -> Samples:
        import_once(self.packages.tree, self.packages.statement)  # into the page cache

        def sample(contestant: Contestant) -> dict[str, float]:
            with contestant.mounted(self.packages.tree) as mounted:
                return self._sample(contestant, mounted, settle_s=SETTLE_S)

        return self.context.interleave(self._label("cold"), contestants, sample)

    def _sample(
        self, contestant: Contestant, mounted: Mounted, settle_s: float = 0.0
    ) -> dict[str, float]:
        requests_before = _requests(contestant, mounted)
        daemon_before_s = cpu_seconds(mounted.pids)
        usage = import_once(mounted.path, self.packages.statement, self.processes)
        time.sleep(settle_s)
        daemon_s = cpu_seconds(mounted.pids) - daemon_before_s
        values = {"wall": usage.wall_s, "CPU": usage.cpu_s + daemon_s}
        requests = _requests(contestant, mounted)
        if requests is not None and requests_before is not None:
            values[REQUESTS] = requests - requests_before
        return values

    def rows(self, state: str, samples: Samples, least: Touched) -> Iterator[Measure]:
        details = {"directories": len(least.directories), "files": len(least.file_bytes)}
        for what, by_contestant in samples.items():
            requests = what == REQUESTS
            yield Measure(
                "import",
                f"{self._label(state)}: {what}",
                UNITS[what],
                by_contestant,
                yardstick=None if requests else "bind",
                target=self._requests_target(state, least) if requests else self._target(state),
                details={key: float(value) for key, value in details.items()} if requests else {},
            )

    def _target(self, state: str) -> Target:
        if state == "warm":
            return at_most(1.05)
        return at_most(1.4 if self.processes == 1 else 1.1)

    def _requests_target(self, state: str, least: Touched) -> Target:
        """None when warm; when cold one per directory and one per file, within 10 %."""
        distinct = len(least.directories) + len(least.file_bytes)
        return at_most(0 if state == "warm" else 1.1 * distinct, of="value")

    def _label(self, state: str) -> str:
        return f"{self.packages.name} x{self.processes}, {state}"


def _requests(contestant: Contestant, mounted: Mounted) -> int | None:
    # Only for the judged one: the query costs the warmth that is measured.
    if isinstance(contestant, Copperfs) and contestant.name == JUDGED:
        return contestant.handler_requests(mounted)
    return None
