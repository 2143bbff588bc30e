"""Mutation tool (``tests/mutants``): the changes it makes, and that its verdicts hold."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.mutants.loading import ROOT, modules
from tests.mutants.operators import MODULE_LEVEL, draw, places


def changes(source: str) -> set[tuple[str, str, str]]:
    found = places("node/made_up.py", source.encode())
    return {(each.operator, each.old, each.new) for place in found for each in place}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("x = a < b", {("comparison", "<", "<="), ("comparison", "<", ">=")}),
        ("x = a is not b", {("comparison", "is not", "is")}),
        ("x = a not in b", {("comparison", "not in", "in")}),
        ("x = a + b", {("arithmetic", "+", "-")}),
        (
            "x += a",
            {("arithmetic", "+=", "-="), ("arithmetic", "+=", "="), ("deletion", "x += a", "pass")},
        ),
        (
            "x = (a or b) and c",
            {
                ("boolean", "(a or b) and c", "((a or b) or c)"),
                ("boolean", "a or b", "(a and b)"),
            },
        ),
        ("x = not a", {("negation", "not a", "(a)")}),
        ("x = 3", {("constant", "3", "4"), ("constant", "3", "0")}),
        ("x = True", {("constant", "True", "False")}),
        ("x = None", {("constant", "None", "0")}),
        ("return a", {("return", "a", "None")}),
        ("x.y = a", {("deletion", "x.y = a", "pass")}),
        ("del x[a]", {("deletion", "del x[a]", "pass")}),
        ("x = f(a, b)", {("arguments", "a, b", "b, a")}),
        ("x = f(a, k=b)", {("arguments", "k=b", "")}),
        ("x = a[b:]", {("slice", "b", ""), ("slice", "b", "(b) + 1")}),
        ("x = a if b else c", {("condition", "b", "True"), ("condition", "b", "False")}),
        ("x = [a for a in b if c]", {("condition", "c", "True"), ("condition", "c", "False")}),
    ],
)
def test_operators_change_what_they_say(
    statement: str, expected: set[tuple[str, str, str]]
) -> None:
    assert changes(f"def f(x, a, b, c):\n    {statement}\n") == expected


def test_jumps_and_conditions_of_loops_are_changed() -> None:
    found = changes(
        textwrap.dedent("""
            def f(a):
                while a:
                    if a:
                        break
                    continue
        """)
    )
    assert found == {
        ("condition", "a", "False"),
        ("condition", "a", "True"),
        ("jump", "break", "continue"),
        ("jump", "continue", "break"),
    }


def test_what_decides_nothing_is_left_alone() -> None:
    source = '''
        """Text."""
        from typing import TYPE_CHECKING, NewType
        if TYPE_CHECKING:
            x = 1
        Id = NewType("Id", int)
        Subject = tuple[Kind, object] | None
        @dataclass(frozen=True)
        class A:
            """Text."""
            a: "list[1] | None" = field(init=False, repr=False)
            def __repr__(self) -> str:
                return self.a + 1
            def check_invariants(self) -> None:
                assert self.a < 2
            def f(self, b: Literal[2]) -> Literal[3]:
                """Text."""
                assert b > 2
                log.info("b", 3)
                raise
    '''
    assert changes(textwrap.dedent(source)) == {("deletion", "raise", "pass")}


def test_mutants_are_drawn_by_a_seed_and_each_place_is_drawn_once() -> None:
    sources = {"node/cache/lru.py": modules()["node/cache/lru.py"]}
    drawn = draw(sources, 7, 30)
    assert drawn == draw(sources, 7, 30)
    assert drawn != draw(sources, 8, 30)
    assert len({(each.start, each.operator, each.old) for each in drawn}) == 30
    for each in drawn:
        changed = each.apply(sources[each.module])
        assert changed != sources[each.module]
        line = sources[each.module].splitlines()[each.line - 1].decode()
        assert each.old.splitlines()[0] in line


def test_a_constant_of_a_module_belongs_to_no_statement_of_a_function() -> None:
    (place,) = places("node/made_up.py", b"MOST = 7\n")
    assert {each.statement for each in place} == {MODULE_LEVEL}


TRIALS = """
import json, sys
from pathlib import Path
from tests.mutants import loading, trial
from tests.mutants.operators import Mutation

scratch = Path(sys.argv[1])
module, tests = "node/cache/lru.py", ["tests/unit/test_shelf.py"]
source = loading.modules()[module].decode()
trial.GRACE_CPU_S = 0.5

def outcome(old, new):
    mutation = Mutation(module, source.encode().index(old.encode()), 1, "test", old, new)
    found = trial.try_tests(mutation, names, limits, scratch)
    return [found.how, (found.by or "").rpartition("::")[2]]

def refusal(names):
    try:
        trial.try_tests(None, names, {}, scratch)
    except RuntimeError as error:
        return str(error)

told = trial.observe(tests, (), scratch, with_probes=True)
names = [each["ended"] for each in told if "ended" in each]
limits = {name: trial.Limit(0.0, 1.0) for name in names}
first = loading.numbers(loading.modules())
ours = range(first[module], first["node/cache/metadata_cache.py"])
hits = {
    each["ended"].rpartition("::")[2]: [number for number in each["hit"] if number in ours]
    for each in told if "ended" in each
}
print(json.dumps({
    "healthy": outcome("budget_bytes: int", "budget_bytes: int"),
    "canary": outcome("self.held_bytes += size", "raise AssertionError"),
    "killed": outcome("popitem(last=False)", "popitem(last=True)"),
    "equivalent": outcome("item is None", "None is item"),
    "endless": outcome("item = self._items.pop(key, None)", "while True: pass"),
    "broken": outcome("import", "impart"),
    "unusable": refusal(["tests/unit/test_shelf.py::test_that_is_not_there"]),
    "hits": hits,
    "statements": len(ours),
}))
"""


def test_verdicts_hold(tmp_path: Path) -> None:
    """copperfs is imported here already, too late for a mutant."""
    ended = subprocess.run(
        [sys.executable, "-c", TRIALS, tmp_path],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(ended.stdout)
    assert found["healthy"] == ["passed", ""]
    assert found["equivalent"] == ["passed", ""]
    assert found["killed"] == ["failed", "test_the_oldest_goes_first"]
    assert found["endless"] == ["timeout", "test_what_is_admitted_is_held"]
    assert found["canary"] == ["failed", "test_what_is_admitted_is_held"]
    assert found["broken"][0] == "failed"
    assert "carried out nothing" in found["unusable"], "which would look like a survivor"
    executed = found["hits"]["test_what_is_admitted_is_held"]
    assert 0 < len(executed) < found["statements"], "one test does not execute every statement"
