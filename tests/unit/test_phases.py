"""Phases of a fetch: the table is complete, only it changes a phase, and the document shows it.

``python -m tests.unit.test_phases`` rewrites the document.
"""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

import copperfs
from copperfs.model.types import FetchId, NodeId, Path, RequestId
from copperfs.node.fetch.fetch import INVARIANTS, Attempt, Fetch, Timers
from copperfs.node.fetch.phases import (
    FALLBACK,
    MEANINGS,
    OCCASIONS,
    OWN_READ,
    READING,
    TRANSITIONS,
    ImpossibleTransition,
    Phase,
    Trigger,
    after,
)
from copperfs.node.limits_and_counters import FetchKind

PACKAGE = FilePath(copperfs.__file__).parent
DOCUMENT = PACKAGE.parent / "docs" / "fetch-phases.md"


def fetch() -> Fetch:
    return Fetch(FetchId(1), (FetchKind.LISTING, Path(b"d"), None), 10.0, [], Timers(0.0, 1.0))


# --- the table ------------------------------------------------------------------------------------


def test_each_phase_has_transitions_invariants_and_a_meaning() -> None:
    assert set(TRANSITIONS) == set(INVARIANTS) == set(Phase)
    assert set(MEANINGS) == set(Phase)
    assert set(OCCASIONS) == set(Trigger)


def test_each_trigger_is_used() -> None:
    assert {trigger for then in TRANSITIONS.values() for trigger in then} == set(Trigger)


def test_each_phase_is_reached_from_new_and_ends() -> None:
    reached, found = {Phase.NEW}, [Phase.NEW]
    while found:
        following = set(TRANSITIONS[found.pop()].values()) - reached
        reached |= following
        found += following
    assert reached == set(Phase)
    for phase in set(Phase) - {Phase.NEW, Phase.DONE}:
        assert after(phase, Trigger.END) is Phase.DONE
    assert not TRANSITIONS[Phase.DONE]


def test_no_fetch_is_new_again() -> None:
    assert Phase.NEW not in {each for then in TRANSITIONS.values() for each in then.values()}


def test_asking_others_never_ends_a_fallback() -> None:
    for phase in FALLBACK:
        assert after(phase, Trigger.ASK_PEER) is after(phase, Trigger.CONNECT) is phase


def test_who_reads_as_the_root_or_the_owner_waits_for_nobody_else() -> None:
    for phase in OWN_READ:
        following = dict(TRANSITIONS[phase])
        if phase is Phase.READING_DISK:  # then the source is not read yet
            assert following.pop(Trigger.DISK_LACKS_IT) is Phase.ASKING_COPIES
        assert set(following.values()) <= {*OWN_READ, Phase.DONE}
        assert not phase.is_fallback
        assert phase.is_reading
    assert set(READING) - OWN_READ <= FALLBACK


def test_a_transition_that_the_table_does_not_have_is_an_error() -> None:
    begun = fetch()
    begun.move(Trigger.READ_SOURCE)
    with pytest.raises(ImpossibleTransition, match="ASK_PEER in READING_SOURCE"):
        begun.move(Trigger.ASK_PEER)
    assert begun.phase is Phase.READING_SOURCE


@given(st.lists(st.sampled_from(Trigger)))
def test_any_triggers_lead_along_the_table_or_change_nothing(triggers: list[Trigger]) -> None:
    begun = fetch()
    for trigger in triggers:
        before = begun.phase
        try:
            begun.move(trigger)
        except ImpossibleTransition:
            assert trigger not in TRANSITIONS[before]
            assert begun.phase is before
        else:
            assert begun.phase is TRANSITIONS[before][trigger]


def _assignments(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Attribute) and each.attr == "phase":
                    yield ast.unparse(node)


def test_only_move_changes_a_phase() -> None:
    found = [
        (path.name, each)
        for path in sorted((PACKAGE / "node").rglob("*.py"))
        for each in _assignments(ast.parse(path.read_text()))
    ]
    assert found == [("fetch.py", "self.phase = after(self.phase, trigger)")]


# --- fields of a fetch ----------------------------------------------------------------------------


def test_a_fetch_has_no_boolean_fields() -> None:
    values = (
        *(fetch(), fetch().timers, fetch().plan, fetch().copies),
        *(fetch().received, fetch().witnesses),
    )
    for value in values:
        assert not [each.name for each in fields(value) if each.type in (bool, "bool")]


def test_the_invariants_of_a_phase_are_checked() -> None:
    begun = fetch()
    with pytest.raises(AssertionError, match="no step ends so"):
        begun.check_invariants()
    begun.move(Trigger.ASK_PEER)
    with pytest.raises(AssertionError, match="in ASKING: it has asked a peer"):
        begun.check_invariants()
    begun.attempts[NodeId(1)] = Attempt(1)
    begun.check_invariants()
    begun.move(Trigger.DELAY_FALLBACK)
    with pytest.raises(AssertionError, match="a delay is set"):
        begun.check_invariants()


def test_a_fetch_of_a_handle_never_waits_for_others() -> None:
    begun = fetch()
    begun.subject = (FetchKind.HANDLE, Path(b"d/f"), RequestId(1))
    begun.move(Trigger.ASK_PEER)
    begun.attempts[NodeId(1)] = Attempt(1)
    with pytest.raises(AssertionError, match="in ASKING: others can have it"):
        begun.check_invariants()


# --- the document ---------------------------------------------------------------------------------


def _arrows() -> Iterator[tuple[Phase, Phase, str]]:
    """Start, end and triggers. The diagram omits transitions to the same phase and to DONE."""
    for phase, then in TRANSITIONS.items():
        for following in dict.fromkeys(then.values()):
            triggers = [trigger.name for trigger, each in then.items() if each is following]
            if following not in (phase, Phase.DONE):
                yield phase, following, ", ".join(triggers)


def _diagram() -> str:
    """Phases that wait for peers share their arrows, which are drawn once."""
    begin = TRANSITIONS[Phase.NEW]
    alike = [each for each in Phase if begin.items() <= TRANSITIONS[each].items()]
    lines = ["stateDiagram-v2", "    state waits_for_others {", "        [*] --> NEW"]
    outside = []
    for phase, following, triggers in _arrows():
        if phase is Phase.NEW and following in alike:
            lines.append(f"        NEW --> {following.name}: {triggers}")
        elif phase is Phase.NEW:
            outside.append(f"    waits_for_others --> {following.name}: {triggers}")
        elif phase not in alike:
            outside.append(f"    {phase.name} --> {following.name}: {triggers}")
    return "\n".join([*lines, "    }", *outside])


def document() -> str:
    phases = "".join(
        f"| `{phase.name}` | {MEANINGS[phase]} | {_next(phase)} |\n" for phase in Phase
    )
    triggers = "".join(f"| `{each.name}` | {OCCASIONS[each]} |\n" for each in Trigger)
    return f"""# The phases of a fetch

`python -m tests.unit.test_phases` makes this page from `copperfs/node/fetch/phases.py`, which
explains the phases; `copperfs/node/fetch/fetch.py` has what is true in each.

```mermaid
{_diagram()}
```

The phases in `waits_for_others` follow each other by the triggers by which `NEW` leads to them.
Each phase but `NEW` also leads to `DONE`, by `END`. In a fallback, `ASK_PEER` and `CONNECT` leave
the phase as it is.

| phase | what it means | next |
| --- | --- | --- |
{phases}
| trigger | what has happened, or was decided |
| --- | --- |
{triggers}"""


def _next(phase: Phase) -> str:
    following = [each.name for each in dict.fromkeys(TRANSITIONS[phase].values()) if each != phase]
    return ", ".join(f"`{name}`" for name in following if name != Phase.DONE.name)


def test_the_document_is_drawn_from_the_table() -> None:
    assert DOCUMENT.read_text() == document()


if __name__ == "__main__":
    DOCUMENT.write_text(document())
