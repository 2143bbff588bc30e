"""`owners-die`: FT-Cache's experiment, which kills nodes while a training reads its dataset.

Sixteen nodes, two readers on each. The first epoch fills the tier; five pairs of epochs follow. In
the first of a pair a node is killed (-9) when a randomly drawn part of the files has been read, and
the others read its remaining files; the second one is calm. The bench repeats this without a
failure, and in FT-Cache's other mode (`altered_daemons.py`). A reader computes after each file,
for a time proportional to its bytes. So the time allowed for an epoch is that without failure,
times the former number of nodes by the present one, weighted by the part of the files that was read
with each.

Before each kill, the nodes tell what would be lost (`copperfs ring`). The source's later reads have
to be each lost byte once, and no other one. (A lost chunk that its reader had in its own memory is
read again in a later epoch.) Before each epoch the pages of the source's mount and of all chunks
are dropped.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from tests.bench.altered_daemons import Alteration
from tests.bench.bench_dataset import checked, ready, training
from tests.bench.dataset import DataFile, Dataset, Fall, make_dataset, read_epoch
from tests.bench.lab import Context
from tests.bench.owners_die_svg import picture
from tests.bench.results import JUDGED, Measure, at_most

NODES, FALLS = 16, 5
FILES_MAX = 512
BYTES_PER_S = 10e6
"""A reader's; 320 MB/s for all 32."""
SEED = 3
CALM, AGAIN = "no failure", "lost from source"


@dataclass(frozen=True, slots=True)
class Death:
    node: int
    part: float
    """Of the files of its epoch that will have been read."""


@dataclass(slots=True)
class Trained:
    walls_s: list[float] = field(default_factory=list)
    slowest_s: list[float] = field(default_factory=list)
    source_bytes: list[int] = field(default_factory=list)
    lost_bytes: int = 0
    read_again_bytes: int = 0
    not_again_bytes: int = 0
    too_often_bytes: int = 0


def run(context: Context) -> Iterator[Measure]:
    count = min(context.files, FILES_MAX)
    dataset = make_dataset(context.cache / f"dataset-{count}", count)
    deaths = draw()
    trained: dict[str, list[Trained]] = {}
    for turn in range(context.repeats):
        for name in (CALM, JUDGED, AGAIN):
            context.progress(f"owners-die, {name}, round {turn + 1} of {context.repeats}")
            done = train(context, dataset, name, deaths)
            trained.setdefault(name, []).append(done)
    walls = {
        name: [[each.walls_s[e] for each in done] for e in range(1 + 2 * FALLS)]
        for name, done in trained.items()
    }
    svg = context.cache / "owners-die.svg"
    svg.write_text(picture(walls, f"{count} files, {dataset.total_bytes / 1e9:.2f} GB"))
    context.note(f"picture: {svg}")
    yield from _measures(trained, deaths)


def draw() -> list[Death]:
    numbers = random.Random(SEED)
    nodes = numbers.sample(range(NODES), FALLS)
    return [Death(node, numbers.uniform(0.1, 0.9)) for node in nodes]


def allowed_factors(deaths: list[Death]) -> list[float]:
    """By epoch, over the time without failure."""
    factors = [1.0]
    for gone, death in enumerate(deaths):
        before, after = NODES / (NODES - gone), NODES / (NODES - gone - 1)
        factors += [death.part * before + (1 - death.part) * after, after]
    return factors


def _measures(trained: dict[str, list[Trained]], deaths: list[Death]) -> Iterator[Measure]:
    factors = allowed_factors(deaths)
    allowed = "no failure, allowing for the missing nodes"
    totals = {name: [sum(each.walls_s) for each in done] for name, done in trained.items()}
    totals[allowed] = [
        sum(wall * factor for wall, factor in zip(each.walls_s, factors, strict=True))
        for each in trained[CALM]
    ]
    details = {
        f"{what} ({name})": float(value)
        for name, done in trained.items()
        for what, value in (
            ("lost bytes", done[0].lost_bytes),
            ("of them read again", done[0].read_again_bytes),
            ("of them not yet", done[0].not_again_bytes),
            ("other bytes read again", done[0].too_often_bytes),
            ("longest read of a file, s", max(done[0].slowest_s)),
        )
    }
    yield Measure("owners-die", "all epochs", "s", totals, allowed, at_most(1.1), details)
    for epoch, factor in enumerate(factors):
        samples = {n: [each.walls_s[epoch] for each in done] for n, done in trained.items()}
        samples[allowed] = [each.walls_s[epoch] * factor for each in trained[CALM]]
        what = "" if epoch == 0 else ", node killed" if epoch % 2 else ", after it"
        yield Measure("owners-die", f"epoch {epoch + 1}{what}", "s", samples, allowed)
        sizes = {
            name: [float(each.source_bytes[epoch]) for each in done]
            for name, done in trained.items()
        }
        yield Measure("owners-die", f"epoch {epoch + 1}{what}, source", "bytes", sizes, None)


def train(context: Context, dataset: Dataset, name: str, deaths: list[Death]) -> Trained:
    alterations: list[Alteration] = ["lost-from-source"] if name == AGAIN else []
    options = ("--security", "none", "--tier-memory", "64MiB")
    done = Trained()
    with training(context, dataset, NODES, *options, alterations=alterations) as training_:
        standing, job, tiers = training_
        mounts = dict(enumerate(job.mounts))
        missing: Counter[str] = Counter()
        for epoch in range(1 + 2 * FALLS):
            ready(standing, dataset, tiers)
            fall = None
            if epoch % 2 and name != CALM:
                death = deaths[epoch // 2]
                asked = next(mount for node, mount in mounts.items() if node != death.node)
                lost = lost_with(asked, dataset, death.node)
                done.lost_bytes += lost.total()
                missing |= lost  # bytes missing before cannot be lost
                standing.reset_counts()
                after = round(death.part * len(dataset.files))
                fall = Fall(death.node, job.pids[death.node], after)
            read = checked(read_epoch(dataset, mounts, epoch, bytes_per_s=BYTES_PER_S, fall=fall))
            if fall is not None:
                del mounts[fall.node]
            counted = Counter(standing.counts().read_bytes)
            done.walls_s.append(read.wall_s)
            done.slowest_s.append(read.slowest_s)
            done.source_bytes.append(counted.total())
            if epoch:
                done.read_again_bytes += (counted & missing).total()
                done.too_often_bytes += (counted - missing).total()
                missing -= counted
            context.progress(
                f"  epoch {epoch + 1}: {read.wall_s:.2f} s, slowest file {read.slowest_s:.2f} s, "
                f"the source read {counted.total():,} bytes"
                + (f"; {missing.total():,} are still missing" if epoch else "")
            )
        done.not_again_bytes = missing.total()
    return done


def lost_with(mount: Path, dataset: Dataset, node: int) -> Counter[str]:
    lost: Counter[str] = Counter()
    for file in dataset.files:
        owners, chunk_bytes = owners_of(mount, file)
        for index, owner in enumerate(owners):
            if owner == node:
                lost[file.name] += min(chunk_bytes, file.size - index * chunk_bytes)
    return lost


def owners_of(mount: Path, file: DataFile) -> tuple[list[int], int]:
    """The owner of each chunk of a file, as *mount* believes, and the size of chunks."""
    answer: Any = ask_mount(str(mount), IoctlRequest.RING, json.dumps({"path": file.name}).encode())
    owners: list[int] = []
    for each in answer["ranges"]:
        owners += [each["number"]] * (each["last"] - each["first"] + 1)
    assert len(owners) == answer["chunks"]
    return owners, answer["chunk_bytes"]
