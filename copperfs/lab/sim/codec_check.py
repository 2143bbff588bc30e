"""Codec check: passes every message through the real codec, as its receiver would read it.

So no node can send here what no node would accept, and a value outside of a message's layout does
not arrive. Costly runs leave it out, and have the same trace (``tests/sim/test_determinism.py``).
The result for a message is kept, since most messages of a quiet job are equal heartbeats.
"""

from collections.abc import Sequence

from copperfs.lab.sim.payload_pieces import Piece, size_of
from copperfs.node.peer.messages import Heartbeat, Message
from copperfs.wire.codec import decode_header, encode
from copperfs.wire.payload import Payload, payload_of

REMEMBERED_MAX = 1000


class Transcoder:
    def __init__(self) -> None:
        self._heartbeats: dict[Message, tuple[Message, int]] = {}

    def __call__(self, message: Message, pieces: Sequence[Piece]) -> tuple[Message, int]:
        if type(message) is not Heartbeat:
            return transcode(message, pieces)
        known = self._heartbeats.get(message)
        if known is None:
            if len(self._heartbeats) >= REMEMBERED_MAX:
                self._heartbeats.clear()
            known = self._heartbeats[message] = transcode(message, pieces)
        return known


def transcode(message: Message, pieces: Sequence[Piece]) -> tuple[Message, int]:
    payload = None
    if len(pieces) == 1 and pieces[0].data is not None:
        payload = Payload(pieces[0].data, pieces[0].digest)
    elif pieces:
        payload = payload_of(b"".join(each.data or b"" for each in pieces))
    header = encode(message, payload)
    return decode_header(header).message, len(header) + size_of(pieces)
