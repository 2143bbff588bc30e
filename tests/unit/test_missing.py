"""Missing nodes: which nodes did not answer, and behind which others."""

import threading
from types import SimpleNamespace

import pytest
import trio

from copperfs.daemon import job_requests as module
from copperfs.daemon.job_requests import JobMember
from copperfs.daemon.tree_report import way_between
from copperfs.model.roster import Member, Roster
from copperfs.model.types import NodeId
from copperfs.node.routing.trees import Trees


def test_a_node_that_is_cut_off_from_thousands_still_answers_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search for 9,000 missing nodes takes a second, after which the others would suspect this
    node."""
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
    job = object.__new__(JobMember)
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
