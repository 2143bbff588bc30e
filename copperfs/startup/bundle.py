"""Bundle: one file with the byte code and the extension modules of ``copperfs run`` and its daemon.

An import reads a name in each directory of ``sys.path``, and then the file; 2,000 nodes that start
copperfs from a shared filesystem would ask it for 1,448 operations each. The program ``copperfs``
(``program.c``) reads this file in a few large pieces into memory instead, and runs Python with it
(``python -I -S /proc/self/fd/N``). ``packaging/write_bundle.py`` writes it when copperfs is
installed::

    a .pyc of this module | contents | index, as marshal has it | end

The end has 8 bytes with where the index begins, 8 with the length of the file, and "copperfs".

This module then finds the others. They have the paths of their installed files, so tracebacks and
data files are found there, and modules that are not in the bundle (rich, the lab) are imported from
there. A bundle whose dependencies were since replaced is not used (``is_current``).
"""

import _imp
import marshal
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any, TypedDict

# Beside this module in an installation.
FILE = "bundle"
LAST_WORD = b"copperfs"
END_BYTES = 8 + 8 + len(LAST_WORD)
SCRIPT = "copperfs-start"
"""In ``bin``: starts module by module."""
EXTENSION, PACKAGE = 1, 2
MAIN = "copperfs.cli.main"


class Index(TypedDict):
    modules: dict[str, tuple[int, str, int, int]]
    """For each name EXTENSION or PACKAGE or both, the path below the directory of packages, offset
    and length."""
    libraries: list[tuple[str, int, int]]
    """Shared libraries that come with packages (``pyzmq.libs``)."""
    distributions: list[str]
    """``trio-0.33.0.dist-info``: what has to lie beside copperfs. A name that ends in ``-`` may
    have any version."""
    metadata: dict[str, tuple[int, int]]
    """Of some of these, by name: pyfuse3 reads its own version."""


class Bundle:
    """A finder on ``sys.meta_path``, and the loader of what it finds."""

    def __init__(self, path: str, program: str, packages: str) -> None:
        self.fd = int(path.rpartition("/")[2])  # /proc/self/fd/N
        os.set_inheritable(self.fd, False)
        self.program, self.packages = program, packages
        end = os.lseek(self.fd, 0, os.SEEK_END) - END_BYTES
        begin = int.from_bytes(self._bytes(end, 8), "little")
        self.index: Index = marshal.loads(self._bytes(begin, end - begin))
        self._loaded = 0

    def is_current(self) -> bool:
        """Whether the dependencies are those with which it was built."""
        try:
            there = set(os.listdir(self.packages))
        except OSError:
            return False
        return all(
            each in there or (each.endswith("-") and any(name.startswith(each) for name in there))
            for each in self.index["distributions"]
        )

    # ---- as a finder -----------------------------------------------------------------------------

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        entry = self.index["modules"].get(name)
        if entry is None:
            return None
        kind, where, _, _ = entry
        origin = os.path.join(self.packages, where)
        loader = _Extension(name, origin, self) if kind & EXTENSION else self
        is_package = bool(kind & PACKAGE)
        spec = ModuleSpec(name, loader, origin=origin, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(origin)]
        return spec

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """For ``importlib.metadata``."""
        found = self.index["metadata"].get(context.name or "")
        if found is not None:
            yield _distribution(self._bytes(*found, packed=True).decode())

    # ---- as a loader -----------------------------------------------------------------------------

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, name: str) -> CodeType:
        code: CodeType = marshal.loads(self._content(name))
        # It was compiled where copperfs was built.
        where = os.path.join(self.packages, self.index["modules"][name][1])
        _imp._fix_co_filename(code, where)  # type: ignore[attr-defined]
        return code

    def is_package(self, name: str) -> bool:
        return bool(self.index["modules"][name][0] & PACKAGE)

    def get_source(self, name: str) -> None:
        """Tracebacks read the installed file."""

    # ---- extension modules -----------------------------------------------------------------------

    def path_of_extension(self, name: str) -> str:
        """Where it can be loaded from. Its libraries are loaded already, so the dynamic linker
        finds them by their own names and looks for no file."""
        self._load_libraries(name.partition(".")[0])
        return self._path_of(self._content(name), name)

    def _load_libraries(self, top: str) -> None:
        wanted = [each for each in self.index["libraries"] if _is_of(each[0], top)]
        if not wanted:
            return
        import ctypes

        self.index["libraries"] = [each for each in self.index["libraries"] if each not in wanted]
        paths = [self._path_of(self._bytes(*at, packed=True), name) for name, *at in wanted]
        for _ in wanted:  # one may need another
            for path in list(paths):
                try:
                    ctypes.CDLL(path)
                except OSError:
                    continue
                paths.remove(path)

    def _path_of(self, content: bytes, name: str) -> str:
        """The dynamic linker takes a path that it has seen for the file that it has loaded, so no
        path occurs twice, although numbers of descriptors do."""
        fd = os.memfd_create(name)
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        self._loaded += 1
        return f"/proc/self/fd{'/' * self._loaded}{fd}"

    def _content(self, name: str) -> bytes:
        _, _, offset, length = self.index["modules"][name]
        return self._bytes(offset, length, packed=True)

    def _bytes(self, offset: int, length: int, *, packed: bool = False) -> bytes:
        data = os.pread(self.fd, length, offset)
        return zlib.decompress(data) if packed else data


def _distribution(metadata: str) -> Any:
    from importlib.metadata import Distribution

    class Bundled(Distribution):
        def read_text(self, filename: str) -> str | None:
            return metadata if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Any:
            raise FileNotFoundError(path)

    return Bundled()


class Installed:
    """A finder of what is installed beside the bundle. On ``sys.path`` the directory would be
    listed for modules of other systems, which the standard library looks for."""

    def __init__(self, packages: str) -> None:
        self._packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name in sys.stdlib_module_names:
            return None
        return PathFinder.find_spec(name, [self._packages], target)


class _Extension(ExtensionFileLoader):
    def __init__(self, name: str, origin: str, bundle: Bundle) -> None:
        super().__init__(name, origin)
        self._bundle = bundle

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        origin = spec.origin
        try:
            spec.origin = self._bundle.path_of_extension(spec.name)
            module = super().create_module(spec)
            os.close(int(spec.origin.rpartition("/")[2]))
        except (OSError, ImportError):  # code from memory may be forbidden here
            spec.origin = origin
            module = super().create_module(spec)
        spec.origin = origin
        return module


def _is_of(library: str, top: str) -> bool:
    """auditwheel puts the libraries of ``zmq`` into ``pyzmq.libs``."""
    directory = library.partition("/")[0]
    return directory == top or directory in (f"{top}.libs", f"py{top}.libs")


# ---- starting Python -----------------------------------------------------------------------------


def started_from() -> Bundle | None:
    """None in a process that was started without one."""
    return next((each for each in sys.meta_path if isinstance(each, Bundle)), None)


class BundleState(Enum):
    USED = "this process was started from it"
    OUTDATED = "it has other dependencies than are installed"
    MISSING = "the build could not make it"
    EDITABLE = "the modules may change"


def bundle_state() -> BundleState:
    if started_from() is not None:
        return BundleState.USED
    here = os.path.dirname(os.path.abspath(__file__))
    if os.path.exists(os.path.join(here, FILE)):
        return BundleState.OUTDATED
    packages = os.path.dirname(os.path.dirname(here))
    is_editable = os.path.basename(packages) not in ("site-packages", "dist-packages")
    return BundleState.EDITABLE if is_editable else BundleState.MISSING


def python_of(module: str) -> list[str]:
    """The beginning of a command that runs *module* as this process runs."""
    bundle = started_from()
    if bundle is None:
        return [sys.executable, "-P", "-m", module]
    base: str = sys._base_executable  # type: ignore[attr-defined]
    own = [f"/proc/self/fd/{bundle.fd}", bundle.program, bundle.packages]
    return [base, "-I", "-S", *own, "-m", module]


def environment_python() -> str:
    """Python with all that is installed beside copperfs, for processes that are not of a job."""
    bundle = started_from()
    if bundle is not None:
        name = os.path.basename(os.path.dirname(bundle.packages))  # python3.11
        found = os.path.join(os.path.dirname(bundle.program), name)
        if os.access(found, os.X_OK):
            return found
    return sys.executable  # installed for one user, it knows that user's packages


def passed_to_python() -> list[int]:
    """The descriptors that such a command needs."""
    bundle = started_from()
    return [] if bundle is None else [bundle.fd]


def start(path: str, program: str, packages: str, words: list[str]) -> None:
    """*words* are arguments of the program, or ``-m`` and those of a module."""
    bundle = Bundle(path, program, packages)
    module = MAIN
    if words[:1] == ["-m"]:
        module, words = words[1], words[2:]
    if module == MAIN and not bundle.is_current():  # a run has looked for its daemon
        script = os.path.join(os.path.dirname(program), SCRIPT)
        os.execv(script, [script, *words])
    sys.meta_path.insert(0, bundle)
    sys.meta_path.append(Installed(bundle.packages))
    sys.argv[:] = [module, *words]
    values = sys.modules["__main__"].__dict__
    code = bundle.get_code(module)
    values.update(__file__=code.co_filename, __package__=module.rpartition(".")[0])
    exec(code, values)


def _start_as_module(path: str, program: str, packages: str, words: list[str]) -> None:
    """The module that runs becomes ``__main__``, so this one needs a name of its own."""
    first = Bundle(path, program, packages)
    sys.meta_path.insert(0, first)
    name = "copperfs.startup.bundle"
    __import__(name)
    sys.meta_path.remove(first)
    sys.modules[name].start(path, program, packages, words)


if __name__ == "__main__":
    _start_as_module(sys.argv[0], sys.argv[1], sys.argv[2], sys.argv[3:])
