"""Dataset of many files, and a training that reads all of it, shuffled, in each epoch.

The sizes of the files are spread evenly over their logarithms. One pool of random bytes has the
content of all files, each cut at a different position. A wrong byte is an error like a failed read.

An *epoch* deals all files out to the live nodes. Each node reads another part in each of as many
epochs as there are nodes, in another order, with some threads, in reads of 1 MiB. A reader drops
the pages of a file when it has read it, or the shared page cache would serve the second epoch.

Nodes may be killed while an epoch runs (``Fall``); the others read the rest of its files. An error
counts if the node that returned it is alive.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

READ_BYTES = 1 << 20
KIB, MIB = 1 << 10, 1 << 20
POOL_BYTES = 17 * MIB
DIRECTORIES = 16


@dataclass(frozen=True, slots=True)
class DataFile:
    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Dataset:
    directory: Path
    files: list[DataFile]

    @property
    def total_bytes(self) -> int:
        return sum(each.size for each in self.files)


def make_dataset(
    directory: Path, count: int, smallest: int = 256 * KIB, largest: int = 8 * MIB, seed: int = 1
) -> Dataset:
    """Make the dataset in some directories, or find it as it was made."""
    tree, index = directory / "data", directory / "index.json"
    wanted = {"count": count, "smallest": smallest, "largest": largest, "seed": seed}
    if index.exists():
        known = json.loads(index.read_text())
        if known["wanted"] == wanted:
            return Dataset(tree, [DataFile(*each) for each in known["files"]])
    numbers = random.Random(seed)
    pool = memoryview(numbers.randbytes(POOL_BYTES))
    files = []
    for number in range(count):
        size = round(smallest * math.exp(numbers.random() * math.log(largest / smallest)))
        at = numbers.randrange(POOL_BYTES - size)
        name = f"part{number % DIRECTORIES:02}/{number:06}.bin"
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pool[at : at + size])
        files.append(DataFile(name, size, xxhash.xxh3_128_hexdigest(pool[at : at + size])))
    index.write_text(
        json.dumps(
            {
                "wanted": wanted,
                "files": [(each.name, each.size, each.digest) for each in files],
            }
        )
    )
    os.sync()
    return Dataset(tree, files)


def give_back(path: Path) -> None:
    """The kernel drops clean pages only."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def give_back_all(*directories: Path) -> None:
    """Drop the pages of all files below these, and write what is dirty first."""
    os.sync()
    for directory in directories:
        for above, _, names in os.walk(directory):
            for name in names:
                try:
                    give_back(Path(above, name))
                except FileNotFoundError:  # a chunk that was evicted meanwhile
                    continue


@dataclass(frozen=True, slots=True)
class Fall:
    """A node is killed when this many files of the epoch have been read."""

    node: int
    pid: int
    after_files: int


@dataclass(slots=True)
class Read:
    wall_s: float
    read_bytes: int
    errors: list[str]
    slowest_s: float


def deal(dataset: Dataset, nodes: Sequence[int], epoch: int) -> dict[int, list[DataFile]]:
    files = list(dataset.files)
    random.Random("parts").shuffle(files)
    parts: dict[int, list[DataFile]] = {node: [] for node in nodes}
    for position, file in enumerate(files):
        parts[nodes[(position + epoch) % len(nodes)]].append(file)
    for node, part in parts.items():
        random.Random(f"{epoch} {node}").shuffle(part)
    return parts


def read_epoch(
    dataset: Dataset,
    mounts: Mapping[int, Path],
    number: int,
    *,
    readers: int = 2,
    bytes_per_s: float | None = None,
    keep_pages: bool = False,
    fall: Fall | None = None,
) -> Read:
    """Read all files once, by the live nodes; with *bytes_per_s* each reader computes after each
    file at that rate."""
    nodes = sorted(mounts)
    epoch = _Epoch(dict(mounts), bytes_per_s, keep_pages, fall)
    for node, part in deal(dataset, nodes, number).items():
        epoch.parts[node] = deque(part)
    start = time.monotonic()
    while any(epoch.parts.values()):
        living = [node for node in nodes if node not in epoch.dead]
        epoch.deal_what_is_left(living)
        threads = [
            threading.Thread(target=epoch.run, args=(node,))
            for node in living
            for _ in range(readers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wall_s = time.monotonic() - start
    return Read(wall_s, epoch.read_bytes, epoch.errors, epoch.slowest_s)


@dataclass(slots=True)
class _Epoch:
    mounts: dict[int, Path]
    bytes_per_s: float | None
    keep_pages: bool
    fall: Fall | None
    parts: dict[int, deque[DataFile]] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    read_files: int = 0
    read_bytes: int = 0
    slowest_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def deal_what_is_left(self, living: Sequence[int]) -> None:
        left = [file for node in self.dead for file in self.parts.pop(node, ())]
        for position, file in enumerate(left):
            node = living[position % len(living)]
            self.parts.setdefault(node, deque()).append(file)

    def run(self, node: int) -> None:
        """One reader."""
        with mmap.mmap(-1, READ_BYTES) as buffer:
            while (file := self._next(node)) is not None:
                begun = time.monotonic()
                error = self._try(node, file, buffer)
                took_s = time.monotonic() - begun
                self._done(node, file, error, took_s)
                if self.bytes_per_s is not None and error is None:
                    time.sleep(file.size / self.bytes_per_s)

    def _next(self, node: int) -> DataFile | None:
        with self._lock:
            part = self.parts.get(node)
            if node in self.dead or not part:
                return None
            return part.popleft()

    def _try(self, node: int, file: DataFile, buffer: mmap.mmap) -> str | None:
        try:
            return self._judge(self.mounts[node] / file.name, file, buffer)
        except OSError as error:
            return f"{error.strerror} ({file.name})"

    def _judge(self, path: Path, file: DataFile, buffer: mmap.mmap) -> str | None:
        digest = xxhash.xxh3_128()
        size = 0
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with memoryview(buffer) as view:
                while got := os.readv(fd, [view]):
                    digest.update(view[:got])
                    size += got
            if not self.keep_pages:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        if size != file.size:
            return f"{size} bytes instead of {file.size} ({file.name})"
        return None if digest.hexdigest() == file.digest else f"wrong bytes ({file.name})"

    def _done(self, node: int, file: DataFile, error: str | None, took_s: float) -> None:
        with self._lock:
            if error is None:
                self.read_files += 1
                self.read_bytes += file.size
                self.slowest_s = max(self.slowest_s, took_s)
            elif node in self.dead:
                self.parts.setdefault(node, deque()).append(file)
            else:
                self.errors.append(f"node {node}: {error}")
            fall = self.fall
            if fall is not None and self.read_files >= fall.after_files:
                self.fall = None
                self.dead.add(fall.node)
                os.kill(fall.pid, signal.SIGKILL)
