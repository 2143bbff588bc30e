"""Three engines in a chain, each a real node with a real source: the bytes that arrive are the
source's."""

import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath

import pytest
import trio
import trio.testing

from copperfs.daemon.engine import Engine
from copperfs.daemon.peers import Peers
from copperfs.fuse.node_port import Answered, Content
from copperfs.model.errors import MountError
from copperfs.model.listing import Listing
from copperfs.model.types import NodeId, Path, Version
from copperfs.node.actions import AnswerListing, AnswerObject
from copperfs.node.events import ListRequest, ReadRequest
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.hello_exchange import Agreement
from copperfs.node.peer.messages import PART_BYTES
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees
from copperfs.source.source_pool import PoolFetcher
from copperfs.wire.payload import digest
from tests.net.memory_network import MemoryNetwork
from tests.unit.test_engine import FakePublications

MIB = 1 << 20
ROOT, MIDDLE, LEAF = 0, 1, 2


@dataclass
class Chain:
    engines: list[Engine]
    network: MemoryNetwork

    async def listing(self, number: int, path: bytes) -> Listing:
        def take(answer: Answered, _: Content, __: object) -> Listing:
            assert isinstance(answer, AnswerListing)
            return answer.listing

        return await self.engines[number].ask(
            lambda request: ListRequest(request, Path(path)), take
        )

    async def read(self, number: int, name: bytes) -> bytes:
        entry = (await self.listing(number, b"")).find(name)
        assert entry is not None
        version: Version = entry.attributes.version

        def take(answer: Answered, content: Content, _: object) -> bytes:
            assert isinstance(answer, AnswerObject)
            assert content is not None
            assert not isinstance(content, int)
            return bytes(content.view)

        return await self.engines[number].ask(
            lambda request: ReadRequest(request, Path(name), version), take
        )

    def source_reads(self) -> list[int]:
        return [engine.fetcher.counts()["open"] for engine in self.engines]


@pytest.fixture
def tree(tmp_path: FilePath) -> FilePath:
    noise = random.Random(7)
    (tmp_path / "small").write_bytes(noise.randbytes(1000))
    (tmp_path / "large").write_bytes(noise.randbytes(3 * PART_BYTES + 17))
    return tmp_path


@asynccontextmanager
async def chain(
    tree: FilePath, agreements: tuple[bytes, ...] = (b"x",) * 3
) -> AsyncIterator[Chain]:
    network = MemoryNetwork()
    engines = []
    for number in range(3):
        node = Node(
            Policy(source=os.fsencode(tree), mountpoint=b"/mnt"),
            Limits(64 * MIB, 10 * MIB, None, 30.0),
            Trees(3, NodeId(number), fanout=1),
        )
        fetcher = PoolFetcher(
            os.fsencode(tree),
            listing_max=4096,
            concurrency=2,
            deadline_s=30.0,
            untouchable=frozenset,
        )
        engine = Engine(node, fetcher, FakePublications())
        engine.peers = peers = Peers(
            network.transport(NodeId(number)),
            node,
            engine.blobs,
            engine.post,
        )
        peers.session.agreement = Agreement("job", agreements[number])
        engines.append(engine)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for engine in engines:
                nursery.start_soon(engine.run)
            try:
                yield Chain(engines, network)
            finally:
                nursery.cancel_scope.cancel()
                for engine in engines:
                    engine.fetcher.close()


async def _connected(scene: Chain) -> None:
    for number in (MIDDLE, LEAF):
        peers = scene.engines[number].peers
        assert peers is not None
        await peers.wait_in_touch()
        assert NodeId(number - 1) in peers.session.connected


def run(test: Callable[[], object]) -> None:
    trio.run(test)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_leaf_gets_the_bytes_of_the_source_which_is_read_once(
    tree: FilePath, name: str
) -> None:
    async def main() -> None:
        async with chain(tree) as scene:
            await _connected(scene)
            for number in (LEAF, MIDDLE, ROOT):
                assert await scene.read(number, name.encode()) == (tree / name).read_bytes()
            assert scene.source_reads() == [1, 0, 0]

    run(main)


@pytest.mark.parametrize("name", ["small", "large"])
@pytest.mark.parametrize("hop", [(ROOT, MIDDLE), (MIDDLE, LEAF)])
def test_a_damaged_part_is_noticed_counted_and_fetched_again(
    tree: FilePath, name: str, hop: tuple[int, int]
) -> None:
    async def main() -> None:
        async with chain(tree) as scene:
            await _connected(scene)
            await scene.listing(LEAF, b"")
            scene.network.damage_next(NodeId(hop[0]), NodeId(hop[1]))
            assert await scene.read(LEAF, name.encode()) == (tree / name).read_bytes()
            receiver = scene.engines[hop[1]]
            assert receiver.node.statistics().spoiled == 1
            assert receiver.peers is not None
            assert receiver.peers.transport.statistics().corrupt == 1
            assert scene.source_reads() == [1, 0, 0]

    run(main)


def test_a_damaged_listing_is_noticed_and_fetched_again(tree: FilePath) -> None:
    async def main() -> None:
        async with chain(tree) as scene:
            await _connected(scene)
            scene.network.damage_next(NodeId(MIDDLE), NodeId(LEAF))
            names = {name for name, _ in (await scene.listing(LEAF, b"")).rows()}
            assert names == {b"small", b"large"}
            assert scene.engines[LEAF].node.statistics().spoiled == 1

    run(main)


def test_the_digest_is_taken_once_where_the_source_was_read(
    tree: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    async def main() -> None:
        async with chain(tree) as scene:
            await _connected(scene)
            await scene.listing(LEAF, b"")

            def counting(data: bytes | memoryview) -> bytes:
                taken.append(len(data))
                return digest(data)

            monkeypatch.setattr("copperfs.daemon.daemon_blobs.digest", counting)
            await scene.read(LEAF, b"large")

    run(main)
    assert taken == [PART_BYTES, PART_BYTES, PART_BYTES, 17]


def test_who_follows_is_offered_what_comes_next_with_the_digests_of_the_source(
    tree: FilePath,
) -> None:
    names = [b"f%02d" % number for number in range(40)]
    for name in names:
        (tree / name.decode()).write_bytes(name * 300)

    async def main() -> None:
        async with chain(tree) as scene:
            await _connected(scene)
            for number in (MIDDLE, LEAF):
                for name in names:
                    assert await scene.read(number, name) == name * 300
            stats = scene.engines[LEAF].node.statistics()
            assert stats.offered > 30
            assert stats.asks < 10
            assert stats.spoiled == 0
            assert scene.source_reads() == [40, 0, 0]

    run(main)


def test_an_offer_that_was_damaged_is_dropped_and_what_it_had_is_asked_for(tree: FilePath) -> None:
    names = [b"f%02d" % number for number in range(40)]
    for name in names:
        (tree / name.decode()).write_bytes(name * 300)

    async def main() -> None:
        async with chain(tree) as scene:
            await _connected(scene)
            for name in names:
                await scene.read(MIDDLE, name)
            for name in names:
                scene.network.damage_next(NodeId(MIDDLE), NodeId(LEAF))
                assert await scene.read(LEAF, name) == name * 300
            assert scene.engines[LEAF].node.statistics().spoiled > 0
            assert sum(scene.source_reads()) >= 40

    run(main)


def test_a_node_that_lost_its_parent_asks_the_next_one_up(tree: FilePath) -> None:
    async def main() -> None:
        async with chain(tree) as scene:
            await _connected(scene)
            await scene.listing(LEAF, b"")
            scene.network.sever(NodeId(MIDDLE), NodeId(LEAF))
            await trio.testing.wait_all_tasks_blocked()
            assert await scene.read(LEAF, b"small") == (tree / "small").read_bytes()
            assert scene.engines[LEAF].node.statistics().fallbacks == 0
            scene.network.heal(NodeId(MIDDLE), NodeId(LEAF))
            await _connected(scene)
            assert await scene.read(LEAF, b"large") == (tree / "large").read_bytes()
            assert scene.source_reads() == [2, 0, 0]

    run(main)


def test_a_node_that_is_cut_off_reads_the_source_and_counts_it(tree: FilePath) -> None:
    async def main() -> None:
        async with chain(tree) as scene:
            await _connected(scene)
            await scene.listing(LEAF, b"")
            for other in (ROOT, MIDDLE):
                scene.network.sever(NodeId(other), NodeId(LEAF))
            await trio.testing.wait_all_tasks_blocked()
            assert await scene.read(LEAF, b"small") == (tree / "small").read_bytes()
            assert scene.engines[LEAF].node.statistics().fallbacks == 1
            assert scene.source_reads() == [0, 0, 1]

    run(main)


def test_a_node_with_other_settings_is_not_talked_to(
    tree: FilePath, expected_warnings: Callable[[str], None]
) -> None:
    expected_warnings("was started with other settings")

    async def main() -> None:
        async with chain(tree, (b"x", b"y", b"x")) as scene:
            peers = scene.engines[LEAF].peers
            assert peers is not None
            with pytest.raises(MountError, match="other settings"):
                await peers.wait_in_touch()
            assert await scene.read(LEAF, b"small") == (tree / "small").read_bytes()
            assert scene.source_reads() == [1, 0, 0]

    run(main)
