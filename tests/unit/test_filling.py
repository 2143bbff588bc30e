"""Warm-up fill: the chunks that a node takes as its own; the walk lets other tasks run."""

from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
import trio

from copperfs.daemon.engine import Engine
from copperfs.daemon.warmup_fill import Filling
from copperfs.model.types import ChunkKey, NodeId, Path, Version
from copperfs.node.limits_and_counters import Limits
from copperfs.node.membership.failure_detector import Timeouts
from copperfs.node.node import Node
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.hash_ring import Ring
from copperfs.node.routing.trees import Trees

MIB = 1 << 20
PATH = Path(b"data/file")


def filling(nodes: int, chunk_bytes: int) -> tuple[Filling, Node]:
    limits = Limits(1 << 30, MIB, None, 60.0, chunk_bytes=chunk_bytes, tier_memory_bytes=1 << 30)
    trees = Trees(nodes, NodeId(1))
    ring = Ring([f"n{number}" for number in range(nodes)])
    node = Node(Policy(b"/source", b"/mnt"), limits, trees, Timeouts(), Random(1), ring)
    engine = SimpleNamespace(node=node, nursery=None, tier=None)
    return Filling(cast(Engine, engine)), node


@pytest.mark.parametrize("chunk_bytes", [64 << 10, MIB, 3 * MIB, 5 * MIB, 64 * MIB])
@pytest.mark.parametrize("size", [1, MIB, 37 * MIB + 1, 600 * MIB])
def test_it_takes_what_is_its_own_and_all_of_it(chunk_bytes: int, size: int) -> None:
    walk, node = filling(3, chunk_bytes)
    version = Version(size, 1, 1, 1)
    every = [ChunkKey(PATH, version, index) for index in range(-(-size // chunk_bytes))]

    async def main() -> None:
        own = [key async for key in walk._own(PATH, version)]
        assert own == [key for key in every if node.owns_chunk(key)]

    trio.run(main)


def test_others_have_their_turn_while_it_looks_through_a_large_file() -> None:
    walk, _ = filling(1000, MIB)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            async for _ in walk._own(PATH, Version(1 << 36, 1, 1, 1)):
                pass
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert turns >= 30, "of 8192 groups of chunks"
