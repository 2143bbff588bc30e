"""Carries out the troubles of a schedule: sick names and servers, strangers, clears, and a thread
that removes and adds names in a directory all the time."""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.chaos.content import WALK
from tests.chaos.judge import Sick
from tests.chaos.mixture import CROWD, SERVERS, SLOW_S, Trouble
from tests.mount.helpers import copperfs

if TYPE_CHECKING:
    from tests.chaos.arena import Arena
    from tests.chaos.schedule import Schedule

ASK_WITHIN_S = 60.0
CONNECTS_WITHIN_S = 2.0
CHANGE_EVERY_S = 0.02
READS = ("open", "read")


class Around:
    """At its end, or at ``finish``, all is well again."""

    def __init__(self, arena: Arena, schedule: Schedule, sick: list[Sick]) -> None:
        self.arena = arena
        self.schedule = schedule
        self.sick = sick
        """For the judge; the list grows as names get sick."""
        self.problems: list[str] = []
        self._begun: dict[Trouble, Callable[[], None]] = {}
        self._pool = ThreadPoolExecutor(max(1, len(schedule.troubles)))
        self._doing: list[Future[None]] = []
        self._changer: _Changer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.finish()
        self._pool.shutdown()

    def begin(self) -> None:
        """Before anything is read."""
        if self.schedule.environment is not None:
            content = self.arena.content
            self._changer = _Changer(content.source / WALK, content.passing, self.schedule.seed)
        for each in self.schedule.troubles:
            if each.at_s == 0.0 and each.kind in ("sick", "server"):
                self._begin(each)

    def steps(self) -> list[tuple[float, Callable[[], object]]]:
        steps: list[tuple[float, Callable[[], object]]] = []
        for each in self.schedule.troubles:
            if each not in self._begun:
                steps.append((each.at_s, partial(self._begin, each)))
            steps.append((each.ends_s, partial(self._end, each)))
        return steps

    def finish(self) -> list[str]:
        """End all troubles; return what could not be done."""
        for each in list(self._begun):
            self._end(each)
        for doing in self._doing:
            try:
                doing.result()
            except Exception as error:  # noqa: BLE001  # it is told as a problem of the schedule
                self.problems.append(f"{type(error).__name__}: {error}")
        self._doing.clear()
        if self._changer is not None:
            self._changer.end()
            self._changer = None
        problems, self.problems = self.problems, []
        return problems

    def _begin(self, trouble: Trouble) -> None:
        match trouble.kind:
            case "sick":
                self._begun[trouble] = self._sicken(trouble)
            case "server":
                self._begun[trouble] = self._sicken_server(trouble)
            case "crowd":
                crowd = _Crowd()
                self._begun[trouble] = crowd.end
                self._doing.append(self._pool.submit(self._gather_crowd, trouble, crowd))
            case "clear":
                self._doing.append(self._pool.submit(self._clear, trouble))

    def _end(self, trouble: Trouble) -> None:
        if (end := self._begun.pop(trouble, None)) is not None:
            end()

    # ---- the source

    def _sicken(self, trouble: Trouble) -> Callable[[], None]:
        standin = self.arena.standin
        if trouble.how == "hang":
            rule = standin.hang(trouble.target)
            return partial(standin.release, rule)
        name = trouble.how.removeprefix("read-")
        code = getattr(errno, name)
        sick = Sick(frozenset([trouble.target]), code, time.monotonic())
        self.sick.append(sick)
        rule = standin.fail(trouble.target, code, ops=READS if name != trouble.how else ())
        return partial(self._heal, rule, sick)

    def _sicken_server(self, trouble: Trouble) -> Callable[[], None]:
        standin, number = self.arena.standin, int(trouble.target)
        if trouble.how == "slow":
            rule = standin.delay("data/**", SLOW_S, server=number)
            return partial(standin.release, rule)
        source = self.arena.content.source
        paths = frozenset(
            str(each.relative_to(source))
            for each in (source / "data").glob("*/*")
            if each.stat().st_ino % SERVERS == number
        )
        sick = Sick(paths, errno.EIO, time.monotonic())
        self.sick.append(sick)
        return partial(self._heal, standin.fail("data/**", errno.EIO, server=number), sick)

    def _heal(self, rule: int, sick: Sick) -> None:
        self.arena.standin.release(rule)
        sick.ended = time.monotonic()

    # ---- the nodes

    def _clear(self, trouble: Trouble) -> None:
        """On any node that replies; a node that is cut off cannot be cleared at once."""
        hurt = {each.node for each in self.schedule.faults}
        node = next(each for each in range(self.schedule.nodes) if each not in hurt)
        mountpoint = self.arena.cluster.mnt(node)
        done = copperfs("clear", "--json", mountpoint, timeout_s=ASK_WITHIN_S)
        if done.returncode != 0 and not hurt:
            raise RuntimeError(f"{trouble}: {done.stderr}")

    def _gather_crowd(self, trouble: Trouble, crowd: _Crowd) -> None:
        """Strangers can connect only from the network of another node."""
        host, _, port = self.arena.endpoint(trouble.node).removeprefix("tcp://").rpartition(":")
        other = (trouble.node + 1) % self.schedule.nodes
        self.arena.network.within(other, partial(crowd.gather, (host, int(port))))


class _Crowd:
    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._ended = threading.Event()

    def gather(self, address: tuple[str, int]) -> None:
        for _ in range(CROWD):
            if self._ended.is_set():
                break
            try:
                self._sockets.append(socket.create_connection(address, CONNECTS_WITHIN_S))
            except OSError:
                continue  # its daemon was killed, or its link cut
        if self._ended.is_set():
            self._close()

    def end(self) -> None:
        self._ended.set()
        self._close()

    def _close(self) -> None:
        for each in self._sockets:
            each.close()


class _Changer:
    def __init__(self, directory: Path, names: tuple[str, ...], seed: int) -> None:
        self._directory = directory
        self._names = names
        self._numbers = random.Random(f"changes {seed}")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        there = set(self._names)
        while not self._ended.wait(CHANGE_EVERY_S):
            name = self._numbers.choice(self._names)
            if name in there:
                os.unlink(self._directory / name)
            else:
                (self._directory / name).touch()
            there ^= {name}
        for name in self._names:
            with suppress(FileExistsError):
                (self._directory / name).touch(exist_ok=False)
