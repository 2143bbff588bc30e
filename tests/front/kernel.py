"""Kernel stand-in at the other end of the front's descriptor, which is a socket."""

from __future__ import annotations

import os
import socket
import struct

LOOKUP, GETATTR, READ, READDIRPLUS = 1, 3, 15, 44
ROOT_NODE = 1


class Kernel:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unique = 0

    def begin(self, opcode: int, node: int, body: bytes) -> None:
        self._unique += 2
        length = 40 + len(body)
        header = struct.pack("<IIQQIIII", length, opcode, self._unique, node, 0, 0, os.getpid(), 0)
        self._end.send(header + body)

    def hear(self) -> tuple[int, bytes]:
        notification = self._end.recv(1 << 20)
        _, code, unique = struct.unpack_from("<IiQ", notification)
        assert not unique
        return code, notification[16:]

    def ask(self, opcode: int, node: int, body: bytes) -> bytes:
        self.begin(opcode, node, body)
        reply = self._end.recv(1 << 20)
        _, error, unique = struct.unpack_from("<IiQ", reply)
        assert (error, unique) == (0, self._unique)
        return reply[16:]

    def look_up(self, name: str) -> int:
        node: int = struct.unpack_from("<Q", self.ask(LOOKUP, ROOT_NODE, name.encode() + b"\0"))[0]
        return node

    def read(self, node: int) -> bytes:
        return self.ask(READ, node, struct.pack("<QQIIQII", 0, 0, 4096, 0, 0, 0, 0))
