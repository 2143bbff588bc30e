"""Boundary trace: what a simulated job does at the boundary of its nodes, as lines, with their
digest.

A line is a message that a node sends, an operation at the source and its outcome, a chunk that goes
to a disk or comes from one, or an answer to an application, each with its virtual time. A redesign
may change the events and actions of the node, so they are left out.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import xxhash

from copperfs.lab.sim.file_reader import Reading
from copperfs.lab.sim.payload_pieces import size_of
from copperfs.lab.sim.run_trace import told
from copperfs.lab.sim.sim_connection import End, SimulatedGreeting
from copperfs.lab.sim.sim_disk import Disk
from copperfs.lab.sim.sim_source import SimulatedSource
from copperfs.lab.sim.virtual_network import VirtualNetwork
from tests.goldens.words import in_the_old_words

Note = Callable[..., tuple[object, ...]]


@dataclass(slots=True)
class Boundary:
    tell: Callable[[str], None] | None = None
    lines: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    _digest: "xxhash.xxh3_64" = field(default_factory=xxhash.xxh3_64)

    def passes(self, now: float, kind: str, what: str) -> None:
        self.counts[kind] += 1
        self.lines += 1
        line = in_the_old_words(f"{now:12.6f} {what}")
        self._digest.update(line.encode("utf-8", "backslashreplace") + b"\n")
        if self.tell is not None:
            self.tell(line)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def observed(boundary: Boundary) -> Iterator[None]:
    """Records every simulated job in this process meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, note in (
            (VirtualNetwork, "send", _message),
            (SimulatedSource, "begin", _operation),
            (Disk, "store", _store),
            (Disk, "load", _load),
            (Reading, "_answered", _answer),
        ):
            patch.setattr(owner, name, _noting(getattr(owner, name), note, boundary))
        yield


def _noting(real: Callable[..., Any], note: Note, boundary: Boundary) -> Any:
    def call(self: Any, *arguments: Any) -> Any:
        result = real(self, *note(boundary, self, *arguments))
        if real.__name__ == "load":
            found = "nothing" if result is None else f"{size_of(result)} B"
            boundary.passes(self.clock.now, "load", f"disk gave {found}")
        return result

    return call


def _message(
    boundary: Boundary, network: VirtualNetwork, end: End, message: Any, pieces: tuple[Any, ...]
) -> tuple[object, ...]:
    if not isinstance(message, SimulatedGreeting):
        kind = type(message).__name__
        what = f"n{end.port.me} > n{end.peer} {told(message)} {size_of(pieces)} B"
        boundary.passes(network.clock.now, kind, what)
    return end, message, pieces


def _operation(
    boundary: Boundary,
    source: SimulatedSource,
    fetch: Any,
    done: Callable[..., None],
    *rest: object,
) -> tuple[object, ...]:
    kind = type(fetch).__name__
    version = getattr(fetch, "version", None)
    where = f"{fetch.path.decode('utf-8', 'backslashreplace')} {told(version)}"
    if kind == "ReadChunk":
        where += f" {fetch.offset}+{fetch.length}"
    boundary.passes(source.clock.now, kind, f"source {kind} {where}")

    def ended(arrived: Any) -> None:
        outcome = type(arrived).__name__
        error = getattr(arrived, "error", "")
        boundary.passes(source.clock.now, outcome, f"source {outcome} {error} {where}")
        done(arrived)

    return fetch, ended, *rest


def _store(boundary: Boundary, disk: Disk, key: Any, pieces: Any) -> tuple[object, ...]:
    boundary.passes(disk.clock.now, "store", f"disk takes {told(key)} {size_of(pieces)} B")
    return key, pieces


def _load(boundary: Boundary, disk: Disk, key: Any) -> tuple[object, ...]:
    boundary.passes(disk.clock.now, "ask the disk", f"disk is asked for {told(key)}")
    return (key,)


def _answer(boundary: Boundary, reading: Reading, answer: Any) -> tuple[object, ...]:
    kind = type(answer).__name__
    now = reading.host.clock.now
    path = reading.path.decode("utf-8", "backslashreplace")
    error = getattr(answer, "error", "")
    until = getattr(answer, "until", None)
    boundary.passes(now, kind, f"n{reading.node} {path}: {kind} {error} {told(until)}")
    return (answer,)
