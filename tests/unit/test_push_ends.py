"""Pushes end, whatever becomes of the nodes that read: three real engines with a real source."""

import json
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import pytest
import trio

from copperfs.config.settings import Settings
from copperfs.daemon.collective_ops import CollectiveOperations, Result, pack
from copperfs.daemon.job_requests import JobMember
from copperfs.daemon.warmup_push import PushWarmup
from copperfs.daemon.warmup_walk import ARGUMENT_BYTES_MAX
from copperfs.model.roster import Member, Roster
from copperfs.model.types import Path, Version
from copperfs.native.blob import Blob
from tests.unit.test_chain import chain

ROOT, LEAF = 0, 2
LONG_S = 1000.0


@pytest.fixture
def source(tmp_path: FilePath) -> FilePath:
    root = tmp_path / "source"
    (root / "d").mkdir(parents=True)
    for number in range(20):
        (root / "d" / f"f{number}").write_bytes(b"%d" % number * 100)
    return root


@dataclass
class Set:
    jobs: list[JobMember]
    request: FilePath

    async def warm_up(self) -> Result:
        job = self.jobs[LEAF]
        async with trio.open_nursery() as nursery:
            await job.warmup_coordinator.start(nursery, str(self.request))
        return job.warmup_coordinator.state()


@asynccontextmanager
async def job_of_three(source: FilePath, silence_s: float) -> AsyncIterator[Set]:
    request = source.parent / "request"
    request.write_text(json.dumps({"paths": ["d"]}))
    members = tuple(Member(f"n{each}", f"tcp://127.0.0.1:{each + 1}") for each in range(3))
    async with chain(source) as scene:
        jobs = []
        for engine in scene.engines:
            settings = Settings(mountpoint="/mnt", memory_bytes=64 << 20)
            jobs.append(JobMember(engine, settings, dict, lambda: None, Roster("job", members)))
            warmup = jobs[-1].warmup_coordinator.warmup
            warmup.silence_s, warmup.alive_every_s = silence_s, 0.1
        for job in jobs:
            await job.readiness.wait()
        yield Set(jobs, request)


def replaced(job: JobMember, name: str, operation: Callable[[Result], Any]) -> None:
    job.engine.calls.operations = CollectiveOperations(
        {**job.engine.calls.operations.by_name, name: operation}
    )


def test_nobody_waits_for_a_root_that_does_nothing(
    source: FilePath, expected_warnings: Callable[[str], None]
) -> None:
    expected_warnings("a bug: push failed")

    async def main() -> None:
        async with job_of_three(source, silence_s=0.5) as jobs:

            async def broken(_: Result) -> Result:
                raise RuntimeError("broken")

            replaced(jobs.jobs[ROOT], "push", broken)
            state = await jobs.warm_up()
            assert (state["phase"], state["unread"]) == ("done", ["n0"])
            assert (state["nodes"], state["nodes_complete"]) == (3, 0)
            assert state["lacking"] == ["n0", "n1", "n2"]

    trio.run(main)


def test_a_root_that_fails_on_the_way_tells_the_others_at_once(
    source: FilePath,
    expected_warnings: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected_warnings("a bug: push failed")
    have_read = PushWarmup._object
    count = 0

    async def breaks(self: PushWarmup, path: Path, version: Version) -> Blob:
        nonlocal count
        count += 1
        if count > 10:
            raise RuntimeError("broken")
        return await have_read(self, path, version)

    monkeypatch.setattr(PushWarmup, "_object", breaks)

    async def main() -> None:
        async with job_of_three(source, silence_s=LONG_S) as jobs:
            state = await jobs.warm_up()
            assert (state["phase"], state["unread"]) == ("done", ["n0"])
            assert state["nodes_complete"] == 0
            assert not jobs.jobs[LEAF].engine.node.pushes.running

    trio.run(main)


def test_a_slow_source_is_no_silence(source: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    have_read = PushWarmup._object

    async def slowly(self: PushWarmup, path: Path, version: Version) -> Blob:
        await trio.sleep(5.0)
        return await have_read(self, path, version)

    monkeypatch.setattr(PushWarmup, "_object", slowly)

    async def main() -> None:
        async with job_of_three(source, silence_s=3.0) as jobs:
            state = await jobs.warm_up()
            assert (state["phase"], state["unread"]) == ("done", [])
            assert state["nodes_complete"] == 3

    trio.run(main)


def test_who_is_held_up_by_its_own_children_does_not_call_it_silence(source: FilePath) -> None:
    async def main() -> None:
        async with job_of_three(source, silence_s=0.1) as jobs:
            job = jobs.jobs[1]
            ended = trio.Event()

            async def take_part() -> None:
                await job.warmup_coordinator.warmup.push({"push": 7, "tree": 0, "directories": {}})
                ended.set()

            async with trio.open_nursery() as nursery:
                job.engine.node.flow.backlog_bytes = 100
                nursery.start_soon(take_part)
                with trio.move_on_after(0.5):
                    await ended.wait()
                assert not ended.is_set()
                job.engine.node.flow.backlog_bytes = 0
                await ended.wait()

    trio.run(main)


def test_directories_apart_are_looked_up_in_calls_that_can_be_sent(source: FilePath) -> None:
    """No listing of the set has these directories: they may only be searched."""
    draw = random.Random(1)
    paths = [draw.randbytes(100).hex() for _ in range(3000)]
    looked: list[str] = []

    async def main() -> None:
        async with job_of_three(source, silence_s=LONG_S) as jobs:

            async def look(argument: Result) -> Result:
                assert len(pack(argument)) <= ARGUMENT_BYTES_MAX + 100
                looked.extend(argument["paths"])
                return {}

            replaced(jobs.jobs[ROOT], "look", look)
            sets = jobs.jobs[LEAF].warmup_coordinator
            plan = sets._plan

            async def with_more(request: dict[str, Any]) -> Any:
                made = await plan(request)
                made.apart = [Path(os.fsencode(each)) for each in paths]
                return made

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(sets), "_plan", lambda _, request: with_more(request))
                await jobs.warm_up()

    trio.run(main)
    assert looked == paths
