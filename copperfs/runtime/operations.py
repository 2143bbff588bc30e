"""What all nodes can be asked to do together: the operations behind a call.

The core carries a call to every node and collects what they say; here is what a node does for each,
and how two results become one, so that the answer of 8,300 nodes is no larger than that of one, but
for what is listed node by node.

Results are JSON, compressed: a name for every number is what makes them readable in ten years, and
a list of all nodes fits into one message that way."""

import json
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

Result = dict[str, Any]
# What a peer may make us unpack.
RESULT_BYTES_MAX = 32 << 20
# What a message has room for.
PACKED_BYTES_MAX = 1 << 20
# What may be raised by results that a peer made up.
UNUSABLE = (ValueError, TypeError, OverflowError, RecursionError)


Operation = Callable[[Result], Awaitable[Result]]
"""Do it here, with the argument of the call."""


@dataclass(slots=True)
class Operations:
    """By name."""

    by_name: Mapping[str, Operation]

    async def perform(self, name: str, argument: bytes) -> bytes:
        """This node's result; empty if it cannot be had, which leaves this node out."""
        operation = self.by_name.get(name)
        if operation is None:
            log.info("asked for %s, which this version does not have", name)
            return b""
        try:
            return pack(await operation(unpack(argument) if argument else {}))
        except Exception:
            log.exception("a bug: %s failed", name)
            return b""

    @staticmethod
    def merge(results: Sequence[bytes]) -> bytes:
        merged: Result = {}
        for each in results:
            try:
                merged = added(merged, unpack(each)) if each else merged
            except UNUSABLE as error:
                log.info("a result that is none: %s", error)
        try:
            packed = pack(merged) if merged else b""
        except UNUSABLE as error:
            log.info("results that cannot be put together: %s", error)
            return b""
        if len(packed) <= PACKED_BYTES_MAX:
            return packed
        log.info("the results of so many nodes are too large: %d bytes", len(packed))
        return pack({key: value for key, value in merged.items() if key in ("nodes", "answered")})


def pack(result: Result) -> bytes:
    return zlib.compress(json.dumps(result, separators=(",", ":")).encode(), 1)


def unpack(data: bytes) -> Result:
    """ValueError if it is none."""
    try:
        whole = zlib.decompressobj().decompress(data, RESULT_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    result = json.loads(whole)
    if not isinstance(result, dict):
        raise ValueError("not an object")
    return result


def added(one: Result, other: Result) -> Result:
    """Both together: numbers are summed, but those under ``max_`` and ``min_``; lists are joined;
    what has the same name is added in turn; of anything else the first stays."""
    both = dict(one)
    for key, value in other.items():
        both[key] = _both(key, both[key], value) if key in both else value
    return both


def numbers_in(result: Result, key: str) -> set[int]:
    """The list of numbers under *key*; results are of peers, which may have made up anything."""
    listed = result.get(key)
    return {each for each in listed if isinstance(each, int)} if isinstance(listed, list) else set()


def _both(key: str, one: Any, other: Any) -> Any:
    match one, other:
        case dict(), dict():
            return added(one, other)
        case list(), list():
            return one + other
        case (bool(), _) | (_, bool()):
            return one
        case ((int() | float()), (int() | float())):
            if key.startswith("max_"):
                return max(one, other)
            return min(one, other) if key.startswith("min_") else one + other
        case _:
            return one
