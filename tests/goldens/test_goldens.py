"""The goldens notice the changes that they exist for."""

import pytest

from copperfs.lab.sim.virtual_network import NetworkCosts
from tests.goldens import words
from tests.goldens.boundary import Boundary
from tests.goldens.commands import keys_of
from tests.goldens.simulated import lines_of, row_of_scenario, run_scenario

STORY = "answered-and-asked-again"


def test_a_story_gives_the_same_row_twice() -> None:
    assert row_of_scenario(STORY) == row_of_scenario(STORY)


def test_a_microsecond_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    before = row_of_scenario(STORY)
    slower = NetworkCosts().latency_s + 1e-6
    monkeypatch.setattr(
        "copperfs.lab.sim.virtual_network.VirtualNetwork.latency_s", lambda *_: slower
    )
    assert row_of_scenario(STORY) != before


def test_the_lines_of_a_run_name_messages_operations_and_answers() -> None:
    lines = "\n".join(lines_of(lambda: run_scenario(STORY)))
    for each in ("> n0 Ask(", "source ReadSource ", "source ContentRead ", ": AnswerListing "):
        assert each in lines, each


def test_who_only_renames_a_message_changes_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before, renamed = Boundary(), Boundary()
    before.passes(1.5, "Ask", "n2 > n0 Ask(number=1)")
    monkeypatch.setitem(words.RENAMED, "Request", "Ask")
    renamed.passes(1.5, "Request", "n2 > n0 Request(number=1)")
    assert renamed.hexdigest() == before.hexdigest()


def test_a_document_is_described_by_its_keys_and_types() -> None:
    described = set(keys_of({"nodes": [{"name": "a"}, {"name": None, "age_s": 1.5}]}))
    assert described == {
        ".: {}",
        ".nodes: []",
        ".nodes[]: {}",
        ".nodes[].name: str",
        ".nodes[].name: NoneType",
        ".nodes[].age_s: float",
    }
