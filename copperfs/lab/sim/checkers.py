"""Checkers: the promises that a simulated job has to keep, whatever faults it had.

While it runs, the hosts check what they can see by themselves: the core's invariants after every
step, that no blob is used after its release, that no peer is sent more than its credit, that bytes
are the source's, and that every answer comes before its deadline. This module has the checks that
need a view of the whole job, mostly at the end. A ``Violation`` has the seed and the trace that
leads to it.
"""

import errno
from collections import Counter
from collections.abc import Mapping, Sequence, Set

from copperfs.lab.sim.file_reader import Reading
from copperfs.lab.sim.world import World
from copperfs.model.types import Path
from copperfs.node.actions import ObjectKey
from copperfs.node.cache.failed_names import BELIEVED_S

Excused = Set[tuple[Path | None, int | None]]
"""Paths for which, or nodes to which, the source gave errors at some time."""


Sick = Mapping[Path, Set[int]]
"""Names that the source could not stat at some time, with its errors."""
NONE_SICK: Sick = {}


class Violation(AssertionError):
    """A promise was broken."""


def check(world: World, holds: bool, what: str) -> None:
    if not holds:
        raise Violation(f"seed {world.seed}, at {world.clock.now:.6f}: {what}")


def check_answered(world: World) -> None:
    """No application has waited for longer than the deadline."""
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
    the source gave to this node, or to all; ESTALE of a file that changed; the error of a sick
    name, that one and no other; and ESTALE on a node whose client numbers files differently, until
    it has found that out."""
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
    """After a clear, every reader has the source's latest version."""
    for reading in readings:
        entry = world.source.entry(reading.path)
        assert entry is not None
        if reading.host.process.is_alive:
            # Clients may number it differently; a change shows in the times.
            latest = entry.attributes.version._replace(inode=0)
            newest = reading.version is not None and reading.version._replace(inode=0) == latest
            check(world, newest, f"{reading}, in an old version")


def check_epochs(world: World) -> None:
    """A node that was away during a clear has cleared since."""
    epochs = {host.me: host.node.epoch for host in world.hosts if host.process.runs}
    check(world, len(set(epochs.values())) <= 1, f"the epochs are {epochs}")


def check_source_reads(world: World, most: int, sick: Sick = NONE_SICK) -> None:
    """No object was read, no directory scanned, and no name looked up more than *most* times. Sick
    names are exempt: each node that wants one looks it up."""
    for (kind, path), count in world.source.counts.items():
        if kind in ("read", "scan", "look") and path not in sick:
            check(world, count <= most, f"{kind} of {path.decode() or '/'}: {count} times")


def check_chunk_reads(world: World, most: int) -> None:
    for (path, offset), count in world.source.chunk_counts.items():
        check(world, count <= most, f"{path.decode()} at {offset}: {count} times")


TROUBLES = ("deaths", "fallbacks", "spoiled", "overdue", "failures", "reparentings")


def check_untroubled(world: World, besides: Sequence[str] = ()) -> None:
    """In a job without faults no node has counted one, *besides* the named counters."""
    for host in world.hosts:
        stats = host.node.statistics()
        for trouble in [each for each in TROUBLES if each not in besides]:
            count = getattr(stats, trouble)
            check(world, not count, f"node {host.me} counts {count} {trouble}, and all was calm")


def check_at_rest(world: World) -> None:
    """When no request is open, a node keeps only what it holds on purpose."""
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
    """However many nodes failed: no life of a node read an object from the source more than twice,
    once as the root and once as a fallback. *lives* is how many there were."""
    for (kind, path), count in world.source.counts.items():
        if kind in ("read", "scan") and (path, None) not in excused:
            check(world, count <= 2 * lives, f"{kind} of {path.decode() or '/'}: {count} times")


def check_overlay(world: World) -> None:
    """When all nodes believe the truth: in each tree the parents of every live node lead to one
    root, over live nodes, and never in a circle."""
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
    """No node holds more than it may."""
    for host in world.hosts:
        stats = host.node.statistics()
        who = f"node {host.me}"
        # An object is held even if it alone is larger than the budget.
        budget = host.node.limits.memory_bytes
        most = max(budget, stats.held_bytes if stats.held_count == 1 else 0)
        check(world, stats.held_bytes <= most, f"{who} holds {stats.held_bytes} bytes")
        disk = host.disk
        check(world, disk.held_bytes <= disk.budget_bytes, f"{who} has too much on its disk")


def gone_in_view_of(world: World, node: int) -> set[int]:
    """The nodes that this node believes to be gone."""
    membership = world[node].node.membership
    assert membership is not None
    return set(membership.view.gone)


def check_views(world: World) -> None:
    """When the faults have been over for long enough, all nodes believe the truth. If no live node
    ever connected to a dead one, none can tell whether it is gone or not there yet."""
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
    """However many connections come without a key: their descriptors are bounded, and the source
    does not wait for descriptors."""
    for host in world.hosts:
        port, starved_s = host.port, host.hands.starved_s
        most = port.descriptors
        check(world, most is None or port.taken <= most, f"node {host.me} has {port.taken} open")
        what = f"node {host.me} had no descriptor for the source for {starved_s:.1f} s"
        check(world, starved_s <= STARVED_S_MAX, what)


def check_walks(world: World, kept: Set[bytes], excused: Excused = frozenset()) -> None:
    """Each walk gets every name that was there all the time, once, and no name twice."""
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
    """However often a sick name is requested: each life of a node looks it up once in the time for
    which it believes an error."""
    times = world.lives * (2 + world.clock.now / BELIEVED_S)
    for path in sick:
        count = world.source.counts["look", path]
        check(world, count <= times, f"look of {path.decode()}: {count} times")
