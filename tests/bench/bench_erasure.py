"""`erasure`: encodes and decodes groups of chunks, beside ISA-L alone and beside copies.

All three work on the same buffers, in turns. ISA-L alone has its tables already (`isal_alone.c`);
copperfs makes them for each call, and checks its arguments. A sample is the median of calls on so
many groups that the processor's caches do not have the next one. "Copy" is what copies:2 costs: one
memcpy of each data chunk.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from copperfs.erasure import reed_solomon
from copperfs.erasure.reed_solomon import ReedSolomon
from tests.bench.lab import Context
from tests.bench.processes import CannotMeasureError
from tests.bench.results import JUDGED, MIB, Measure, at_most

ALONE, COPY = "ISA-L alone", "copy"
KIB = 1 << 10
CODES = [ReedSolomon(4, 2), ReedSolomon(8, 2), ReedSolomon(8, 3)]
GROUPS_BYTES = 192 * MIB
"""Above the last cache of most processors."""
TABLE_BYTES = 32
Pointers = ctypes.Array[ctypes.c_void_p]


def run(context: Context) -> Iterator[Measure]:
    if missing := reed_solomon.why_unavailable():
        raise CannotMeasureError(missing)
    alone = Alone(context.cache)
    for code in CODES:
        groups = [Group(code, number) for number in range(_count(code))]
        for each in groups:
            code.encode(each.chunks, each.parities)
        yield from _measure(context, alone, code, groups, "encode", MIB)
        for lost in range(1, code.parity + 1):
            yield from _measure(context, alone, code, groups, f"decode {lost} of", MIB, lost)
        yield from _measure(context, alone, code, groups, "decode 1 of", 128 * KIB, 1)


def _count(code: ReedSolomon) -> int:
    return GROUPS_BYTES // MIB // (code.data + code.parity)


class Alone:
    """`isal_alone.c`"""

    def __init__(self, cache: Path) -> None:
        library = cache / f"isal-alone-{os.getpid()}.so"
        source = Path(__file__).with_name("isal_alone.c")
        flags = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        try:
            subprocess.run(["gcc", *flags, source, "-lisal", "-o", library], check=True)
            self.calls = ctypes.CDLL(str(library))
        except (OSError, subprocess.CalledProcessError) as error:
            raise CannotMeasureError(f"isal_alone.c cannot be compiled: {error}") from None
        finally:
            library.unlink(missing_ok=True)

    def tables(self, code: ReedSolomon, lost: int) -> ctypes.Array[ctypes.c_char]:
        """For encoding if *lost* is 0."""
        tables = ctypes.create_string_buffer(TABLE_BYTES * code.data * code.parity)
        if lost == 0:
            self.calls.isal_encode_tables(code.data, code.parity, tables)
        elif self.calls.isal_decode_tables(code.data, code.parity, lost, tables):
            raise CannotMeasureError("the matrix has no inverse")
        return tables


def buffer(content: bytes) -> memoryview:
    return memoryview(bytearray(content))


def pointers(buffers: Sequence[memoryview]) -> Pointers:
    where = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in buffers]
    return (ctypes.c_void_p * len(where))(*where)


class Group:
    def __init__(self, code: ReedSolomon, number: int) -> None:
        rng = random.Random(number)
        self.chunks = [buffer(rng.randbytes(MIB)) for _ in range(code.data)]
        self.parities = [buffer(bytes(MIB)) for _ in range(code.parity)]


@dataclass(frozen=True, slots=True)
class Work:
    """The three contestants on one group."""

    by_copperfs: Callable[[], None]
    by_isal: Callable[[], None]
    by_copy: Callable[[], None]


def work_on(
    group: Group, place: Sequence[memoryview], alone: Alone, code: ReedSolomon, size: int, lost: int
) -> Work:
    """*place* has room for copies, and for what is decoded."""
    tables, calls = alone.tables(code, lost), alone.calls
    shards = [each[:size] for each in (*group.chunks, *group.parities)]
    copied, copies = pointers(shards[: code.data]), pointers(place[: code.data])
    if lost == 0:
        from_, to = shards[: code.data], shards[code.data :]
    else:
        from_ = shards[lost : lost + code.data]
        to = [each[:size] for each in place[:lost]]
    sources, targets, count = pointers(from_), pointers(to), len(to)
    sizes, known, wanted = [size] * code.data, dict(enumerate(from_, lost)), dict(enumerate(to))

    def encode_or_decode() -> None:
        if lost == 0:
            code.encode(from_, to)
        else:
            code.decode(sizes, known, wanted)

    return Work(
        encode_or_decode,
        lambda: calls.isal_code(size, code.data, count, tables, sources, targets),
        lambda: calls.copy(size, code.data, copied, copies),
    )


def _measure(
    context: Context,
    alone: Alone,
    code: ReedSolomon,
    groups: Sequence[Group],
    what: str,
    size: int,
    lost: int = 0,
) -> Iterator[Measure]:
    name = f"{what} {code.data}+{code.parity}, {size // KIB} KiB"
    context.progress(f"erasure, {name}")
    place = [buffer(bytes(MIB)) for _ in range(code.data)]
    works = [work_on(each, place, alone, code, size, lost) for each in groups]
    in_turns = {
        ALONE: [each.by_isal for each in works],
        JUDGED: [each.by_copperfs for each in works],
        COPY: [each.by_copy for each in works],
    }
    wall: dict[str, list[float]] = {contestant: [] for contestant in in_turns}
    cpu: dict[str, list[float]] = {contestant: [] for contestant in in_turns}
    for _ in range(context.repeats):
        taken: dict[str, list[tuple[int, int]]] = {contestant: [] for contestant in in_turns}
        for turn in range(len(works)):
            for number, (contestant, calls) in enumerate(in_turns.items()):
                # far from each other, or the second one would find the chunks in the cache
                call = calls[(turn + number * len(works) // len(in_turns)) % len(works)]
                begin, begin_cpu = time.perf_counter_ns(), time.thread_time_ns()
                call()
                ended_cpu, ended = time.thread_time_ns(), time.perf_counter_ns()
                taken[contestant].append((ended - begin, ended_cpu - begin_cpu))
        protected_mib = code.data * size / MIB
        for contestant, times in taken.items():
            wall[contestant].append(median(each for each, _ in times) / protected_mib)
            cpu[contestant].append(median(each for _, each in times) / protected_mib)
    yield Measure("erasure", f"{name}: per MiB of data", "ns", wall, ALONE, target=at_most(1.3))
    yield Measure("erasure", f"{name}: CPU per MiB of data", "ns", cpu, COPY)
