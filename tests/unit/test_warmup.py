"""Warm-up push in parts: how batches are packed, what a node accepts of them, and what a set is."""

import os
import random
import stat
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path as FilePath

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from copperfs.cli.warmup import (
    Places,
    _ring_sentence,
    _sentence,
    followed,
    is_held,
    read_manifest,
)
from copperfs.daemon.collective_ops import CollectiveOperations, Result, pack
from copperfs.daemon.engine import Engine
from copperfs.daemon.peers import Peers
from copperfs.daemon.warmup_coordinator import Plan
from copperfs.daemon.warmup_progress import PushState, RingState
from copperfs.daemon.warmup_push import PushWarmup, _Content, _Packed
from copperfs.daemon.warmup_walk import (
    ARGUMENT_BYTES_MAX,
    Directories,
    files_in,
    in_messages,
    octets,
    text,
)
from copperfs.model.errors import ControlError
from copperfs.model.listing import pack_listing
from copperfs.model.types import Attributes, NodeId, Path, Version
from copperfs.node.actions import ObjectKey
from copperfs.node.events import PeerDown, PeerMessage, PeerUp, Tick
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.peer.messages import (
    PART_BYTES,
    PATH_BYTES_MAX,
    Batch,
    CollectiveRequest,
    ContentKind,
    Item,
)
from copperfs.node.peer.push_receiver import UNCALLED_MAX, UNFINISHED_SHARE, Push
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees
from copperfs.transport.interface import ReceivedMessage
from copperfs.wire.codec import decode, encode
from copperfs.wire.payload import Payload, payload_of
from tests.net.memory_network import MemoryNetwork
from tests.unit.node_lab import file, unknown, version
from tests.unit.test_engine import FakeFetcher, FakePublications

MIB = 1 << 20
PARENT = NodeId(0)


def receiver(
    memory_bytes: int = 64 * MIB, local: tuple[Path, ...] = (), number: int = 1
) -> PushWarmup:
    policy = Policy(source=b"/src", mountpoint=b"/mnt", local=local)
    limits = Limits(memory_bytes, 10 * MIB, None, 30.0)
    node = Node(policy, limits, Trees(3, NodeId(number), fanout=2, push_fanout=2))
    engine = Engine(node, FakeFetcher(), FakePublications())
    transport = MemoryNetwork().transport(NodeId(number))
    engine.peers = Peers(transport, node, engine.blobs, engine.post)
    return PushWarmup(engine)


def piece(path: bytes, wanted: Version, offset: int = 0, length: int | None = None) -> Item:
    length = min(PART_BYTES, wanted.size - offset) if length is None else length
    return Item(ContentKind.OBJECT, Path(path), wanted, wanted.size, offset, length)


def take(warmup: PushWarmup, *items: Item, push: int = 1, data: bytes | None = None,
         last: bool = False, peer: int = PARENT, tree: int = 0) -> None:  # fmt: skip
    size = sum(item.length for item in items)
    payload = payload_of(b"x" * size if data is None else data)
    known = pushes(warmup).get(push)
    sequence = 0 if known is None else len(known.sequences)
    batch = Batch(push, tree, 1, sequence, items, last)
    header = encode(batch, payload)  # a batch that the codec rejects would test nothing here
    assert decode([header, payload.data])[0] == batch
    receive(warmup, NodeId(peer), batch, payload)
    warmup.engine.node.check_invariants()


def receive(warmup: PushWarmup, peer: NodeId, batch: Batch, payload: Payload) -> None:
    node, peers = warmup.engine.node, warmup.engine.peers
    assert node.session is not None
    assert peers is not None
    node.session.connected.add(peer)
    peers.arrived(ReceivedMessage(peer, batch, payload))


def pushes(warmup: PushWarmup) -> dict[int, Push]:
    return warmup.engine.node.pushes.running


def held(warmup: PushWarmup) -> dict[bytes, bytes]:
    engine = warmup.engine
    found = {}
    for key, value, _ in engine.node._cache._lru.items():
        if isinstance(key, ObjectKey):
            assert isinstance(value, int)
            found[bytes(key.path)] = bytes(engine.blobs.held[value].view)
    assert len(engine.blobs.held) == len(found)
    return found


# --- received batches -----------------------------------------------------------------------------


def test_whole_objects_and_pieces_in_order_are_held() -> None:
    warmup = receiver()
    large = version(2 * MIB + 5)
    take(warmup, piece(b"a", version(3)), piece(b"b", large), data=b"abc" + b"1" * MIB)
    take(warmup, piece(b"b", large, MIB), data=b"2" * MIB)
    take(warmup, piece(b"b", large, 2 * MIB), piece(b"c", version(1)), data=b"33333c")
    assert held(warmup) == {b"a": b"abc", b"b": b"1" * MIB + b"2" * MIB + b"33333", b"c": b"c"}


@pytest.mark.parametrize(
    "offsets", [(MIB,), (0, 2 * MIB), (0, 0, 2 * MIB), (MIB, 0, 2 * MIB), (0, MIB, MIB), (2 * MIB,)]
)
def test_pieces_that_do_not_follow_are_never_made_into_an_object(offsets: tuple[int, ...]) -> None:
    warmup = receiver()
    for offset in offsets:
        take(warmup, piece(b"a", version(2 * MIB + 5), offset))
    assert held(warmup) == {}


def test_pieces_of_different_versions_are_never_one_object() -> None:
    warmup = receiver()
    one, other = version(2 * MIB, changed_s=1), version(2 * MIB, changed_s=2)
    take(warmup, piece(b"a", one), data=b"1" * MIB)
    take(warmup, piece(b"a", other, MIB), data=b"2" * MIB)
    take(warmup, piece(b"a", one, MIB), data=b"1" * MIB)
    assert held(warmup) == {}


@pytest.mark.parametrize(
    "item",
    [
        # differs from the size of its version
        Item(ContentKind.OBJECT, Path(b"a"), version(5), 10, 0, 10),
        Item(ContentKind.OBJECT, Path(b"a"), version(0), 0, 0, 0),
        Item(
            ContentKind.OBJECT, Path(b"a"), version(11 * MIB), 11 * MIB, 0, 10
        ),  # beyond --tree-max
        Item(ContentKind.OBJECT, Path(b"etc/a"), version(10), 10, 0, 10),  # this node's own
        Item(ContentKind.OBJECT, Path(b"a"), version(1 << 40), 1 << 40, 0, 10),
        Item(ContentKind.LISTING, Path(b"a"), None, 1 << 40, 0, 10),
        Item(ContentKind.LISTING, Path(b"a"), None, 10, 0, 10),  # malformed
    ],
)
def test_what_cannot_be_or_is_not_for_this_node_is_passed_on_and_not_taken_in(item: Item) -> None:
    warmup = receiver(local=(Path(b"etc"),))
    take(warmup, item)
    assert held(warmup) == {}
    assert not warmup.engine.node.held()


def test_only_the_one_above_may_push() -> None:
    warmup = receiver()
    take(warmup, piece(b"a", version(3)), peer=2)
    take(warmup, piece(b"a", version(3)), tree=7)
    assert held(warmup) == {}
    assert not pushes(warmup)


def test_what_is_unfinished_in_many_pushes_is_bounded() -> None:
    warmup = receiver()
    for push in range(100):
        take(warmup, piece(b"a%d" % push, version(9 * MIB), length=1), push=push)
    unfinished = [p.unfinished.first.total_bytes for p in pushes(warmup).values() if p.unfinished]
    assert sum(unfinished) <= max(10 * MIB, 64 * MIB // UNFINISHED_SHARE)
    assert len(pushes(warmup)) <= UNCALLED_MAX
    assert pushes(warmup)[99].unfinished is not None, "the latest is not the one to suffer"
    take(warmup, push=99, last=True)
    assert not any(p.unfinished for p in pushes(warmup).values())


def test_what_is_pushed_makes_older_things_go() -> None:
    warmup = receiver(memory_bytes=24 * MIB)
    for number in range(40):
        take(warmup, piece(b"%d" % number, version(MIB)))
        stats = warmup.engine.node.statistics()
        assert stats.held_bytes <= stats.budget_bytes
    assert b"39" in held(warmup)
    assert b"0" not in held(warmup)


@given(st.integers(0, 100_000))
def test_no_order_of_pieces_makes_an_object_of_wrong_bytes(seed: int) -> None:
    draw = random.Random(seed)
    warmup = receiver()
    bodies = {
        (b"%d" % n, v): draw.randbytes(4) * (v.size // 4)
        for n in range(2)
        for v in (version(12), version(12, changed_s=1))
    }
    for _ in range(60):
        (path, wanted), body = draw.choice(list(bodies.items()))
        offset = draw.choice([0, 0, 4, 8])
        length = draw.choice([0, 4, 4, 12 - offset])
        length = min(length, 12 - offset)
        take(
            warmup,
            piece(path, wanted, offset, length),
            push=draw.randrange(2),
            data=body[offset : offset + length],
            last=draw.random() < 0.1,
        )
    for key, value, _ in warmup.engine.node._cache._lru.items():
        assert isinstance(key, ObjectKey)
        assert isinstance(value, int)
        assert bytes(warmup.engine.blobs.held[value].view) == bodies[bytes(key.path), key.version]


def test_a_large_listing_comes_in_pieces() -> None:
    warmup = receiver()
    listing = pack_listing((b"%0200d" % n, file(1, n + 2)) for n in range(8000))
    packed = listing.packed
    assert len(packed) > 2 * PART_BYTES
    for start in range(0, len(packed), PART_BYTES):
        part = packed[start : start + PART_BYTES]
        item = Item(ContentKind.LISTING, Path(b"d"), version(1), len(packed), start, len(part))
        take(warmup, item, data=part)
    found = warmup.engine.node.held_listing(Path(b"d"))
    assert found is not None
    assert found[0].packed == packed


# --- packing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path_bytes", [1, 256, PATH_BYTES_MAX])
@pytest.mark.parametrize("size", [1, 300, PART_BYTES - 1, PART_BYTES])
def test_every_batch_can_be_sent(path_bytes: int, size: int) -> None:
    path = Path(b"p" * path_bytes)
    wanted = Version(size, (1 << 62) - 1, (1 << 62) - 1, (1 << 64) - 1)
    packed = _Packed()
    while not packed.is_full:
        packed.add(_Content(ContentKind.OBJECT, path, wanted, b"x" * size, 1, 1e9), 0)
    batch = Batch((1 << 62) - 1, 0, 1 << 40, 1 << 40, tuple(packed.items))
    encode(batch, payload_of(packed.blob().view))


# --- calls end ------------------------------------------------------------------------------------


class Hanging:
    def __init__(self) -> None:
        self.begun, self.ended = trio.Event(), trio.Event()

    async def __call__(self, _: Result) -> Result:
        self.begun.set()
        try:
            await trio.sleep_forever()
        finally:
            self.ended.set()


def run_with(engine: Engine, scene: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.run)
                await trio.testing.wait_all_tasks_blocked()
                await scene()
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_part_of_a_call_ends_with_the_call() -> None:
    engine, hanging = receiver().engine, Hanging()
    engine.calls.operations = CollectiveOperations({"hang": hanging})

    async def scene() -> None:
        assert await engine.call("hang", {}, 0.05) == {}
        await hanging.ended.wait()
        assert not engine.calls.scopes

    run_with(engine, scene)


def test_a_part_of_a_call_ends_with_its_asker() -> None:
    engine, hanging = receiver().engine, Hanging()
    engine.calls.operations = CollectiveOperations({"hang": hanging})

    async def scene() -> None:
        engine.post(PeerUp(PARENT))
        engine.post(PeerMessage(PARENT, CollectiveRequest(1, "hang", b"", 3000.0)))
        await hanging.begun.wait()
        for event in (PeerDown(PARENT), PeerUp(PARENT)):  # the peer restarted
            engine.post(event)
        await hanging.ended.wait()
        assert not engine.calls.scopes

    run_with(engine, scene)


def test_all_who_wait_for_the_backlog_go_on() -> None:
    engine = receiver().engine

    async def scene() -> None:
        engine.node.flow.backlog_bytes = 100
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(engine.wait_backlog_below, 50)
            await trio.testing.wait_all_tasks_blocked()
            engine.node.flow.backlog_bytes = 0
            engine.post(Tick())

    run_with(engine, scene)


# --- sets -----------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="utf-8"), max_size=30) | st.binary(max_size=30).map(text)


@given(st.dictionaries(NAMES, st.none() | st.lists(NAMES, unique=True), max_size=30))
def test_pieces_of_a_set_are_the_set(directories: Directories) -> None:
    together: dict[str, list[str] | None] = {}
    for some in in_messages(directories):
        for name, names in some.items():
            before = together.setdefault(name, None if names is None else [])
            if names is not None:
                assert before is not None
                before += names
    assert together == directories


def test_each_piece_fits_into_a_call() -> None:
    draw = random.Random(1)
    large: Directories = {"d": [draw.randbytes(100).hex() for _ in range(5000)], "all": None}
    alike: Directories = {"d": ["x" * 4000 + str(n) for n in range(5000)]}
    for directories in (large, alike):
        pieces = list(in_messages(directories))
        assert len(pieces) > 1
        assert all(len(pack(each)) <= ARGUMENT_BYTES_MAX for each in pieces)
        count = sum(len(names or ()) for each in pieces for names in each.values())
        assert count == 5000


def test_overlapping_paths_count_once() -> None:
    plan = Plan(lambda _, version: version.size <= 100)
    listing = pack_listing([(b"a", file(10, 2)), (b"b", file(20, 3)), (b"large", file(101, 4))])
    plan.add(Path(b"d"), listing, {b"a"})
    plan.add(Path(b"d"), listing, {b"a", b"b"})
    assert (plan.sum_of("files"), plan.sum_of("bytes"), plan.sum_of("too_large")) == (2, 30, 0)
    plan.add(Path(b"d"), listing, None)
    plan.add(Path(b"d"), listing, set())
    assert plan.sum_of("unlisted") == 0
    assert (plan.sum_of("files"), plan.sum_of("bytes"), plan.sum_of("too_large")) == (2, 30, 1)
    assert plan.directories() == {"d": None}


def test_files_that_could_not_be_looked_at_are_said_to_be_missing_from_a_set() -> None:
    plan = Plan(lambda _, version: version.size <= 100)
    plan.add(Path(b"d"), pack_listing([(b"a", file(10)), (b"sick", unknown(file(10)))]), None)
    counts = ("files", "unlisted", "unreadable")
    assert [plan.sum_of(each) for each in counts] == [1, 1, 0]


def test_files_that_may_not_be_read_are_not_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def owned(mode: int, uid: int, gid: int) -> Attributes:
        values = list(file(5).attributes.with_mode(stat.S_IFREG | mode).unpack())
        values[11:13] = uid, gid
        from copperfs.model.types import _ATTRIBUTES

        return Attributes(_ATTRIBUTES.pack(*values))

    entry = file(5)
    rows = [
        (b"mine", replace(entry, attributes=owned(0o400, 7, 9))),
        (b"closed-to-me", replace(entry, attributes=owned(0o044, 7, 9))),
        (b"my-group's", replace(entry, attributes=owned(0o040, 1, 8))),
        (b"closed-to-us", replace(entry, attributes=owned(0o404, 1, 8))),
        (b"everybody's", replace(entry, attributes=owned(0o004, 1, 1))),
        (b"nobody's", replace(entry, attributes=owned(0o000, 1, 1))),
    ]
    listing = pack_listing(rows)
    monkeypatch.setattr(os, "getuid", lambda: 7)
    monkeypatch.setattr(os, "getgid", lambda: 8)
    monkeypatch.setattr(os, "getgroups", list)
    found = {path for path, _ in files_in(Path(b""), listing, None)}
    assert found == {b"mine", b"my-group's", b"everybody's"}


def test_names_need_not_be_utf_8() -> None:
    listing = pack_listing((name, file(1)) for name in (b"\xff\xfe", b"caf\xc3\xa9", b"other"))
    found = {path for path, _ in files_in(Path(b"d"), listing, [b"\xff\xfe", "café".encode()])}
    assert found == {b"d/\xff\xfe", b"d/caf\xc3\xa9"}
    assert octets(text(b"\xff\xfe")) == b"\xff\xfe"


# --- the command ----------------------------------------------------------------------------------


def test_a_manifest_has_files_and_listings(tmp_path: FilePath) -> None:
    manifest = tmp_path / "manifest"
    manifest.write_text(
        '{"path": "d/\\udcff", "kind": "object"}\n\n{"path": "", "kind": "listing"}\n'
    )
    wanted = read_manifest(str(manifest))
    assert (wanted.paths, wanted.files, wanted.listings) == ([], ["d/\udcff"], [""])
    with pytest.raises(ControlError, match="cannot be read: No such file"):
        read_manifest(str(tmp_path / "other"))


def test_links_are_followed_and_the_way_is_wanted_too(tmp_path: FilePath) -> None:
    (tmp_path / "envs/1.2/lib").mkdir(parents=True)
    (tmp_path / "env").symlink_to("envs/current")
    (tmp_path / "envs/current").symlink_to(tmp_path / "envs/1.2")
    places = Places(str(tmp_path), "/src", "/called")
    wanted = followed(places, "env/lib")
    assert (wanted.paths, wanted.listings) == (["envs/1.2/lib"], ["", "envs"])
    assert followed(places, "/called/env/lib").paths == ["envs/1.2/lib"]
    assert followed(places, "/src/env/lib").paths == ["envs/1.2/lib"]
    assert followed(places, ".").paths == [""]
    with pytest.raises(ControlError, match="is not below"):
        followed(places, "/elsewhere")


def test_of_a_push_that_broke_off_it_says_who_got_how_much_and_whose_fault_it_was() -> None:
    state = PushState(objects=120, roster=4, nodes=3, lacking=["n1", "n2", "n3"], unread=["n2"])
    state.nodes_complete, state.least_objects = 1, 40
    assert _sentence(asdict(state)) == (
        "120 files, 0.0 MiB: held by 1 of 4 nodes, not by n1, n2, n3; who answered has at least "
        "40; not all was pushed, as n2, who reads it for all, failed or was not heard of"
    )


def test_what_is_missing_in_the_data_tier_is_said_in_one_sentence() -> None:
    state = RingState(1, "done", files=2, chunks=10, held_chunks=10, total_bytes=10 * MIB)
    state.gone = ["n4"]
    assert is_held(asdict(state))
    assert _ring_sentence(asdict(state)) == (
        "2 files, 10.0 MiB in 10 chunks: all are held by their owners; gone: n4"
    )
    state.held_chunks, state.lacking, state.left_bytes, state.failed = 7, ["n1", "n2"], MIB, 1
    state.unlisted, state.unheard = 3, ["n5"]
    assert not is_held(asdict(state))
    assert _ring_sentence(asdict(state)) == (
        "2 files, 10.0 MiB in 10 chunks: 7 are held by their owners, not all of n1, n2; there is "
        "no room for 1.0 MiB; 1 chunks could not be read; 3 files or directories could not be "
        "listed; gone: n4; not heard of: n5"
    )
