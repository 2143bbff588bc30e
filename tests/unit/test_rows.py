"""Sequential read-ahead: which chunks it fetches before they are requested; random access causes
none."""

from itertools import pairwise

import pytest

from copperfs.model.types import ChunkKey, Path, Version
from copperfs.node.prefetch.sequential import (
    GROWS_EACH_S,
    READAHEAD_BYTES_MAX,
    RECENT_S,
    ReadaheadWindows,
)

MIB = 1 << 20
CHUNKS = 1000
VERSION = Version(CHUNKS * MIB, 0, 0, 0)
MOST = 24


def key_of(index: int, path: bytes = b"large", version: Version = VERSION) -> ChunkKey:
    return ChunkKey(Path(path), version, index)


def ahead(
    rows: ReadaheadWindows,
    begins_in: int,
    ends_in: int | None = None,
    *,
    now: float = 0.0,
    begins: bool = False,
    is_there: bool = True,
    path: bytes = b"large",
) -> list[int]:
    ends_in = begins_in if ends_in is None else ends_in
    key = key_of(begins_in, path)
    found = rows.next(now, key, ends_in, begins=begins, is_there=is_there)
    assert not found.known or not found.fresh or found.known.stop == found.fresh.start
    return [*found.known, *found.fresh]


def test_with_each_read_of_a_row_more_is_fetched_up_to_a_bound() -> None:
    rows = ReadaheadWindows(MIB)
    assert [len(ahead(rows, index)) for index in range(7)] == [0, 2, 4, 8, 9, 10, 11]
    for index in range(7, 30):
        assert ahead(rows, index)[0] == index + 1
    assert len(ahead(rows, 30)) == READAHEAD_BYTES_MAX // MIB == MOST


def test_small_chunks_are_as_many_bytes() -> None:
    rows = ReadaheadWindows(MIB // 4)
    assert [len(ahead(rows, index)) for index in range(7)] == [0, 2, 4, 8, 16, 32, 36]


def test_what_is_ahead_is_fetched_once() -> None:
    rows = ReadaheadWindows(MIB)
    fetched: list[int] = []
    for index in range(100):
        fetched += rows.next(0.0, key_of(index), index, is_there=True).fresh
    assert fetched == list(range(2, 2 + len(fetched)))


def test_who_asks_again_does_not_break_the_row() -> None:
    rows = ReadaheadWindows(MIB)
    ahead(rows, 0)
    ahead(rows, 1)
    assert ahead(rows, 1) == [2, 3]
    assert ahead(rows, 2) == [3, 4, 5, 6]


def test_the_chunks_of_one_read_are_no_row() -> None:
    rows = ReadaheadWindows(MIB)
    for begins_in in (500, 7, 300, 20, 900):
        assert ahead(rows, begins_in, begins_in + 1) == []
        assert ahead(rows, begins_in + 50, begins_in + 66) == []


def test_reads_of_several_chunks_that_follow_each_other_are_one() -> None:
    rows = ReadaheadWindows(MIB)
    assert ahead(rows, 0, 15) == []
    assert ahead(rows, 16, 31) == [32, 33]
    # chunks fetched ahead are there: the next read requests the missing ones
    assert ahead(rows, 32, 47) == [48, 49, 50, 51]


def test_nothing_is_fetched_behind_the_end() -> None:
    rows = ReadaheadWindows(MIB)
    ahead(rows, CHUNKS - 3)
    assert ahead(rows, CHUNKS - 2) == [CHUNKS - 1]
    assert ahead(rows, CHUNKS - 1) == []


def test_one_of_them_is_left_to_be_asked_for() -> None:
    rows = ReadaheadWindows(MIB)
    for index in range(3):
        ahead(rows, index)
    fetched = ahead(rows, 3)
    assert fetched == list(range(4, 12))
    assert [each for each in fetched if rows.is_marker(key_of(each))] == [4]
    fetched = ahead(rows, 4)
    assert fetched == list(range(5, 14))
    assert [each for each in fetched if rows.is_marker(key_of(each))] == [12]
    marker = 12
    assert ahead(rows, marker) == list(range(13, 23)), "those before it were read unasked"
    assert not rows.is_marker(key_of(marker))


def test_who_begins_with_the_whole_first_chunk_reads_a_row() -> None:
    rows = ReadaheadWindows(MIB)
    assert ahead(rows, 0, begins=True) == [1, 2]
    assert ahead(rows, 1) == [2, 3, 4, 5]


def test_a_small_file_is_asked_for_once() -> None:
    rows = ReadaheadWindows(MIB)
    version = Version(3 * MIB - 5, 0, 0, 0)
    first = key_of(0, b"small", version)
    assert [*rows.next(0.0, first, 0, begins=True, is_there=False).fresh] == [1, 2]
    others = [key_of(index, b"small", version) for index in (1, 2)]
    assert not any(rows.is_marker(each) for each in others), "nothing is behind them"


def test_another_version_is_another_file() -> None:
    rows = ReadaheadWindows(MIB)
    ahead(rows, 0)
    changed = VERSION._replace(mtime_ns=1)
    assert not rows.next(0.0, key_of(1, version=changed), 1, is_there=False).fresh


def test_after_a_clear_everything_is_fresh() -> None:
    rows = ReadaheadWindows(MIB)
    for index in range(10):
        ahead(rows, index)
    rows.forget()
    assert ahead(rows, 10) == []
    assert rows.next(0.0, key_of(11), 11, is_there=True).fresh


# --- a reader that asks only for what is not published -------------------------------------------


def asked_by_reader(rows: ReadaheadWindows, chunks: int) -> list[int]:
    """A reader that computes: all chunks ahead of it but the trigger chunk are published in
    time."""
    asked = []
    published: set[int] = set()
    for index in range(chunks):
        if index in published:
            continue
        asked.append(index)
        now = float(index)
        fresh = rows.next(now, key_of(index), index, is_there=bool(asked)).fresh
        published.update(each for each in fresh if not rows.is_marker(key_of(each)))
    return asked


def test_a_reader_asks_once_for_half_of_what_may_be_ahead() -> None:
    rows = ReadaheadWindows(MIB)
    asked = asked_by_reader(rows, CHUNKS)
    assert len(asked) < 1.5 * CHUNKS / (MOST / 2)
    between = [after - before for before, after in pairwise(asked)]
    assert max(between) <= MOST / 2 + 1, "it never ran into what is not ahead"


def test_a_row_goes_on_when_less_may_be_ahead_than_is() -> None:
    """The trigger chunk is an unpublished one, so at times there may be none."""
    rows = ReadaheadWindows(MIB)
    asked_by_reader(rows, 300)
    rows.window_chunks = 4
    asked = [each for each in asked_by_reader(rows, 400) if each > 320]
    assert len(asked) < 80 / (4 / 2) + 8


# --- how many may be ahead ------------------------------------------------------------------------


def long_row(rows: ReadaheadWindows, path: bytes = b"large", now: float = 0.0) -> int:
    last = [ahead(rows, index, path=path, now=now)[-1:] for index in range(30)][-1][0]
    return next(each for each in range(30, last + 1) if rows.is_marker(key_of(each, path)))


def test_half_as_many_when_one_is_gone_before_it_is_read() -> None:
    rows = ReadaheadWindows(MIB)
    marker = long_row(rows)
    ahead(rows, marker, is_there=False, now=1.0)
    assert rows.window_chunks == MOST // 2
    ahead(rows, marker + 1, is_there=False, now=1.1)
    assert rows.window_chunks == MOST // 2, "it had gone ahead before"


def test_one_that_is_gone_is_missed_whichever_it_is_but_once_for_all_rows() -> None:
    rows = ReadaheadWindows(MIB)
    markers = {path: long_row(rows, path) for path in (b"one", b"two", b"three")}
    for path, marker in markers.items():
        ahead(rows, marker - 2, path=path, is_there=False, now=1.0)
    assert rows.window_chunks == MOST // 2
    fresh_at = long_row(rows, b"four", now=2.0)
    ahead(rows, fresh_at, path=b"four", is_there=False, now=3.0)
    assert rows.window_chunks == MOST // 4


def test_never_less_than_the_next_one() -> None:
    rows = ReadaheadWindows(MIB)
    for turn in range(20):
        path = b"file%d" % turn
        ahead(rows, 0, path=path, now=float(turn), begins=True)
        ahead(rows, 1, path=path, now=turn + 0.5, is_there=False)
    assert rows.window_chunks == 1
    assert ahead(rows, 0, path=b"another", now=30.0, begins=True) == [1]


def test_as_many_as_before_when_all_are_there_again_and_not_at_once() -> None:
    rows = ReadaheadWindows(MIB)
    ahead(rows, long_row(rows), is_there=False, now=1.0)
    asked_by_reader(rows, 20)
    before = rows.window_chunks
    for turn in range(100):
        ahead(rows, long_row(rows, b"%d" % turn, now=50.0), path=b"%d" % turn, now=50.0)
    assert rows.window_chunks <= before + 1, (
        f"however many readers there are, one in {GROWS_EACH_S} s"
    )
    for turn in range(100):
        ahead(
            rows, long_row(rows, b"%d" % turn, now=60.0 + turn), path=b"%d" % turn, now=60.0 + turn
        )
    assert rows.window_chunks == MOST


def test_who_was_not_read_ahead_for_misses_nothing() -> None:
    rows = ReadaheadWindows(MIB)
    ahead(rows, 0, is_there=False)
    for index in (500, 700, 600, 601):
        ahead(rows, index, is_there=False)
    assert rows.window_chunks == MOST


def test_what_was_read_is_not_missed() -> None:
    """By another reader, which jumps about where the first one was."""
    rows = ReadaheadWindows(MIB)
    asked_by_reader(rows, 200)
    for index in (150, 20, 77, 100):
        ahead(rows, index, is_there=False, now=200.0)
    assert rows.window_chunks == MOST


def test_what_was_ahead_of_somebody_long_ago_is_nothing_to_learn_from() -> None:
    rows = ReadaheadWindows(MIB)
    marker = long_row(rows)
    ahead(rows, marker, now=RECENT_S + 1, is_there=False)
    assert rows.window_chunks == MOST


def test_what_found_no_room_is_fetched_with_the_next_read() -> None:
    rows = ReadaheadWindows(MIB)
    for index in range(30):
        ahead(rows, index)
    fresh = rows.next(0.0, key_of(30), 30, is_there=True).fresh
    rows.found_no_room(key_of(fresh.start))
    again = rows.next(0.0, key_of(31), 31, is_there=True).fresh
    assert again.start == fresh.start
    rows.found_no_room(key_of(32))
    assert ahead(rows, 32, is_there=False, now=1.0)
    assert rows.window_chunks == MOST, "it was not ahead"


def test_of_too_many_rows_the_one_that_was_read_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("copperfs.node.prefetch.sequential.PLACES_MAX", 12)
    rows = ReadaheadWindows(MIB)
    paths = [b"%d" % number for number in range(9)]
    for path in paths:
        ahead(rows, 0, path=path)
        assert ahead(rows, 1, path=path), "whoever comes last is read ahead for"
    assert ahead(rows, 2, path=paths[-1])
    assert not ahead(rows, 2, path=paths[0])
