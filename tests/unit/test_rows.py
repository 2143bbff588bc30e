"""Rows: what is fetched before it is asked for, and that nothing is for who jumps about."""

from copperfs.core.rows import ROW_BYTES_MAX, Rows
from copperfs.types import ChunkKey, Path, Version

MIB = 1 << 20
CHUNKS = 1000
VERSION = Version(CHUNKS * MIB, 0, 0, 0)


def ahead(
    rows: Rows, begins_in: int, ends_in: int | None = None, *, begins: bool = False
) -> list[int]:
    key = ChunkKey(Path(b"large"), VERSION, begins_in)
    ends_in = begins_in if ends_in is None else ends_in
    return [each.index for each in rows.next(key, ends_in, begins=begins)]


def test_with_each_read_of_a_row_more_is_fetched_up_to_a_bound() -> None:
    rows = Rows(MIB)
    assert [len(ahead(rows, index)) for index in range(6)] == [0, 2, 4, 8, 8, 8]
    assert ROW_BYTES_MAX // MIB == 8


def test_who_asks_again_does_not_break_the_row() -> None:
    rows = Rows(MIB)
    ahead(rows, 0)
    ahead(rows, 1)
    assert ahead(rows, 1) == [2, 3]
    assert ahead(rows, 2) == [3, 4, 5, 6]


def test_the_chunks_of_one_read_are_no_row() -> None:
    rows = Rows(MIB)
    for begins_in in (500, 7, 300, 20, 900):
        assert ahead(rows, begins_in, begins_in + 1) == []
        assert ahead(rows, begins_in + 50, begins_in + 66) == []


def test_reads_of_several_chunks_that_follow_each_other_are_one() -> None:
    rows = Rows(MIB)
    assert ahead(rows, 0, 15) == []
    assert ahead(rows, 16, 31) == [32, 33]
    # what was fetched ahead is there: the next read asks for what is missing
    assert ahead(rows, 32, 47) == [48, 49, 50, 51]


def test_nothing_is_fetched_behind_the_end() -> None:
    rows = Rows(MIB)
    ahead(rows, CHUNKS - 3)
    assert ahead(rows, CHUNKS - 2) == [CHUNKS - 1]
    assert ahead(rows, CHUNKS - 1) == []


def test_one_in_the_middle_is_left_to_be_asked_for() -> None:
    rows = Rows(MIB)
    for index in range(3):
        ahead(rows, index)
    fetched = ahead(rows, 3)
    assert fetched == list(range(4, 12))
    path = Path(b"large")
    markers = [each for each in fetched if rows.is_marker(ChunkKey(path, VERSION, each))]
    assert markers == [4, 7], "one from the read before"
    assert ahead(rows, 7) == list(range(8, 16)), "those before it were read unasked"
    assert not rows.is_marker(ChunkKey(path, VERSION, 7))


def test_who_begins_with_the_whole_first_chunk_reads_a_row() -> None:
    rows = Rows(MIB)
    assert ahead(rows, 0, begins=True) == [1, 2]
    assert ahead(rows, 1) == [2, 3, 4, 5]


def test_a_small_file_is_asked_for_once() -> None:
    rows = Rows(MIB)
    version = Version(3 * MIB - 5, 0, 0, 0)
    first, *others = [ChunkKey(Path(b"small"), version, index) for index in range(3)]
    assert rows.next(first, 0, begins=True) == others
    assert not any(rows.is_marker(each) for each in others), "nothing is behind them"
