"""Collective operations: what each node does for a collective, and how results are merged.

The merged result of 8,300 nodes is as small as that of one, except for lists by node. Results are
compressed JSON: a list of all nodes fits into one message.
"""

import json
import logging
import math
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from copperfs.model.types import CallId, RequestId
from copperfs.node.actions import PerformCall
from copperfs.node.events import CallPerformed, Event, StartCall

log = logging.getLogger(__name__)

Result = dict[str, Any]
RESULT_BYTES_MAX = 32 << 20
PACKED_BYTES_MAX = 1 << 20
# The exceptions that a result made up by a peer may raise.
UNUSABLE = (ValueError, TypeError, OverflowError, RecursionError)


Operation = Callable[[Result], Awaitable[Result]]


@dataclass(slots=True)
class CollectiveOperations:
    by_name: Mapping[str, Operation]

    async def perform(self, name: str, argument: bytes) -> bytes:
        """Empty if the operation fails, which leaves this node out."""
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


@dataclass(slots=True)
class RunningCalls:
    """The driver's port to the operations: one cancellable task for each running collective."""

    post: Callable[[Event], None]
    operations: CollectiveOperations = field(default_factory=lambda: CollectiveOperations({}))
    scopes: dict[CallId, trio.CancelScope] = field(default_factory=dict)
    _ended: dict[RequestId, Callable[[bytes], object]] = field(default_factory=dict)
    _to_do: trio.MemorySendChannel[PerformCall] = field(init=False)
    _to_do_from: trio.MemoryReceiveChannel[PerformCall] = field(init=False)

    def __post_init__(self) -> None:
        self._to_do, self._to_do_from = trio.open_memory_channel(math.inf)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            async for call in self._to_do_from:
                nursery.start_soon(self._perform, call)

    async def call(
        self, request: RequestId, operation: str, argument: Result, within_s: float
    ) -> Result:
        """The merged results of the nodes that replied in time."""
        ended = trio.Event()
        results = []

        def end(result: bytes) -> None:
            results.append(result)
            ended.set()

        self._ended[request] = end
        try:
            packed = pack(argument) if argument else b""
            self.post(StartCall(request, operation, packed, within_s))
            await ended.wait()  # the node enforces the deadline
        finally:
            del self._ended[request]
        return unpack(results[0]) if results[0] else {}

    def begin(self, call: PerformCall) -> None:
        self.scopes[call.call] = trio.CancelScope()
        self._to_do.send_nowait(call)  # the node bounds their number

    def stop(self, call: CallId) -> None:
        if call in self.scopes:
            self.scopes[call].cancel()

    def merge(self, results: tuple[bytes, ...]) -> bytes:
        return self.operations.merge(results)

    def end(self, request: RequestId, result: bytes) -> None:
        if request in self._ended:
            self._ended[request](result)

    async def _perform(self, call: PerformCall) -> None:
        scope = self.scopes[call.call]
        try:
            with scope:
                result = await self.operations.perform(call.operation, call.argument)
        finally:
            del self.scopes[call.call]
        if not scope.cancelled_caught:
            self.post(CallPerformed(call.call, result))


def pack(result: Result) -> bytes:
    return zlib.compress(json.dumps(result, separators=(",", ":")).encode(), 1)


def unpack(data: bytes) -> Result:
    try:
        whole = zlib.decompressobj().decompress(data, RESULT_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    result = json.loads(whole)
    if not isinstance(result, dict):
        raise ValueError("not an object")
    return result


def added(one: Result, other: Result) -> Result:
    """Merge two results. Numbers are summed, except those under ``max_`` and ``min_``; lists are
    joined; objects are merged in turn. Of any other type the first value stays."""
    both = dict(one)
    for key, value in other.items():
        both[key] = _both(key, both[key], value) if key in both else value
    return both


def numbers_in(result: Result, key: str) -> set[int]:
    """The numbers under *key*; a peer may have sent anything."""
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
