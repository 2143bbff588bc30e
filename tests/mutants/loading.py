"""Module loader of the trials: imports one changed module, or all with a probe before each
statement.

A trial is a fresh process that has imported nothing of copperfs. The finder returns the changed
module to every other one, so nothing has to be patched afterwards.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutants.operators import Mutation, statements

ROOT = Path(__file__).parents[2]
AREAS = ("copperfs/node", "copperfs/wire")
VALUES = ("copperfs/model/listing.py", "copperfs/lab/sim/version_settling.py")
_PROBES = "__probes__"


def modules() -> dict[str, bytes]:
    files = sorted(
        [path for area in AREAS for path in (ROOT / area).rglob("*.py")]
        + [ROOT / each for each in VALUES]
    )
    return {str(path.relative_to(ROOT / "copperfs")): path.read_bytes() for path in files}


def name_of(module: str) -> str:
    parts = ["copperfs", *Path(module).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType, probes: mmap.mmap | None) -> None:
        super().__init__(name, path)
        self._code, self._probes = code, probes

    def get_code(self, fullname: str) -> CodeType:
        return self._code

    def exec_module(self, module: ModuleType) -> None:
        if self._probes is not None:
            module.__dict__[_PROBES] = self._probes
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(
        self, codes: Mapping[str, Callable[[], CodeType]], probes: mmap.mmap | None = None
    ) -> None:
        self._codes = {name_of(module): (module, code) for module, code in codes.items()}
        self._probes = probes

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._codes:
            return None
        module, code = self._codes[fullname]
        file = str(ROOT / "copperfs" / module)
        loader = _Loader(fullname, file, code(), self._probes)
        places = [str(Path(file).parent)] if file.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, file, loader=loader, submodule_search_locations=places
        )


def install(module: str, source: bytes) -> None:
    imported = [name for name in sys.modules if name.partition(".")[0] == "copperfs"]
    assert not imported, f"too late for a mutant: {imported} is there"
    file = str(ROOT / "copperfs" / module)
    code = compile(source, file, "exec", dont_inherit=True)
    sys.meta_path.insert(0, _Finder({module: lambda: code}))


def install_mutant(mutation: Mutation) -> None:
    install(mutation.module, mutation.apply((ROOT / "copperfs" / mutation.module).read_bytes()))


# --- probes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probes:
    """A byte of shared memory for each statement of all modules, so that forks count, too."""

    memory: mmap.mmap
    first: dict[str, int]

    def clear(self) -> None:
        self.memory[:] = bytes(len(self.memory))

    def hit(self) -> list[int]:
        taken = self.memory[:]
        return [at for at, byte in enumerate(taken) if byte]


def numbers(sources: Mapping[str, bytes]) -> dict[str, int]:
    first, at = {}, 0
    for module, source in sources.items():
        first[module] = at
        at += len(statements(ast.parse(source)))
    first[""] = at  # the end
    return first


def install_probes(sources: Mapping[str, bytes]) -> Probes:
    first = numbers(sources)
    probes = Probes(mmap.mmap(-1, first[""] + 1), first)
    codes = {
        module: lambda module=module, source=source: _with_probes(module, source, first[module])
        for module, source in sources.items()
    }
    sys.meta_path.insert(0, _Finder(codes, probes.memory))
    return probes


def _with_probes(module: str, source: bytes, first: int) -> CodeType:
    tree = ast.parse(source)
    number = {id(node): first + at for at, node in enumerate(statements(tree))}
    for node in list(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and any(id(each) in number for each in body):
                setattr(node, name, _probed(body, number))
    return compile(ast.fix_missing_locations(tree), str(ROOT / "copperfs" / module), "exec")


def _probed(body: list[ast.stmt], number: dict[int, int]) -> list[ast.stmt]:
    probed: list[ast.stmt] = []
    for at, node in enumerate(body):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (at == 0 and is_text):  # a docstring has to be the first
            target = ast.Subscript(
                ast.Name(_PROBES, ast.Load()), ast.Constant(number[id(node)]), ast.Store()
            )
            probed.append(ast.copy_location(ast.Assign([target], ast.Constant(1)), node))
        probed.append(node)
    return probed
