"""What has to be the same on all nodes: the digest of it, and the sentence that names it."""

from dataclasses import replace

import pytest

from copperfs.config import Settings
from copperfs.runtime.agreement import AGREED, agreed_flags, agreement_of

ALONE = Settings(mountpoint="/mnt", memory_bytes=1 << 30)
OTHERS: dict[str, object] = {
    "source": "/lus",
    "revalidate_s": 5.0,
    "trees": 2,
    "fanout": "3",
    "push_fanout": 3,
    "tree_max_bytes": 1 << 20,
    "chunk_size_bytes": 1 << 18,
    "placement": "rendezvous",
    "vnodes": 200,
    "ring": ("/lus/data",),
    "on_failure": "source",
}


@pytest.mark.parametrize("name", AGREED)
def test_nodes_with_another_value_do_not_agree(name: str) -> None:
    other = replace(ALONE, **{name: OTHERS[name]})  # type: ignore[arg-type]  # each by its name
    assert agreement_of(other) != agreement_of(ALONE)


def test_what_each_node_decides_for_itself_is_not_agreed_on() -> None:
    other = replace(ALONE, mountpoint="/other", memory_bytes=1, tier_memory_bytes=5, tier_dir="/n")
    assert agreement_of(other) == agreement_of(ALONE)


def test_the_sentence_names_all_of_it() -> None:
    assert agreed_flags() == (
        "--source, --revalidate, --trees, --fanout, --push-fanout, --tree-max, --chunk-size, "
        "--placement, --vnodes, --ring and --on-failure"
    )
