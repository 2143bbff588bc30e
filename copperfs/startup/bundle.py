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

Where Python is on a shared filesystem, too, the program starts it from memory (``interpreter.c``),
and a second bundle has what a run and its daemon import of the standard library. It belongs to the
one Python with the same ``this_python``. This module is loaded before any finder can be asked, so
it imports only what is in the interpreter itself, and its annotations are strings
("from __future__" would be an import, too).
"""

import _imp
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader, PathFinder

# A type checker takes it for typing.TYPE_CHECKING.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import CodeType, ModuleType
    from typing import Any, TypedDict

    class Index(TypedDict):
        modules: dict[str, tuple[int, str, int, int]]
        """For each name EXTENSION or PACKAGE or both, the path below the directory, offset and
        length. Contents that do not begin as an ELF file are compressed."""
        libraries: list[tuple[str, int, int]]
        """Shared libraries that come with packages (``pyzmq.libs``) or Python."""

    class PackagesIndex(Index):
        distributions: list[str]
        """``trio-0.33.0.dist-info``: what has to lie beside copperfs. A name that ends in ``-`` may
        have any version."""
        metadata: dict[str, tuple[int, int]]
        """Of some of these, by name: pyfuse3 reads its own version."""

    class LibraryIndex(Index):
        version: str
        """As ``this_python`` says."""
        missing: list[str]
        """Modules that this system does not have (``msvcrt``)."""
        needed: dict[str, list[str]]
        """By extension module, libraries that come with Python, as conda's do."""


# Beside this module in an installation.
FILE = "bundle"
LIBRARY_FILE = "standard_library"
LAST_WORD = b"copperfs"
END_BYTES = 8 + 8 + len(LAST_WORD)
SCRIPT = "copperfs-start"
"""In ``bin``: starts module by module."""
EXTENSION, PACKAGE = 1, 2
ELF = b"\x7fELF"
MAIN = "copperfs.cli.main"
OF_OTHER_SYSTEMS = ("org", "_wmi")
"""Of Jython and of Windows: the standard library looks for them, and ``sys.stdlib_module_names`` of
Python 3.12 has neither."""
# interpreter.c sets them.
FILES = "COPPERFS_FILES"
SAVED = "COPPERFS_SAVED_"
ITS_OWN_VARIABLES = ("PYTHONHOME", "PYTHONPATH")
MADE_OF_MEMORY = "/proc/self/fd/"


class BundleFile:
    """A finder on ``sys.meta_path``, and the loader of what it finds."""

    index: "Index"

    def __init__(self, fd: int, directory: str) -> None:
        """*directory* has the installed files of the same modules."""
        self.fd = fd
        os.set_inheritable(fd, False)
        self.directory = directory
        self.index = _index_of(fd)
        self.loaded = 0
        """Of extension modules and libraries."""

    # ---- as a finder -----------------------------------------------------------------------------

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        entry = self.index["modules"].get(name)
        if entry is None:
            return None
        kind, where, _, _ = entry
        origin = os.path.join(self.directory, where)
        loader = _Extension(name, origin, self) if kind & EXTENSION else self
        is_package = bool(kind & PACKAGE)
        spec = ModuleSpec(name, loader, origin=origin, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(origin)]
        return spec

    # ---- as a loader -----------------------------------------------------------------------------

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: "ModuleType") -> None:
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, name: str) -> "CodeType":
        code: CodeType = marshal.loads(self._content(name))
        # It was compiled where copperfs was built.
        where = os.path.join(self.directory, self.index["modules"][name][1])
        _imp._fix_co_filename(code, where)  # type: ignore[attr-defined]
        return code

    def is_package(self, name: str) -> bool:
        return bool(self.index["modules"][name][0] & PACKAGE)

    def get_source(self, name: str) -> str | None:
        """Of the installed file; tracebacks show its lines."""
        return None

    # ---- extension modules -----------------------------------------------------------------------

    def path_of_extension(self, name: str) -> str:
        """Where it can be loaded from. Its libraries are loaded already, so the dynamic linker
        finds them by their own names and looks for no file."""
        self._load_libraries(self._libraries_of(name))
        return self._path_of(self._content(name), name)

    def _libraries_of(self, name: str) -> list[tuple[str, int, int]]:
        """Those that are not loaded yet."""
        raise NotImplementedError

    def _load_libraries(self, wanted: list[tuple[str, int, int]]) -> None:
        if not wanted:
            return
        self.index["libraries"] = [each for each in self.index["libraries"] if each not in wanted]
        paths = [
            self._path_of(self._bytes(*at), os.path.basename(library)) for library, *at in wanted
        ]
        for _ in wanted:  # one may need another
            paths = [each for each in paths if not _is_loaded(each)]

    def _path_of(self, content: bytes, name: str) -> str:
        """The dynamic linker takes a path that it has seen for the file that it has loaded, so no
        path occurs twice, although numbers of descriptors do."""
        fd = os.memfd_create(name)
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        self.loaded += 1
        return f"/proc/self/fd{self._slashes(self.loaded)}{fd}"

    def _slashes(self, loaded: int) -> str:
        """Bundles differ in it."""
        return "/" * loaded

    def _content(self, name: str) -> bytes:
        _, _, offset, length = self.index["modules"][name]
        return self._bytes(offset, length)

    def _bytes(self, offset: int, length: int) -> bytes:
        data = os.pread(self.fd, length, offset)
        if data.startswith(ELF):  # zlib is not there yet: it is this module, or a library of it
            return data
        import zlib

        return zlib.decompress(data)


class Bundle(BundleFile):
    """What is installed as packages."""

    index: "PackagesIndex"

    def __init__(self, path: str, program: str, packages: str) -> None:
        super().__init__(int(path.rpartition("/")[2]), packages)  # /proc/self/fd/N
        self.program, self.packages = program, packages

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

    def find_distributions(self, context: "Any") -> "Iterator[Any]":
        """For ``importlib.metadata``."""
        found = self.index["metadata"].get(context.name or "")
        if found is not None:
            yield _distribution(self._bytes(*found).decode())

    def _libraries_of(self, name: str) -> list[tuple[str, int, int]]:
        top = name.partition(".")[0]
        return [each for each in self.index["libraries"] if _is_of(each[0], top)]


class StandardLibrary(BundleFile):
    """What comes with Python."""

    index: "LibraryIndex"

    def __init__(self, fds: list[int], python: str) -> None:
        """*fds*: of this bundle, and of the memory files of which *python* was started."""
        super().__init__(fds[0], sys._stdlib_dir)  # type: ignore[attr-defined]
        self.fds, self.python = fds, python
        self._missing = frozenset(self.index["missing"])
        for fd in fds:
            if fd >= 0:
                os.set_inheritable(fd, False)

    def is_current(self) -> bool:
        """Whether it is of the Python that runs, and that has its directory where the program
        took it to be."""
        return self.index["version"] == this_python() and os.path.exists(f"{self.directory}/os.py")

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        if name in self._missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return super().find_spec(name, path, target)

    def _libraries_of(self, name: str) -> list[tuple[str, int, int]]:
        needed = self.index["needed"].get(name, ())
        return [each for each in self.index["libraries"] if each[0] in needed]

    def _slashes(self, loaded: int) -> str:
        return "/." * loaded + "/"


def _index_of(fd: int) -> "Any":
    end = os.lseek(fd, 0, os.SEEK_END) - END_BYTES
    begin = int.from_bytes(os.pread(fd, 8, end), "little")
    return marshal.loads(os.pread(fd, end - begin, begin))


def _is_loaded(path: str) -> bool:
    """By the interpreter, because ctypes may need such a library itself. It finds no module in a
    library, but keeps it."""
    try:
        _imp.create_dynamic(ModuleSpec("library", None, origin=path))
    except ImportError as error:
        return "export function" in str(error)
    return True


def _distribution(metadata: str) -> "Any":
    from importlib.metadata import Distribution

    class Bundled(Distribution):
        def read_text(self, filename: str) -> str | None:
            return metadata if filename == "METADATA" else None

        def locate_file(self, path: "Any") -> "Any":
            raise FileNotFoundError(path)

    return Bundled()


class Installed:
    """A finder of what is installed beside the bundle. On ``sys.path`` the directory would be
    listed for modules of other systems, which the standard library looks for."""

    def __init__(self, packages: str) -> None:
        self._packages = packages

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        if path is not None or name in sys.stdlib_module_names or name in OF_OTHER_SYSTEMS:
            return None
        return PathFinder.find_spec(name, [self._packages], target)


class _Extension(ExtensionFileLoader):
    def __init__(self, name: str, origin: str, bundle: BundleFile) -> None:
        super().__init__(name, origin)
        self._bundle = bundle

    def create_module(self, spec: ModuleSpec) -> "ModuleType":
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


def this_python() -> str:
    """Another build of the same version is another Python."""
    machine = getattr(sys.implementation, "_multiarch", "")
    return f"{sys.version} {sys.implementation.cache_tag} {machine}"


def started_from() -> Bundle | None:
    """None in a process that was started without one."""
    return next((each for each in sys.meta_path if isinstance(each, Bundle)), None)


def standard_library() -> StandardLibrary | None:
    """None in a process whose Python was not started from memory."""
    return next((each for each in sys.meta_path if isinstance(each, StandardLibrary)), None)


def python_of(module: str) -> list[str]:
    """The beginning of a command that runs *module* as this process runs."""
    bundle, library = started_from(), standard_library()
    if bundle is None:
        return [sys.executable, "-P", "-m", module]
    if library is not None:
        files = ":".join(map(str, [bundle.fd, *library.fds, library.python]))
        return [bundle.program, "--python", files, bundle.packages, "-m", module]
    base: str = sys._base_executable  # type: ignore[attr-defined]
    own = [f"/proc/self/fd/{bundle.fd}", bundle.program, bundle.packages]
    return [base, "-I", "-S", *own, "-m", module]


def environment_elsewhere(environ: "Mapping[str, str]") -> dict[str, str]:
    """*environ* for a Python that runs in another working directory: relative paths of
    ``PYTHONPATH`` would lead elsewhere."""
    found = dict(environ)
    paths = [each for each in found.pop("PYTHONPATH", "").split(os.pathsep) if each]
    if paths:
        found["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    return found


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
    bundle, library = started_from(), standard_library()
    fds = [] if library is None else [each for each in library.fds if each >= 0]
    return fds if bundle is None else [bundle.fd, *fds]


def version_of_standard_library() -> str | None:
    """Of the bundle that is installed, whether it is used or not."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY_FILE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        index: LibraryIndex = _index_of(fd)
        return index["version"]
    except (OSError, ValueError, EOFError, TypeError):  # a part of it
        return None
    finally:
        os.close(fd)


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


# ---- Python from memory --------------------------------------------------------------------------


def _restore_variables() -> None:
    """Those that the program has changed for this process, which the command has to get."""
    for name in ITS_OWN_VARIABLES:
        del os.environ[name]
    if os.environ.get("LD_PRELOAD", "").startswith(MADE_OF_MEMORY):
        del os.environ["LD_PRELOAD"]
    for name in [each for each in os.environ if each.startswith(SAVED)]:
        os.environ[name.removeprefix(SAVED)] = os.environ.pop(name)


def _take_standard_library(files: str, command: list[str]) -> StandardLibrary:
    """*files*: three descriptors and the path of the interpreter. If they are not of this Python,
    the process starts Python as usual, with the rest of *command*."""
    _restore_variables()
    *fds, python = files.split(":", 3)
    library = StandardLibrary(list(map(int, fds)), python)
    if not library.is_current():
        os.execv(python, [python, "-I", "-S", *command])
    archive = f"{MADE_OF_MEMORY}{library.fd}"
    sys.path.remove(archive)
    sys.path_importer_cache.pop(archive, None)
    for module in list(sys.modules.values()):  # encodings
        if (getattr(module, "__file__", None) or "").startswith(archive):
            _move(module, archive, library.directory)
    sys.executable = sys._base_executable = python  # type: ignore[attr-defined]
    with open("/proc/self/comm", "wb", buffering=0) as comm:
        comm.write(os.fsencode(os.path.basename(python)))  # it is a number
    return library


def _move(module: "ModuleType", before: str, after: str) -> None:
    spec = module.__spec__
    assert spec is not None
    module.__file__ = spec.origin = after + (module.__file__ or "").removeprefix(before)
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations = [os.path.dirname(module.__file__)]


def _start_as_module(path: str, program: str, packages: str, words: list[str]) -> None:
    """The module that runs becomes ``__main__``, so this one needs a name of its own, and finders
    of its own."""
    finders: list[BundleFile] = []
    files = os.environ.pop(FILES, None)
    if files is not None:
        finders.append(_take_standard_library(files, [path, program, packages, *words]))
    finders.append(Bundle(path, program, packages))
    sys.meta_path[:0] = finders
    name = "copperfs.startup.bundle"
    __import__(name)
    own = sys.modules[name]
    del sys.meta_path[: len(finders)]
    for each in finders:
        if isinstance(each, StandardLibrary):
            library = own.StandardLibrary(each.fds, each.python)
            library.loaded, library.index = each.loaded, each.index  # zlib is loaded already
            sys.meta_path.insert(0, library)
    own.start(path, program, packages, words)


if __name__ == "__main__":
    _start_as_module(sys.argv[0], sys.argv[1], sys.argv[2], sys.argv[3:])
