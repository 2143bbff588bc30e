"""Which names a compiled Python file mentions; in C and in Python alike."""

import marshal
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.blob import BLOBS_ARE_SHARED, FileBlob, PlainBlob, mentioned, new_blob

Kind = Callable[[int], FileBlob]
KINDS: list[Kind] = [PlainBlob, new_blob] if BLOBS_ARE_SHARED else [PlainBlob]
kinds = pytest.mark.parametrize("kind", KINDS, ids=["Python", "C"][: len(KINDS)])

SOURCE = """
'''About this package: it has words.'''
import package.core.low
from . import linalg, _lib
from .sparse.csgraph import dijkstra as path

def __getattr__(name):
    from . import lazy
    return lazy
"""
NAMES = (b"core", b"low", b"linalg", b"_lib", b"sparse", b"csgraph", b"lazy")
NOT_THERE = (b"lib", b"words", b"spars", b"parse", b"cor", b"cores", b"package.c", b"dijkstr", b"")


def blob_of(kind: Kind, data: bytes) -> FileBlob:
    blob = kind(len(data))
    blob.view[:] = data
    blob.seal(len(data))
    return blob


@kinds
def test_what_is_imported_is_mentioned_and_what_is_written_about_is_not(
    kind: Kind,
) -> None:
    blob = blob_of(kind, marshal.dumps(compile(SOURCE, "x.py", "exec")))
    assert mentioned(blob, NAMES + NOT_THERE) == NAMES


@kinds
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"z\x03abc", True),
        (b"abc", False),
        (b"z\x04abc", False),
        (b"z\x05x.abc", True),
        (b"z\x05abc.x", True),
        (b"z\x07x.abc.x", True),
        (b"z\x07x.abc", False),
        (b"z\x04xabc", False),
        (b"z\x07abc.x y", False),
        (b"\x00abc\x03abc", True),
        (b"", False),
    ],
)
def test_a_name_is_a_whole_string_or_a_part_between_dots(
    kind: Kind, data: bytes, found: bool
) -> None:
    assert blob_of(kind, data).mentions(b"abc") is found


PIECES = st.sampled_from(
    [b"a", b"b", b".", b"\x01", b"\x02", b"\x03", b"\x04", b"z", b"_", b"\xff"]
)


@given(st.lists(PIECES, max_size=40).map(b"".join), st.lists(PIECES, max_size=4).map(b"".join))
def test_c_and_python_agree(data: bytes, name: bytes) -> None:
    assert len({blob_of(kind, data).mentions(name) for kind in KINDS}) == 1
