"""`placement`: builds a ring and finds owners, beside rendezvous hashing; CPU time.

The sizes are the largest job that issue 5 names, and the paper's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Set

from copperfs.lab.sim.rendezvous_hashing import RendezvousHashing
from copperfs.model.types import NodeId, Path, Version
from copperfs.node.routing.hash_ring import Ring
from copperfs.node.routing.placement_order import NOBODY, Placement, chunk_key
from tests.bench.lab import Context
from tests.bench.results import JUDGED, Measure, Target, Unit, at_most

SIZES = (1024, 10_000)
RENDEZVOUS = "rendezvous"
KEYS = 5000
# Each of them takes up to 300 times as long.
RENDEZVOUS_KEYS = 100


def run(context: Context) -> Iterator[Measure]:
    version = Version(1 << 30, 1, 2, 3)
    keys = [chunk_key(Path(b"lus/data/train.bin"), version, index) for index in range(KEYS)]
    for nodes in SIZES:
        names = [f"x1000c{n // 64 % 8}s{n // 512}b0n{n % 64}" for n in range(nodes)]
        rendezvous = RendezvousHashing(names)
        rings = {
            vnodes: Ring(names, vnodes=vnodes) for vnodes in (100, 1000) if nodes * vnodes < 4e6
        }
        for vnodes, ring in rings.items():
            name = f"{nodes} nodes x {vnodes}"

            def build(names: list[str] = names, vnodes: int = vnodes) -> None:
                Ring(names, vnodes=vnodes)

            yield _measure(context, f"build, {name}", "s", build, 1, target=at_most(1, of="value"))
            for left, text in ((1, ""), (2, ", half are gone"), (100, ", 99 of 100 are gone")):
                gone = {NodeId(n) for n in range(nodes) if n % left}
                yield _measure(
                    context,
                    f"owner, {name}{text}",
                    "ns",
                    _lookups(ring, keys, gone),
                    KEYS,
                    other=_lookups(rendezvous, keys[:RENDEZVOUS_KEYS], gone),
                    target=None if gone else at_most(5000, of="value"),
                )


def _lookups(placement: Placement, keys: list[bytes], gone: Set[NodeId]) -> Callable[[], None]:
    gone = gone or NOBODY

    def look() -> None:
        for key in keys:
            placement.owner(key, gone)

    return look


def _measure(
    context: Context,
    name: str,
    unit: Unit,
    work: Callable[[], None],
    count: int,
    *,
    other: Callable[[], None] | None = None,
    target: Target | None = None,
) -> Measure:
    factor = 1e9 if unit == "ns" else 1.0
    samples: dict[str, list[float]] = {JUDGED: []}
    for _ in range(context.repeats):
        samples[JUDGED].append(_cpu_s(work) / count * factor)
        if other is not None:
            taken = _cpu_s(other) / RENDEZVOUS_KEYS * factor
            samples.setdefault(RENDEZVOUS, []).append(taken)
    yardstick = RENDEZVOUS if other is not None else None
    return Measure("placement", name, unit, samples, yardstick=yardstick, target=target)


def _cpu_s(work: Callable[[], None]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin
