"""Golden scenarios of several nodes: ``tests/scenarios/jobs/*.txt``, replayed in virtual time."""

from pathlib import Path

import pytest

from copperfs.lab.sim.checkers import Violation
from copperfs.lab.sim.scenario import NotALine, Scenario, Unmet, needs

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "jobs").glob("*.txt"))
LINES_SHOWN = 80


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(file: Path) -> None:
    text = file.read_text()
    assert text.startswith("# "), "a scenario opens with a sentence of intent"
    if lacks := needs(text):
        pytest.skip(f"needs {', '.join(lacks)}")
    scenario = Scenario()
    try:
        scenario.tell(text)
    except AssertionError as fault:
        print(f"python -m copperfs.lab.sim {file} shows more:")
        print(*scenario.world.trace.lines()[-LINES_SHOWN:], sep="\n")
        pytest.fail(str(fault), pytrace=False)


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 40


# --- a scenario can fail --------------------------------------------------------------------------

ONE = "nodes 3 fanout 2\nfile a 100\n"


@pytest.mark.parametrize(
    "line",
    [
        "expect node 1 has a",
        "expect source reads a 2",
        "expect stall below 0",
        "expect 1 not connected to 0",
        "expect all in epoch 2",
        "expect asks 7",
    ],
)
def test_what_is_not_so_is_unmet(line: str) -> None:
    with pytest.raises(Unmet, match=f"line 5, '{line}'"):
        Scenario().tell(f"{ONE}node 2 reads a\nfinish\n{line}")


def test_an_unexpected_error_is_a_violation() -> None:
    with pytest.raises(Violation, match="the reading of b on node 1 ENOENT"):
        Scenario().tell(f"{ONE}node 1 reads b")
    Scenario().tell(f"{ONE}errors are expected\nnode 1 reads b")


def test_an_unknown_line_is_an_error() -> None:
    with pytest.raises(NotALine, match="not a line of a scenario: crash nicely"):
        Scenario().tell("crash nicely")
