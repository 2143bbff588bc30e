"""Name server of the lab: ``python -m copperfs.lab.local_cluster.name_server``, a DNS server with a
socket for each node.

Standard input has one JSON object: the address of each name, and how each inherited socket answers.
*quick*: at once. *slow*: after ``SLOW_S``, longer than any wait for a name in a job. *failing*:
mostly with SERVFAIL, drawn from a seed. It has only addresses (A), and ignores messages that are no
DNS query.
"""

import heapq
import json
import random
import selectors
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

SLOW_S = 3.0
FAILING_SHARE = 0.6
DATAGRAM_MAX = 512
WAITING_MAX = 10_000
TTL_S = 0
_HEADER = struct.Struct(">6H")
_QUESTION_END = struct.Struct(">2H")
_ANSWER = struct.Struct(">3HIH4s")
TYPE_A, CLASS_IN = 1, 1
NO_ERROR, SERVFAIL, NXDOMAIN = 0, 2, 3
_RESPONSE, _RECURSION = 0x8000, 0x0180
_NAME_OF_QUESTION = 0xC000 | _HEADER.size


def reply_to(message: bytes, addresses: dict[str, str], *, fails: bool = False) -> bytes | None:
    """None if *message* is no query."""
    try:
        number, flags, questions, *_ = _HEADER.unpack_from(message)
        if flags & _RESPONSE or questions != 1:
            return None
        labels, at = [], _HEADER.size
        while length := message[at]:
            labels.append(message[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        kind, _ = _QUESTION_END.unpack_from(message, at + 1)
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
    question = message[_HEADER.size : at + 1 + _QUESTION_END.size]
    address = addresses.get(".".join(labels).lower())
    code = SERVFAIL if fails else NO_ERROR if address is not None else NXDOMAIN
    answer = b""
    if code == NO_ERROR and kind == TYPE_A and address is not None:
        packed = socket.inet_aton(address)
        answer = _ANSWER.pack(_NAME_OF_QUESTION, TYPE_A, CLASS_IN, TTL_S, len(packed), packed)
    head = _HEADER.pack(number, _RESPONSE | _RECURSION | code, 1, bool(answer), 0, 0)
    return head + question + answer


@dataclass(slots=True)
class Desk:
    socket: socket.socket
    how: str
    numbers: random.Random


def serve(addresses: dict[str, str], desks: list[Desk]) -> None:
    due: list[tuple[float, int, Desk, bytes, Any]] = []
    order = count()
    with selectors.DefaultSelector() as selector:
        for each in desks:
            each.socket.setblocking(False)
            selector.register(each.socket, selectors.EVENT_READ, each)
        while True:
            wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
            for key, _ in selector.select(wait_s):
                desk: Desk = key.data
                with suppress(OSError):
                    message, sender = desk.socket.recvfrom(DATAGRAM_MAX)
                    fails = desk.how == "failing" and desk.numbers.random() < FAILING_SHARE
                    reply = reply_to(message, addresses, fails=fails)
                    if reply is not None and len(due) < WAITING_MAX:
                        at = time.monotonic() + (SLOW_S if desk.how == "slow" else 0.0)
                        heapq.heappush(due, (at, next(order), desk, reply, sender))
            while due and due[0][0] <= time.monotonic():
                _, _, desk, reply, sender = heapq.heappop(due)
                with suppress(OSError):  # the client has gone
                    desk.socket.sendto(reply, sender)


def main() -> None:
    told = json.load(sys.stdin)
    desks = [
        Desk(socket.socket(fileno=each["fd"]), each["how"], random.Random(each["seed"]))
        for each in told["sockets"]
    ]
    serve(told["addresses"], desks)


if __name__ == "__main__":
    main()
