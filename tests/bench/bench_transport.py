"""`tree`: from a leaf to the root and back, through a tree of 31 processes on this machine.

Fan-out 2, depth 4: four hops up with a request, four down with the reply, in parts of 1 MiB. Beside
it run blocking ZeroMQ sockets in a tree of the same shape, at the same time, with CURVE and
without. No node caches anything.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator

import zmq

from copperfs.model.roster import Member, Roster
from tests.bench.lab import FAILURES, Context
from tests.bench.processes import CannotMeasureError, end
from tests.bench.results import JUDGED, MIB, Measure, Target, at_most
from tests.net.process import Spec

NODES = 31
FAN_OUT = 2
RAW = "zeromq"
PROGRAMS = {RAW: "tests.bench.raw_node", JUDGED: "tests.net.process"}
# The paper: below 1 ms up to 128 KiB in 31 nodes.
SIZES: tuple[tuple[int, int, str, Target | None], ...] = (
    (128, 40, "128 B", at_most(1e-3, of="value")),
    (4 << 10, 40, "4 KiB", at_most(1e-3, of="value")),
    (128 << 10, 20, "128 KiB", at_most(1e-3, of="value")),
    (MIB, 10, "1 MiB", None),
    (10 * MIB, 3, "10 MiB", None),
)


def run(context: Context) -> Iterator[Measure]:
    for security in ("none", "curve"):
        samples: dict[int, dict[str, list[float]]] = {size: {} for size, *_ in SIZES}
        with contextlib.ExitStack() as stack:
            leaves = {}
            for name, program in PROGRAMS.items():
                try:
                    leaves[name] = stack.enter_context(tree(program, security == "curve"))
                except FAILURES as error:
                    context.note(f"tree: {name}: {error}")
            for turn in range(context.repeats):
                context.progress(f"tree, {security}, round {turn + 1} of {context.repeats}")
                for size, count, *_ in SIZES:
                    for name, leaf in leaves.items():
                        taken = command(leaf, f"{size} {count}")
                        samples[size].setdefault(name, []).append(statistics.median(taken))
        for size, _, text, target in SIZES:
            yield Measure(
                "tree",
                f"there and back, {text}" + (", curve" if security == "curve" else ""),
                "s",
                samples[size],
                yardstick=RAW,
                target=target,
            )


@contextlib.contextmanager
def tree(program: str, curve: bool) -> Iterator[subprocess.Popen[bytes]]:
    """The last one, a leaf at depth 4, sends the requests."""
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            for _ in range(NODES)
        ]
        keys = [zmq.curve_keypair() if curve else None for _ in range(NODES)]
        members = [
            Member(
                f"node{i}",
                f"tcp://127.0.0.1:{listener.getsockname()[1]}",
                key[0].decode() if key else "",
            )
            for i, (listener, key) in enumerate(zip(listeners, keys, strict=True))
        ]
        roster = Roster("bench", tuple(members)).to_json()
        processes = []
        for node, (listener, key) in enumerate(zip(listeners, keys, strict=True)):
            parent = (node - 1) // FAN_OUT if node else None
            spec = Spec(roster, node, listener.fileno(), parent, key[1].decode() if key else None)
            processes.append(stack.enter_context(process(program, spec)))
        for node, each in enumerate(processes):
            expect(each, b"listening\n")
            if node:
                expect(each, b"connected\n")
        for listener in listeners:
            listener.close()
        yield processes[-1]


@contextlib.contextmanager
def process(program: str, spec: Spec) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(
        [sys.executable, "-m", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[spec.descriptor],
        start_new_session=True,
    )
    assert started.stdin is not None
    assert started.stdout is not None
    try:
        started.stdin.write(spec.to_json().encode() + b"\n")
        started.stdin.flush()
        yield started
    finally:
        with contextlib.suppress(BrokenPipeError):
            started.stdin.close()
        end(started)
        started.stdout.close()


def expect(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdout is not None
    if (said := process.stdout.readline()) != line:
        raise CannotMeasureError(f"a node said {said!r}, not {line!r}")


def command(process: subprocess.Popen[bytes], line: str) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise CannotMeasureError("the leaf ended")
    return [float(value) for value in json.loads(answer)]
