"""Ring warmup: makes all nodes fill their part of the chunk cache, for ``copperfs warmup --ring``.

The daemon that gets the request starts a fill on every node (``warmup_fill.py``), and again on one
that a collective missed or that was restarted. The warmup is over when all live nodes have walked
the dataset and agree on which nodes are dead: the others then hold the chunks of these. A silent
node is awaited for ``SETTLES_WITHIN_S``.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from copperfs.daemon.collective_ops import Operation, Result, numbers_in
from copperfs.daemon.engine import Engine
from copperfs.daemon.warmup_fill import Filling
from copperfs.daemon.warmup_progress import Members, RingState
from copperfs.daemon.warmup_walk import fits
from copperfs.model.errors import ControlError

POLL_EVERY_S, POLL_MANY_EVERY_S = 0.25, 1.0
MANY = 64
CALL_WITHIN_S = 5.0
SETTLES_WITHIN_S = 30.0
ASKED_WITHIN_S = 60.0


@dataclass(slots=True)
class RingWarmup:
    engine: Engine
    members: Members
    settles_within_s: float = SETTLES_WITHIN_S
    asked_within_s: float = ASKED_WITHIN_S
    filling: Filling = field(init=False)
    _asked_at: float = 0.0
    _scope: trio.CancelScope | None = None

    def __post_init__(self) -> None:
        self.filling = Filling(self.engine)

    def operations(self) -> dict[str, Operation]:
        return self.filling.operations()

    def asked(self) -> None:
        self._asked_at = trio.current_time()

    def stop(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def run(
        self, state: RingState, request: Result, check: Callable[[], Awaitable[None]]
    ) -> None:
        self._scope = trio.CancelScope()
        self.asked()
        try:
            with self._scope:
                await check()
                await self._warm_up(state, request)
        finally:
            scope, self._scope = self._scope, None
        if scope.cancelled_caught:
            raise ControlError("the warm-up was stopped; what was read until then is kept")

    async def _warm_up(self, state: RingState, request: Result) -> None:
        if not self.engine.node.limits.chunk_bytes:
            raise ControlError(
                "nobody keeps chunks here: give --tier-dir, or in a job of several nodes "
                "--tier-memory"
            )
        number = random.getrandbits(62)
        paths = [each.strip("/") for each in request["paths"]]
        argument = {"number": number, "paths": paths, "check": bool(request.get("check"))}
        if not fits(argument):
            raise ControlError(
                "so many paths do not fit into one warm-up; name the directories that they are in"
            )
        try:
            await self._wait_all(state, argument)
            if not state.files:
                raise ControlError(
                    "nothing of that goes through the data tier: files above --tree-max do, and "
                    "all below the --ring of the mount"
                )
        finally:
            with trio.CancelScope(shield=True):
                await self.engine.call("fill stop", {"number": number}, CALL_WITHIN_S)

    async def _wait_all(self, state: RingState, argument: Result) -> None:
        number = {"number": argument["number"]}
        settling_since: float | None = None
        told: set[int] = set()
        while True:
            begins = not self.members.numbers - self._gone() <= told
            operation, words = ("fill", argument) if begins else ("fill state", number)
            result = await self.engine.call(operation, words, CALL_WITHIN_S)
            answered, told = numbers_in(result, "answered"), numbers_in(result, "begun")
            self._take(state, result)
            settles = bool(told) and answered <= told <= numbers_in(result, "idle")
            if settles and self._agree(told, result):
                return
            now = trio.current_time()
            settling_since = (settling_since or now) if settles else None
            if settling_since is not None and now - settling_since > self.settles_within_s:
                return
            if now - self._asked_at > self.asked_within_s:
                raise ControlError("nobody asks for it any more")
            await trio.sleep(POLL_EVERY_S if len(self.members) <= MANY else POLL_MANY_EVERY_S)

    def _agree(self, told: set[int], result: Result) -> bool:
        """Whether all live nodes are done, and none must walk the dataset again."""
        gone = self._gone()
        everybody = self.members.numbers - gone <= told
        return everybody and result.get("min_gone") == result.get("max_gone") == len(gone)

    def _take(self, state: RingState, result: Result) -> None:
        told, gone = numbers_in(result, "begun"), self._gone()
        if not told:
            return
        lacking = numbers_in(result, "lacking") & told
        state.phase = "planning" if numbers_in(result, "planning") else "filling"
        state.files, state.files_done = result["max_files"], result["min_files_done"]
        state.chunks, state.held_chunks = result["chunks"], result["held_chunks"]
        state.total_bytes, state.done_bytes = result["total_bytes"], result["held_bytes"]
        state.left_bytes, state.failed = result["left_bytes"], result["failed"]
        state.unlisted, state.unreadable = result["max_unlisted"], result["max_unreadable"]
        state.nodes = len(told)
        state.nodes_complete = len(told - lacking)
        state.lacking = self.members.names(lacking)
        state.gone = self.members.names(gone - told)
        state.unheard = self.members.names(self.members.numbers - gone - told)

    def _gone(self) -> set[int]:
        return {int(each) for each in self.engine.node.gone()}
