"""What has to be true of a job, whatever was done to it.

While it runs, the hosts check what they can see by themselves: the core's invariants after every
step, that no blob is used after its release, that no peer is sent more than its credit, that bytes
are the source's, and that every answer comes before its deadline. Here is what takes a view over
the whole job, mostly at the end. A ``Violation`` has the seed and the trace that leads to it.
"""

import errno
from collections.abc import Sequence, Set

from copperfs.core.actions import ObjectKey
from copperfs.sim.reading import Reading
from copperfs.sim.world import World
from copperfs.types import Path

Excused = Set[tuple[Path | None, int | None]]
"""Paths for which, or nodes to which, the source gave errors at some time."""


class Violation(AssertionError):
    """A promise was broken."""


def check(world: World, holds: bool, what: str) -> None:
    if not holds:
        raise Violation(f"seed {world.seed}, at {world.clock.now:.6f}: {what}")


def check_answered(world: World) -> None:
    """Nobody has waited for longer than the deadline."""
    for host in world.hosts:
        if host.process.runs:
            late = host.overdue()
            check(world, not late, f"node {host.me} has not answered {late[:1]}")


def check_errors(
    world: World,
    readings: Sequence[Reading],
    excused: Excused = frozenset(),
    changed: Set[Path] = frozenset(),
) -> None:
    """No application on a node that lives was told an error, or waits; but for an EIO where the
    source gave one to the node itself, or to everybody, and for ESTALE of a file that changed."""
    for reading in readings:
        if not reading.host.process.is_alive or reading.is_well:
            continue
        is_excused = reading.error == errno.EIO and (
            (reading.path, None) in excused or (None, reading.node) in excused
        )
        is_stale = reading.error == errno.ESTALE and reading.path in changed
        check(world, is_excused or is_stale, str(reading))


def check_newest(world: World, readings: Sequence[Reading]) -> None:
    """After a clear, everybody has the source's latest version."""
    for reading in readings:
        entry = world.source.entry(reading.path)
        assert entry is not None
        if reading.host.process.is_alive:
            newest = reading.version == entry.attributes.version
            check(world, newest, f"{reading}, in an old version")


def check_epochs(world: World) -> None:
    """Who was away when all was cleared has cleared since."""
    epochs = {host.me: host.node.epoch for host in world.hosts if host.process.runs}
    check(world, len(set(epochs.values())) <= 1, f"the epochs are {epochs}")


def check_source_reads(world: World, most: int) -> None:
    """No object was read, no directory was scanned, and no name looked up more often."""
    for (kind, path), count in world.source.counts.items():
        if kind in ("read", "scan", "look"):
            check(world, count <= most, f"{kind} of {path.decode() or '/'}: {count} times")


def check_chunk_reads(world: World, most: int) -> None:
    for (path, offset), count in world.source.chunk_counts.items():
        check(world, count <= most, f"{path.decode()} at {offset}: {count} times")


TROUBLES = ("deaths", "fallbacks", "spoiled", "overdue", "failures", "reparentings")


def check_untroubled(world: World) -> None:
    """Where nothing happened nobody has believed that anything had."""
    for host in world.hosts:
        stats = host.node.statistics()
        for trouble in TROUBLES:
            count = getattr(stats, trouble)
            check(world, not count, f"node {host.me} counts {count} {trouble}, and all was calm")


def check_at_rest(world: World) -> None:
    """When nobody waits for anything, nothing is kept that is not held."""
    for host in world.hosts:
        if not host.process.runs:
            continue
        who, stats = f"node {host.me}", host.node.statistics()
        objects = [key for key, _ in host.node.held() if isinstance(key, ObjectKey)]
        check(world, stats.fetching == 0, f"{who} still fetches {stats.fetching} things")
        check(world, stats.reserved_bytes == 0, f"{who} keeps {stats.reserved_bytes} reserved")
        check(world, host.hands.busy == 0, f"{who} is still at the source")
        check(world, host.calls == 0, f"{who} still waits for {host.calls} calls")
        check(world, host.waits == 0, f"{who} still waits for {host.waits} answers")
        check(world, not host.handles, f"{who} keeps {len(host.handles)} handles open")
        check(world, host.peers.kept_listings() == 0, f"{who} keeps parts of listings")
        check(
            world,
            len(host.blobs.held) == len(objects) + len(host.node.held_chunks()),
            f"{who} has {len(host.blobs.held)} blobs for {len(objects)} objects",
        )


def check_reads_bounded(world: World, lives: int, excused: Excused = frozenset()) -> None:
    """However many nodes failed: no life of a node read anything from the source more than twice,
    once as the root and once in the place of others. *lives* is how many there were."""
    for (kind, path), count in world.source.counts.items():
        if kind in ("read", "scan") and (path, None) not in excused:
            check(world, count <= 2 * lives, f"{kind} of {path.decode() or '/'}: {count} times")


def check_overlay(world: World) -> None:
    """When all believe what is so: in each tree every living node comes to one and the same root
    by asking upwards, over living nodes, and never in a circle."""
    living = {host.me: host for host in world.hosts if host.process.runs}
    for tree in range(world.job.trees):
        roots = set()
        for node in living:
            way = [node]
            while True:
                membership = living[way[-1]].node.membership
                assert membership is not None
                parent = membership.parents[tree]
                if parent is None:
                    roots.add(way[-1])
                    break
                check(world, parent in living, f"node {way[-1]} asks {parent}, which is gone")
                check(world, parent not in way, f"nodes ask in a circle: {way} {parent}")
                way.append(parent)
        check(world, len(roots) <= 1, f"tree {tree} has the roots {sorted(roots)}")


def check_limits(world: World) -> None:
    """Nobody holds more than it may."""
    for host in world.hosts:
        stats = host.node.statistics()
        who = f"node {host.me}"
        # One thing is held even if it alone is larger than the budget.
        most = max(world.job.memory_bytes, stats.held_bytes if stats.held_count == 1 else 0)
        check(world, stats.held_bytes <= most, f"{who} holds {stats.held_bytes} bytes")
        disk = host.disk
        check(world, disk.held_bytes <= disk.budget_bytes, f"{who} has too much on its disk")


def gone_in_view_of(world: World, node: int) -> set[int]:
    """Those that this node believes to be gone."""
    membership = world[node].node.membership
    assert membership is not None
    return set(membership.view.gone)


def check_views(world: World) -> None:
    """When the faults are over for long enough, all believe what is so. Of a node that none of
    those who live ever spoke with nobody can tell that it is gone, rather than not there yet."""
    living = [host for host in world.hosts if host.process.runs]
    met = set().union(*(host.peers.met for host in living))
    dead = {host.me for host in world.hosts if not host.process.is_alive}
    for host in living:
        believed = gone_in_view_of(world, host.me)
        what = f"node {host.me} believes {sorted(believed)} gone; {sorted(dead)} are"
        check(world, dead & met <= believed <= dead, what)
