"""Read assembly: a read from an object or from chunks requests those it spans."""

import errno

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as some

from copperfs.fuse.node_port import SourceError
from copperfs.fuse.read_assembly import Pieces, ask_at_each
from copperfs.model.types import BlobId, ChunkKey, Path, RequestId, Version
from copperfs.native.blob import new_blob
from copperfs.node.actions import AnswerChunk, AnswerObject, ObjectKey

PATH, REQUEST, BLOB = Path(b"large"), RequestId(1), BlobId(1)


def give(pieces: Pieces, content: bytes, chunk_bytes: int, at: int) -> None:
    version = Version(len(content), 0, 0, 0)
    index = min(at, len(content) - 1) // chunk_bytes
    part = content[index * chunk_bytes :][:chunk_bytes]
    blob = new_blob(len(part))
    blob.view[:] = part
    blob.seal(len(part))
    pieces.take(AnswerChunk(REQUEST, ChunkKey(PATH, version, index), BLOB, chunk_bytes), blob)


@given(
    content=some.binary(min_size=1, max_size=200),
    chunk_bytes=some.integers(1, 250),
    offset=some.integers(0, 260),
    size=some.integers(0, 260),
)
def test_whatever_is_read_is_what_lies_there(
    content: bytes, chunk_bytes: int, offset: int, size: int
) -> None:
    pieces = Pieces(offset, size, len(content))
    assert pieces.missing() == []  # no chunks are known yet
    give(pieces, content, chunk_bytes, pieces.first_byte)
    asked = pieces.missing()
    assert all(offset < at < offset + size for at in asked)
    for at in asked:
        assert pieces.joined() is None
        give(pieces, content, chunk_bytes, at)
    assert pieces.joined() == content[offset : offset + size]
    spanned = {at // chunk_bytes for at in range(offset, min(offset + size, len(content)))}
    assert len(asked) == max(0, len(spanned) - 1)


def test_an_object_is_a_chunk_with_all_in_it() -> None:
    pieces = Pieces(3, 100, 10)
    blob = new_blob(10)
    blob.view[:] = b"0123456789"
    blob.seal(10)
    pieces.take(AnswerObject(REQUEST, ObjectKey(PATH, Version(10, 0, 0, 0)), BLOB), blob)
    assert (pieces.missing(), pieces.joined()) == ([], b"3456789")


def test_of_an_empty_file_there_is_nothing_to_read() -> None:
    pieces = Pieces(0, 10, 0)
    pieces.take(AnswerObject(REQUEST, ObjectKey(PATH, Version(0, 0, 0, 0)), BLOB), new_blob(0))
    assert (pieces.first_byte, pieces.missing(), pieces.joined()) == (0, [], b"")


async def _wait_for_all(offsets: list[int]) -> list[int]:
    asked = []
    all_asked = trio.Event()

    async def ask(offset: int) -> None:
        asked.append(offset)
        if len(asked) == len(offsets):
            all_asked.set()
        await all_asked.wait()

    with trio.fail_after(5):
        await ask_at_each(ask, offsets)
    return asked


def test_all_are_asked_at_once_and_in_their_order() -> None:
    for count in [0, 1, 2, 3, 17] * 5:
        offsets = list(range(count))
        assert trio.run(_wait_for_all, offsets) == offsets


def test_the_first_error_ends_the_waiting_for_the_others() -> None:
    async def ask(offset: int) -> None:
        if offset == 2:
            raise SourceError(errno.ENOENT)
        await trio.sleep_forever()

    async def main() -> None:
        with trio.fail_after(5):
            await ask_at_each(ask, [1, 2, 3])

    with pytest.raises(SourceError) as raised:
        trio.run(main)
    assert raised.value.errno == errno.ENOENT
