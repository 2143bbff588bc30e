"""`sequential`: one large file, first and second time; and 32 streams from a slow source.

The large file is in the page cache of the source, so the first read measures the way through the
daemon and the second the kernel's own cache. The slow source is the stand-in with 20 ms for every
operation and every read of up to 1 MiB; the number of reads in flight counts there.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.contestants import Bind, Bindfs, Contestant, copperfs, standard
from tests.bench.lab import Context, make_file
from tests.bench.results import MIB, Bound, Measure, Target, at_least
from tests.standin import StandIn

STREAMS = 32
STREAM_BYTES = 16 * MIB  # above --tree-max
LATENCY_S = 0.02


def run(context: Context) -> Iterator[Measure]:
    yield from _one_file(context)
    yield from _slow_streams(context)


def _one_file(context: Context) -> Iterator[Measure]:
    tree = context.cache / "trees" / f"big-{context.big_mib}"
    file = make_file(tree / "big", context.big_mib * MIB)
    first, second = "first time", "second time"

    def sample(contestant: Contestant) -> dict[str, float]:
        context.client.run("read", file)  # the source's pages may have been dropped since
        with contestant.mounted(tree) as mounted:
            # A dict display is evaluated from left to right.
            return {
                first: context.client.run("read", mounted.path / "big"),
                second: context.client.run("read", mounted.path / "big"),
            }

    label = f"{context.big_mib} MiB file"
    taken = context.interleave(label, context.taking_part(standard(context.cache)), sample)
    targets = {
        first: Target((Bound("at least", 0.5), Bound("at least", 1e9, "value"))),
        second: at_least(0.95),  # "equal", less the difference of two runs
    }
    for what, by_contestant in taken.items():
        yield Measure(
            "sequential", f"{label}, {what}", "bytes/s", by_contestant, target=targets[what]
        )


def _slow_streams(context: Context) -> Iterator[Measure]:
    tree = context.cache / "trees" / "streams"
    for index in range(STREAMS):
        make_file(tree / f"stream{index}", STREAM_BYTES)
    name = f"{STREAMS} streams, source with {LATENCY_S * 1e3:.0f} ms"
    # An image on the slow source would be a different source. One thread of bindfs reads 128 KiB in
    # 20 ms, 6 MiB/s, whatever the streams.
    bindfs = Bindfs(threads=True)
    contestants = context.taking_part([Bind(), bindfs, copperfs()])
    with StandIn(tree, per_op_s=LATENCY_S, per_read_s=LATENCY_S) as slow:

        def sample(contestant: Contestant) -> dict[str, float]:
            with contestant.mounted(slow.mountpoint) as mounted:
                return {name: context.client.run("streams", mounted.path / "stream", STREAMS)}

        taken = context.interleave(name, contestants, sample)
    yield Measure(
        "sequential", name, "bytes/s", taken.get(name, {}), target=at_least(250 * MIB, "value")
    )
