"""Checkers: the promises that a simulated job has to keep, whatever faults it had.

Each host checks invariants, blobs, credit, bytes and deadlines by itself while it runs. This module
has the checks that need a view of the whole job, mostly at the end.
"""

import errno
from collections import Counter
from collections.abc import Mapping, Sequence, Set

from copperfs.lab.sim.file_reader import Reading
from copperfs.lab.sim.world import World
from copperfs.model.types import Path
from copperfs.node.actions import ObjectKey
from copperfs.node.cache.error_cache import BELIEVED_S

Excused = Set[tuple[Path | None, int | None]]
"""Paths for which, or nodes to which, the source gave errors."""


Sick = Mapping[Path, Set[int]]
"""Names that the source could not stat, with its errors."""
NONE_SICK: Sick = {}


class Violation(AssertionError):
    """A promise was broken."""


def check(world: World, holds: bool, what: str) -> None:
    if not holds:
        raise Violation(f"seed {world.seed}, at {world.clock.now:.6f}: {what}")


def check_answered(world: World) -> None:
    for host in world.hosts:
        if host.process.runs:
            late = host.overdue()
            check(world, not late, f"node {host.me} has not answered {late[:1]}")


def check_errors(
    world: World,
    readings: Sequence[Reading],
    excused: Excused = frozenset(),
    changed: Set[Path] = frozenset(),
    sick: Sick = NONE_SICK,
) -> None:
    """No application on a live node waits, or got an error. Four errors are allowed: an EIO that
    the source gave to this node or to all; ESTALE of a file that changed; a sick name's own error;
    and ESTALE until a node has found out that its client numbers files differently."""
    differ = world.numbers_differ
    for reading in readings:
        if not reading.host.process.is_alive or reading.is_well:
            continue
        is_excused = reading.error == errno.EIO and (
            (reading.path, None) in excused or (None, reading.node) in excused
        )
        is_stale = reading.error == errno.ESTALE and reading.path in changed
        is_sick = reading.error in sick.get(reading.path, ())
        is_early = differ and reading.error == errno.ESTALE and not reading.left_numbers_out
        check(world, is_excused or is_stale or is_sick or is_early, str(reading))


def check_newest(world: World, readings: Sequence[Reading]) -> None:
    for reading in readings:
        entry = world.source.entry(reading.path)
        assert entry is not None
        if reading.host.process.is_alive:
            # Clients may number it differently; a change shows in the times.
            latest = entry.attributes.version._replace(inode=0)
            newest = reading.version is not None and reading.version._replace(inode=0) == latest
            check(world, newest, f"{reading}, in an old version")


def check_epochs(world: World) -> None:
    """A node that missed a clear has cleared since."""
    epochs = {host.me: host.node.epoch for host in world.hosts if host.process.runs}
    check(world, len(set(epochs.values())) <= 1, f"the epochs are {epochs}")


def check_source_reads(world: World, most: int, sick: Sick = NONE_SICK) -> None:
    """No object was read, directory scanned, or name looked up more than *most* times, except sick
    names, which each node that wants one looks up."""
    for (kind, path), count in world.source.counts.items():
        if kind in ("read", "scan", "look") and path not in sick:
            check(world, count <= most, f"{kind} of {path.decode() or '/'}: {count} times")


def check_chunk_reads(world: World, most: int) -> None:
    for (path, offset), count in world.source.chunk_counts.items():
        check(world, count <= most, f"{path.decode()} at {offset}: {count} times")


TROUBLES = ("deaths", "fallbacks", "spoiled", "overdue", "failures", "reparentings")


def check_untroubled(world: World, besides: Sequence[str] = ()) -> None:
    for host in world.hosts:
        stats = host.node.statistics()
        for trouble in [each for each in TROUBLES if each not in besides]:
            count = getattr(stats, trouble)
            check(world, not count, f"node {host.me} counts {count} {trouble}, and all was calm")


def check_at_rest(world: World) -> None:
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
        unfinished = sum(each.unfinished is not None for each in host.node.pushes.running.values())
        check(world, not host.blobs.lent(), f"{who} keeps parts of listings")
        check(
            world,
            len(host.blobs.held) == len(objects) + len(host.node.held_chunks()) + unfinished,
            f"{who} has {len(host.blobs.held)} blobs for {len(objects)} objects",
        )


def check_reads_bounded(world: World, lives: int, excused: Excused = frozenset()) -> None:
    """No life of a node read an object more than twice: as the root, and as a fallback."""
    for (kind, path), count in world.source.counts.items():
        if kind in ("read", "scan") and (path, None) not in excused:
            check(world, count <= 2 * lives, f"{kind} of {path.decode() or '/'}: {count} times")


def check_overlay(world: World) -> None:
    """In each tree, the parents of every live node lead over live nodes to one root."""
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
    for host in world.hosts:
        stats = host.node.statistics()
        who = f"node {host.me}"
        # An object larger than the budget may be held alone.
        budget = host.node.limits.memory_bytes
        most = max(budget, stats.held_bytes if stats.held_count == 1 else 0)
        check(world, stats.held_bytes <= most, f"{who} holds {stats.held_bytes} bytes")
        disk = host.disk
        check(world, disk.held_bytes <= disk.budget_bytes, f"{who} has too much on its disk")


def gone_in_view_of(world: World, node: int) -> set[int]:
    membership = world[node].node.membership
    assert membership is not None
    return set(membership.members.gone)


def check_views(world: World) -> None:
    """All nodes believe the truth. If no live node ever connected to a dead one, none can tell
    whether it is gone or not started."""
    living = [host for host in world.hosts if host.process.runs]
    met = set().union(*(host.peers.met for host in living))
    dead = {host.me for host in world.hosts if not host.process.is_alive}
    for host in living:
        believed = gone_in_view_of(world, host.me)
        what = f"node {host.me} believes {sorted(believed)} gone; {sorted(dead)} are"
        check(world, dead & met <= believed <= dead, what)


def check_numbers(world: World) -> None:
    """If a client has its own inode numbers, all nodes leave numbers out; otherwise none does."""
    if world.job.inodes is None:
        return
    living = [host for host in world.hosts if host.process.runs]
    numberings = {host.me if host.hands.client.own_numbers else None for host in living}
    for host in living:
        ignores = host.hands.client.ignores_numbers
        what = f"node {host.me} {'leaves out' if ignores else 'compares'} inode numbers"
        if world.job.inodes == "ignore" or len(numberings) > 1:
            check(world, ignores, f"{what}, and clients differ")
        elif not world.numbers_differ:
            check(world, not ignores, f"{what}, and all clients agree")


STARVED_S_MAX = 1.0


def check_descriptors(world: World) -> None:
    """Connections without a key have few descriptors, and the source does not wait for any."""
    for host in world.hosts:
        port, starved_s = host.port, host.hands.starved_s
        most = port.descriptors
        check(world, most is None or port.taken <= most, f"node {host.me} has {port.taken} open")
        what = f"node {host.me} had no descriptor for the source for {starved_s:.1f} s"
        check(world, starved_s <= STARVED_S_MAX, what)


def check_walks(world: World, kept: Set[bytes], excused: Excused = frozenset()) -> None:
    """Each walk gets every name that was always there once, and no name twice."""
    for walk in world.walks:
        if not walk.host.process.is_alive:
            continue
        if walk.error == errno.EIO and (None, walk.host.me) in excused:
            continue
        check(world, walk.is_over and not walk.error, str(walk))
        times = Counter(walk.names)
        missed = sorted(name for name in kept if not times[name])
        check(world, not missed, f"{walk}: {missed[:5]} were there, and were not among them")
        twice = sorted(name for name, count in times.items() if count > 1)
        check(world, not twice, f"{walk}: {twice[:5]} more than once")


def check_looks(world: World, sick: Sick) -> None:
    """A life of a node looks a sick name up once in the time for which it believes an error."""
    times = world.lives * (2 + world.clock.now / BELIEVED_S)
    for path in sick:
        count = world.source.counts["look", path]
        check(world, count <= times, f"look of {path.decode()}: {count} times")
