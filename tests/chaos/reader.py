"""The checksum loop of one node: a program of its own, told on standard input when to read.

    python reader.py MOUNTPOINT KNOWN INDEX

For each line of JSON, ``{"until": ..., "sets": ..., "order": ..., "rate": ...}`` with a time of the
monotonic clock, it reads files through the mount, so many a second, compares each byte with what is
known, and then writes what it saw as one line: a list of [began, ended, path, errno, wrong]. The
files come in sets of some hundred, which are the same for all readers, so that most files are
wanted by many nodes; in each set a reader has an order of its own. Of a large file it reads
a piece. Now and then it lists a directory. It imports nothing of copperfs, and ends with its input,
or soon after the process that started it.
"""

import json
import mmap
import os
import random
import sys
import time

LISTING_EVERY = 25
# Of a larger file a piece is read, and so often one of those.
LARGE_BYTES, PIECE_BYTES, LARGE_SHARE = 4 << 20, 1 << 20, 0.1
SET_FILES = 200


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
            first, whole = 0, True
            if large and numbers.random() < LARGE_SHARE:
                path, begins, size = numbers.choice(large)
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
                    with open(os.path.join(mountpoint, path), "rb", buffering=0) as file:
                        data = file.readall() if whole else piece(file.fileno(), first, size)
                    ended = time.monotonic()
                    wrong = data != known[begins + first : begins + first + size]
            except OSError as error:
                ended = time.monotonic()
                code = error.errno or -1
            records.append((round(began, 6), round(ended, 6), path, code, wrong))
            # Not in step with the others, and not faster after a stall.
            pause = numbers.uniform(0.5, 1.5) / order["rate"] - (time.monotonic() - began)
            if pause > 0:
                time.sleep(pause)
        print(json.dumps(records), flush=True)


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
