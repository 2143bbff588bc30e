"""Lost chunks: the source is read once more for the chunks that a lost node owned, and for no
others.

``tests/cluster/test_dataset.py`` checks this with real daemons; here it includes the moments before
the other nodes know of the loss. A node reads again any chunk that its disk did not keep, since
memory is small.
"""

from collections import Counter
from random import Random

import pytest

from copperfs.lab.sim.world import Job, World
from copperfs.model.types import ChunkKey, Path
from copperfs.node.membership.failure_detector import Timeouts

NODES = 6
FILES = 120
MIB = 1 << 20
DEAD_S = 2 * Timeouts().dead_s

Chunks = Counter[tuple[Path, int]]


def dataset(seed: int) -> World:
    job = Job(
        NODES, chunk_bytes=MIB, tier_memory_bytes=MIB, tier_has_disk=True, ring=(Path(b"data"),)
    )
    world = World(seed, job, exact=False)
    for number in range(FILES):
        world.source.add(Path(b"data/%d" % number), (1 + number % 4) * MIB)
    world.start()
    return world


def read_epoch(world: World, random: Random) -> None:
    """Each file once, on a node drawn anew; each node reads one file after the other."""
    living, files = world.alive(), world.source.files()
    random.shuffle(files)
    while files:
        for node in living:
            if files:
                world.read(node, files.pop())
        assert world.run_until_read()
    assert all(each.is_well for each in world.readings if each.host.process.is_alive)


def key_of(world: World, path: Path, offset: int) -> ChunkKey:
    entry = world.source.entry(path)
    assert entry is not None
    return ChunkKey(path, entry.attributes.version, offset // MIB)


def owned_by(world: World, node: int) -> Chunks:
    its_node = world[node].node
    return Chunks(
        each for each in world.source.chunk_counts if its_node.owns_chunk(key_of(world, *each))
    )


def has_in_memory(world: World, node: int, path: Path, offset: int) -> bool:
    return world[node].node.keeps_chunk(key_of(world, path, offset))


@pytest.mark.parametrize("how", ["crash", "power_off"])
@pytest.mark.parametrize("seed", range(4))
def test_what_was_lost_is_read_once_more(seed: int, how: str) -> None:
    world, random = dataset(seed), Random(seed)
    for _ in range(2):
        read_epoch(world, random)
    assert max(world.source.chunk_counts.values()) == 1, "once in all epochs"
    for node in range(NODES):
        assert any(not has_in_memory(world, node, *each) for each in owned_by(world, node))
    may_be_read = Chunks()
    for node in random.sample(range(NODES), 3):
        may_be_read |= owned_by(world, node)
        getattr(world, how)(node)
        for _ in range(2):
            before = Chunks(world.source.chunk_counts)
            read_epoch(world, random)
            again = Chunks(world.source.chunk_counts) - before
            assert again - may_be_read == Chunks(), "what was lost, and that once"
            may_be_read -= again
        assert max(world.source.chunk_counts.values()) > 1, "others do not hold all of it"
        world.run(DEAD_S)  # by then all nodes agree on the next owner
