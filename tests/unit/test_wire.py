"""Wire codec: messages to headers and back, and every refusal on the way."""

import math
import struct
from dataclasses import fields, replace
from typing import Any, get_args

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.model.types import Attributes, Entry, NodeId, Path, Version
from copperfs.node.peer.messages import (
    PART_BYTES,
    SAMPLE_MAX,
    SAMPLE_PATH_BYTES_MAX,
    SKIPPED_MAX,
    Batch,
    Cancel,
    ChunkAskMode,
    CollectiveReply,
    CollectiveRequest,
    ContentKind,
    CopyOffer,
    CopyReport,
    Credit,
    DataReply,
    Delayed,
    Echo,
    EchoReply,
    EntryReply,
    ErrorReply,
    Heartbeat,
    Hello,
    Item,
    MembershipUpdate,
    MemberStatus,
    Message,
    Offer,
    Redirect,
    Request,
    Seen,
)
from copperfs.wire import codec
from copperfs.wire.codec import (
    BESIDE_BYTES_MAX,
    INDEX_MAX,
    ITEMS_MAX,
    LAYOUTS,
    OBJECT_BYTES_MAX,
    OFFER_ITEMS_MAX,
    PREFIX_BYTES,
    CorruptPayload,
    decode,
    decode_header,
    encode,
    encode_frames,
)
from copperfs.wire.fields import NUMBER_MAX, SECONDS_MAX, Malformed
from copperfs.wire.greeting import Greeting, decode_greeting, encode_greeting
from copperfs.wire.payload import Payload, payload_of
from copperfs.wire.wire_version import MAGIC, VERSION

numbers = st.integers(0, NUMBER_MAX)
names = st.binary(min_size=1, max_size=40).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
paths = st.lists(names, max_size=5).map(lambda parts: Path(b"/".join(parts)))
nanoseconds = st.integers(-(1 << 63) * 10**9, ((1 << 63) - 1) * 10**9)
versions = st.builds(Version, numbers, nanoseconds, nanoseconds, st.integers(0, (1 << 64) - 1))
node_ids = st.integers(0, 199_999).map(NodeId)
maybe_versions = st.none() | versions
seconds = st.none() | st.floats(0, SECONDS_MAX)
entries = st.builds(
    Entry,
    st.binary(min_size=88, max_size=88).map(Attributes),
    st.binary(max_size=300).map(lambda target: target.replace(b"\0", b"")),
)


@st.composite
def parts(draw: st.DrawFn) -> tuple[Message, Payload | None]:
    index = draw(st.integers(0, 3))
    last = draw(st.binary(min_size=1 if index else 0, max_size=500))
    message = DataReply(
        draw(numbers),
        draw(numbers),
        index,
        index * PART_BYTES + len(last),
        draw(maybe_versions),
        draw(seconds),
    )
    return message, payload_of(last)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Message, Payload | None]:
    contents = draw(st.lists(st.binary(max_size=100), max_size=5))
    items = []
    for content in contents:
        offset = draw(st.integers(0, 1000))
        rest = draw(st.integers(0, 1000))
        what = draw(st.sampled_from((ContentKind.LISTING, ContentKind.OBJECT)))
        version = draw(versions if what is ContentKind.OBJECT else maybe_versions)
        total = offset + len(content) + rest
        fresh = draw(st.none() | st.floats(0, 1e9))
        items.append(Item(what, draw(paths), version, total, offset, len(content), fresh))
    last = draw(st.booleans())
    tree = draw(st.integers(0, 63))
    message: Message = Batch(draw(numbers), tree, draw(numbers), draw(numbers), tuple(items), last)
    if len(items) <= OFFER_ITEMS_MAX and draw(st.booleans()):
        digests = [replace(each, digest=draw(st.binary(max_size=16))) for each in items]
        message = Offer(draw(numbers), tuple(digests))
    return message, payload_of(b"".join(contents))


bare: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Hello,
        st.integers(0, 199_999).map(NodeId),
        st.text(max_size=50).map(lambda job: job.replace("\0", "")),
        st.binary(max_size=64),
        numbers,
        st.booleans(),
        st.binary(max_size=100),
        st.booleans(),
        st.lists(st.builds(Seen, paths, versions), max_size=SAMPLE_MAX).map(tuple),
        st.booleans(),
    ),
    st.builds(
        Request,
        numbers,
        numbers,
        st.sampled_from((ContentKind.ENTRY, ContentKind.LISTING)),
        paths,
        maybe_versions,
    ).filter(lambda ask: ask.what is not ContentKind.OBJECT or ask.version is not None),
    st.builds(
        Request,
        numbers,
        numbers,
        st.sampled_from((ContentKind.OBJECT, ContentKind.CHUNK)),
        paths,
        versions,
        st.integers(0, INDEX_MAX),
        st.sampled_from(ChunkAskMode),
        st.lists(node_ids, max_size=SKIPPED_MAX).map(tuple),
    ),
    st.builds(Redirect, numbers, numbers, node_ids),
    st.builds(Delayed, numbers, numbers),
    st.builds(CopyOffer, paths, versions, st.integers(0, INDEX_MAX)),
    st.builds(CopyReport, paths, versions, st.integers(0, INDEX_MAX), st.booleans()),
    st.builds(EntryReply, numbers, numbers, st.none() | entries, seconds),
    st.builds(ErrorReply, numbers, numbers, st.integers(1, 4095), st.integers(0, 3)),
    st.builds(Credit, st.integers(0, OBJECT_BYTES_MAX)),
    st.builds(Cancel, numbers),
    st.builds(
        CollectiveRequest, numbers, st.sampled_from(("stats", "clear")), st.binary(max_size=100)
    ),
    st.builds(CollectiveReply, numbers, st.binary(max_size=100)),
)
sent = st.one_of(bare.map(lambda message: (message, None)), parts(), batches())


def frames_of(message: Message, payload: Payload | None) -> list[bytes | memoryview]:
    return [encode(message, payload)] + ([] if payload is None else [payload.data])


def with_body(code: int, body: bytes) -> bytes:
    return MAGIC + bytes((VERSION, code)) + struct.pack("<I", len(body)) + body


@given(sent)
def test_what_is_sent_is_what_arrives(pair: tuple[Message, Payload | None]) -> None:
    """With the payload in a frame of its own, or behind the header."""
    assert decode(frames_of(*pair)) == pair
    frame, rest = encode_frames(*pair)
    assert rest is None
    assert decode([frame]) == pair


def test_a_short_payload_follows_its_header_and_a_long_one_is_not_copied() -> None:
    for size in (BESIDE_BYTES_MAX, BESIDE_BYTES_MAX + 1):
        part, payload = DataReply(1, 2, 0, size), payload_of(bytes(size))
        header, rest = encode_frames(part, payload)
        assert (len(header) > size) is (rest is None) is (size == BESIDE_BYTES_MAX)
        assert rest is None or rest.data is payload.data


def test_a_payload_in_both_frames_or_beside_a_message_without_one_is_refused() -> None:
    frame, _ = encode_frames(PART, payload_of(b"abc"))
    for frames in (
        [frame, b"abc"],
        [frame, b""],
        [frame + b"d"],
        [frame[:-1]],
        [encode(ASK) + b"x"],
        [encode(DataReply(1, 2, 0, 0)) + b"x"],
    ):
        with pytest.raises(Malformed):
            decode(frames)
    with pytest.raises(CorruptPayload):
        decode([frame[:-1] + b"d"])


@given(sent, st.data())
def test_damage_to_a_header_is_noticed_or_gives_a_valid_message(
    pair: tuple[Message, Payload | None], data: st.DataObject
) -> None:
    """Decoding fails only with Malformed or CorruptPayload, and every decoded message can be
    sent."""
    header, *rest = frames_of(*pair)
    damaged = bytearray(header)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        message, payload = decode([bytes(damaged), *rest])
    except (Malformed, CorruptPayload):
        return
    encode(message, payload)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
    | st.binary(max_size=100) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=8)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=20,
)  # fmt: skip


@given(
    st.integers(0, 12),
    st.lists(json_like, max_size=10) | json_like,
)
def test_nonsense_in_a_valid_envelope_is_refused(code: int, body: Any) -> None:
    header = with_body(code, msgpack.packb(body))
    try:
        message = decode_header(header).message
    except Malformed:
        return
    assert type(message) in get_args(Message)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(Malformed):
        decode([noise])
    with pytest.raises(Malformed):
        decode_greeting(noise)


def test_every_message_and_every_field_has_its_layout() -> None:
    assert {layout.kind for layout in LAYOUTS} == set(get_args(Message))
    assert len({layout.code for layout in LAYOUTS}) == len(LAYOUTS)
    for layout in LAYOUTS:
        assert [name for name, _ in layout.fields] == [each.name for each in fields(layout.kind)]


ASK = Request(1, 2, ContentKind.OBJECT, Path(b"a/b"), Version(3, 4, 5, 6))
PART = DataReply(1, 2, 0, 3)
ITEM = Item(ContentKind.OBJECT, Path(b"f"), Version(3, 4, 5, 6), 3, 0, 3)
BATCH = Batch(1, 0, 2, 0, (ITEM,))


@pytest.mark.parametrize(
    "message",
    [
        *(
            replace(ASK, path=Path(path))
            for path in (b"/a", b"a/", b"a//b", b"..", b"a/../b", b".")
        ),
        replace(ASK, path=Path(b"a\0b")),
        replace(ASK, number=-1),
        replace(ASK, number=1 << 63),
        replace(ASK, epoch=True),
        replace(ASK, what=5),  # type: ignore[arg-type]
        replace(ASK, first=(1 << 48) + 1),
        replace(ASK, how=5),  # type: ignore[arg-type]
        replace(ASK, skipped=(NodeId(200_000),)),
        Redirect(1, 2, NodeId(200_000)),
        replace(ASK, version=Version(1 << 63, 0, 0, 0)),
        ErrorReply(1, 2, 0),
        ErrorReply(1, 2, 4096),
        ErrorReply(1, 2, 5, 4),
        ErrorReply(1, 2, 5, -1),
        ErrorReply(1, 2, -5),
        Hello(NodeId(200_000), "job", b"", 0),
        Hello(NodeId(0), "j" * 257, b"", 0),
        Hello(NodeId(0), "job", b"x" * 65, 0),
        EntryReply(1, 2, Entry(Attributes(b"short")), None),
        EntryReply(1, 2, None, math.nan),
        Credit(-1),
        Credit((1 << 40) + 1),
        CollectiveRequest(1, "o" * 65),
        CollectiveRequest(1, "stats", b"x" * ((64 << 10) + 1)),
        CollectiveReply(1, b"x" * ((1 << 20) + 1)),
        CollectiveRequest(1, "stats", within_s=0.0),
        CollectiveRequest(1, "stats", within_s=3600.5),
        CollectiveRequest(1, "stats", identity=-1),
        EntryReply(1, 2, Entry(Attributes(bytes(88)), b"a\0b"), None),
        replace(ASK, version=None),
        replace(ASK, skipped=(NodeId(1),) * 5),
        replace(ASK, skipped=(NodeId(-1),)),
        Echo(-1),
        EchoReply(1 << 63),
        Heartbeat(-1, 0, wants_answer=False),
        Heartbeat(0, -1, wants_answer=False),
        Heartbeat(0, 0, wants_answer=1),  # type: ignore[arg-type]
        MembershipUpdate((MemberStatus(NodeId(200_000), 0, is_gone=True),)),
        MembershipUpdate((MemberStatus(NodeId(0), 1 << 63, is_gone=True),)),
        MembershipUpdate((MemberStatus(NodeId(0), -1, is_gone=True),)),
        MembershipUpdate((MemberStatus(NodeId(0), 0, is_gone=0),)),  # type: ignore[arg-type]
        MembershipUpdate((MemberStatus(NodeId(0), 0, is_gone=True),) * 4097),
    ],
    ids=lambda message: repr(message)[:70],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(message: Message) -> None:
    with pytest.raises(Malformed):
        decode([encode(message)])


FAR = Version((1 << 63) - 1, -(1 << 62), 1 << 62, (1 << 64) - 1)
NODE, NUMBER = NodeId(199_999), (1 << 63) - 1


@pytest.mark.parametrize(
    "message",
    [
        Request(
            NUMBER,
            NUMBER,
            ContentKind.CHUNK,
            Path(b"p" * 4096),
            FAR,
            1 << 48,
            ChunkAskMode.TREE,
            (NODE,) * 4,
        ),
        EntryReply(NUMBER, NUMBER, Entry(Attributes(bytes(88)), b"t" * 4096), 1e9),
        EntryReply(0, 0, Entry(Attributes(bytes(88)), b""), 0.0),
        ErrorReply(1, 2, 1, 0),
        ErrorReply(1, 2, 4095, 3),
        Redirect(NUMBER, NUMBER, NODE),
        Credit(1 << 40),
        Cancel(NUMBER),
        CollectiveRequest(NUMBER, "o" * 64, bytes(64 << 10), 3600.0, (1 << 64) - 1),
        CollectiveReply(NUMBER, bytes(1 << 20)),
        Echo(NUMBER),
        EchoReply(NUMBER),
        Heartbeat(NUMBER, (1 << 64) - 1, wants_answer=True),
        Heartbeat(0, 0, wants_answer=False),
        MembershipUpdate((MemberStatus(NODE, NUMBER, is_gone=True),) * 4096),
        MembershipUpdate((MemberStatus(NodeId(0), 0, is_gone=False),)),
    ],
    ids=lambda message: repr(message)[:70],
)
def test_what_is_at_its_limit_travels(message: Message) -> None:
    """The limits are written out: to change one is to change the protocol."""
    assert decode([encode(message)]) == (message, None)


def test_a_batch_and_an_offer_at_their_limits_travel() -> None:
    last = Item(ContentKind.OBJECT, Path(b"p"), FAR, 1 << 40, (1 << 40) - (2 << 20), 2 << 20, 1e9)
    none = Item(ContentKind.LISTING, Path(b""), None, 0, 0, 0)
    payload = payload_of(bytes(2 << 20))
    batch = Batch(NUMBER, 63, NUMBER, NUMBER, (none,) * 4095 + (last,), last=True)
    path = Path(b"p" * 4096)
    told = replace(last, path=path, digest=bytes(16))
    offer = Offer(NUMBER, (replace(none, path=path),) * 3 + (none,) * 60 + (told,))
    for message in (batch, offer):
        assert decode([encode(message, payload), payload.data]) == (message, payload)
    for message in (
        replace(batch, tree=64),
        replace(batch, items=(none,) * 4097),
        replace(batch, items=(replace(last, length=(2 << 20) + 1),)),
        replace(offer, items=(none,) * 65),
        replace(offer, items=(replace(told, digest=bytes(17)),)),
    ):
        with pytest.raises(Malformed):
            decode([encode(message, payload), payload.data])


def test_the_last_part_of_the_largest_object_travels() -> None:
    part = DataReply(NUMBER, NUMBER, (1 << 20) - 1, 1 << 40, FAR, 1e9)
    payload = payload_of(bytes(1 << 20))
    assert decode([encode(part, payload), payload.data]) == (part, payload)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (PART, 2),
        (PART, 4),
        (replace(PART, index=1), 3),
        (replace(PART, total_bytes=PART_BYTES, index=1), 0),
        (replace(PART, total_bytes=PART_BYTES + 1), 1),
        (replace(PART, total_bytes=OBJECT_BYTES_MAX + 1), PART_BYTES),
        (BATCH, 2),
        (replace(BATCH, items=(replace(ITEM, offset=1),)), 3),
        (replace(BATCH, items=(replace(ITEM, version=None),)), 3),
        (replace(BATCH, items=(replace(ITEM, what=ContentKind.ENTRY),)), 3),
        (replace(BATCH, items=(replace(ITEM, length=0),) * (ITEMS_MAX + 1)), 0),
        (ASK, 0),
        (ASK, 1),
    ],
    ids=lambda value: repr(value)[:70],
)
def test_a_payload_that_does_not_fit_its_message_is_refused(message: Message, size: int) -> None:
    payload = payload_of(bytes(size))
    with pytest.raises(Malformed):
        decode([encode(message, payload), payload.data])


def test_a_payload_that_is_not_the_announced_one_is_refused() -> None:
    payload = payload_of(b"abc")
    header = encode(PART, payload)
    for frames in ([header], [header, b"ab"], [header, b"abcd"], [header, b"abc", b""], []):
        with pytest.raises(Malformed):
            decode(frames)
    with pytest.raises(Malformed):
        decode([encode(ASK), b""])


def test_a_header_that_announces_a_payload_its_message_cannot_have_is_refused() -> None:
    array = msgpack.unpackb(encode(ASK)[PREFIX_BYTES:])
    for digest, size in ((None, 3), (bytes(16), 0), (bytes(16), 3)):
        with pytest.raises(Malformed, match="a Request with a payload"):
            decode_header(with_body(encode(ASK)[4], msgpack.packb([digest, size, *array[2:]])))


def test_damaged_bytes_are_told_apart_from_a_malformed_message() -> None:
    with pytest.raises(CorruptPayload) as caught:
        decode([encode(PART, payload_of(b"abc")), b"abd"])
    assert caught.value.message == PART


def test_an_empty_object_may_come_with_or_without_its_empty_payload() -> None:
    empty = DataReply(1, 2, 0, 0)
    assert decode([encode(empty)]) == (empty, None)
    assert decode([encode(empty, payload_of(b"")), b""]) == (empty, payload_of(b""))


def test_another_version_or_message_or_magic_is_refused_and_says_so() -> None:
    header = encode(ASK)
    for at, why in ((0, "no message"), (3, "version"), (4, "there is no message")):
        other = bytearray(header)
        other[at] = 100
        with pytest.raises(Malformed, match=why):
            decode([bytes(other)])


def test_the_longest_hello_can_be_sent() -> None:
    path = Path(b"p" * SAMPLE_PATH_BYTES_MAX)
    seen = Seen(path, Version((1 << 63) - 1, -(1 << 62), 1 << 62, (1 << 64) - 1))
    hello = Hello(
        NodeId(199_999),
        "\N{SNOWMAN}" * 256,
        bytes(64),
        (1 << 63) - 1,
        places=bytes(codec.PLACES_BYTES_MAX),
        sample=(seen,) * SAMPLE_MAX,
        is_sampled=True,
    )
    assert decode([encode(hello)]) == (hello, None)
    with pytest.raises(Malformed, match="cannot be sent"):
        encode(replace(hello, sample=(replace(seen, path=Path(path + b"p")),)))


def test_a_header_longer_than_its_message_allows_is_refused_unread() -> None:
    prefix = encode(ASK)[: PREFIX_BYTES - 4]
    for beyond in (1, 1 << 31):
        length = codec.HEADER_BYTES_MAX - PREFIX_BYTES + beyond
        with pytest.raises(Malformed, match="at most"):
            decode([prefix + struct.pack("<I", length) + bytes(codec.HEADER_BYTES_MAX)])


def test_a_header_longer_than_its_frame_is_refused() -> None:
    header = encode(ASK)
    for frame in (header[:-1], header[:PREFIX_BYTES]):
        with pytest.raises(Malformed, match="in a frame of"):
            decode([frame])
    with pytest.raises(Malformed, match="no message"):
        decode([header[: PREFIX_BYTES - 1]])


def test_a_header_that_promises_more_than_it_has_costs_nothing() -> None:
    for claim in (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"):
        header = with_body(2, claim)
        with pytest.raises(Malformed):
            decode([header])
    deep = with_body(2, b"\x91" * 10_000)
    with pytest.raises(Malformed):
        decode([deep])


def test_a_path_or_target_that_nobody_would_take_cannot_be_sent() -> None:
    with pytest.raises(Malformed):
        encode(replace(ASK, path=Path(b"a" * 4097)))
    entry = Entry(Attributes.bare(1, 0o120777), b"t" * 4097)
    with pytest.raises(Malformed):
        encode(EntryReply(1, 2, entry, None))
    assert decode([encode(replace(ASK, path=Path(b"a" * 4096)))])


def test_an_ask_for_an_object_names_its_version() -> None:
    header = encode(replace(ASK, version=None))
    with pytest.raises(Malformed, match="of no version"):
        decode([header])


def test_values_that_have_no_end_are_refused_like_any_other() -> None:
    nested = b"\x91" * 900 + b"\xc0"  # arrays of one element, nested
    header = with_body(11, b"\x93\xc0\x00" + nested)
    with pytest.raises(Malformed):
        decode([header])


def test_a_time_beyond_64_bits_of_nanoseconds_travels() -> None:
    far = replace(ASK, version=Version(1, -(10**19) - 1, 10**20 + 7, (1 << 64) - 1))
    assert decode([encode(far)]) == (far, None)


@pytest.mark.parametrize("seconds", [-1.0, 1e9 + 1, math.inf, -math.inf, math.nan, 1, "1"])
def test_seconds_that_nobody_sends_are_refused(seconds: object) -> None:
    with pytest.raises(Malformed):
        decode([with_body(3, msgpack.packb([None, 0, 1, 2, None, seconds]))])
    assert decode([with_body(3, msgpack.packb([None, 0, 1, 2, None, 1e9]))])


def test_freshness_is_cut_to_what_can_be_said() -> None:
    sent_message = EntryReply(1, 2, None, 1e12)
    assert decode([encode(sent_message)])[0] == replace(sent_message, fresh_for_s=SECONDS_MAX)


def test_a_greeting_travels_and_nothing_else_is_one() -> None:
    greeting = Greeting(bytes(16), NodeId(3), NodeId(4), (1 << 64) - 1)
    frame = encode_greeting(greeting)
    assert decode_greeting(frame) == greeting
    for other in (frame + b"x", frame[:-1], b"x" + frame[1:], frame[:37], encode(ASK)):
        with pytest.raises(Malformed):
            decode_greeting(other)
    with pytest.raises(Malformed):
        decode([frame])


def test_the_greeting_of_any_version_says_who_speaks_and_what_it_runs() -> None:
    """Other versions send these bytes; they must never change."""
    fixed = bytes(range(16)) + b"\3\0\0\0" + b"\4\0\0\0" + b"\5" + bytes(7)
    third = decode_greeting(b"cpf\3\0" + fixed)
    later = decode_greeting(b"cpf\x63\0" + fixed + b"\x05" + b"9.9.1" + b"whatever comes then")
    for each in (third, later):
        assert (each.job, each.speaker, each.listener) == (bytes(range(16)), 3, 4)
        assert each.is_foreign
        assert each.serial == 5
    assert (third.version, third.release) == (3, "")
    assert (later.version, later.release) == (99, "9.9.1")
    for broken in (b"\x05" + b"9.9", b"\x41" + b"9" * 65, b"\x01\x1b", b"\x01" + b"9" * 5000):
        with pytest.raises(Malformed):
            decode_greeting(b"cpf\x63\0" + fixed + broken)
