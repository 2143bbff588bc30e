"""Reader: the checksum loop of one node, a separate program that reads as standard input tells it.

    python reader.py MOUNTPOINT KNOWN INDEX

Each line of input is JSON, ``{"until": ..., "sets": ..., "order": ..., "rate": ...}`` with a time
of the monotonic clock. The reader reads files at this rate, compares each byte with the known one,
and writes its records as one line: a list of [began, ended, path, errno, wrong]. Readers share sets
of some hundred files, each in its own order. Now and then one asks for the size first, or lists a
directory. It imports nothing of copperfs. It ends with its input, or soon after the process that
started it.

More keys: ``near``: files around the ``sick`` ones, of which it reads one every few times.
``avoid``: files that hang. ``walk``: a directory in which the names of ``kept`` stay, while others
come and go; the reader walks it a few names at a time between its reads, and turns back now and
then. ``only``: it reads just these files, each until a read succeeds or the time is over.
"""

import ctypes
import json
import mmap
import os
import random
import struct
import sys
import time
from collections import Counter
from typing import Any

LISTING_EVERY = 25
# The size of a piece of a larger file, and how often such a file is read.
LARGE_BYTES, PIECE_BYTES, LARGE_SHARE = 4 << 20, 1 << 20, 0.1
SET_FILES = 200
NEAR_SHARE, SICK_SHARE, STAT_SHARE = 0.15, 0.3, 0.2
# A call gets some ten names; at each it may mark its position, or return to the mark.
WALK_BYTES, WALK_STEPS, MARK_SHARE, BACK_SHARE = 400, 3, 0.1, 0.1
AGAIN_S = 0.2
_GETDENTS64 = {"x86_64": 217, "aarch64": 61}[os.uname().machine]
_DIRENT = struct.Struct("=QqHB")
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    mountpoint, known_path, index_path = sys.argv[1:]
    with open(index_path, encoding="ascii") as file:
        index = [(path, begins, size) for path, begins, size in json.load(file)]
    names: dict[str, list[str]] = {}
    for path, _, _ in index:
        directory, _, name = path.rpartition("/")
        names.setdefault(directory, []).append(name)
    large = [each for each in index if each[2] > LARGE_BYTES]
    index = [each for each in index if each[2] <= LARGE_BYTES]
    with open(known_path, "rb") as file:
        known = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    parent = os.getppid()
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("only"):
            known_of = {path: known[begins : begins + size] for path, begins, size in index}
            print(json.dumps(read_only(mountpoint, order, known_of)), flush=True)
            continue
        avoided = set(order.get("avoid", ()))
        near = [each for each in index if each[0] in set(order.get("near", ())) - avoided]
        sick = [each for each in near if each[0] in set(order.get("sick", ()))]
        walk = None
        everything = index.copy()
        random.Random(order["sets"]).shuffle(everything)
        numbers = random.Random(order["order"])
        records = []
        left: list[tuple[str, int, int]] = []
        count = taken = 0
        while time.monotonic() < order["until"] and os.getppid() == parent:
            if not left:
                left = everything[taken : taken + SET_FILES]
                numbers.shuffle(left)
                taken = (taken + SET_FILES) % len(everything)
            path, begins, size = left.pop()
            if path in avoided:
                continue
            if near and numbers.random() < NEAR_SHARE:
                among = sick if sick and numbers.random() < SICK_SHARE else near
                path, begins, size = numbers.choice(among)
            first, whole, file_size = 0, True, size
            if large and numbers.random() < LARGE_SHARE:
                path, begins, size = numbers.choice(large)
                file_size = size
                first, whole = numbers.randrange(size), False
                size = min(numbers.randint(1, PIECE_BYTES), size - first)
            count += 1
            began = time.monotonic()
            code, wrong = 0, False
            try:
                if count % LISTING_EVERY == 0:
                    path = path.rpartition("/")[0]
                    found = os.listdir(os.path.join(mountpoint, path))
                    ended = time.monotonic()
                    wrong = sorted(found) != sorted(names[path])
                else:
                    if not whole or numbers.random() < STAT_SHARE:
                        wrong = os.stat(os.path.join(mountpoint, path)).st_size != file_size
                    with open(os.path.join(mountpoint, path), "rb", buffering=0) as file:
                        data = file.readall() if whole else piece(file.fileno(), first, size)
                    ended = time.monotonic()
                    wrong |= data != known[begins + first : begins + first + size]
            except OSError as error:
                ended = time.monotonic()
                code = error.errno or -1
            records.append((round(began, 6), round(ended, 6), path, code, wrong))
            if order.get("walk"):
                if walk is None:
                    walk = Walk(os.path.join(mountpoint, order["walk"]), order["walk"], numbers)
                if walk.go_on():
                    records.append(walk.record(set(order["kept"])))
                    walk = None
            # Readers are not in step with each other, and not faster after a stall.
            pause = numbers.uniform(0.5, 1.5) / order["rate"] - (time.monotonic() - began)
            if pause > 0:
                time.sleep(pause)
        print(json.dumps(records), flush=True)


def read_only(
    mountpoint: str, order: dict[str, Any], known_of: dict[str, bytes]
) -> list[tuple[float, float, str, int, bool]]:
    """The first try that returned a file's content, or the last one."""
    records = []
    for path in order["only"]:
        while True:
            began = time.monotonic()
            code, wrong = 0, False
            try:
                with open(os.path.join(mountpoint, path), "rb", buffering=0) as file:
                    wrong = file.readall() != known_of[path]
            except OSError as error:
                code = error.errno or -1
            if not code or time.monotonic() > order["until"]:
                break
            time.sleep(AGAIN_S)
        records.append((round(began, 6), round(time.monotonic(), 6), path, code, wrong))
    return records


class Walk:
    def __init__(self, path: str, shown: str, numbers: random.Random) -> None:
        self.began = time.monotonic()
        self.numbers = numbers
        self.shown = shown
        self.code = 0
        self.found: list[str] = []
        self.at = 0
        self.marked: tuple[int, int] | None = None
        self.fd = -1
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            self.code = error.errno or -1

    def go_on(self) -> bool:
        for _ in range(WALK_STEPS):
            if self.code or not self.step():
                if self.fd >= 0:
                    os.close(self.fd)
                return True
        return False

    def step(self) -> bool:
        chance = self.numbers.random()
        try:
            if chance < MARK_SHARE:
                self.marked = (self.at, len(self.found))
            elif chance < MARK_SHARE + BACK_SHARE and self.marked is not None:
                self.at, kept = self.marked
                os.lseek(self.fd, self.at, os.SEEK_SET)
                del self.found[kept:]
                self.marked = None  # else it might never reach its end
            buffer = ctypes.create_string_buffer(WALK_BYTES)
            got = _libc.syscall(_GETDENTS64, self.fd, buffer, WALK_BYTES)
            if got < 0:
                raise OSError(ctypes.get_errno(), "getdents64")
        except OSError as error:
            self.code = error.errno or -1
            return False
        place = 0
        while place < got:
            _, self.at, length, _ = _DIRENT.unpack_from(buffer.raw, place)
            name = buffer.raw[place + _DIRENT.size : place + length].split(b"\0")[0]
            self.found.append(os.fsdecode(name))
            place += length
        return bool(got > 0)

    def record(self, kept: set[str]) -> tuple[float, float, str, int, bool]:
        said = self.shown
        times = Counter(each for each in self.found if each in kept)
        missed, twice = len(kept) - len(times), sum(each > 1 for each in times.values())
        wrong = not self.code and bool(missed or twice)
        if wrong:
            said += f" (missed {missed}, twice {twice}, of {len(kept)} names)"
        return round(self.began, 6), round(time.monotonic(), 6), said, self.code, wrong


def piece(descriptor: int, first: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), first + len(data))
        if not more:
            break
        data += more
    return data


if __name__ == "__main__":
    main()
