"""File class: one classifier decides how a file is read, by its size and its place."""

import pytest

from copperfs.model.types import Path
from copperfs.node.limits_and_counters import Limits
from copperfs.node.requests.file_class import FileClass, FileClassifier
from copperfs.node.requests.path_policy import Policy

MIB = 1 << 20
WHOLE, CHUNKED, DIRECT = FileClass.WHOLE, FileClass.CHUNKED, FileClass.DIRECT


def classifier(chunk_bytes: int = MIB, bypass_above: int | None = None) -> FileClassifier:
    policy = Policy(
        b"/",
        b"/mnt",
        local=(Path(b"tmp"),),
        ring=(Path(b"data"), Path(b"tmp/data")) if chunk_bytes else (),
    )
    limits = Limits(64 * MIB, 10 * MIB, bypass_above, 10.0, chunk_bytes=chunk_bytes)
    return FileClassifier(policy, limits)


@pytest.mark.parametrize(
    ("path", "size", "with_tier", "without_tier"),
    [
        (b"lib/a", 0, WHOLE, WHOLE),
        (b"lib/a", 10 * MIB, WHOLE, WHOLE),
        (b"lib/a", 10 * MIB + 1, CHUNKED, DIRECT),
        (b"tmp/a", 10 * MIB + 1, DIRECT, DIRECT),
        (b"data/a", 0, WHOLE, WHOLE),
        (b"data/a", 1, CHUNKED, WHOLE),
        (b"data/a", 10 * MIB + 1, CHUNKED, DIRECT),
        (b"tmp/data/a", 1, WHOLE, WHOLE),
    ],
)
def test_size_and_place_decide_the_class(
    path: bytes, size: int, with_tier: FileClass, without_tier: FileClass
) -> None:
    assert classifier().of(Path(path), size) is with_tier
    assert classifier(chunk_bytes=0).of(Path(path), size) is without_tier


def test_what_is_above_the_bypass_is_read_directly_also_of_a_dataset() -> None:
    files = classifier(bypass_above=20 * MIB)
    assert files.of(Path(b"lib/a"), 20 * MIB) is CHUNKED
    assert files.of(Path(b"lib/a"), 20 * MIB + 1) is DIRECT
    assert files.of(Path(b"data/a"), 20 * MIB + 1) is DIRECT
    assert classifier(bypass_above=MIB).of(Path(b"lib/a"), MIB + 1) is DIRECT


def test_two_whole_files_fit_into_the_budget() -> None:
    files = FileClassifier(Policy(b"/", b"/mnt"), Limits(8 * MIB, 10 * MIB, None, 10.0))
    assert files.of(Path(b"a"), 4 * MIB) is DIRECT
    assert files.of(Path(b"a"), files.whole_max_bytes) is WHOLE
    assert 3 * MIB < files.whole_max_bytes < 4 * MIB


def test_a_file_that_is_asked_for_as_one_object_is_never_chunked() -> None:
    files = classifier()
    assert files.of_object(10 * MIB) is WHOLE
    assert files.of_object(10 * MIB + 1) is DIRECT


def test_files_of_a_dataset_are_not_pushed_nor_granted() -> None:
    files = classifier()
    assert files.is_pushed(Path(b"lib/a"), 10 * MIB)
    assert not files.is_pushed(Path(b"lib/a"), 10 * MIB + 1)
    assert not files.is_pushed(Path(b"data/a"), 0)
    assert files.is_granted(Path(b"lib"))
    assert not files.is_granted(Path(b"data/train"))
