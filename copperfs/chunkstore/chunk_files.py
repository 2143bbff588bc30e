"""Chunk files: the directory of the disk tier, opened safely, locked by one daemon, found again
after a restart.

Blocking calls, for the threads of ``disk_store.py``. A symbolic link is refused, and a directory
that is another user's, that others may write to, that is something else, or that another daemon
uses. No other user can put anything below the descriptors opened here, so paths there are followed
without another check.

Nothing is synced: a crash of the machine may leave a chunk without its bytes, which is an erasure
like any other (decision 61).
"""

import errno
import os
import re
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter

from copperfs.chunkstore.disk_format import (
    LOCK_TEXT,
    ChunkPlace,
    Erasure,
    header,
    header_bytes,
    name_of,
    parsed,
    read_header,
    size_of,
    unpacked,
)
from copperfs.chunkstore.disk_ops import CREATE, DIRECTORY, LOCK, Files
from copperfs.chunkstore.store_interface import Chunk, in_pages
from copperfs.model.errors import StoreError
from copperfs.native.blob import new_blob
from copperfs.wire.payload import digest

Index = OrderedDict[bytes, int]
"""The packed place of each chunk by its name, least recently used first."""

# A setting to correct, not a disk to wait for.
_WRONG = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EINVAL)
_LINKED = (errno.ELOOP, errno.ENOTDIR)
_FAN = re.compile("[0-9a-f]{2}")


@dataclass(slots=True)
class Found:
    index: Index
    bytes: int
    serial: int
    superseded: list[ChunkPlace]
    """Older files of the same key."""


@dataclass(slots=True)
class Directory:
    path: str
    files: Files
    device: int
    top: int
    lock: int
    tmp: int
    chunks: int
    _closed: bool = field(default=False)

    def close(self) -> None:
        """When no thread uses the directory any more."""
        if not self._closed:
            self._closed = True
            for fd in (self.chunks, self.tmp, self.lock, self.top):
                self.files.close(fd)

    def unlock(self) -> None:
        """Before the last close: others may have the same open file (``daemon/handover.py``)."""
        with suppress(OSError):
            self.files.unlock(self.lock)

    def __del__(self) -> None:
        # A thread that hangs in the disk may hold the last reference.
        self.close()

    # --- one chunk -------------------------------------------------------------------------------

    def write(self, place: ChunkPlace, encoded_key: bytes, chunk: Chunk) -> None:
        """Write all of it, or nothing under its name."""
        head = header(encoded_key, len(chunk.blob), chunk.digest)
        assert len(head) + len(chunk.blob) == place.size
        fd = self.files.open(place.file, CREATE, self.tmp)
        try:
            try:
                self._write_all(fd, [memoryview(head), chunk.blob.view])
            finally:
                self.files.close(fd)
            self._settle(place)
        except OSError:
            with suppress(OSError):
                self.files.unlink(place.file, self.tmp)
            raise

    def _write_all(self, fd: int, buffers: list[memoryview]) -> None:
        while buffers:
            done = self.files.writev(fd, buffers)
            while buffers and done >= len(buffers[0]):
                done -= len(buffers.pop(0))
            if buffers:
                buffers[0] = buffers[0][done:]

    def _settle(self, place: ChunkPlace) -> None:
        try:
            self.files.rename(place.file, self.tmp, place.path, self.chunks)
        except FileNotFoundError:
            self.files.mkdir(place.directory, self.chunks)
            self.files.rename(place.file, self.tmp, place.path, self.chunks)

    def load(self, place: ChunkPlace, encoded_key: bytes) -> Chunk:
        """Checked; raises Erasure."""
        head_bytes = header_bytes(encoded_key)
        size = place.size - head_bytes
        if size < 0:
            raise Erasure("the header is cut off")
        blob = new_blob(in_pages(size))
        found = read_header(self._read(place, head_bytes, blob.view))
        if found.encoded_key != encoded_key:
            raise Erasure("it is another chunk")
        blob.seal(size)
        if found.size != size or digest(blob.view) != found.digest:
            raise Erasure("the bytes are not what their digest says")
        return Chunk(blob, found.digest)

    def check(self, place: ChunkPlace) -> int:
        """Returns the size; raises Erasure."""
        blob = new_blob(place.cost)
        self._read(place, 0, blob.view)
        raw = blob.view[: place.size]
        found = read_header(raw)
        start = header_bytes(found.encoded_key)
        if name_of(found.encoded_key) != place.name:
            raise Erasure("it is another chunk")
        if start + found.size != place.size or digest(raw[start:]) != found.digest:
            raise Erasure("the bytes are not what their digest says")
        return found.size

    def _read(self, place: ChunkPlace, head_bytes: int, rest: memoryview) -> bytes:
        # *rest* has whole pages, to be read past the kernel's cache.
        head = self.files.load(place.path, self.chunks, place.size, head_bytes, rest)
        if head is None:
            raise Erasure("the file is not as long as it was")
        return head

    def delete(self, place: ChunkPlace) -> None:
        with suppress(FileNotFoundError):
            self.files.unlink(place.path, self.chunks)

    # --- the whole directory ---------------------------------------------------------------------

    def free_bytes(self) -> int:
        return self.files.free_bytes(self.top)

    def sweep(self) -> int:
        """Delete unfinished files; return how many."""
        names = [name for name in self.files.names(self.tmp) if parsed(name)]
        for name in names:
            self.files.unlink(name, self.tmp)
        return len(names)

    def scan(self) -> Found:
        """Oldest first, from the names alone."""
        newest: dict[bytes, int] = {}
        superseded = []
        for name in self.files.names(self.chunks):
            files = self._files_in(name) if _FAN.fullmatch(name) else []
            for file in files:
                found = parsed(file)
                if found is None or not file.startswith(name):
                    continue
                key, packed = found
                other = newest.get(key)
                if other is not None:
                    superseded.append(unpacked(key, min(packed, other)))
                    packed = max(packed, other)
                newest[key] = packed
        index = OrderedDict(sorted(newest.items(), key=itemgetter(1)))
        held = sum(in_pages(size_of(packed)) for packed in newest.values())
        last = max((place.serial for place in superseded), default=0)
        if index:
            last = max(last, unpacked(b"", next(reversed(index.values()))).serial)
        return Found(index, held, last + 1, superseded)

    def _files_in(self, name: str) -> list[str]:
        try:
            fd = self.files.open(name, DIRECTORY, self.chunks)
        except OSError as error:
            if error.errno not in _LINKED:
                raise
            self.files.unlink(name, self.chunks)  # a link, or a file that is not ours
            return []
        try:
            return self.files.names(fd)
        finally:
            self.files.close(fd)

    def is_there(self) -> bool:
        """Whether the path still leads here."""
        try:
            fd = self.files.open(self.path, DIRECTORY)
        except OSError as error:
            if error.errno in (errno.ENOENT, *_LINKED):
                return False
            raise
        try:
            found, own = self.files.stat(fd), self.files.stat(self.top)
        finally:
            self.files.close(fd)
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def try_to_write(self, size: int) -> None:
        """OSError if *size* bytes cannot be written now."""
        name = ChunkPlace(bytes(16), 0, size).file
        # First an empty file: a disk is not filled if files on it cannot be deleted.
        for data in (b"", bytes(size)):
            fd = self.files.open(name, CREATE, self.tmp)
            try:
                try:
                    self._write_all(fd, [memoryview(data)] if data else [])
                finally:
                    self.files.close(fd)
            finally:
                self.files.unlink(name, self.tmp)


def open_directory(
    path: str, files: Files, device: int | None = None, lock: int | None = None
) -> Directory:
    """StoreError for a directory that must not be used, OSError for a disk that fails.

    *device* is the required one: the path of an unmounted disk leads to another, which must not be
    filled instead. *lock* is the descriptor that a predecessor has locked, and may hold still.
    """
    opened: list[int] = []
    try:
        return _open(path, files, opened, device, lock)
    except BaseException as error:
        for fd in reversed(opened):
            with suppress(OSError):
                files.close(fd)
        if isinstance(error, OSError) and error.errno in _WRONG:
            missing = _missing_above(path, files) if error.errno == errno.ENOENT else None
            if missing is not None:
                raise StoreError(
                    f"Cannot keep chunks in {path}: {missing} does not exist. Only the last"
                    f" directory of --tier-dir is made; make {os.path.dirname(path)} on a disk of"
                    " this node, or give another --tier-dir."
                ) from error
            raise StoreError(
                f"Cannot keep chunks in {path}: {error.strerror}."
                " Give a --tier-dir that you can write to, on a disk of this node."
            ) from error
        raise


def _missing_above(path: str, files: Files) -> str | None:
    missing = None
    above = os.path.dirname(os.path.abspath(path))
    while above != os.path.dirname(above):
        try:
            files.close(files.open(above, os.O_PATH | os.O_CLOEXEC))
            break
        except FileNotFoundError:
            missing = above
        except OSError:
            break
        above = os.path.dirname(above)
    return missing


def _open(
    path: str, files: Files, opened: list[int], device: int | None, inherited: int | None
) -> Directory:
    if device is None or _device(os.path.dirname(os.path.abspath(path)), files) == device:
        with suppress(FileExistsError):
            files.mkdir(path)
    top = _safe(path, path, files, None)
    opened.append(top)
    found = files.stat(top).st_dev
    if device not in (None, found):
        raise OSError(errno.ENODEV, "its disk is not mounted")
    names = files.names(top)
    if names and "lock" not in names:
        raise StoreError(
            f"{path} is not empty and holds no chunks of copperfs: give a --tier-dir of its own,"
            f" such as {path}/copperfs."
        )
    lock = _locked(path, files, top, inherited)
    opened.append(lock)
    inner = []
    for name in ("tmp", "chunks"):
        with suppress(FileExistsError):
            files.mkdir(name, top)
        inner.append(_safe(name, f"{path}/{name}", files, top))
        opened.append(inner[-1])
    return Directory(path, files, found, top, lock, tmp=inner[0], chunks=inner[1])


def _device(path: str, files: Files) -> int:
    # Not DIRECTORY: a directory above the store may well be a link.
    fd = files.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return files.stat(fd).st_dev
    finally:
        files.close(fd)


def _safe(path: str, shown: str, files: Files, directory: int | None) -> int:
    try:
        fd = files.open(path, DIRECTORY, directory)
    except OSError as error:
        if error.errno not in _LINKED:
            raise
        raise StoreError(
            f"{shown} is a symbolic link or no directory: chunks are kept only in a real directory."
            " Give the directory itself as --tier-dir."
        ) from error
    try:
        found = files.stat(fd)
        if found.st_uid != os.geteuid():
            raise StoreError(
                f"{shown} belongs to somebody else (uid {found.st_uid}): give a --tier-dir that is"
                " yours, or one that does not exist yet."
            )
        if found.st_mode & 0o022:
            raise StoreError(
                f"Others may write to {shown}: chmod go-w it, or give another --tier-dir."
            )
    except BaseException:
        files.close(fd)
        raise
    return fd


def _locked(path: str, files: Files, top: int, inherited: int | None) -> int:
    try:
        fd = files.open("lock", LOCK, top)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise StoreError(f"{path}/lock is not what copperfs has made: remove {path}.") from error
    try:
        if inherited is not None:
            if os.path.samestat(files.stat(fd), files.stat(inherited)):
                own = os.dup(inherited)  # the lock is one of the open file, and not of the process
                files.close(fd)
                fd = own
            else:
                files.unlock(inherited)  # of the --tier-dir before an upgrade
        try:
            files.lock(fd)
        except BlockingIOError:
            raise StoreError(
                f"Another copperfs daemon keeps its chunks in {path}: give each its own --tier-dir."
            ) from None
        text = bytearray(len(LOCK_TEXT) + 1)
        got = files.preadv(fd, [text], 0)
        if not got:
            _write_lock(files, top)
        elif text[:got] != LOCK_TEXT:
            raise StoreError(
                f"{path} was not written by this version of copperfs: remove it, or give another"
                " --tier-dir."
            )
    except BaseException:
        files.close(fd)
        raise
    return fd


def _write_lock(files: Files, top: int) -> None:
    fd = files.open("lock", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, top)
    try:
        files.writev(fd, [LOCK_TEXT])
    finally:
        files.close(fd)
