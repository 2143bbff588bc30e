"""Request profile: sums what was requested of each path and what it cost, while a profile runs.

The front writes a record for each request (``native/front/trace.c``), which costs a little. So a
profile ends with the process that wanted it. Another profile replaces the running one.

The kernel answers from its caches without the daemon, so ``copperfs profile`` makes it forget names
and attributes first.
"""

import os
import struct
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from copperfs.daemon.engine import Engine
from copperfs.fuse.ioctl import Asked
from copperfs.fuse.publication_index import PublicationIndex
from copperfs.model.types import Path
from copperfs.native import Front

EVERY_S = 0.1
# A path takes some 500 bytes here. Paths beyond are summed by directory.
PATHS_MAX = 200_000
# When the timeline is full, pairs of bins are merged.
BINS = 200
BIN_FIRST_S = 0.01
_RECORD = struct.Struct("<QQQHBBBxxx")
KINDS = (
    *("lookup", "getattr", "readlink", "read", "readdir"),
    *("statfs", "open", "ioctl", "refused", "other"),
)
ANSWERS = ("hit", "fetch", "miss", "bypass")
_LOOKUP, _READ, _IOCTL = KINDS.index("lookup"), KINDS.index("read"), KINDS.index("ioctl")
_DIRECTORY, _REGULAR = 0o04, 0o10  # S_IFMT >> 12
_TYPES = {0: "none", _DIRECTORY: "directory", _REGULAR: "file", 0o12: "link"}
COLUMNS = (
    *("path", "type", "lookups", "in_vain", "others", "reads", "bytes"),
    *("wait_us", "max_us", "hits", "fetches", "misses", "bypasses"),
)


@dataclass(slots=True)
class _Cost:
    type: int = 0
    lookups: int = 0
    in_vain: int = 0
    others: int = 0
    reads: int = 0
    read_bytes: int = 0
    wait_ns: int = 0
    max_ns: int = 0
    answers: list[int] = field(default_factory=lambda: [0] * len(ANSWERS))

    def row(self, path: bytes) -> list[object]:
        return [
            os.fsdecode(path), _TYPES.get(self.type, "other"), self.lookups, self.in_vain,
            self.others, self.reads, self.read_bytes, self.wait_ns // 1000, self.max_ns // 1000,
            *self.answers,
        ]  # fmt: skip


@dataclass(slots=True)
class Profiler:
    front: Front
    engine: Engine
    publications: PublicationIndex
    _began_ns: int = 0
    _owner: int = 0
    _costs: dict[bytes, _Cost] = field(default_factory=dict)
    _by_kind: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    _bins: list[list[int]] = field(default_factory=list)
    """The number of requests and their waiting time, by time."""
    _bin_ns: int = 0
    _lost: int = 0

    async def begin(self, asked: Asked) -> object:
        """Its data: the number of the process with which the profile ends, if it is visible from
        here."""
        owner = int(asked.data or b"0")
        self._owner = owner if _is_there(owner) else 0
        self._costs, self._by_kind = {}, defaultdict(int)
        self._bins, self._bin_ns = [[0, 0] for _ in range(BINS)], int(BIN_FIRST_S * 1e9)
        self._began_ns, self._lost = time.monotonic_ns(), 0
        self.front.trace(True)
        return {"began": True}

    async def end(self) -> object:
        if not self._began_ns:
            return None
        # The front records a request after its answer has left.
        await trio.sleep(EVERY_S)
        if not self._began_ns:
            return None  # it has ended with its process meanwhile
        self._take()
        self.publications.pass_on_fetched(self.engine)  # of directories listed up to now
        document = self._document()
        costs = self._costs
        self._stop()
        document["listings"] = await self._listings(costs)
        return document

    async def run(self) -> None:
        while True:
            await trio.sleep(EVERY_S)
            if not self._began_ns:
                continue
            self._take()
            if self._owner and not _is_there(self._owner):
                self._stop()

    def _stop(self) -> None:
        self.front.trace(False)
        self._began_ns = 0
        self._costs = {}

    def _take(self) -> None:
        records, self._lost = self.front.traced()
        at, size = 0, _RECORD.size
        while at < len(records):
            started, took, read, length, kind, answer, type_ = _RECORD.unpack_from(records, at)
            path = records[at + size : at + size + length]
            at += size + length
            if kind == _IOCTL or started < self._began_ns:
                continue  # requests of the profile's client
            self._by_kind[kind, answer] += 1
            self._note_time(started, took)
            cost = self._cost(path)
            cost.type = type_ or cost.type
            cost.wait_ns += took
            cost.max_ns = max(cost.max_ns, took)
            cost.answers[answer] += 1
            if kind == _LOOKUP:
                cost.lookups += 1
                cost.in_vain += not type_
            elif kind == _READ:
                cost.reads += 1
                cost.read_bytes += read
            else:
                cost.others += 1

    def _cost(self, path: bytes) -> _Cost:
        cost = self._costs.get(path)
        if cost is None:
            if len(self._costs) >= PATHS_MAX:
                path = os.path.dirname(path) + b"/..."
            cost = self._costs.setdefault(path, _Cost())
        return cost

    def _note_time(self, started_ns: int, took_ns: int) -> None:
        number = (started_ns - self._began_ns) // self._bin_ns
        while number >= BINS:
            pairs = zip(self._bins[::2], self._bins[1::2], strict=True)
            self._bins = [[a[0] + b[0], a[1] + b[1]] for a, b in pairs]
            self._bins += [[0, 0] for _ in range(BINS // 2)]
            self._bin_ns *= 2
            number //= 2
        self._bins[number][0] += 1
        self._bins[number][1] += took_ns

    def _document(self) -> dict[str, Any]:
        elapsed_ns = time.monotonic_ns() - self._began_ns
        return {
            "version": 1,
            "seconds": elapsed_ns / 1e9,
            "lost": self._lost,
            "requests": {
                kind: {name: self._by_kind[number, answer] for answer, name in enumerate(ANSWERS)}
                for number, kind in enumerate(KINDS)
                if any(self._by_kind[number, answer] for answer in range(len(ANSWERS)))
            },
            "bin_s": self._bin_ns / 1e9,
            "bins": [
                [count, wait_ns // 1000]
                for count, wait_ns in self._bins[: elapsed_ns // self._bin_ns + 1]
            ],
            "columns": COLUMNS,
            "paths": [cost.row(path) for path, cost in sorted(self._costs.items())],
        }

    async def _listings(self, costs: Mapping[bytes, _Cost]) -> list[list[object]]:
        """The names, files and bytes of each directory with a lookup whose listing is held."""
        asked = {os.path.dirname(path) for path in costs}
        asked |= {path for path, cost in costs.items() if cost.type == _DIRECTORY}
        found: list[list[object]] = []
        for directory in sorted(asked):
            await trio.lowlevel.checkpoint()  # there may be thousands
            held = self.engine.node.held_listing(Path(directory))
            if held is None or held[0].bare:
                continue
            sizes = [
                entry.attributes.size for _, entry in held[0].rows() if entry.attributes.is_file()
            ]
            found.append([os.fsdecode(directory), held[0].count, len(sizes), sum(sizes)])
        return found


def _is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
