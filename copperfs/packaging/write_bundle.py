"""Writes the bundles (``bundle.py``): what a run and its daemon import, as it is installed here.

The build runs it in a process of its own, because it imports all that it writes. The bundle of the
standard library has what that of the packages imports of it, and at its end a zip file with the
modules that Python imports before it runs anything.
"""

import importlib
import importlib.metadata
import importlib.util
import marshal
import os
import pkgutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import (
    BuiltinImporter,
    ExtensionFileLoader,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType, ModuleType

from copperfs.packaging.run_path import without_run_path
from copperfs.startup import bundle

# No part of a run.
LEFT_OUT = ("lab", "packaging")
# Commands that run on every node of a job. The others are found where they are installed.
COMMANDS = "copperfs.cli."
COMMANDS_IN_JOBS = ("main", "run", "enter", "mount", "umount", "child_command", "preflight")
IMPORTED_LATER = ("rich",)
ASK_THEIR_VERSION = ("pyfuse3",)
# Python decodes paths and streams by them (interpreter.c: is_utf8).
IMPORTED_FIRST = ("encodings", "encodings.aliases", "encodings.utf_8")
# By functions that a run or its daemon calls.
IMPORTED_BY_FUNCTIONS = ("encodings.ascii",)
# All programs use libraries of the system.
PREFIXES_OF_SYSTEM = (Path("/"), Path("/usr"))
DIRECTORIES_OF_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
PYC_HEADER = importlib.util.MAGIC_NUMBER + bytes(12)  # no times to check
NOWHERE = "/nonexistent"  # so nothing is loaded from its own file
LEVEL = 9
STRIPPED_WITHIN_S = CHECKED_WITHIN_S = 60.0


class Body:
    """What was written so far."""

    def __init__(self, begin: bytes = b"") -> None:
        self.data = bytearray(begin)

    def add(self, data: bytes, *, packed: bool = True) -> tuple[int, int]:
        """Where it is: offset and length."""
        if packed:
            data = zlib.compress(data, LEVEL)
        self.data += data
        return len(self.data) - len(data), len(data)

    def begin_index(self, index: Mapping[str, object]) -> int:
        begin = len(self.data)
        self.data += marshal.dumps(dict(index))
        return begin


def _modules() -> Iterator[ModuleType]:
    """Those of copperfs, and what is imported at the start of a run or a daemon."""
    before = set(sys.modules)
    package = importlib.import_module("copperfs")
    in_jobs = {COMMANDS + each for each in COMMANDS_IN_JOBS}
    for found in pkgutil.walk_packages(package.__path__, "copperfs.", onerror=_raise):
        name = found.name
        if _is_left_out(name) or name.endswith(".__main__"):
            continue
        if not name.startswith(COMMANDS) or name in in_jobs:
            importlib.import_module(name)
    for name, module in sorted(sys.modules.items()):
        top = name.partition(".")[0]
        is_needed = name not in before and top not in sys.stdlib_module_names
        is_ours = top == "copperfs" and not _is_left_out(name)
        if (is_needed or is_ours) and getattr(module, "__file__", None):
            yield module


def _is_left_out(name: str) -> bool:
    return name.partition(".")[2].partition(".")[0] in LEFT_OUT


def _raise(name: str) -> None:
    raise ImportError(name)


def _extension(path: Path, loaded: Sequence[Path] = ()) -> bytes:
    """Without the directories in which the dynamic linker would look for libraries, a dozen names
    each, if all are the system's, or *loaded* before it."""
    data = _stripped(path)
    is_needless = all(
        each is not None
        and (each in loaded or each.name.startswith("libpython") or _is_of_system(each))
        for each in _needed(path)
    )
    return without_run_path(data) if is_needless else data


def _is_of_system(library: Path) -> bool:
    return any(library.is_relative_to(each) for each in DIRECTORIES_OF_SYSTEM)


def _needed(extension: Path) -> list[Path | None]:
    """The libraries that it needs; None is one that is not found."""
    try:
        done = subprocess.run(
            ["ldd", str(extension)],
            check=True, capture_output=True, text=True, timeout=CHECKED_WITHIN_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return [None]
    lines = [line.split() for line in done.stdout.splitlines() if "=>" in line]
    found = [os.path.normpath(words[2]) for words in lines]
    return [Path(each) if each.startswith("/") else None for each in found]


def _stripped(library: Path) -> bytes:
    """Without the symbols for debuggers, which are most of some wheels."""
    with tempfile.NamedTemporaryFile() as copy:
        try:
            command = ["strip", "--strip-unneeded", "-o", copy.name, str(library)]
            subprocess.run(command, check=True, capture_output=True, timeout=STRIPPED_WITHIN_S)
        except (OSError, subprocess.SubprocessError):
            return library.read_bytes()
        return Path(copy.name).read_bytes()


def _code_of(module: ModuleType) -> CodeType:
    assert module.__spec__ is not None
    code = module.__spec__.loader.get_code(module.__name__)  # type: ignore[union-attr]
    assert isinstance(code, CodeType)
    return code


def write_bundle(target: Path) -> None:
    body = Body(PYC_HEADER + marshal.dumps(_code_of(bundle)))
    index: bundle.PackagesIndex = {
        "modules": {}, "libraries": [], "distributions": [], "metadata": {},
    }  # fmt: skip
    tops: dict[str, Path] = {}
    for module in _modules():
        name, path = module.__name__, Path(module.__file__ or "")
        is_package = hasattr(module, "__path__")
        above = path.parents[name.count(".") + is_package]
        tops[name.partition(".")[0]] = above
        is_extension = path.suffix == ".so"
        data = _extension(path) if is_extension else marshal.dumps(_code_of(module))
        kind = bundle.EXTENSION * is_extension | bundle.PACKAGE * is_package
        index["modules"][name] = (kind, str(path.relative_to(above)), *body.add(data))
    for library in _libraries(set(tops.values())):
        name = str(library.relative_to(library.parents[1]))
        index["libraries"].append((name, *body.add(_stripped(library))))
    index["distributions"] = _distributions(set(tops) - {"copperfs"})
    for name in ASK_THEIR_VERSION:
        # Not all of it: from 3.13 on, Python refuses to write some descriptions.
        version = f"Name: {name}\nVersion: {importlib.metadata.version(name)}\n"
        index["metadata"][name] = body.add(version.encode())
    begin = body.begin_index(index)
    target.write_bytes(body.data + _end(begin, len(body.data) + bundle.END_BYTES))


def _end(begin: int, length: int) -> bytes:
    return begin.to_bytes(8, "little") + length.to_bytes(8, "little") + bundle.LAST_WORD


def imported_of_python(written: Path) -> list[str]:
    """What the modules of a bundle import of the standard library. It also loads its extension
    modules, since ``strip`` may have spoiled one."""
    with open(written, "rb") as file:
        return _load_all([sys.executable, "-I", "-S"], file.fileno(), {}, [])


def _load_all(
    python: Sequence[str], fd: int, env: Mapping[str, str], more_fds: Sequence[int]
) -> list[str]:
    own = [f"/proc/self/fd/{fd}", f"{NOWHERE}/bin/copperfs", NOWHERE]
    done = subprocess.run(
        [*python, *own, "-m", "copperfs.startup.load_all"],
        env={**os.environ, **env},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=CHECKED_WITHIN_S,
        pass_fds=[fd, *more_fds],
    )
    return done.stdout.split()


# ---- the standard library ------------------------------------------------------------------------


def write_standard_library(target: Path, imported: Sequence[str]) -> None:
    body = Body()
    index: bundle.LibraryIndex = {
        "version": bundle.this_python(), "modules": {}, "libraries": [], "needed": {},
        "missing": [
            *filter(_is_missing, sorted(sys.stdlib_module_names)), *bundle.OF_OTHER_SYSTEMS,
        ],
    }  # fmt: skip
    directory: str = sys._stdlib_dir  # type: ignore[attr-defined]
    libraries: set[Path] = set()
    of_zlib: list[Path] = []
    for name in sorted({*imported, *IMPORTED_BY_FUNCTIONS}):
        spec = _spec_in_library(name)
        if spec is None:
            continue
        path, kind = Path(spec.origin or ""), 0
        if isinstance(spec.loader, ExtensionFileLoader):
            needed = _libraries_of_python(path)
            data, kind = _extension(path, needed), bundle.EXTENSION
            libraries.update(needed)
            of_zlib += needed if name == "zlib" else []
            if needed:
                index["needed"][name] = list(map(str, needed))
        else:
            assert isinstance(spec.loader, SourceFileLoader), spec
            data = marshal.dumps(spec.loader.get_code(name))
        kind |= bundle.PACKAGE * (spec.submodule_search_locations is not None)
        where = body.add(data, packed=name != "zlib")
        index["modules"][name] = (kind, str(path.relative_to(directory)), *where)
    for library in sorted(libraries):
        where = body.add(_stripped(library), packed=library not in of_zlib)
        index["libraries"].append((str(library), *where))
    begin = body.begin_index(index)
    target.write_bytes(body.data)
    with zipfile.ZipFile(target, "a") as archive:
        for name in IMPORTED_FIRST:
            spec = _spec_in_library(name)
            assert spec is not None
            assert isinstance(spec.loader, SourceFileLoader)
            inside = name.replace(".", "/")
            inside += "/__init__.pyc" if spec.submodule_search_locations is not None else ".pyc"
            archive.writestr(inside, PYC_HEADER + marshal.dumps(spec.loader.get_code(name)))
        archive.comment = bytes(bundle.END_BYTES)  # it is what comes last
    with target.open("r+b") as file:
        file.seek(-bundle.END_BYTES, os.SEEK_END)
        file.write(_end(begin, target.stat().st_size))


def _spec_in_library(name: str) -> ModuleSpec | None:
    """None for what is in the interpreter, or is no file. ``sys.modules`` may have another module
    by this name (``collections.abc``)."""
    parent = importlib.import_module(name.rpartition(".")[0]) if "." in name else None
    path = sys.path if parent is None else getattr(parent, "__path__", None)
    if _is_in_interpreter(name) or path is None:
        return None
    spec = PathFinder.find_spec(name, path)
    directory: str = sys._stdlib_dir  # type: ignore[attr-defined]
    is_there = spec is not None and Path(spec.origin or "").is_relative_to(directory)
    return spec if is_there else None


def _is_in_interpreter(name: str) -> bool:
    return bool(BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name))


def _is_missing(name: str) -> bool:
    """Modules of other systems, for which the standard library looks at its start."""
    return not _is_in_interpreter(name) and _spec_in_library(name) is None


def check_standard_library(written: Path, packages: Path) -> None:
    """Load everything as if the program had started Python from memory."""
    python: str = sys._base_executable  # type: ignore[attr-defined]
    with open(packages, "rb") as first, open(written, "rb") as file:
        env = {
            "PYTHONHOME": sys.base_prefix,
            "PYTHONPATH": f"{bundle.MADE_OF_MEMORY}{file.fileno()}",
            bundle.FILES: f"{file.fileno()}:-1:-1:{python}",
        }
        _load_all([python, "-P", "-s", "-S"], first.fileno(), env, [file.fileno()])


def _libraries_of_python(extension: Path) -> list[Path]:
    """The libraries that an extension module needs of Python's own prefix, as conda has them;
    libpython is loaded already."""
    prefix = Path(sys.base_prefix)
    if prefix.resolve() in PREFIXES_OF_SYSTEM:
        return []
    return [
        each
        for each in _needed(extension)
        if each is not None
        and each.is_relative_to(prefix)
        and not each.name.startswith("libpython")
    ]


def _libraries(directories: set[Path]) -> list[Path]:
    """Shared libraries of packages that are no modules."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    with open("/proc/self/maps", encoding="utf-8") as maps:
        loaded = {Path(line.split(maxsplit=5)[5].strip()) for line in maps if ".so" in line}
    return sorted(
        each
        for each in loaded
        if any(each.is_relative_to(one) for one in directories)
        and not each.name.endswith((suffix, ".abi3.so"))
    )


def _distributions(tops: set[str]) -> list[str]:
    """As they are named in the directory of packages."""
    named = importlib.metadata.packages_distributions()
    files = [
        file
        for name in {name for top in tops for name in named.get(top, ())}
        for file in importlib.metadata.distribution(name).files or ()
    ]
    found = {file.parent.name for file in files if file.name == "METADATA"}
    return sorted(found) + [f"{each}-" for each in IMPORTED_LATER]


def main(target: Path) -> None:
    part = target.with_suffix(".part")
    write_bundle(part)
    imported = imported_of_python(part)
    part.rename(target)
    library = target.with_name(bundle.LIBRARY_FILE)
    part = library.with_suffix(".part")
    write_standard_library(part, imported)
    check_standard_library(part, target)
    part.rename(library)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
