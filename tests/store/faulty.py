"""Faulty disk: the real file operations, with faults at exactly chosen moments.

``failing`` makes operations of a name fail from now on. ``at`` calls something at the n-th
operation of all threads. ``hold`` keeps operations of a name waiting until the test releases them.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from copperfs.chunkstore.disk_ops import READ, Files, RealFiles


@dataclass
class FaultyFiles(RealFiles):
    failing: dict[str, int] = field(default_factory=dict)
    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    free: int | None = None
    _held: dict[str, threading.Event] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, name: str) -> None:
        self._held[name] = threading.Event()

    def let_go(self, name: str) -> None:
        self._held.pop(name).set()

    def _step(self, name: str) -> None:
        with self._lock:
            self.done.append(name)
            act = self.at.get(len(self.done))
        gate = self._held.get(name)
        if gate is not None:
            assert gate.wait(30)
        if act is not None:
            act()
        if name in self.failing:
            raise OSError(self.failing[name], os.strerror(self.failing[name]))

    def open(self, path: str, flags: int, directory: int | None = None) -> int:
        self._step("open")
        return super().open(path, flags, directory)

    def load(
        self, path: str, directory: int, size: int, head_bytes: int, rest: memoryview
    ) -> bytes | None:
        return load_in_steps(self, path, directory, size, head_bytes, rest)

    def stat(self, fd: int) -> os.stat_result:
        self._step("stat")
        return super().stat(fd)

    def mkdir(self, path: str, directory: int | None = None) -> None:
        self._step("mkdir")
        super().mkdir(path, directory)

    def names(self, fd: int) -> list[str]:
        self._step("names")
        return super().names(fd)

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        self._step("preadv")
        return super().preadv(fd, buffers, offset)

    def writev(self, fd: int, buffers: Sequence[bytes | memoryview]) -> int:
        self._step("writev")
        return super().writev(fd, buffers)

    def rename(self, old: str, old_directory: int, new: str, new_directory: int) -> None:
        self._step("rename")
        super().rename(old, old_directory, new, new_directory)

    def unlink(self, path: str, directory: int) -> None:
        self._step("unlink")
        super().unlink(path, directory)

    def free_bytes(self, fd: int) -> int:
        self._step("free_bytes")
        return super().free_bytes(fd) if self.free is None else self.free

    def lock(self, fd: int) -> None:
        self._step("lock")
        super().lock(fd)


@dataclass
class ShortFiles(RealFiles):
    """Reads and writes a few bytes at a time, as the kernel may."""

    bytes_max: int = 1000

    def load(
        self, path: str, directory: int, size: int, head_bytes: int, rest: memoryview
    ) -> bytes | None:
        return load_in_steps(self, path, directory, size, head_bytes, rest)

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        return super().preadv(fd, [memoryview(buffers[0])[: self.bytes_max]], offset)

    def writev(self, fd: int, buffers: Sequence[bytes | memoryview]) -> int:
        return super().writev(fd, [memoryview(buffers[0])[: self.bytes_max]])


def load_in_steps(
    files: Files, path: str, directory: int, size: int, head_bytes: int, rest: memoryview
) -> bytes | None:
    """``load`` by the other operations, so that each of them can fail."""
    fd = files.open(path, READ, directory)
    try:
        if files.stat(fd).st_size != size:
            return None
        head = bytearray(head_bytes)
        buffers = [memoryview(head), rest] if head else [rest]
        offset = 0
        while offset < size:
            got = files.preadv(fd, buffers, offset)
            if not got:
                return None
            offset += got
            while buffers and got >= len(buffers[0]):
                got -= len(buffers.pop(0))
            if buffers:
                buffers[0] = buffers[0][got:]
    finally:
        files.close(fd)
    return bytes(head)
