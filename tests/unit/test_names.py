"""Names: a base name of a module occurs once in the package, and so does the name of a class
that other modules may use. The glossary has a bound, so that a coined word has to replace
another one."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "copperfs"
GLOSSARY = PACKAGE.parent / "docs" / "glossary.md"
GLOSSARY_ROWS_MAX = 60
# Names of commands, and of what they show.
TWICE_MAX = 4


def more_than_once(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, file in names:
        found[name].append(file)
    return {name: files for name, files in found.items() if len(files) > 1}


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"]


def public_classes(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return [name for name in classes if not name.startswith("_")]


def test_a_base_name_of_a_module_occurs_once() -> None:
    twice = more_than_once((path.name, str(path.relative_to(PACKAGE))) for path in modules())
    assert len(twice) <= TWICE_MAX, twice


def test_the_name_of_a_class_occurs_once() -> None:
    twice = more_than_once(
        (name, str(path.relative_to(PACKAGE)))
        for path in modules()
        for name in public_classes(path)
    )
    assert not twice


def test_the_glossary_stays_within_its_bound() -> None:
    rows = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    headers = sum(set(line) <= set("|- ") for line in rows)
    assert 0 < len(rows) - 2 * headers <= GLOSSARY_ROWS_MAX


def test_a_name_that_occurs_twice_is_found() -> None:
    assert more_than_once([("a", "x"), ("b", "x"), ("a", "y")]) == {"a": ["x", "y"]}
