"""Losses of nodes that keep copies: no chunk of a protected path is read from the source again.

A random run ends with this, after its faults: when all copies are made, as many nodes die at once
as the lowest class survives, and some of the others read all files. Nodes crash or lose power, and
there may have been any number of deaths, returns and partitions before.

It is left out where the memory of the nodes does not hold all copies, because evicted chunks have
none.
"""

from collections.abc import Sequence
from random import Random

from copperfs.lab.sim import checkers
from copperfs.lab.sim.world import MIB, World
from copperfs.model.types import Path

PROTECTED_WITHIN_S = 180.0
"""Declined copies are offered again after a minute at the latest."""
READERS_MAX = 8
"""More would only take longer: each reads all files."""
MEMORY_PART = 0.5
"""Shares are uneven, memory also holds older versions, and is full of chunks of unprotected
files."""


def lose_protected(world: World, files: Sequence[Path], draw: Random) -> bool:
    """Whether nodes were lost."""
    protected = [each for each in files if _has_copies(world, each)]
    most = max((world.job.protection.copies_of(each) for each in protected), default=1)
    least = min((world.job.protection.copies_of(each) for each in protected), default=1)
    living = world.alive()
    if least < 2 or len(living) < most + 2 or not _fits(world, files, most):
        return False

    def is_protected() -> bool:
        return not any(world[each].node.statistics().copies_due for each in living)

    world.run(2.0)
    is_reached = world.run_until(is_protected, PROTECTED_WITHIN_S)
    checkers.check(world, is_reached, "some chunks have too few copies, and nothing fails")
    counts = _counts(world, protected)
    for node in draw.sample(living, least - 1):
        if draw.random() < 0.5:
            world.power_off(node)
        else:
            world.crash(node)
    world.run(draw.choice((0.0, 0.05, 1.0, 10.0)))
    before = len(world.readings)
    left = world.alive()
    for node in draw.sample(left, min(READERS_MAX, len(left))):
        for path in protected:
            world.read(node, path)
    world.run_until_read()
    checkers.check_errors(world, world.readings[before:])
    checkers.check_newest(world, world.readings[before:])
    for chunk, count in _counts(world, protected).items():
        again = count - counts.get(chunk, 0)
        what = f"{chunk[0].decode()} at {chunk[1]}"
        checkers.check(world, not again, f"{what} was read {again} times more, after losses")
    return True


def _has_copies(world: World, path: Path) -> bool:
    """Whether nodes read the file in chunks that have copies."""
    entry = world.source.entry(path)
    if entry is None or world.job.protection.copies_of(path) < 2:
        return False
    return world.hosts[0].node.is_chunked(path, entry.attributes.version)


def _fits(world: World, files: Sequence[Path], copies: int) -> bool:
    sizes = sum(world.source.size(each) for each in files)
    nodes = [world[each].node for each in world.alive()]
    least = min(each.chunks_budget_bytes() for each in nodes)
    return sizes * copies / len(nodes) + 8 * MIB < MEMORY_PART * least


def _counts(world: World, paths: Sequence[Path]) -> dict[tuple[Path, int], int]:
    return {chunk: count for chunk, count in world.source.chunk_counts.items() if chunk[0] in paths}
