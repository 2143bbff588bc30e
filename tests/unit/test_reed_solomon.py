"""Reed-Solomon code: any K of K+M chunks give the others, whole or a range, whatever their sizes.

There are two oracles. Here, a product in GF(2^8) is one of polynomials modulo 0x11d. ``reedsolo``
has the field by logarithms, and its polynomials give parity as a Reed-Solomon code is defined: the
values of a polynomial of degree below K at further points.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
import reedsolo
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs.erasure import reed_solomon
from copperfs.erasure.reed_solomon import DATA_MAX, PARITY_MAX, ReedSolomon
from tests.unit.test_layers import ROOT

POLYNOMIAL = 0x11D
SMALL = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (4, 2), (5, 3), (6, 4), (8, 2), (10, 4)]
SIZES = [0, 1, 2, 3, 15, 16, 31, 33, 63, 64, 65, 127, 1000, 4097]
MIB = 1 << 20
NATIVE = ROOT / "copperfs/native"


def product(a: int, b: int) -> int:
    result = 0
    for bit in range(8):
        if b >> bit & 1:
            result ^= a << bit
    for bit in range(14, 7, -1):
        if result >> bit & 1:
            result ^= POLYNOMIAL << (bit - 8)
    return result


@cache
def inverse(a: int) -> int:
    return next(b for b in range(256) if product(a, b) == 1)


@cache
def multiplied(by: int) -> bytes:
    """For ``bytes.translate``."""
    return bytes(product(by, each) for each in range(256))


def added(one: bytes, other: bytes) -> bytes:
    length = max(len(one), len(other))
    total = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return total.to_bytes(length, "little")


def expected_parity(chunks: Sequence[bytes], parity: int) -> list[bytes]:
    result = []
    for position in range(len(chunks), len(chunks) + parity):
        total = b""
        for index, chunk in enumerate(chunks):
            total = added(total, chunk.translate(multiplied(inverse(position ^ index))))
        result.append(total)
    return result


def encoded(code: ReedSolomon, chunks: Sequence[bytes]) -> list[bytes]:
    parities = [bytearray(max(map(len, chunks))) for _ in range(code.parity)]
    code.encode([memoryview(each) for each in chunks], [memoryview(each) for each in parities])
    return [bytes(each) for each in parities]


def rebuilt(
    code: ReedSolomon,
    group: Sequence[bytes],
    known: Sequence[int],
    lost: Sequence[int],
    begin: int = 0,
    end: int | None = None,
) -> list[bytes]:
    """*group* are all K+M chunks. Of the lost ones only the sizes are used."""
    sizes = [len(each) for each in group[: code.data]]
    to = {each: bytearray(len(group[each][begin:end])) for each in lost}
    code.decode(
        sizes,
        {each: memoryview(group[each])[begin:end] for each in known},
        {each: memoryview(buffer) for each, buffer in to.items()},
        begin,
        end,
    )
    return [bytes(buffer) for buffer in to.values()]


def drawn_chunks(rng: random.Random, data: int) -> list[bytes]:
    kind = rng.randrange(3)
    if kind == 0:
        sizes = [rng.choice(SIZES)] * data
    else:
        sizes = [rng.choice(SIZES) if kind == 1 else rng.randrange(700) for _ in range(data)]
    return [rng.randbytes(size) for size in sizes]


def erasures(code: ReedSolomon) -> Iterator[tuple[int, ...]]:
    positions = range(code.data + code.parity)
    for count in range(code.parity + 1):
        yield from itertools.combinations(positions, count)


# ---- the matrix ----------------------------------------------------------------------------------


def test_coefficients_are_the_cauchy_matrix_for_all_counts_that_are_allowed() -> None:
    """Row i and column j have 1 / (i ^ j), and no number is both a row's and a column's, so each
    square submatrix has an inverse: its determinant is a product of differences that are not 0."""
    for data in range(1, DATA_MAX + 1):
        code = ReedSolomon(data, PARITY_MAX)
        for column in range(data):
            chunks = [b"\x01" if each == column else b"" for each in range(data)]
            found = [each[0] for each in encoded(code, chunks)]
            assert found == [inverse((data + row) ^ column) for row in range(PARITY_MAX)]


def test_fewer_parity_chunks_are_the_first_of_more() -> None:
    chunks = drawn_chunks(random.Random(1), 6)
    more = encoded(ReedSolomon(6, PARITY_MAX), chunks)
    for parity in range(1, PARITY_MAX):
        assert encoded(ReedSolomon(6, parity), chunks) == more[:parity]


def test_vandermonde_matrix_would_lose_data_within_our_limits() -> None:
    """The one that ISA-L offers has (2^r)^j in row r and column j. With 22+4 and the third parity
    chunk lost, data chunks 0, 10 and 21 have three equations whose determinant is 0."""

    def power(base: int, exponent: int) -> int:
        return product(base, power(base, exponent - 1)) if exponent else 1

    def determinant(rows: Sequence[Sequence[int]]) -> int:
        if not rows:
            return 1
        total = 0
        for at, factor in enumerate(rows[0]):
            total ^= product(factor, determinant([[*r[:at], *r[at + 1 :]] for r in rows[1:]]))
        return total

    columns, rows = (0, 10, 21), (0, 1, 3)
    assert determinant([[power(1 << row, each) for each in columns] for row in rows]) == 0
    cauchy = [[inverse((22 + row) ^ each) for each in columns] for row in rows]
    assert determinant(cauchy) != 0


# ---- oracles -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "parity"), SMALL)
def test_all_erasures_are_rebuilt_from_any_others(data: int, parity: int) -> None:
    rng = random.Random(data * 100 + parity)
    code = ReedSolomon(data, parity)
    for lost in erasures(code):
        chunks = drawn_chunks(rng, data)
        group = [*chunks, *encoded(code, chunks)]
        assert group[data:] == expected_parity(chunks, parity)
        known = rng.sample(sorted(set(range(data + parity)) - set(lost)), data)
        assert rebuilt(code, group, known, lost) == [group[each] for each in lost]


@pytest.mark.parametrize(("data", "parity"), [(2, 2), (4, 2), (8, 3), (DATA_MAX, PARITY_MAX)])
def test_parity_has_the_further_values_of_a_polynomial(data: int, parity: int) -> None:
    """Where f has the value d_j * product(j ^ l for l != j) at each data position j, parity i is
    f(i) / product(i ^ l for all l). So this is a Reed-Solomon code in the sense of the books."""
    reedsolo.init_tables(prim=POLYNOMIAL)
    rng = random.Random(data)
    chunk = [rng.randbytes(1) for _ in range(data)]

    def product_of(values: Sequence[int]) -> int:
        result = 1
        for each in values:
            result = reedsolo.gf_mul(result, each)
        return result

    polynomial = bytearray([0])
    for position in range(data):
        # d_j times the product of (x - l) for all l but j, which at j has the factor that f needs
        term = bytearray([chunk[position][0]])
        for other in range(data):
            if other != position:
                term = reedsolo.gf_poly_mul(term, bytearray([1, other]))
        polynomial = reedsolo.gf_poly_add(polynomial, term)
    for position, found in enumerate(encoded(ReedSolomon(data, parity), chunk), data):
        divisor = product_of([position ^ other for other in range(data)])
        assert found[0] == reedsolo.gf_div(reedsolo.gf_poly_eval(polynomial, position), divisor)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_range_is_rebuilt_from_the_same_range_of_any_others(given_data: st.DataObject) -> None:
    draw = given_data.draw
    code = ReedSolomon(draw(st.integers(1, 9)), draw(st.integers(1, 4)))
    sizes = draw(st.lists(st.integers(0, 300), min_size=code.data, max_size=code.data))
    rng = random.Random(draw(st.integers(0, 1000)))
    chunks = [rng.randbytes(size) for size in sizes]
    group = [*chunks, *encoded(code, chunks)]
    end = draw(st.integers(0, max(sizes)))
    begin = draw(st.integers(0, end))
    order = draw(st.permutations(range(code.data + code.parity)))
    lost = order[code.data :][: draw(st.integers(1, code.parity))]
    found = rebuilt(code, group, order[: code.data], lost, begin, end)
    assert found == [group[each][begin:end] for each in lost]


def test_chunk_that_ends_before_the_range_gives_no_bytes() -> None:
    code = ReedSolomon(3, 1)
    chunks = [bytes(10), bytes(range(100)), b"x" * 50]
    (parity,) = encoded(code, chunks)
    known = {0: b"", 2: chunks[2][40:], 3: parity[40:90]}
    found = bytearray(50)
    views = {position: memoryview(each) for position, each in known.items()}
    code.decode([10, 100, 50], views, {1: memoryview(found)}, 40, 90)
    assert found == chunks[1][40:90]


def test_group_of_fewer_members_has_empty_chunks_in_their_places() -> None:
    code = ReedSolomon(4, 2)
    chunks = [b"first", b"the second", b"", b""]
    group = [*chunks, *encoded(code, chunks)]
    assert rebuilt(code, group, [2, 3, 4, 5], [0, 1]) == chunks[:2]


def test_empty_chunks_have_empty_parity() -> None:
    assert encoded(ReedSolomon(2, 2), [b"", b""]) == [b"", b""]


def test_range_within_a_larger_buffer_leaves_the_rest_of_it_alone() -> None:
    code = ReedSolomon(2, 1)
    chunks = [b"abcdefgh" * 30, b"ijklmnop" * 20]
    group = [*chunks, *encoded(code, chunks)]
    around = bytearray(b"." * 400)
    known = {each: memoryview(group[each])[33:190] for each in (1, 2)}
    code.decode([240, 160], known, {0: memoryview(around)[100:257]}, 33, 190)
    assert around == b"." * 100 + chunks[0][33:190] + b"." * 143


# ---- threads -------------------------------------------------------------------------------------


def test_threads_that_share_a_code_and_chunks_get_what_one_gets() -> None:
    code = ReedSolomon(4, 2)
    rng = random.Random(4)
    chunks = [rng.randbytes(100_000 + each) for each in range(4)]
    group = [*chunks, *encoded(code, chunks)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        mine = random.Random(seed)
        for _ in range(50):
            order = mine.sample(range(6), 6)
            if rebuilt(code, group, order[:4], order[4:]) != [group[each] for each in order[4:]]:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_threads_run_while_a_large_group_is_encoded() -> None:
    """The interval is so long that no thread is ever asked to give up the GIL."""
    code = ReedSolomon(4, 2)
    chunks = [memoryview(bytes(8 * MIB)) for _ in range(4)]
    parities = [memoryview(bytearray(8 * MIB)) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        assert any(_ran_meanwhile(code, chunks, parities) for _ in range(50))
    finally:
        sys.setswitchinterval(interval)


def _ran_meanwhile(code: ReedSolomon, chunks: list[memoryview], parities: list[memoryview]) -> bool:
    """Once more for a busy machine, where this thread may be late."""
    steps: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        lock.acquire()
        steps.append("begins")
        code.encode(chunks, parities)
        steps.append("ends")
        lock.release()

    thread = threading.Thread(target=work)
    thread.start()
    while not steps:
        threading.Event().wait(0.0001)
    steps.append("another thread")
    thread.join()
    return steps == ["begins", "another thread", "ends"]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "parity", "said"),
    [
        (0, 1, "1 to 32 data chunks, not 0"),
        (DATA_MAX + 1, 1, "1 to 32 data chunks, not 33"),
        (4, 0, "1 to 8 parity chunks, not 0"),
        (4, PARITY_MAX + 1, "1 to 8 parity chunks, not 9"),
    ],
)
def test_counts_beyond_the_limits_are_refused(data: int, parity: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ReedSolomon(data, parity)


CODE = ReedSolomon(2, 2)
CHUNK, LARGER = memoryview(b"abc"), memoryview(b"defgh")


def buffer(size: int = 5) -> memoryview:
    return memoryview(bytearray(size))


def test_encoding_with_wrong_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="2 parity chunks, not 1"):
        CODE.encode([CHUNK, LARGER], [buffer()])
    with pytest.raises(ValueError, match="sizes of 2 data chunks"):
        CODE.encode([CHUNK], [buffer(), buffer()])
    with pytest.raises(ValueError, match="sizes of 2 data chunks"):
        CODE.encode([], [buffer(), buffer()])


@pytest.mark.parametrize("size", [4, 6])
def test_parity_of_another_length_than_the_longest_chunk_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"chunk 3 has 5 bytes in this range, its buffer {size}"):
        CODE.encode([CHUNK, LARGER], [buffer(), buffer(size)])


def test_known_chunk_that_was_cut_short_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk 1 has 5 bytes in this range, its buffer 3"):
        CODE.decode([3, 5], {1: LARGER[:3], 2: buffer()}, {0: buffer(3)})


@pytest.mark.parametrize(
    ("known", "lost", "said"),
    [
        ([1], [0], "2 known chunks give at most 2 lost ones; here are 1 and 1"),
        ([1, 2, 3], [0], "here are 3 and 1"),
        ([1, 2], [0, 3, 1], "here are 2 and 3"),
        ([1, 2], [2], "chunk 2 is given twice"),
        ([1, 4], [0], "no position 4 among 4 chunks"),
        ([1, 2], [-1], "no position -1 among 4 chunks"),
    ],
)
def test_chunks_that_do_not_determine_the_lost_ones_are_refused(
    known: list[int], lost: list[int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        CODE.decode([5, 5], dict.fromkeys(known, LARGER), {each: buffer() for each in lost})


@pytest.mark.parametrize(("begin", "end"), [(-1, 3), (3, 2), (0, 6), (6, None)])
def test_range_beyond_the_longest_chunk_is_refused(begin: int, end: int | None) -> None:
    with pytest.raises(ValueError, match="no range"):
        CODE.decode([3, 5], {1: LARGER, 2: LARGER}, {0: buffer(0)}, begin, end)


def test_buffers_that_overlap_are_refused() -> None:
    shared = memoryview(bytearray(9))
    with pytest.raises(ValueError, match="chunks 3 and 2 overlap"):
        CODE.encode([CHUNK, LARGER], [shared[:5], shared[4:]])
    with pytest.raises(ValueError, match="chunks 2 and 1 overlap"):
        CODE.encode([CHUNK, shared[:5]], [shared[4:], buffer()])
    CODE.encode([shared[:5], shared[4:]], [buffer(), buffer()])  # is only read
    CODE.encode([CHUNK, buffer(3)], [shared[:3], shared[3:6]])


def test_buffers_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ValueError, match="buffer of chunk 2 is not contiguous, or read-only"):
        CODE.encode([CHUNK, LARGER], [memoryview(bytes(5)), buffer()])
    with pytest.raises(ValueError, match=r"buffer of chunk 1 is not contiguous$"):
        CODE.encode([CHUNK, memoryview(b"0123456789")[::2]], [buffer(), buffer()])


def test_chunks_are_measured_in_bytes() -> None:
    words = memoryview(b"01234567").cast("I")
    parities = [memoryview(bytearray(8)) for _ in range(2)]
    CODE.encode([words, CHUNK], parities)
    assert [bytes(each) for each in parities] == expected_parity([b"01234567", b"abc"], 2)


class Number(int):
    """Equal numbers that a dictionary keeps apart."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def test_one_position_under_two_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk 1 is given twice"):
        CODE.decode([5, 5], {Number(1): LARGER, Number(1): LARGER}, {0: buffer()})


# ---- without ISA-L -------------------------------------------------------------------------------

BUILD = """
import setuptools
from copperfs.packaging import build_commands
build_commands.ISAL_HEADER = "isa-l/no-such-header.h"
setuptools.setup()
"""
ASK = """
from copperfs.erasure import reed_solomon
from copperfs.native.blob import new_blob
assert not reed_solomon.available()
assert len(new_blob(3)) == 3
code, one = reed_solomon.ReedSolomon(1, 1), memoryview(bytearray(1))
try:
    code.encode([one], [memoryview(bytearray(1))])
except ValueError as error:
    assert str(error) == reed_solomon.why_unavailable()
    print(error)
"""


def test_setup_of_the_tests_gives_isal() -> None:
    assert reed_solomon.why_unavailable() is None
    assert reed_solomon.available()


def test_build_without_isal_says_so_and_refuses_erasure_coding(tmp_path: Path) -> None:
    top, library = tmp_path / "top", tmp_path / "library"
    left_out = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "copperfs", top / "copperfs", ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, top / name)
    env = {**os.environ, "PYTHONPATH": str(top)}

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=top, env=env, capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip

    built = ran("-c", BUILD, "-q", "build_ext", "--inplace", "--build-temp", str(library))
    assert "ISA-L is missing, so this copperfs will refuse rs:" in built.stderr
    said = ran("-c", ASK).stdout
    assert said.startswith("this copperfs was built without ISA-L; install its headers")


@pytest.mark.parametrize(
    ("call", "said"), [("dlopen", "cannot be loaded"), ("dlsym", "lacks functions of ISA-L 2")]
)
def test_node_without_a_usable_isal_says_what_to_install(
    tmp_path: Path, call: str, said: str
) -> None:
    """The *call* finds nothing."""
    (tmp_path / "main.c").write_text(
        f'#include <stdio.h>\n#include "{NATIVE}/erasure.h"\n'
        "void *find_nothing(void) { return NULL; }\n"
        "int main(void) { return puts(erasure_load()) < 0; }\n"
    )
    sources = [NATIVE / "erasure.c", tmp_path / "main.c"]
    program = tmp_path / "program"
    subprocess.run(
        ["gcc", "-DCOPPERFS_ISAL", f"-D{call}=find_nothing", *sources, "-ldl", "-o", program],
        check=True,
    )
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert said in done.stdout
    assert "install" in done.stdout
