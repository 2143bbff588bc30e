"""Protection classes: which class a path has, and what is refused as a class."""

import pytest

from copperfs.config.settings import Settings, check_tier
from copperfs.model.errors import ConfigError
from copperfs.model.protection import Protection, parse_class, protection_of, split_class
from copperfs.model.types import Path


def test_the_longest_prefix_of_a_path_gives_its_class() -> None:
    protection = protection_of({Path(b""): 3, Path(b"data/tmp"): 1, Path(b"data"): 2})
    assert protection.copies_of(Path(b"data/a")) == 2
    assert protection.copies_of(Path(b"data/tmp/a")) == 1
    assert protection.copies_of(Path(b"database")) == 3


def test_without_a_class_one_node_keeps_a_chunk() -> None:
    assert Protection().copies_of(Path(b"data")) == 1
    assert not Protection()
    assert not protection_of({Path(b"data"): 1})


def test_classes_do_not_depend_on_the_order_in_which_they_are_given() -> None:
    one, other = {Path(b"a"): 2, Path(b"b"): 3}, {Path(b"b"): 3, Path(b"a"): 2}
    assert protection_of(one) == protection_of(other)


def test_a_prefix_may_have_an_equals_sign() -> None:
    assert split_class("/lus/step=100=copies:4") == ("/lus/step=100", 4)


@pytest.mark.parametrize("text", ["copies:1", "copies:9", "copies:", "copies:²", "two", "", "None"])
def test_other_classes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="copies:K with K from 2 to 8"):
        parse_class(text)


@pytest.mark.parametrize("text", ["auto", "rs:4+2"])
def test_classes_that_do_not_exist_yet_are_refused_with_those_that_do(text: str) -> None:
    with pytest.raises(ValueError, match=r"there is no class .* yet: write none, or copies:K"):
        parse_class(text)


@pytest.mark.parametrize("text", ["/lus/data", "data=copies:2", "copies:2"])
def test_a_class_without_an_absolute_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no class for a path"):
        split_class(text)


def test_two_classes_for_one_path_are_refused() -> None:
    twice = ("/lus/data=copies:2", "/lus/data=none")
    with pytest.raises(ConfigError, match="gives /lus/data two classes"):
        check_tier(Settings(mountpoint="/mnt", memory_bytes=1 << 30, protect=twice))
