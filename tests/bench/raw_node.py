"""Yardstick of `tree`: blocking ZeroMQ sockets that forward frames up and down.

`python -m tests.bench.raw_node`, driven like `tests.net.process`, without digests or checks.
"""

from __future__ import annotations

import json
import os
import sys
import time

import zmq

from copperfs.model.roster import Roster
from copperfs.model.types import NodeId
from copperfs.node.peer.messages import PART_BYTES
from tests.net.process import Spec


def main() -> None:
    spec = Spec(**json.loads(sys.stdin.readline()))
    roster = Roster.from_json(spec.roster)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    keys = None
    if spec.secret_key is not None:
        keys = zmq.curve_public(spec.secret_key.encode()), spec.secret_key.encode()
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, keys[1])
    endpoint = roster.member(NodeId(spec.me)).endpoint
    router.set(zmq.USE_FD, spec.descriptor)
    router.bind(endpoint)
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(0, zmq.POLLIN)
    if spec.parent is not None:
        above = roster.member(NodeId(spec.parent))
        if keys is not None:
            dealer.set(zmq.CURVE_SERVERKEY, above.public_key.encode())
            dealer.set(zmq.CURVE_PUBLICKEY, keys[0])
            dealer.set(zmq.CURVE_SECRETKEY, keys[1])
        dealer.connect(above.endpoint)
        poller.register(dealer, zmq.POLLIN)
    content = os.urandom(PART_BYTES)
    print("listening\nconnected", flush=True)
    while True:
        for ready, _ in poller.poll():
            if ready is router:
                frames = router.recv_multipart(copy=False)
                if spec.parent is not None:
                    dealer.send_multipart(frames, copy=False)
                    continue
                left = int(frames[-1].bytes)
                while left > 0:
                    part = memoryview(content)[: min(left, PART_BYTES)]
                    router.send_multipart([*frames[:-1], part], copy=len(part) < 1 << 16)
                    left -= len(part)
            elif ready is dealer:
                router.send_multipart(dealer.recv_multipart(copy=False), copy=False)
            elif command := sys.stdin.readline():
                size, count = map(int, command.split())
                print(json.dumps(measure(dealer, size, count)), flush=True)
            else:
                context.destroy(0)
                return


def measure(dealer: zmq.Socket[bytes], size: int, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        dealer.send(b"%d" % size)
        left = size
        while left > 0:
            left -= len(dealer.recv(copy=False))
        taken.append(time.perf_counter() - began)
    return taken


if __name__ == "__main__":
    main()
