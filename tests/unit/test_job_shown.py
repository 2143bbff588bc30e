"""Tree report: the drawing of ``copperfs tree`` for jobs of every size, and which nodes it puts
behind which.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from copperfs.cli.main import main
from copperfs.cli.output import missing_names, names_of
from copperfs.cli.tree import LINES_MAX, shown
from copperfs.daemon.tree_report import places_of, way_between
from copperfs.model.types import NodeId
from copperfs.node.routing.trees import Trees


def document(
    nodes: int, fanout: int = 16, trees: int = 1, missing: frozenset[int] = frozenset()
) -> dict[str, Any]:
    own = Trees(nodes, NodeId(0), fanout, 2, trees)

    def links(number: int) -> list[Any]:
        parents = [replace(own, me=NodeId(number)).parent(tree) for tree in range(trees)]
        return [each if each is None else link | {"parent": each} for each in parents]

    link = {"connected": True, "rtt_us": 420}
    members = [
        {
            "number": number,
            "name": f"n{number}",
            "endpoint": f"tcp://10.0.0.1:{number}",
            "answered": number not in missing,
            "gone": False,
            "places": places_of(own, number, (), None if number in missing else links(number)),
        }
        for number in range(nodes)
    ]
    return {
        "version": 1, "nodes": nodes - len(missing), "roster": nodes,
        "missing": [members[each] | {"behind": None} for each in sorted(missing)],
        "asked": 0, "trees": trees, "fanout": fanout, "push_fanout": 2,
        "suspects": [], "members": members,
    }  # fmt: skip


def drawn(shown_document: dict[str, Any], depth: int | None = None) -> list[str]:
    console = Console(width=200, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(shown(shown_document, depth))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_small_job_is_drawn_whole() -> None:
    assert drawn(document(4, fanout=2)) == [
        "4 of 4 nodes answered",
        "n0  10.0.0.1:0  tree 0: root, depth 0, up  (this node)",
        "├── n1  10.0.0.1:1  parent, depth 1, up, 0.42 ms to its parent",
        "│   └── n3  10.0.0.1:3  leaf, depth 2, up, 0.42 ms to its parent",
        "└── n2  10.0.0.1:2  leaf, depth 1, up, 0.42 ms to its parent",
    ]


def test_a_large_job_is_drawn_to_the_depth_that_fits() -> None:
    lines = drawn(document(300, missing=frozenset({2, 20, 290})))
    assert len(lines) == 1 + 1 + 16
    assert lines[0] == "297 of 300 nodes answered; missing: n2, n20, n290"
    assert lines[2].endswith("0.42 ms to its parent  + 43 more, 2 of them missing")
    assert lines[3].endswith("missing  + 16 more")


def test_the_depth_can_be_asked_for() -> None:
    assert len(drawn(document(300), depth=2)) == 1 + 1 + 16 + 256
    assert len(drawn(document(300), depth=9)) == 1 + 300
    assert drawn(document(300), depth=0)[1].endswith("+ 299 more")


def test_many_children_are_counted_from_some_on() -> None:
    lines = drawn(document(300, fanout=299))
    assert len(lines) == 1 + 1 + LINES_MAX + 1
    assert lines[-1] == "└── and 259 more"


def test_of_many_trees_the_first_are_drawn() -> None:
    lines = drawn(document(8, trees=8))
    assert lines[-1] == "4 more trees, with the roots n4, n5, n6, n7"
    assert len(drawn(document(8, trees=8), depth=1)) == 1 + 8 * 8


@given(st.integers(1, 400), st.integers(1, 20), st.integers(1, 3))
def test_no_job_fills_more_than_a_few_screens(nodes: int, fanout: int, trees: int) -> None:
    assert len(drawn(document(nodes, fanout, trees))) <= 1 + trees * (LINES_MAX + 2)


def test_nodes_without_their_parent_are_said_to_be() -> None:
    alone = document(2)
    place = alone["members"][1]["places"][0]
    place.update(connected=False, rtt_us=None)
    assert drawn(alone)[2].endswith("up, not connected to n0")
    place.update(connected=True)
    assert drawn(alone)[2].endswith("up, n0 does not answer it")


@given(st.integers(1, 60), st.integers(1, 9), st.data())
def test_the_way_of_a_call_is_along_the_first_tree(
    nodes: int, fanout: int, data: st.DataObject
) -> None:
    here, there = (data.draw(st.integers(0, nodes - 1)) for _ in range(2))
    numbers = st.sets(st.integers(0, nodes - 1).map(NodeId))
    gone = data.draw(numbers) - {here, there}
    trees = Trees(nodes, NodeId(0), fanout)
    between = way_between(trees, here, there, gone)
    way = [here, *between, *([there] if there != here else [])]
    assert len(set(way)) == len(way)
    for one, other in pairwise(way):
        trees = Trees(nodes, NodeId(one), fanout)
        assert other in (trees.parent(0, gone), *trees.children(0, gone))


def test_who_is_gone_is_named_and_its_children_are_drawn_where_they_are_now() -> None:
    shown_document = document(7, fanout=2)
    gone = {NodeId(1)}
    for number, member in enumerate(shown_document["members"]):
        member["gone"] = number in gone
        member["answered"] = number not in gone
        member["places"] = places_of(Trees(7, NodeId(0), 2), number, gone)
    shown_document["missing"] = [shown_document["members"][1] | {"behind": None}]
    shown_document["suspects"] = [shown_document["members"][5] | {"by": [2]}]
    lines = drawn(shown_document)
    names = [line.replace("│", " ").replace("├──", " ").replace("└──", " ") for line in lines]
    assert [each.split()[0] for each in names[1:7]] == ["n0", "n2", "n4", "n5", "n6", "n3"]
    assert lines[-2:] == ["gone: n1", "suspected: n5"]


def test_a_sentence_names_a_few() -> None:
    members: list[dict[str, Any]] = [{"name": f"n{each}", "behind": None} for each in range(20)]
    assert names_of(members[:2]) == "n0, n1"
    assert names_of(members).endswith("n15 and 4 more")
    members[1]["behind"] = 0
    assert missing_names(members[:2]) == "n0, and not reached behind them n1"


@pytest.mark.parametrize("depth", ["-1", "x", "1.5"])
def test_a_depth_is_a_whole_number(depth: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", "/", f"--depth={depth}"]) == 2
    assert "whole number" in capsys.readouterr().err
