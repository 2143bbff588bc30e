"""Nodes as processes, which are killed, stopped and started again."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from copperfs.model.types import NodeId, Path, Version
from copperfs.node.peer.messages import PART_BYTES, ContentKind, DataReply, Request
from copperfs.transport.interface import Connected, Lost
from tests.net.process import Spec
from tests.net.world import LIMITS, ZeroWorld, trio_test, zero_world

ANY = Version(1, 2, 3, 4)


@asynccontextmanager
async def process(
    world: ZeroWorld, node: int, parent: int | None = None, silent_s: float = 10.0
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Killed at the end. The context begins when the node listens."""
    with world.listener(node) as listener:
        spec = Spec(
            world.roster.to_json(),
            node,
            listener.fileno(),
            parent,
            world.secret_keys[node],
            silent_s / 4,
            silent_s,
        )
        started = subprocess.Popen(  # noqa: ASYNC220 - starts at once
            [sys.executable, "-m", "tests.net.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
    assert started.stdin is not None
    assert started.stdout is not None
    try:
        started.stdin.write(spec.to_json().encode() + b"\n")
        started.stdin.flush()
        await trio.lowlevel.wait_readable(started.stdout)
        yield started
    finally:
        started.kill()
        started.stdin.close()
        started.stdout.close()
        started.wait()


@pytest.mark.parametrize("curve", [False, True])
@trio_test
async def test_a_killed_child_is_lost_and_its_successor_is_connected(curve: bool) -> None:
    async with zero_world(2, curve=curve) as world:
        parent = await world.start(0)
        lost, connected = Lost(NodeId(1)), Connected(NodeId(1))
        async with process(world, 1, parent=0) as child:
            await parent.hears(connected)
            child.send_signal(signal.SIGKILL)
            await parent.hears(lost)
        async with process(world, 1, parent=0):
            await parent.hears(connected, times=2)
        await parent.hears(lost, times=2)
        assert parent.heard == [connected, lost] * 2


@pytest.mark.parametrize("curve", [False, True])
@trio_test
async def test_a_killed_parent_is_lost_and_its_successor_is_asked_afresh(curve: bool) -> None:
    async with zero_world(2, curve=curve) as world:
        child = await world.start(1)
        root = NodeId(0)
        child.transport.connect(root)
        async with process(world, 0) as parent:
            await child.hears(Connected(root))
            os.kill(parent.pid, signal.SIGSTOP)
            for number in range(50):
                child.transport.send(root, Request(number, 0, ContentKind.OBJECT, Path(b"1"), ANY))
            parent.kill()
            await child.hears(Lost(root))
        async with process(world, 0):
            await child.hears(Connected(root), times=2)
            child.transport.send(
                root, Request(99, 0, ContentKind.OBJECT, Path(b"%d" % PART_BYTES), ANY)
            )
            await child.until(child.received)
            assert child.received() == [DataReply(99, 0, 0, PART_BYTES)]


@trio_test
async def test_a_stopped_process_is_lost_by_its_silence() -> None:
    limits = replace(LIMITS, heartbeat_s=0.1, silent_s=0.4)
    async with zero_world(2, limits=limits) as world:
        parent = await world.start(0)
        async with process(world, 1, parent=0) as child:
            await parent.hears(Connected(NodeId(1)))
            child.send_signal(signal.SIGSTOP)
            await parent.hears(Lost(NodeId(1)))
            child.send_signal(signal.SIGCONT)
            await parent.until(lambda: parent.heard.count(Connected(NodeId(1))) >= 2)


@trio_test
async def test_a_listening_socket_is_inherited_and_answers_what_connected_before() -> None:
    async with zero_world(2) as world:
        child = await world.start(1)
        child.transport.connect(NodeId(0))
        async with process(world, 0):
            await child.hears(Connected(NodeId(0)))
