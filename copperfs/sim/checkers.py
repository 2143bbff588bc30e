"""What has to be true of a job, whatever was done to it.

While it runs, the hosts check what they can see by themselves: the core's invariants after every
step, that no blob is used after its release, that no peer is sent more than its credit, that bytes
are the source's, and that every answer comes before its deadline. Here is what takes a view over
the whole job, mostly at the end. A ``Violation`` has the seed and the trace that leads to it.
"""

from copperfs.core.actions import ObjectKey
from copperfs.sim.world import World


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


def check_errors(world: World) -> None:
    """No application on a node that lives was told an error, or waits."""
    for reading in world.readings:
        if reading.host.process.is_alive:
            check(world, reading.is_well, str(reading))


def check_source_reads(world: World, most: int) -> None:
    """No object was read and no directory was scanned more often than this."""
    for (kind, path), count in world.source.counts.items():
        if kind in ("read", "scan"):
            check(world, count <= most, f"{kind} of {path.decode() or '/'}: {count} times")


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
        check(world, host.waits == 0, f"{who} still waits for {host.waits} answers")
        check(world, not host.handles, f"{who} keeps {len(host.handles)} handles open")
        check(world, host.peers.kept_listings() == 0, f"{who} keeps parts of listings")
        check(
            world,
            len(host.blobs.held) == len(objects),
            f"{who} has {len(host.blobs.held)} blobs for {len(objects)} objects",
        )


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
