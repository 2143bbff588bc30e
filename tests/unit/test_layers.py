"""Layers: imports point down only, the product knows nothing of the lab, ``node`` decides without
I/O, and one driver performs its actions (docs/develop.md).

The checker also counts an import inside a function or under TYPE_CHECKING: the fault is to know of
a higher layer.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from copperfs.node import actions

ROOT = Path(__file__).parents[2]

# The lab is beside the daemon: a simulator, a filesystem that knows nothing of the node, and a
# cluster that starts daemons as a user would. Its commands, and the generators of the manual, are
# above the commands of the product.
LAYERS = {
    **dict.fromkeys(("model", "config", "native", "erasure", "startup"), 0),
    **dict.fromkeys(("node",), 1),
    **dict.fromkeys(("wire", "driver"), 2),
    **dict.fromkeys(("fuse", "transport", "chunkstore", "source", "launch", "inplace"), 3),
    **dict.fromkeys(("daemon", "lab.sim", "lab.pfs_sim", "lab.local_cluster"), 4),
    **dict.fromkeys(("cli", "packaging"), 5),
    **dict.fromkeys(("lab.commands", "lab.manual"), 6),
}
# The product imports nothing of the lab. This module alone names one of its packages, for commands
# that are not the product's.
LAB = "copperfs.lab"
FINDER_OF_LAB_COMMANDS = ("copperfs.cli.main", "copperfs.lab.commands")

EDGES_ONLY = {"pyfuse3", "trio", "zmq", "mpi4py", "asyncio", "socket", "subprocess", "threading"}

# Forbidden to the node: clocks, files, processes, threads, the log, and randomness that no caller
# passed in.
NODE_THIRD_PARTY = {"xxhash"}
NODE_FORBIDDEN_MODULES = EDGES_ONLY | {
    *("time", "datetime", "sched", "timeit", "calendar"),
    *("os", "io", "shutil", "tempfile", "glob", "fileinput", "mmap", "fcntl", "posix", "linecache"),
    *("select", "selectors", "signal", "multiprocessing", "concurrent", "queue", "ctypes"),
    *("secrets", "uuid", "logging", "sys", "http", "urllib", "socketserver", "sqlite3"),
}
NODE_FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
# Types without state and without I/O.
NODE_ALLOWED_NAMES = {
    "random": {"Random"},
    "pathlib": {"PurePath", "PurePosixPath"},
}


@dataclass(frozen=True, order=True)
class Fault:
    line: int
    what: str


def imported_modules(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Its line and absolute dotted name; ``from a import b`` gives ``a.b``."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def area_of(module: str) -> str:
    parts = [*module.split("."), "", ""]
    return ".".join(parts[1:3]) if parts[1] == "lab" and parts[2] else parts[1]


def layer_faults(source: str, module: str, *, is_package: bool = False) -> list[Fault]:
    tree = ast.parse(source)
    area = area_of(module)
    layer = LAYERS.get(area)
    if module == "copperfs.lab" and not tree.body:
        return []
    if not area:
        layer = 0  # copperfs/__init__.py: the version, usable by all
    elif layer is None:
        return [Fault(1, f"{module} is in no layer; add it to the table")]
    faults = []
    for line, name in imported_modules(tree, module, is_package):
        top = name.partition(".")[0]
        if top == "copperfs":
            faults += _internal_fault(line, area, layer, area_of(name))
        elif layer <= 2 and top in EDGES_ONLY:
            faults.append(Fault(line, f"{top} belongs to the edges"))
    if area == "node":
        faults += _node_faults(tree, module, is_package)
    if not _is_of_lab(area):
        faults += _words_about_lab(tree, module)
    return sorted(set(faults))


def _is_of_lab(area: str) -> bool:
    return area == "lab" or area.startswith("lab.")


def _words_about_lab(tree: ast.AST, module: str) -> Iterator[Fault]:
    """A module can also be imported, or started, by its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if (
                text.startswith(LAB) and (module, text) != FINDER_OF_LAB_COMMANDS
            ):
                yield Fault(node.lineno, f"the product names {text}, which is of the lab")


def _internal_fault(line: int, area: str, layer: int, target: str) -> list[Fault]:
    if _is_of_lab(target) and not _is_of_lab(area):
        return [Fault(line, f"{area or 'copperfs'} is the product and imports {target}")]
    if target not in LAYERS:  # "from copperfs import __version__"
        return []
    # Modules of layer 0 may use each other, as one vocabulary.
    if target == area or LAYERS[target] < layer or LAYERS[target] == layer == 0:
        return []
    return [Fault(line, f"{area or 'copperfs'} imports {target}, which is not below it")]


def _node_faults(tree: ast.AST, module: str, is_package: bool) -> Iterator[Fault]:
    for line, name in imported_modules(tree, module, is_package):
        top, _, rest = name.partition(".")
        if top == "copperfs":
            continue
        if top in NODE_ALLOWED_NAMES:
            if rest and rest not in NODE_ALLOWED_NAMES[top]:
                yield Fault(line, f"the node uses {name}")
        elif top in NODE_FORBIDDEN_MODULES:
            yield Fault(line, f"the node imports {top}")
        elif top not in sys.stdlib_module_names | NODE_THIRD_PARTY:
            yield Fault(line, f"the node imports {top}, which is neither stdlib nor xxhash")
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield Fault(node.lineno, "the node is async")
            case ast.Call(func=ast.Name(id=name)) if name in NODE_FORBIDDEN_CALLS:
                yield Fault(node.lineno, f"the node calls {name}()")
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                name in NODE_ALLOWED_NAMES and attribute not in NODE_ALLOWED_NAMES[name]
            ):
                yield Fault(node.lineno, f"the node uses {name}.{attribute}")


def modules() -> list[Path]:
    return sorted((ROOT / "copperfs").rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_keeps_to_its_layer(path: Path) -> None:
    is_package = path.name == "__init__.py"
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = ".".join(parts[:-1] if is_package else parts)
    faults = layer_faults(path.read_text(), module, is_package=is_package)
    assert not faults, "\n".join(f"{path}:{fault.line}: {fault.what}" for fault in faults)


# ---- what exists for comparison ------------------------------------------------------------------

COMPARED = {"cut_through", "lost_from_source", "kernel_cache"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_lab_sets_what_exists_for_comparison(path: Path) -> None:
    """``tests/bench/altered_daemons.py`` sets them in daemons."""
    if path.is_relative_to(ROOT / "copperfs" / "lab"):
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not {each.arg for call in calls for each in call.keywords} & COMPARED


# ---- the checker itself can fail -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("copperfs.node.node", "import copperfs.fuse.handlers", "not below"),
        ("copperfs.node.node", "from copperfs import daemon", "not below"),
        ("copperfs.node.node", "from ..chunkstore import memory", "not below"),
        ("copperfs.node.node", "def f():\n    from copperfs.wire import codec", "not below"),
        ("copperfs.daemon.daemon_main", "from copperfs.lab.sim import world", "is the product"),
        ("copperfs.cli.umount", "from copperfs.lab.sim import world", "is the product"),
        ("copperfs.cli.umount", "def f():\n    import copperfs.lab", "is the product"),
        ("copperfs.cli.umount", "from copperfs import lab", "is the product"),
        ("copperfs.cli.main", "import copperfs.lab.commands", "is the product"),
        ("copperfs.cli.main", "LAB = 'copperfs.lab.sim.world'", "names copperfs.lab.sim.world"),
        ("copperfs.cli.mount", "LAB = 'copperfs.lab.commands'", "names copperfs.lab.commands"),
        ("copperfs.lab.sim.world", "from copperfs.lab.commands import sim_run", "not below"),
        ("copperfs.lab.sim.world", "from copperfs.cli.output import console", "not below"),
        ("copperfs.lab.sim.world", "from copperfs.daemon import daemon", "not below"),
        ("copperfs.lab.pfs_sim.request_loop", "from copperfs.daemon import engine", "not below"),
        ("copperfs.chunkstore.memory", "from copperfs.source import scan", "not below"),
        ("copperfs.model.errors", "from copperfs.node import node", "not below"),
        ("copperfs", "from copperfs.cli import main", "not below"),
        ("copperfs.attic.node", "", "in no layer"),
        ("copperfs.config.settings", "import trio", "belongs to the edges"),
        ("copperfs.wire.codec", "from socket import socket", "belongs to the edges"),
        ("copperfs.node.node", "import time", "imports time"),
        ("copperfs.node.node", "from time import monotonic", "imports time"),
        ("copperfs.node.node", "import os.path", "imports os"),
        ("copperfs.node.node", "import numpy", "neither stdlib nor xxhash"),
        ("copperfs.node.node", "import random\nx = random.random()", "random.random"),
        ("copperfs.node.node", "from random import choice", "random.choice"),
        ("copperfs.node.node", "from pathlib import Path", "pathlib.Path"),
        ("copperfs.node.node", "x = open('f')", "calls open()"),
        ("copperfs.node.node", "async def f(): pass", "async"),
    ],
)
def test_the_checker_finds(module: str, source: str, fault: str) -> None:
    faults = layer_faults(source, module)
    assert any(fault in found.what for found in faults), faults


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "copperfs.node.node",
            "from copperfs.model.types import Path\nfrom . import cache\nimport heapq",
        ),
        ("copperfs.node.node", "import random\ndef f(rng: random.Random): rng.random()"),
        ("copperfs.node.node", "import xxhash\nfrom random import Random"),
        (
            "copperfs.cli.main",
            "from copperfs import __version__\nimport copperfs.daemon.daemon_main",
        ),
        ("copperfs.cli.main", "LAB = 'copperfs.lab.commands'"),
        ("copperfs.lab.commands.sim_run", "from copperfs.cli.output import console"),
        ("copperfs.lab.commands.sim_run", "def f():\n    from copperfs.lab.sim import world"),
        ("copperfs.config.settings", "from copperfs.model.errors import ConfigError"),
        ("copperfs.fuse.handlers", "import trio, pyfuse3, os\nfrom copperfs.node import node"),
    ],
)
def test_the_checker_accepts(module: str, source: str) -> None:
    assert layer_faults(source, module) == []


def test_a_relative_import_in_a_package_is_resolved_from_the_package() -> None:
    assert layer_faults("from .node import Node", "copperfs.node", is_package=True) == []
    assert layer_faults("from ..cli import main", "copperfs.node", is_package=True) != []


# ---- actions are interpreted in one place --------------------------------------------------------

# A port may distinguish the actions of its own family. Code that distinguishes actions of several
# families interprets them.
FAMILY = {
    **{each.__name__: "at the source" for each in get_args(actions.SourceAction)},
    **{each.__name__: "at the disk" for each in get_args(actions.DiskAction)},
    **{each.__name__: "at the peers" for each in get_args(actions.PeerAction)},
    **{each.__name__: "answer" for each in get_args(actions.Answer)},
    **{each.__name__: "letting go" for each in get_args(actions.ReleaseAction)},
    "Publish": "publish",
    **{each.__name__: "for people" for each in get_args(actions.UserNotice)},
}
INTERPRETER = "copperfs/driver/driver.py"


def interpreters(source: str) -> list[int]:
    """The lines that distinguish actions of several families, by a ``match`` or by one function's
    ``if isinstance`` tests of one object."""
    tree = ast.parse(source)
    imported = {
        name.rpartition(".")[2]
        for _, name in imported_modules(tree, "copperfs", is_package=True)
        if name.startswith("copperfs.node.actions.")
    }

    def families(nodes: Iterator[ast.AST]) -> set[str]:
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        return {FAMILY[name] for name in names & imported & FAMILY.keys()}

    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            patterns = [each.pattern for each in node.cases]
            if len(families(n for each in patterns for n in ast.walk(each))) > 1:
                lines.append(node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found: defaultdict[str, set[str]] = defaultdict(set)
            tests = [each.test for each in ast.walk(node) if isinstance(each, ast.If)]
            for call in (each for test in tests for each in ast.walk(test)):
                match call:
                    case ast.Call(func=ast.Name(id="isinstance"), args=[subject, kinds]):
                        found[ast.dump(subject)] |= families(ast.walk(kinds))
            if any(len(each) > 1 for each in found.values()):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "path",
    [*modules(), *sorted((ROOT / "tests").rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_only_the_driver_interprets_actions(path: Path) -> None:
    lines = interpreters(path.read_text())
    if str(path.relative_to(ROOT)) == INTERPRETER:
        assert len(lines) == 1
    else:
        assert not lines, f"{path} tells actions apart at lines {lines}: give the driver a port"


PERFORM = "from copperfs.node.actions import ReleaseBlob, ListSource, Send\ndef perform(action):\n"


@pytest.mark.parametrize(
    "body",
    [
        " match action:\n  case ListSource(): pass\n  case Send(): pass",
        " if isinstance(action, ReleaseBlob): pass\n elif isinstance(action, Send): pass",
    ],
)
def test_a_second_interpreter_is_found(body: str) -> None:
    assert interpreters(PERFORM + body)


@pytest.mark.parametrize(
    "body",
    [
        " if isinstance(action, ListSource): pass",
        " return [each for each in action if isinstance(each, Send)]",
        " return [each for each in action if isinstance(each, Send)], [\n"
        "  each for each in action if isinstance(each, ListSource)]",
    ],
)
def test_who_looks_for_one_kind_of_action_is_no_interpreter(body: str) -> None:
    assert not interpreters(PERFORM + body)
