"""Stand-in for the node: gives files in chunks at once, evicts them, or lets readers wait, as a
test says by lines of JSON on the daemon's standard input.

In ``ChunkedMount`` the front, the handlers and the engine are the real daemon's. In production only
a job of several nodes or a disk causes these events, at their own time: an eviction between
publishing and retrying, or a chunk that never arrives.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from contextlib import suppress
from pathlib import Path as FilePath
from random import Random
from typing import Any

import trio

from copperfs.config.settings import Settings
from copperfs.daemon import daemon_main as daemon
from copperfs.daemon.engine import Engine
from copperfs.model.types import BlobId, ChunkKey
from copperfs.native.blob import new_blob
from copperfs.node.actions import Action, AnswerChunk, AnswerError, Evict, ReleaseBlob
from copperfs.node.events import Clear, Event, ReadRequest, Used
from copperfs.node.limits_and_counters import Limits
from copperfs.node.membership.failure_detector import Timeouts
from copperfs.node.node import Node
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees
from copperfs.source.source_interface import Fetcher
from tests.mount.helpers import Mount, eventually

KIB = 1 << 10


class ChunkingNode(Node):
    above: int
    chunk_bytes: int
    budget: int
    source_root: bytes
    engine: Engine

    def set_up(self, above: int, chunk_bytes: int, budget: int, source_root: bytes) -> None:
        self.above, self.chunk_bytes, self.budget = above, chunk_bytes, budget
        self.source_root = source_root
        self.in_hand: OrderedDict[ChunkKey, BlobId] = OrderedDict()
        self.read: Counter[str] = Counter()
        self.asked = 0
        self.used_chunks: set[int] = set()
        self.holding: set[int] = set()
        self.failing: dict[int, int] = {}
        self.waiting: list[ReadRequest] = []

    def step(self, now: float, event: Event) -> list[Action]:
        match event:
            case ReadRequest(version=version) if version.size > self.above:
                self.asked += 1
                return self._give(event)
            case Used(keys):
                self.used_chunks.update(key.index for key in keys if isinstance(key, ChunkKey))
            case Clear():
                return super().step(now, event) + self._evict_down_to(0)
        return super().step(now, event)

    def _give(self, read: ReadRequest) -> list[Action]:
        assert not isinstance(read.request, tuple)
        key = ChunkKey(read.path, read.version, read.offset // self.chunk_bytes)
        if key.index in self.holding:
            self.waiting.append(read)
            return []
        if key.index in self.failing:
            return [AnswerError(read.request, self.failing[key.index])]
        if key not in self.in_hand:
            blob = self._from_source(key)
            if blob is None:
                return [AnswerError(read.request, errno.ESTALE)]
            self.in_hand[key] = blob
        self.in_hand.move_to_end(key)
        answer = AnswerChunk(read.request, key, self.in_hand[key], self.chunk_bytes)
        return [answer, *self._evict_down_to(self.budget)]

    def _from_source(self, key: ChunkKey) -> BlobId | None:
        self.read[f"{os.fsdecode(key.path)}:{key.index}"] += 1
        begin = key.index * self.chunk_bytes
        blob = new_blob(min(self.chunk_bytes, key.version.size - begin))
        with open(os.path.join(self.source_root, key.path), "rb", buffering=0) as file:
            got = os.preadv(file.fileno(), [blob.view], begin)
            if os.fstat(file.fileno()).st_mtime_ns != key.version.mtime_ns:
                return None
        blob.seal(got)
        return self.engine.blobs.keep_blob(blob)

    def _evict_down_to(self, count: int) -> list[Action]:
        actions: list[Action] = []
        while len(self.in_hand) > count:
            key, blob = self.in_hand.popitem(last=False)
            actions += [Evict(key), ReleaseBlob(blob)]
        return actions

    # --- commands of a test ----------------------------------------------------------------------

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        if "hold" in command:
            self.holding = set(command["hold"])
            waiting, self.waiting = self.waiting, []
            for read in waiting:
                self.engine.post(read)
                self.asked -= 1
        if "fail" in command:
            self.failing = {int(index): code for index, code in command["fail"].items()}
        if "budget" in command:
            self.budget = command["budget"]
            for action in self._evict_down_to(self.budget):
                self.engine.driver.perform(action)
        if "unpublish" in command:
            for key in self.in_hand:
                self.engine.publications.withdraw(key)
        if "reset" in command:
            self.read.clear()
            self.asked = 0
            self.used_chunks.clear()
        return {
            "read": dict(self.read),
            "asked": self.asked,
            "used": sorted(self.used_chunks),
            "held": len(self.in_hand),
            "waiting": len(self.waiting),
            "blobs": len(self.engine.blobs.held),
        }


def main() -> int:
    settings = Settings.from_json(sys.argv[1])
    above, chunk_bytes, budget = map(int, sys.argv[2:5])

    def make_node(
        policy: Policy,
        limits: Limits,
        trees: Trees | None,
        patience: Timeouts,
        random: Random,
        *others: Any,
    ) -> ChunkingNode:
        node = ChunkingNode(policy, limits, trees, patience, random, *others)
        node.set_up(above, chunk_bytes, budget, os.path.realpath(os.fsencode(settings.source)))
        return node

    def make_engine(node: ChunkingNode, fetcher: Fetcher, publications: Any) -> Engine:
        node.engine = Engine(node, fetcher, publications)
        token = trio.lowlevel.current_trio_token()
        threading.Thread(target=_listen, args=(node, token), daemon=True).start()
        return node.engine

    for part, make in {"Node": make_node, "Engine": make_engine}.items():
        assert hasattr(daemon, part)
        setattr(daemon, part, make)
    daemon.set_up_logging(settings, to_stderr=True)
    daemon.Daemon(settings).run(lambda: print("mounted", flush=True))
    return 0


def _listen(node: ChunkingNode, token: trio.lowlevel.TrioToken) -> None:
    for line in sys.stdin:
        said = trio.from_thread.run_sync(node.obey, json.loads(line), trio_token=token)
        print(json.dumps(said), flush=True)


class ChunkedMount(Mount):
    """Files above *above* bytes come in chunks, of which *budget* are held."""

    def __init__(
        self,
        source: FilePath,
        mountpoint: FilePath,
        *,
        above: int = 64 * KIB,
        chunk_bytes: int = 64 * KIB,
        budget: int = 1 << 20,
        **settings: Any,
    ) -> None:
        super().__init__(source, mountpoint)
        self.arguments = [str(each) for each in (above, chunk_bytes, budget)]
        self.settings = settings
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.mountpoint.mkdir(exist_ok=True)
        settings = Settings(
            mountpoint=str(self.mountpoint),
            source=str(self.source),
            log_file=str(self.log),
            tree_max_bytes=int(self.arguments[0]),
            **({"memory_bytes": 256 << 20} | self.settings),
        )
        command = [sys.executable, "-m", "tests.mount.chunked", settings.to_json()]
        self.process = subprocess.Popen(
            [*command, *self.arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said == "mounted\n", self.log.read_text() if self.log.exists() else "no log"
        self.pid = self.process.pid

    def tell(self, **command: Any) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def wait_for_waiting(self, count: int) -> None:
        eventually(lambda: self.tell()["waiting"] >= count, f"{count} readers wait")

    def remove(self) -> None:
        super().remove()
        if self.process is not None:
            # a command that it no longer reads is lost
            with suppress(BrokenPipeError), self.process:
                self.process.wait(10)


if __name__ == "__main__":
    sys.exit(main())
