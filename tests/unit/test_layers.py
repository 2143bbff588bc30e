"""Imports point down only, and ``core`` decides without touching the world.

The table is the one of docs/develop.md. The checker reads the source, so that an import inside a
function or under TYPE_CHECKING counts as well: knowing about a higher layer is the fault, not the
cost of loading it.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# "pfs", the stand-in for a parallel filesystem, is beside the runtime: a filesystem of its own that
# knows nothing of the core or the daemon, and needs mounting from the edge "fuse". So is "cluster",
# which starts daemons as a user would.
LAYERS = {
    **dict.fromkeys(("types", "errors", "config", "blob", "compiled", "roster"), 0),
    **dict.fromkeys(("core",), 1),
    **dict.fromkeys(("wire",), 2),
    **dict.fromkeys(("fuse", "net", "store", "source", "bootstrap"), 3),
    **dict.fromkeys(("runtime", "sim", "pfs", "cluster"), 4),
    **dict.fromkeys(("cli",), 5),
}

# Below the edges nobody knows about these.
EDGES_ONLY = {"pyfuse3", "trio", "zmq", "mpi4py", "asyncio", "socket", "subprocess", "threading"}

# What core may use beyond the standard library, and what of that library it may not: clocks,
# files, processes, threads, the log, and randomness that nobody passed in.
CORE_THIRD_PARTY = {"xxhash"}
CORE_FORBIDDEN_MODULES = EDGES_ONLY | {
    *("time", "datetime", "sched", "timeit", "calendar"),
    *("os", "io", "shutil", "tempfile", "glob", "fileinput", "mmap", "fcntl", "posix", "linecache"),
    *("select", "selectors", "signal", "multiprocessing", "concurrent", "queue", "ctypes"),
    *("secrets", "uuid", "logging", "sys", "http", "urllib", "socketserver", "sqlite3"),
}
CORE_FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
# Of these modules, only these names: types without state and without I/O.
CORE_ALLOWED_NAMES = {
    "random": {"Random"},
    "pathlib": {"PurePath", "PurePosixPath"},
}


@dataclass(frozen=True, order=True)
class Fault:
    line: int
    what: str


def imported_modules(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of every import; ``from a import b`` gives ``a.b``."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def layer_faults(source: str, module: str, *, is_package: bool = False) -> list[Fault]:
    """What is wrong with a module of copperfs, given its dotted name."""
    tree = ast.parse(source)
    area = module.split(".")[1] if "." in module else ""
    layer = LAYERS.get(area)
    if not area:
        layer = 0  # copperfs/__init__.py: the version, usable by all
    elif layer is None:
        return [Fault(1, f"{module} is in no layer; add it to the table")]
    faults = []
    for line, name in imported_modules(tree, module, is_package):
        top, _, rest = name.partition(".")
        if top == "copperfs":
            faults += _internal_fault(line, area, layer, rest.split(".")[0])
        elif layer <= 2 and top in EDGES_ONLY:
            faults.append(Fault(line, f"{top} belongs to the edges"))
    if area == "core":
        faults += _core_faults(tree, module, is_package)
    return sorted(set(faults))


def _internal_fault(line: int, area: str, layer: int, target: str) -> list[Fault]:
    if target not in LAYERS:  # "from copperfs import __version__"
        return []
    # Within layer 0 modules may use each other, as one vocabulary.
    if target == area or LAYERS[target] < layer or LAYERS[target] == layer == 0:
        return []
    return [Fault(line, f"{area or 'copperfs'} imports {target}, which is not below it")]


def _core_faults(tree: ast.AST, module: str, is_package: bool) -> Iterator[Fault]:
    for line, name in imported_modules(tree, module, is_package):
        top, _, rest = name.partition(".")
        if top == "copperfs":
            continue
        if top in CORE_ALLOWED_NAMES:
            if rest and rest not in CORE_ALLOWED_NAMES[top]:
                yield Fault(line, f"core uses {name}")
        elif top in CORE_FORBIDDEN_MODULES:
            yield Fault(line, f"core imports {top}")
        elif top not in sys.stdlib_module_names | CORE_THIRD_PARTY:
            yield Fault(line, f"core imports {top}, which is neither stdlib nor xxhash")
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield Fault(node.lineno, "core is async")
            case ast.Call(func=ast.Name(id=name)) if name in CORE_FORBIDDEN_CALLS:
                yield Fault(node.lineno, f"core calls {name}()")
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                name in CORE_ALLOWED_NAMES and attribute not in CORE_ALLOWED_NAMES[name]
            ):
                yield Fault(node.lineno, f"core uses {name}.{attribute}")


def modules() -> list[Path]:
    return sorted((ROOT / "copperfs").rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_keeps_to_its_layer(path: Path) -> None:
    is_package = path.name == "__init__.py"
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = ".".join(parts[:-1] if is_package else parts)
    faults = layer_faults(path.read_text(), module, is_package=is_package)
    assert not faults, "\n".join(f"{path}:{fault.line}: {fault.what}" for fault in faults)


# ---- the checker itself can fail -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("copperfs.core.node", "import copperfs.fuse.handlers", "not below"),
        ("copperfs.core.node", "from copperfs import runtime", "not below"),
        ("copperfs.core.node", "from ..store import memory", "not below"),
        ("copperfs.core.node", "def f():\n    from copperfs.wire import codec", "not below"),
        ("copperfs.runtime.daemon", "from copperfs.sim import world", "not below"),
        ("copperfs.sim.world", "from copperfs.runtime import daemon", "not below"),
        ("copperfs.pfs.loop", "from copperfs.runtime import engine", "not below"),
        ("copperfs.store.memory", "from copperfs.source import scan", "not below"),
        ("copperfs.errors", "from copperfs.core import node", "not below"),
        ("copperfs", "from copperfs.cli import main", "not below"),
        ("copperfs.attic.node", "", "in no layer"),
        ("copperfs.config", "import trio", "belongs to the edges"),
        ("copperfs.wire.codec", "from socket import socket", "belongs to the edges"),
        ("copperfs.core.node", "import time", "imports time"),
        ("copperfs.core.node", "from time import monotonic", "imports time"),
        ("copperfs.core.node", "import os.path", "imports os"),
        ("copperfs.core.node", "import numpy", "neither stdlib nor xxhash"),
        ("copperfs.core.node", "import random\nx = random.random()", "random.random"),
        ("copperfs.core.node", "from random import choice", "random.choice"),
        ("copperfs.core.node", "from pathlib import Path", "pathlib.Path"),
        ("copperfs.core.node", "x = open('f')", "calls open()"),
        ("copperfs.core.node", "async def f(): pass", "async"),
    ],
)
def test_the_checker_finds(module: str, source: str, fault: str) -> None:
    faults = layer_faults(source, module)
    assert any(fault in found.what for found in faults), faults


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "copperfs.core.node",
            "from copperfs.types import Path\nfrom . import cache\nimport heapq",
        ),
        ("copperfs.core.node", "import random\ndef f(rng: random.Random): rng.random()"),
        ("copperfs.core.node", "import xxhash\nfrom random import Random"),
        ("copperfs.cli.main", "from copperfs import __version__\nimport copperfs.runtime.daemon"),
        ("copperfs.config", "from copperfs.errors import ConfigError"),
        ("copperfs.fuse.handlers", "import trio, pyfuse3, os\nfrom copperfs.core import node"),
    ],
)
def test_the_checker_accepts(module: str, source: str) -> None:
    assert layer_faults(source, module) == []


def test_a_relative_import_in_a_package_is_resolved_from_the_package() -> None:
    assert layer_faults("from .node import Node", "copperfs.core", is_package=True) == []
    assert layer_faults("from ..cli import main", "copperfs.core", is_package=True) != []
