"""Admission: lets only the nodes of the roster connect with CURVE, each under its own name.

For each handshake ZeroMQ asks on a socket of a fixed name (ZAP, https://rfc.zeromq.org/spec/27). An
acceptance has the position in the roster as *User-Id*, which ZeroMQ attaches to every frame of that
connection. Without a handler ZeroMQ accepts every connection, so the handler is bound before
anything listens. pyzmq's own authenticators need a thread or asyncio.
"""

import struct

import zmq
from zmq.utils import z85

from copperfs.model.roster import BadRoster, Roster
from copperfs.transport.zmq_sockets import ZAP_DOMAIN, ZAP_ENDPOINT

_KEY_BYTES = 32


def _decode_key(text: str) -> bytes | None:
    try:
        key = z85.decode(text)
    except (ValueError, KeyError, struct.error):
        return None
    return key if len(key) == _KEY_BYTES else None


class Admission:
    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", roster: Roster) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(ZAP_ENDPOINT)
        self._positions: dict[bytes, int] = {}
        for position, member in enumerate(roster.members):
            key = _decode_key(member.public_key)
            if key is None:
                raise BadRoster(f"the key of {member.name} is none: launch the job again")
            self._positions[key] = position

    def take(self) -> int:
        """zmq.Again if there is no request."""
        frames = self.socket.recv_multipart(zmq.NOBLOCK)
        # Only ZeroMQ itself asks here, in this format.
        route, empty, version, request, domain, _, _, mechanism, *credentials = frames
        position = None
        if domain == ZAP_DOMAIN and mechanism == b"CURVE" and len(credentials) == 1:
            position = self._positions.get(credentials[0])
        if position is None:
            # ZeroMQ's monitor reports the refusal, too.
            verdict = [b"400", b"not in the roster", b"", b""]
        else:
            verdict = [b"200", b"", b"%d" % position, b""]
        self.socket.send_multipart([route, empty, version, request, *verdict], zmq.NOBLOCK)
        return 0
