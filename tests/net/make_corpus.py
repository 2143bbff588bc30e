"""Corpus writer: makes ``corpus/``, samples of what a peer could send to a node's port.

``python -m tests.net.make_corpus``: each file is one connection, among them every input that once
broke a node.
"""

import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
NULL = SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
assert len(NULL) == 64
assert READY[1] == len(READY) - 2


def frame(data: bytes, *, more: bool = False) -> bytes:
    return struct.pack(">BQ", 2 | more, len(data)) + data


STREAMS = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "zeros": bytes(64),
    "ones": b"\xff" * 200,
    "zmtp1-frames": b"\x01\x00" + b"\x05\x00cpf\x02" * 50,
    "zmtp2": SIGNATURE + b"\x01\x05\x00\x00",
    "half-a-signature": SIGNATURE[:6],
    "unknown-mechanism": NULL.replace(b"NULL", b"NONE"),
    "curve-hello-of-zeros": NULL.replace(b"NULL\0", b"CURVE")
    + b"\x04\xc8\x05HELLO\x01\x00"
    + bytes(192),
    "no-socket-type": NULL + b"\x04\x06\x05READY",
    "wrong-socket-type": NULL + READY.replace(b"DEALER", b"PULLER"),
    "long-identity": NULL + b"\x06" + struct.pack(">Q", 1 << 40),
    "empty-message": NULL + READY + frame(b""),
    "no-greeting": NULL + READY + frame(b"hello"),
    "huge-frame": NULL + READY + struct.pack(">BQ", 2, (1 << 63) - 1),
    "huge-frame-negative": NULL + READY + struct.pack(">BQ", 2, (1 << 64) - 1),
    "frame-above-the-limit": NULL + READY + struct.pack(">BQ", 2, 1 << 30) + bytes(1000),
    "truncated-frame": NULL + READY + struct.pack(">BQ", 2, 100) + b"cpf\x02\x02",
    "many-frames": NULL + READY + frame(b"cpf\x02\x00", more=True) * 1000 + frame(b""),
    "unknown-command": NULL + READY + b"\x04\x08\x07NOTHING",
    "ping-without-end": NULL + READY + b"\x04\x07\x04PING\x00\x01" * 100,
    "reserved-flags": NULL + READY + b"\xf8\x01x",
}  # fmt: skip


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    for name, stream in STREAMS.items():
        (CORPUS / name).write_bytes(stream)


if __name__ == "__main__":
    main()
