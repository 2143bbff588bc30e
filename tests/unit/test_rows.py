"""Rows: what is fetched before it is asked for, and that nothing is for who jumps about."""

from copperfs.core.rows import AHEAD_S, ROW_BYTES_MAX, Rows
from copperfs.types import ChunkKey, Path, Version

MIB = 1 << 20
CHUNKS = 1000
VERSION = Version(CHUNKS * MIB, 0, 0, 0)


def ahead(
    rows: Rows,
    begins_in: int,
    ends_in: int | None = None,
    *,
    now: float = 0.0,
    begins: bool = False,
    is_there: bool = True,
    path: bytes = b"large",
) -> list[int]:
    key = ChunkKey(Path(path), VERSION, begins_in)
    ends_in = begins_in if ends_in is None else ends_in
    fetched = rows.next(now, key, ends_in, begins=begins, is_there=is_there)
    for each in fetched:
        rows.goes_ahead(now, each)
    return [each.index for each in fetched]


def test_with_each_read_of_a_row_more_is_fetched_up_to_a_bound() -> None:
    rows = Rows(MIB)
    assert [len(ahead(rows, index)) for index in range(7)] == [0, 2, 4, 8, 9, 10, 11]
    assert len(ahead(rows, long_row(rows))) == ROW_BYTES_MAX // MIB == 24


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
    assert ahead(rows, 7) == list(range(8, 17)), "those before it were read unasked"
    assert not rows.is_marker(ChunkKey(path, VERSION, 7))


def test_who_begins_with_the_whole_first_chunk_reads_a_row() -> None:
    rows = Rows(MIB)
    assert ahead(rows, 0, begins=True) == [1, 2]
    assert ahead(rows, 1) == [2, 3, 4, 5]


def test_a_small_file_is_asked_for_once() -> None:
    rows = Rows(MIB)
    version = Version(3 * MIB - 5, 0, 0, 0)
    first, *others = [ChunkKey(Path(b"small"), version, index) for index in range(3)]
    assert rows.next(0.0, first, 0, begins=True, is_there=False) == others
    assert not any(rows.is_marker(each) for each in others), "nothing is behind them"


# --- how many may be ahead ------------------------------------------------------------------------


def long_row(rows: Rows, path: bytes = b"large") -> int:
    """The marker of a row that is as long as it may be."""
    fetched = [ahead(rows, index, path=path) for index in range(30)][-1]
    return max(each for each in fetched if rows.is_marker(ChunkKey(Path(path), VERSION, each)))


def test_half_as_many_when_one_is_gone_before_it_is_read() -> None:
    rows = Rows(MIB)
    marker = long_row(rows)
    assert len(ahead(rows, marker, is_there=False)) == 12
    assert len(ahead(rows, marker + 1, is_there=False)) == 6
    fewer = [len(ahead(rows, marker + n, is_there=False)) for n in range(2, 6)]
    assert fewer == [3, 1, 1, 1], "the next one, at least"


def test_one_that_is_gone_is_missed_whichever_it_is_and_by_all_rows() -> None:
    rows = Rows(MIB)
    marker = long_row(rows)
    other = long_row(rows, b"other")
    ahead(rows, marker - 2, is_there=False)
    assert len(ahead(rows, other, path=b"other")) == 13, "and one more for a marker that is there"


def test_as_many_as_before_when_all_are_there_again() -> None:
    rows = Rows(MIB)
    marker = long_row(rows)
    ahead(rows, marker, is_there=False)
    counts = []
    for _ in range(20):
        fetched = ahead(rows, marker)
        counts.append(len(fetched))
        marker = next(
            each
            for each in reversed(fetched)
            if rows.is_marker(ChunkKey(Path(b"large"), VERSION, each))
        )
    assert counts[0] < counts[5] < counts[-1] == 24


def test_who_was_not_read_ahead_for_misses_nothing() -> None:
    rows = Rows(MIB)
    for index in range(30):
        ahead(rows, index, is_there=index > 0)
    assert len(ahead(rows, 30)) == 24
    for index in (500, 700, 600):
        ahead(rows, index, is_there=False)
    assert len(ahead(rows, 31)) == 24


def test_what_was_ahead_of_somebody_long_ago_is_nothing_to_learn_from() -> None:
    rows = Rows(MIB)
    marker = long_row(rows)
    assert len(ahead(rows, marker, now=AHEAD_S + 1, is_there=False)) == 24


def test_what_found_no_room_was_not_ahead() -> None:
    rows = Rows(MIB)
    for index in range(30):
        rows.next(0.0, ChunkKey(Path(b"large"), VERSION, index), index, is_there=False)
    assert len(ahead(rows, 30)) == 24


def test_what_goes_ahead_does_so_once() -> None:
    rows = Rows(MIB)
    key = ChunkKey(Path(b"large"), VERSION, 5)
    assert rows.goes_ahead(0.0, key)
    assert not rows.goes_ahead(1.0, key)
    assert rows.goes_ahead(AHEAD_S + 1, key), "for somebody else"
