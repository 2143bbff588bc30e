"""Who did not answer, and behind whom: found without keeping the node from its other work."""

import threading
from types import SimpleNamespace

import pytest
import trio

from copperfs.core.trees import Trees
from copperfs.roster import Member, Roster
from copperfs.runtime import job as module
from copperfs.runtime.job import Job
from copperfs.runtime.shape import way_between
from copperfs.types import NodeId


def test_a_node_that_is_cut_off_from_thousands_still_answers_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """9,000 missing ones take a second, after which the rest would call it silent."""
    nodes = 600
    threads = set()

    def seen(*arguments: object) -> list[int]:
        threads.add(threading.current_thread())
        return way_between(*arguments)  # type: ignore[arg-type]  # what it was called with

    monkeypatch.setattr(module, "way_between", seen)
    members = tuple(Member(f"n{each}", f"tcp://h{each}:1") for each in range(nodes))
    node = SimpleNamespace(
        trees=Trees(nodes, NodeId(0), fanout=16), gone=lambda: frozenset([NodeId(1)])
    )
    job = object.__new__(Job)
    job.engine = SimpleNamespace(node=node)  # type: ignore[assignment]  # all that is asked
    job.roster = Roster("job", members)

    answered = {0, *range(2, 17)}
    head = trio.run(job._head, answered)
    assert (head["nodes"], head["roster"]) == (len(answered), nodes)
    behind = {each["number"]: each["behind"] for each in head["missing"]}
    assert len(behind) == nodes - len(answered)
    assert behind[1] is None
    assert behind[40] is None, "its parent answered"
    assert behind[16 * 40 - 90] == (16 * 40 - 91) // 16, "its parent did not"
    assert threading.main_thread() not in threads
