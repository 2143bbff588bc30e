"""Writes the bundle (``bundle.py``): what a run and its daemon import, as it is installed here.

The build runs it in a process of its own, because it imports all that it writes.
"""

import importlib
import importlib.metadata
import importlib.util
import marshal
import pkgutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

from copperfs.startup import bundle

# No part of a run.
LEFT_OUT = ("lab", "packaging")
# Commands that run on every node of a job. The others are found where they are installed.
COMMANDS = "copperfs.cli."
COMMANDS_IN_JOBS = ("main", "run", "enter", "mount", "umount", "child_command", "preflight")
IMPORTED_LATER = ("rich",)
ASK_THEIR_VERSION = ("pyfuse3",)
LEVEL = 9
STRIPPED_WITHIN_S = CHECKED_WITHIN_S = 60.0


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
    body = bytearray(importlib.util.MAGIC_NUMBER + bytes(12))  # no times to check
    body += marshal.dumps(_code_of(bundle))

    def add(data: bytes) -> tuple[int, int]:
        packed = zlib.compress(data, LEVEL)
        body.extend(packed)
        return len(body) - len(packed), len(packed)

    index: bundle.Index = {"modules": {}, "libraries": [], "distributions": [], "metadata": {}}
    tops: dict[str, Path] = {}
    for module in _modules():
        name, path = module.__name__, Path(module.__file__ or "")
        is_package = hasattr(module, "__path__")
        above = path.parents[name.count(".") + is_package]
        tops[name.partition(".")[0]] = above
        is_extension = path.suffix == ".so"
        data = _stripped(path) if is_extension else marshal.dumps(_code_of(module))
        kind = bundle.EXTENSION * is_extension | bundle.PACKAGE * is_package
        index["modules"][name] = (kind, str(path.relative_to(above)), *add(data))
    for library in _libraries(set(tops.values())):
        directory = library.parents[1]
        index["libraries"].append((str(library.relative_to(directory)), *add(_stripped(library))))
    index["distributions"] = _distributions(set(tops) - {"copperfs"})
    for name in ASK_THEIR_VERSION:
        index["metadata"][name] = add(str(importlib.metadata.metadata(name)).encode())
    begin = len(body)
    body += marshal.dumps(dict(index))
    length = len(body) + bundle.END_BYTES
    body += begin.to_bytes(8, "little") + length.to_bytes(8, "little") + bundle.LAST_WORD
    part = target.with_suffix(".part")
    part.write_bytes(body)
    check(part)
    part.rename(target)


def check(written: Path) -> None:
    """Load each extension module from it, since ``strip`` may have spoiled one."""
    nowhere = "/nonexistent"  # so none is loaded from its own file
    with open(written, "rb") as file:
        own = [f"/proc/self/fd/{file.fileno()}", f"{nowhere}/bin/copperfs", nowhere]
        subprocess.run(
            [sys.executable, "-I", "-S", *own, "-m", "copperfs.startup.load_extensions"],
            check=True,
            timeout=CHECKED_WITHIN_S,
            pass_fds=[file.fileno()],
        )


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


if __name__ == "__main__":
    write_bundle(Path(sys.argv[1]))
