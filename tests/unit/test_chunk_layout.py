"""Chunk layout: the chunks of a file cover it, in order, and each group of chunks has one owner."""

from hypothesis import given
from hypothesis import strategies as st

from copperfs.node.requests.chunk_layout import GROUP_BYTES, ChunkLayout

MIB = 1 << 20
layouts = st.builds(ChunkLayout, st.integers(1, 300 * MIB), st.sampled_from((4096, MIB, 32 * MIB)))


@given(layouts)
def test_chunks_lie_side_by_side_and_cover_the_file(layout: ChunkLayout) -> None:
    last = layout.last
    assert last == layout.count - 1
    for index in {0, 1, last // 2, last - 1, last} & set(range(layout.count)):
        assert 0 < layout.size_of(index) <= layout.chunk_bytes
        assert layout.at(layout.offset_of(index)) == index
        assert layout.at(layout.offset_of(index) + layout.size_of(index) - 1) == index
        assert (layout.size_of(index) == layout.chunk_bytes) or index == last
    assert layout.offset_of(last) + layout.size_of(last) == layout.file_bytes


@given(layouts, st.integers(0, 1 << 40))
def test_there_is_no_chunk_beyond_the_end(layout: ChunkLayout, offset: int) -> None:
    assert layout.size_of(layout.count + offset) <= 0
    assert layout.at(layout.file_bytes + offset) == layout.last


def test_an_empty_file_has_no_chunks() -> None:
    empty = ChunkLayout(0, MIB)
    assert empty.count == 0
    assert empty.size_of(0) <= 0


@given(layouts)
def test_groups_follow_one_another(layout: ChunkLayout) -> None:
    first = groups = 0
    while first < layout.count:
        end = layout.group_end(first)
        assert first < end <= layout.count
        assert layout.group_of(end - 1) == layout.group_of(first)
        assert end == layout.count or layout.group_of(end) > layout.group_of(first)
        first, groups = end, groups + 1
    assert groups == -(-layout.file_bytes // max(GROUP_BYTES, layout.chunk_bytes))


@given(layouts, st.data())
def test_a_span_has_exactly_the_chunks_with_bytes_in_it(
    layout: ChunkLayout, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, layout.file_bytes))
    end = data.draw(st.integers(begin, layout.file_bytes))
    spanned = layout.spanned(begin, end)
    assert bool(spanned) == (begin < end)
    if spanned:
        assert (spanned[0], spanned[-1]) == (layout.at(begin), layout.at(end - 1))
