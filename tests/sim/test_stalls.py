"""Stalls: how long a read waits for one fault, in virtual time.

Only the deadlines and the order of requests decide. Sixteen nodes read files that come up the tree
and files that have owners, while one node fails and recovers. ``tests/chaos`` reports this of real
nodes.
"""

from collections.abc import Callable
from random import Random

import pytest

from copperfs.lab.sim.world import MIB, Job, World
from copperfs.model.types import Path

NODES, FILES = 16, 200
RATE = 25.0
BEGINS_S, HEALED_S, ENDS_S = 0.5, 2.0, 4.0
SIZES = (100, 1000, 10_000, 200_000)


def reading(seed: int) -> World:
    ring = Path(b"ring")
    world = World(seed, Job(NODES, fanout=3, chunk_bytes=MIB, ring=(ring,)), exact=False)
    world.trace.keep(0)
    draw = Random(seed)
    files = [Path(b"%s/f%d" % (ring if number % 2 else b"tree", number)) for number in range(FILES)]
    for path in files:
        world.source.add(path, draw.choice(SIZES))
    world.start(2.0)
    ends = world.clock.now + ENDS_S

    def read(node: int) -> None:
        if world.clock.now < ends:
            if world[node].process.runs:
                world.read(node, draw.choice(files))
            world.clock.after(draw.uniform(0.5, 1.5) / RATE, read, node)

    for node in range(NODES):
        world.clock.after(draw.random() / RATE, read, node)
    return world


FAULTS: dict[str, tuple[Callable[[World, int], None], Callable[[World, int], None]]] = {
    "killed": (World.crash, World.restart),
    "stopped": (World.stop, World.go_on),
    "stuck": (World.hang, World.go_on),
    "cut off": (World.isolate, lambda world, _: world.heal()),
}


@pytest.mark.parametrize("node", [0, 1, 7])
@pytest.mark.parametrize("fault", FAULTS)
def test_nobody_waits_long_for_one_node(fault: str, node: int) -> None:
    hurt, heal = FAULTS[fault]
    world = reading(seed=node)
    world.run(BEGINS_S)
    hurt(world, node)
    world.run(HEALED_S - BEGINS_S)
    heal(world, node)
    world.run(ENDS_S - HEALED_S)
    world.run_until_read()
    took: dict[bool, list[float]] = {True: [], False: []}
    for each in world.readings:
        own = each.node == node
        if own and fault != "cut off":
            continue  # its daemon was not there
        assert each.is_well, str(each)
        assert each.ended is not None
        took[own].append(each.ended - each.began)
    assert len(took[False]) > 1000
    assert max(took[False]) < (0.15 if fault == "killed" else 0.75)
    assert max(took[True], default=0.0) < 1.0
