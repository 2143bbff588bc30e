"""Codec: turns messages into headers and back.

A message travels as one frame, or as two if it has a payload that is not short::

    header   magic "cpf", version, code of the message, length of the array       9 bytes
             msgpack array: digest or nil, size of the payload, the message's fields in order
    payload  as it is; up to ``BESIDE_BYTES_MAX`` in the header's frame, else in a frame of its own

A frame costs more than copying some KiB. A receiver accepts both.

``LAYOUTS`` is the whole protocol; ``VERSION`` (``wire_version.py``) changes with it.
``decode_header`` checks everything before it allocates anything whose size the header names.
``check_payload`` is separate: the requester has to know what it did not get.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]

from copperfs.model.roster import NODES_MAX
from copperfs.node.cache.error_cache import WITNESSES_ENOUGH
from copperfs.node.peer.messages import (
    PART_BYTES,
    RECORDS_MAX,
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
from copperfs.wire import fields as f
from copperfs.wire.fields import Field, Malformed
from copperfs.wire.payload import DIGEST_BYTES, Payload, digest, size_of
from copperfs.wire.wire_version import MAGIC, VERSION

_LENGTH = struct.Struct("<I")
PREFIX_BYTES = len(MAGIC) + 2 + _LENGTH.size
BESIDE_BYTES_MAX = 16 << 10
"""The longest payload in the header's frame."""

PAYLOAD_BYTES_MAX = 2 * PART_BYTES
"""A part has at most ``PART_BYTES``. The last item of a batch may add as much."""
OBJECT_BYTES_MAX = 1 << 40
PARTS_MAX = OBJECT_BYTES_MAX // PART_BYTES
INDEX_MAX = 1 << 48
"""One chunk of 64 KiB in the largest possible file."""
INCARNATION_MAX = (1 << 63) - 1
TREES_MAX = 64
OFFER_ITEMS_MAX = 64
OFFERED_HEADER_BYTES_MAX = 512
"""For an item, without its path."""
ITEMS_MAX = 4096
"""A batch of 1 MiB has this many of 256 bytes: smaller files are not worth a push."""
PLACES_BYTES_MAX = 8 << 10
HEADER_BYTES_MAX = 16 << 10
"""Twice the longest path or entry."""
BATCH_HEADER_BYTES_MAX = 1 << 20
"""ITEMS_MAX items of 256 bytes, but 250 with paths of 4 KiB, so the code that fills a batch must
check.
"""
ARGUMENT_BYTES_MAX = 64 << 10
RESULT_BYTES_MAX = 1 << 20
FRAME_BYTES_MAX = PAYLOAD_BYTES_MAX
"""For MAXMSGSIZE, at which ZeroMQ cuts the connection before it reads the bytes."""


class CorruptPayload(Exception):
    """The message is whole, its payload is not."""

    def __init__(self, message: Message) -> None:
        super().__init__("the payload is not what its digest says")
        self.message = message


@dataclass(frozen=True, slots=True)
class Layout:
    code: int
    kind: type
    fields: tuple[tuple[str, Field], ...]
    header_bytes_max: int = HEADER_BYTES_MAX
    payload_bytes: Callable[[Any], int] | None = None
    """The exact length; None: it has no payload."""


@dataclass(frozen=True, slots=True)
class Envelope:
    message: Message
    digest: bytes | None
    """None: there is no payload."""
    payload_bytes: int
    beside: bytes | memoryview


def _part_bytes(part: DataReply) -> int:
    left = part.total_bytes - part.index * PART_BYTES
    if left < 0 or (left == 0 and part.index > 0):
        raise Malformed(f"part {part.index} is beyond the end of {part.total_bytes} bytes")
    return min(left, PART_BYTES)


def _batch_bytes(batch: Batch | Offer) -> int:
    size = 0
    for item in batch.items:
        if item.offset + item.length > item.total_bytes:
            raise Malformed("an item that ends beyond its object")
        if item.what is ContentKind.OBJECT and item.version is None:
            raise Malformed("an object without a version")
        size += item.length
    if size > PAYLOAD_BYTES_MAX:
        raise Malformed(f"a batch of {size} bytes; at most {PAYLOAD_BYTES_MAX}")
    return size


_NODE = f.integer(0, NODES_MAX - 1)
_TOTAL = f.integer(0, OBJECT_BYTES_MAX)
_ITEM = f.record(
    Item,
    (
        ("what", f.enumerated(ContentKind, ContentKind.LISTING, ContentKind.OBJECT)),
        ("path", f.PATH),
        ("version", f.VERSION),
        ("total_bytes", _TOTAL),
        ("offset", _TOTAL),
        ("length", f.integer(0, PAYLOAD_BYTES_MAX)),
        ("fresh_for_s", f.SECONDS),
        ("digest", f.octets(DIGEST_BYTES)),
    ),
)
_RECORD = f.record(
    MemberStatus,
    (("node", _NODE), ("incarnation", f.integer(0, INCARNATION_MAX)), ("is_gone", f.SWITCH)),
)
FATE_BYTES_MAX = 16
SEEN_BYTES_MAX = SAMPLE_PATH_BYTES_MAX + 64
_SEEN = f.record(Seen, (("path", f.path(SAMPLE_PATH_BYTES_MAX)), ("version", f.KNOWN_VERSION)))
_ANSWER = (("number", f.number()), ("epoch", f.number()))
_CHUNK = (("path", f.PATH), ("version", f.KNOWN_VERSION), ("index", f.integer(0, INDEX_MAX)))

LAYOUTS = (
    Layout(
        1,
        Hello,
        (
            ("node", _NODE),
            ("job", f.text(256)),
            ("agreement", f.octets(64)),
            ("epoch", f.number()),
            ("is_answer", f.SWITCH),
            ("places", f.octets(PLACES_BYTES_MAX)),
            ("ignores_inodes", f.SWITCH),
            ("sample", f.several(_SEEN, SAMPLE_MAX)),
            ("is_sampled", f.SWITCH),
        ),
        header_bytes_max=HEADER_BYTES_MAX + SAMPLE_MAX * SEEN_BYTES_MAX,
    ),
    Layout(
        2,
        Request,
        (
            *_ANSWER,
            ("what", f.enumerated(ContentKind)),
            ("path", f.PATH),
            ("version", f.VERSION),
            ("first", f.integer(0, INDEX_MAX)),
            ("how", f.enumerated(ChunkAskMode)),
            ("skipped", f.several(_NODE, SKIPPED_MAX)),
        ),
    ),
    Layout(3, EntryReply, (*_ANSWER, ("entry", f.ENTRY), ("fresh_for_s", f.SECONDS))),
    Layout(
        4,
        DataReply,
        (
            *_ANSWER,
            ("index", f.integer(0, PARTS_MAX)),
            ("total_bytes", _TOTAL),
            ("directory", f.VERSION),
            ("fresh_for_s", f.SECONDS),
        ),
        payload_bytes=_part_bytes,
    ),
    Layout(
        5,
        ErrorReply,
        (
            *_ANSWER,
            ("error", f.integer(1, f.ERRNO_MAX)),
            ("witnesses", f.integer(0, WITNESSES_ENOUGH)),
        ),
    ),
    Layout(16, Redirect, (*_ANSWER, ("peer", _NODE))),
    Layout(17, Delayed, _ANSWER),
    Layout(18, CopyOffer, _CHUNK),
    Layout(19, CopyReport, (*_CHUNK, ("is_kept", f.SWITCH))),
    Layout(6, Credit, (("count_bytes", _TOTAL),)),
    Layout(7, Cancel, (("number", f.number()),)),
    Layout(
        8,
        Batch,
        (
            ("push", f.number()),
            ("tree", f.integer(0, TREES_MAX - 1)),
            ("epoch", f.number()),
            ("sequence", f.number()),
            ("items", f.several(_ITEM, ITEMS_MAX)),
            ("last", f.SWITCH),
        ),
        header_bytes_max=BATCH_HEADER_BYTES_MAX,
        payload_bytes=_batch_bytes,
    ),
    Layout(
        9,
        CollectiveRequest,
        (
            ("number", f.number()),
            ("operation", f.text(64)),
            ("argument", f.octets(ARGUMENT_BYTES_MAX)),
            ("within_s", f.WITHIN),
            ("identity", f.integer(0, (1 << 64) - 1)),
        ),
        header_bytes_max=HEADER_BYTES_MAX + ARGUMENT_BYTES_MAX,
    ),
    Layout(
        10,
        CollectiveReply,
        (("number", f.number()), ("result", f.octets(RESULT_BYTES_MAX))),
        header_bytes_max=HEADER_BYTES_MAX + RESULT_BYTES_MAX,
    ),
    Layout(
        13,
        Offer,
        (("epoch", f.number()), ("items", f.several(_ITEM, OFFER_ITEMS_MAX))),
        header_bytes_max=HEADER_BYTES_MAX + OFFER_ITEMS_MAX * OFFERED_HEADER_BYTES_MAX,
        payload_bytes=_batch_bytes,
    ),
    Layout(11, Echo, (("number", f.number()),)),
    Layout(12, EchoReply, (("number", f.number()),)),
    Layout(
        14,
        Heartbeat,
        (("epoch", f.number()), ("view", f.integer(0, (1 << 64) - 1)), ("wants_answer", f.SWITCH)),
    ),
    Layout(
        15,
        MembershipUpdate,
        (("records", f.several(_RECORD, RECORDS_MAX)),),
        header_bytes_max=HEADER_BYTES_MAX + RECORDS_MAX * FATE_BYTES_MAX,
    ),
)
_OF_A_VERSION = (ContentKind.OBJECT, ContentKind.CHUNK)
_BY_CODE = {layout.code: layout for layout in LAYOUTS}
_BY_KIND = {layout.kind: layout for layout in LAYOUTS}
_PREFIX = {layout.code: MAGIC + bytes((VERSION, layout.code)) for layout in LAYOUTS}


def encode(message: Message, payload: Payload | None = None) -> bytes:
    """Malformed if no receiver would take it."""
    layout = _BY_KIND[type(message)]
    body: list[Any] = [None, 0] if payload is None else [payload.digest, size_of(payload.data)]
    for name, field in layout.fields:
        value = getattr(message, name)
        body.append(value if field.pack is None else field.pack(value))
    _check_size(layout, message, body[0], body[1])
    array = msgpack.packb(body)
    header: bytes = _PREFIX[layout.code] + _LENGTH.pack(len(array)) + array
    if len(header) > layout.header_bytes_max:
        raise Malformed(f"a header of {len(header)} bytes; at most {layout.header_bytes_max}")
    return header


def encode_frames(message: Message, payload: Payload | None = None) -> tuple[bytes, Payload | None]:
    """The payload only if it goes into a second frame."""
    header = encode(message, payload)
    if payload is None or size_of(payload.data) > BESIDE_BYTES_MAX:
        return header, payload
    return b"".join((header, payload.data)), None


def decode_header(frame: bytes) -> Envelope:
    """Malformed if it is no message of this version."""
    if len(frame) < PREFIX_BYTES or not frame.startswith(MAGIC):
        raise Malformed("no message at all")
    version, code = frame[len(MAGIC)], frame[len(MAGIC) + 1]
    if version != VERSION:
        raise Malformed(f"version {version} of the protocol, not {VERSION}")
    layout = _BY_CODE.get(code)
    if layout is None:
        raise Malformed(f"there is no message {code}")
    end = PREFIX_BYTES + _LENGTH.unpack_from(frame, PREFIX_BYTES - _LENGTH.size)[0]
    if end > layout.header_bytes_max:
        raise Malformed(f"a header of {end} bytes; at most {layout.header_bytes_max}")
    if end > len(frame):
        raise Malformed(f"a header of {end} bytes in a frame of {len(frame)}")
    view = memoryview(frame)
    stated, size, *values = _unpack(view[PREFIX_BYTES:end], 2 + len(layout.fields))
    if stated is not None and (type(stated) is not bytes or len(stated) != DIGEST_BYTES):
        raise Malformed("no digest")
    if type(size) is not int or not 0 <= size <= PAYLOAD_BYTES_MAX:
        raise Malformed("a payload of impossible size")
    try:
        checked = [
            field.check(value) for (_, field), value in zip(layout.fields, values, strict=True)
        ]
    except RecursionError:
        raise Malformed("values in values in values") from None
    message: Message = layout.kind(*checked)
    if isinstance(message, Request) and message.what in _OF_A_VERSION and message.version is None:
        raise Malformed("an ask for bytes of no version")
    _check_size(layout, message, stated, size)
    return Envelope(message, stated, size, view[end:])


def check_payload(envelope: Envelope, data: bytes | memoryview | None) -> Payload | None:
    """Malformed if the payload is missing, superfluous or of another length; CorruptPayload if its
    digest differs. *data* is the second frame."""
    if envelope.digest is None or data is not None:
        if envelope.beside or (envelope.digest is None and data is not None):
            raise Malformed("a payload too many")
        if data is None:
            return None
    else:
        data = envelope.beside
    if size_of(data) != envelope.payload_bytes:
        raise Malformed(f"a payload of {size_of(data)} bytes, not {envelope.payload_bytes}")
    if digest(data) != envelope.digest:
        raise CorruptPayload(envelope.message)
    return Payload(data, envelope.digest)


def decode(frames: Sequence[bytes | memoryview]) -> tuple[Message, Payload | None]:
    if not 1 <= len(frames) <= 2:
        raise Malformed(f"{len(frames)} frames")
    envelope = decode_header(bytes(frames[0]))
    return envelope.message, check_payload(envelope, frames[1] if len(frames) == 2 else None)


def _check_size(layout: Layout, message: Message, stated: bytes | None, size: int) -> None:
    if layout.payload_bytes is None:
        if stated is not None or size:
            raise Malformed(f"a {layout.kind.__name__} with a payload")
        return
    expected = layout.payload_bytes(message)
    # A sender may omit an empty payload.
    if size != expected or (stated is None and expected):
        raise Malformed(f"a {layout.kind.__name__} with {size} bytes of payload, not {expected}")


def _unpack(body: memoryview, count: int) -> list[Any]:
    """msgpack allocates only what the body is long enough for."""
    try:
        value = msgpack.unpackb(
            body, max_array_len=ITEMS_MAX, max_map_len=0, max_ext_len=0, use_list=True
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise Malformed(f"not msgpack: {error!s:.100}") from None
    if type(value) is not list or len(value) != count:
        raise Malformed(f"not an array of {count}")
    return value
