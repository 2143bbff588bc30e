"""``python -m tests.chaos.simulated``: runs the same schedules in virtual time.

The nodes are the daemon's own ``Node``; the network and the source are the simulator's. So a stall
comes only from deadlines and the order in which peers are asked. Packet loss is not simulated, and
not drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from random import Random

from copperfs.lab.sim.world import MIB, Job, World
from copperfs.model.types import NodeId, Path
from tests.chaos.arena import Setup
from tests.chaos.judge import Applied, Outcome, Read, quantile, stalls
from tests.chaos.schedule import KINDS, Fault, Schedule, draw

SIMULATED = tuple(kind for kind in KINDS if kind != "drop")
FILES = 400
SIZES = (100, 1000, 10_000, 10_000, 200_000)
LARGE_SHARE, LARGE_BYTES = 0.01, 3 * MIB


def carry_out(schedule: Schedule, setup: Setup) -> Outcome:
    draw_from = Random(schedule.seed)
    ring = Path(b"ring")
    job = Job(schedule.nodes, schedule.fanout, chunk_bytes=MIB, tree_max_bytes=MIB, ring=(ring,))
    world = World(schedule.seed, job, exact=False)
    world.trace.keep(0)
    files = [Path(b"%s/f%d" % (ring if number % 2 else b"tree", number)) for number in range(FILES)]
    for path in files:
        is_large = draw_from.random() < LARGE_SHARE
        world.source.add(path, LARGE_BYTES if is_large else draw_from.choice(SIZES))
    world.start(2.0)
    outcome = Outcome(schedule, world.clock.now)
    ends = world.clock.now + schedule.length_s

    def read(node: int) -> None:
        if world.clock.now < ends:
            if world[node].process.runs:
                world.read(node, draw_from.choice(files))
            world.clock.after(draw_from.uniform(0.5, 1.5) / setup.rate, read, node)

    for node in range(schedule.nodes):
        world.clock.after(draw_from.random() / setup.rate, read, node)
    for fault in schedule.faults:
        _plan(world, outcome, fault)
    world.run(schedule.length_s + 5.0)
    world.run_until_read(60.0)
    outcome.reads = [
        Read(
            each.node,
            each.began,
            world.clock.now if each.ended is None else each.ended,
            each.path.decode(),
            each.error,
            wrong=False,
        )
        for each in world.readings
        if each.ended is not None or each.host.process.is_alive
    ]
    return outcome


def _plan(world: World, outcome: Outcome, fault: Fault) -> None:
    hurts: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "kill": (lambda: world.crash(fault.node), lambda: world.restart(fault.node)),
        "stop": (lambda: world.stop(fault.node), lambda: world.go_on(fault.node)),
        "stick": (lambda: world.hang(fault.node), lambda: world.go_on(fault.node)),
        "cut": (lambda: world.isolate(fault.node), lambda: _mend(world, outcome, fault.node)),
    }
    hurt, heal = hurts[fault.kind]

    def begin() -> None:
        outcome.applied.append(Applied(fault, world.clock.now))
        hurt()

    def end() -> None:
        next(each for each in outcome.applied if each.fault is fault).ended = world.clock.now
        heal()

    world.clock.after(fault.at_s, begin)
    world.clock.after(fault.ends_s, end)


def _mend(world: World, outcome: Outcome, node: int) -> None:
    """Its own link, but not those of others."""
    cut = {each.fault.node for each in outcome.applied if each.fault.kind == "cut"}
    still = {
        each.fault.node
        for each in outcome.applied
        if each.fault.node in cut and each.ended > world.clock.now
    }
    for other in set(range(outcome.schedule.nodes)) - still - {node}:
        world.network.heal(NodeId(node), NodeId(other))
        world.network.heal(NodeId(other), NodeId(node))


def main() -> int:
    usual = Setup()
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.simulated", description="Stalls of schedules, simulated."
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the first schedule")
    parser.add_argument("--schedules", type=int, default=10, metavar="N", help="seeds S to S+N-1")
    parser.add_argument("--kinds", nargs="+", choices=SIMULATED, default=SIMULATED)
    options = parser.parse_args()
    found: dict[tuple[str, str], list[Read]] = {}
    errors = 0
    for seed in range(options.seed, options.seed + options.schedules):
        schedule = draw(seed, usual.nodes, usual.fanout, kinds=options.kinds)
        outcome = carry_out(schedule, usual)
        for key, reads in stalls(outcome).items():
            found.setdefault(key, []).extend(reads)
            errors += sum(bool(each.errno) for each in reads)
    for (label, whose), reads in sorted(found.items()):
        took = sorted(each.took_s for each in reads)
        print(
            f"{label:12} {whose:7} {len(took):7} reads, p99.9 {quantile(took, 0.999):.3f} s, "
            f"longest {took[-1]:.3f} s, {sum(each > 0.15 for each in took)} above 0.15 s, "
            f"{sum(each > 1 for each in took)} above 1 s"
        )
    print(f"{errors} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
