"""``copperfs top``: rates from documents of two moments."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from copperfs.cli.top_rates import of_job, per_s, share
from copperfs.cli.top_view import NODES_MAX, frame


def test_a_count_that_went_back_began_anew() -> None:
    assert per_s(30, 10, 2) == 10
    assert per_s(4, 10, 2) == 2


def test_there_is_no_share_of_nothing() -> None:
    assert share(0, 0) is None
    assert share(1, 3) == 0.25


def node(number: int, **counts: int) -> dict[str, Any]:
    zeros = dict.fromkeys(("from_memory", "from_source_files", "from_parents", "to_children"), 0)
    return {
        "number": number,
        "hits": counts.get("hits", 0),
        "misses": 0,
        "bytes": zeros
        | {"to_children": counts.get("given", 0), "from_parents": counts.get("got", 0)},
        "source": dict.fromkeys(("read_bytes", "open", "stat", "scandir"), 0)
        | {"read_bytes": counts.get("read", 0)},
        "cache": {"budget_bytes": 100, "held_bytes": 50, "held": 1, "evictions": 0},
        "node": {"fallbacks": 0},
    }


def job(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {
        "nodes": len(nodes),
        "roster": len(nodes),
        "missing": [],
        "total": node(0, hits=sum(each.get("hits", 0) for each in nodes)),
        "by_node": list(nodes),
    }


def tree(count: int, suspects: tuple[int, ...] = (), gone: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "suspects": [{"number": number} for number in suspects],
        "members": [
            {
                "number": number,
                "name": f"n{number}",
                "answered": number not in gone,
                "gone": number in gone,
                "places": [
                    {
                        "role": "leaf" if number else "root",
                        "depth": int(number > 0),
                        "parent": 0 if number else None,
                        "rtt_us": None,
                    }
                ],
            }
            for number in range(count)
        ],
    }


def text_of(view: dict[str, Any]) -> str:
    console = Console(record=True, width=150, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(frame(view, title="job"))
    return console.export_text()


def test_who_gives_far_more_than_others_is_hot_and_who_is_doubted_suspect() -> None:
    before = job(*(node(number) for number in range(4)))
    now = job(
        node(0, given=900, read=300), *(node(number, given=100, got=300) for number in (1, 2, 3))
    )
    view = of_job(now, before, 1.0, tree(4, suspects=(2,)))
    assert [each["hot"] for each in view["by_node"]] == [True, False, False, False]
    assert [each["suspect"] for each in view["by_node"]] == [False, False, True, False]
    assert view["by_node"][0]["rates"]["levels"]["source"] == 1.0
    assert view["by_node"][1]["rates"]["levels"]["parents"] == 1.0
    lines = text_of(view).splitlines()
    assert any("n0" in line and "hot" in line for line in lines)
    assert any("  n2" in line and "suspect" in line for line in lines)


def test_of_many_nodes_those_that_are_remarkable_are_shown() -> None:
    count = 3 * NODES_MAX
    state = job(*(node(number) for number in range(count)))
    text = text_of(of_job(state, state, 1.0, tree(count, suspects=(count - 1,), gone=(5,))))
    assert f"n{count - 1} " in text
    assert "and 78 more" in text
    assert any("n5 " in line and "gone" in line for line in text.splitlines())
    assert f"n{count - 2} " not in text


def test_nodes_that_cannot_be_asked_have_no_rates() -> None:
    state = job() | {"total": {}}
    view = of_job(state, state, 1.0, tree(1))
    assert view["total"] is None
    assert view["by_node"][0]["rates"] is None
    assert "n0" in text_of(view)
