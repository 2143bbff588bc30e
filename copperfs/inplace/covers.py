"""Covers: decides which directories ``copperfs run --in-place`` shows at their own paths.

A cover is read-only for the job. So only software environments are covered, and directories that
the user named for it, and none that contains a place where the job may write.

The search begins with the entries of PATH, PYTHONPATH and LD_LIBRARY_PATH, CONDA_PREFIX,
VIRTUAL_ENV, and the command with the interpreters of scripts. Each symbolic link on the way to one
of them is searched, too, because Python derives ``sys.prefix`` from the path by which it was
started. So a venv's ``bin/python3`` leads to the venv, and to the installation that the link names.
The environment of a path is:

1. The nearest directory at or above it with ``pyvenv.cfg`` or ``conda-meta``. A venv also leads to
   the installation that it was made from.
2. Otherwise ``PREFIX``, if the path is at or below ``PREFIX/bin``, ``PREFIX/lib`` or the like, and
   ``PREFIX`` has programs and libraries. If programs also write to ``PREFIX`` (``~/.local``, a
   checkout, ``/usr``), then these directories alone.
3. Otherwise an entry of a variable is its own environment. The directory of a program is one only
   if it is named ``bin`` or the like: other files there may be results of the job.

All nodes of a job do this at once. So no directory is listed, and each path is examined once. A
further prefix such as ``/sw/opt/numpy-1.26`` takes six operations, if entries name its ``bin`` and
its ``lib``.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from copperfs.inplace.interpreters import base_of, interpreter_of, started_by_env
from copperfs.inplace.path_lookup import PathLookup, contains, upwards
from copperfs.inplace.writable_places import Conflict, WritablePlaces
from copperfs.model.errors import ConfigError

LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
SINGLE = ("CONDA_PREFIX", "VIRTUAL_ENV")
PARTS = ("bin", "lib", "lib64", "sbin", "libexec")
"""The directories of a prefix by which a path may lead to it."""
MAIN_PARTS = ("bin", "lib", "lib64")
"""These are covered in a prefix that programs write to."""
INTERPRETERS_MAX = 5  # the interpreter of a script may be a script, as deep as the kernel allows


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    directory: str
    reason: str
    """A sentence for the user."""


@dataclass(frozen=True, slots=True)
class Covers:
    directories: tuple[str, ...]
    """Absolute, without symbolic links, sorted, none below another."""
    writable: tuple[str, ...]
    """Directories of --writable below these, to be left out again; sorted, none below another."""
    left_out: tuple[LeftOut, ...]
    """Directories that were found or named, and are not covered; sorted. Local ones that a variable
    or the command leads to are not mentioned."""


def covers(
    *,
    environ: Mapping[str, str],
    command: Sequence[str],
    cwd: str,
    is_shared: Callable[[str], bool],
    source_root: str,
    at: Sequence[str],
    ring: Sequence[str],
    writable: Sequence[str],
) -> Covers:
    """*is_shared*: whether a path without links is on a shared filesystem, and shown by the mount.
    *at* are the prefixes of --in-place-at, *ring* the datasets; relative paths are below *cwd*."""
    lookup = PathLookup()
    cwd = lookup.real(cwd)
    named = outermost(_existing_directory("--writable", each, cwd, lookup) for each in writable)
    places = WritablePlaces.around(environ, cwd, named, lookup)
    search = _Search(environ, cwd, is_shared, source_root, lookup, places)
    for prefix in at:
        search.prefix(prefix)
    for dataset in ring:
        search.dataset(dataset)
    for name in LISTS:
        for entry in environ.get(name, "").split(":"):
            search.entry(entry)
    for name in SINGLE:
        search.entry(environ.get(name, ""))
    if command:
        search.program(command[0], command[1:])
    return search.result()


def outermost(directories: Iterable[str]) -> tuple[str, ...]:
    """Sorted, without those below another."""
    found: list[str] = []
    # Compared by components, a directory comes right before those below it.
    for each in sorted(set(directories), key=lambda path: path.split("/")):
        if not found or not contains(found[-1], each):
            found.append(each)
    return tuple(sorted(found))


def _existing_directory(option: str, named: str, cwd: str, lookup: PathLookup) -> str:
    path = os.path.join(cwd, named)
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        raise ConfigError(f"{option} {named} does not exist; name an existing directory") from None
    except OSError as error:
        raise ConfigError(
            f"{option} {named} cannot be used: {error.strerror}; name another directory"
        ) from None
    if not is_directory:
        raise ConfigError(f"{option} {named} is not a directory; name the directory of that file")
    return lookup.real(path)


@dataclass(slots=True)
class _Search:
    environ: Mapping[str, str]
    cwd: str
    is_shared: Callable[[str], bool]
    source_root: str
    lookup: PathLookup
    places: WritablePlaces
    found: set[str] = field(default_factory=set)
    left_out: set[LeftOut] = field(default_factory=set)
    venvs: set[str] = field(default_factory=set)
    """Their base installations were looked for."""

    def result(self) -> Covers:
        directories = outermost(self.found)

        def is_covered(path: str) -> bool:
            return any(contains(each, path) for each in directories)

        left_out = [
            each
            for each in self.left_out
            # Found in one way and refused, but covered in another.
            if not is_covered(each.directory) or self.places.conflict(each.directory)
        ]
        return Covers(
            directories, tuple(filter(is_covered, self.places.named)), tuple(sorted(left_out))
        )

    # ---- directories that the user named ---------------------------------------------------------

    def prefix(self, named: str) -> None:
        """A prefix of --in-place-at."""
        real = _existing_directory("--in-place-at", named, self.cwd, self.lookup)
        if conflict := self.places.conflict_of_place(real):
            raise ConfigError(
                f"--in-place-at {named} would be read-only, but {conflict.because}; "
                "name a directory below it"
            )
        if not self._is_shown(real):
            raise ConfigError(
                f"--in-place-at {named} is on no shared filesystem; leave it out, or name its "
                "filesystem by --shared"
            )
        self._add(real)

    def dataset(self, named: str) -> None:
        real = self.lookup.real(os.path.join(self.cwd, named))
        if not self.lookup.is_directory(real):
            self._leave_out(real, Conflict("it is not an existing directory", "correct --ring"))
        elif not self._is_shown(real):
            remedy = "name its filesystem by --shared"
            self._leave_out(real, Conflict("it is on no shared filesystem", remedy))
        else:
            self._add(real)

    # ---- paths that lead to environments ---------------------------------------------------------

    def entry(self, path: str, *, of_program: bool = False) -> None:
        """*of_program*: it was not named by the user, but a program is there."""
        if not path:  # the working directory
            return
        with suppress(OSError):
            real, links = self.lookup.walk(os.path.join(self.cwd, path))
            if not self.lookup.is_directory(real):
                return
            for link in links:
                self._add_environment(_start_at(link))
            if not self._add_environment(real) and (_is_part(real) or not of_program):
                self._add(real)

    def program(self, name: str, arguments: Sequence[str], *, interpreters: int = 0) -> None:
        # ValueError: a null byte in the first line of a script, or a quote that is not closed.
        with suppress(OSError, ValueError):
            path = self._executable(name)
            if path is None or interpreters > INTERPRETERS_MAX:
                return
            real, links = self.lookup.walk(path)
            for link in links:
                self._add_environment_of_program(_start_at(link))
            directory = os.path.dirname(real)
            if not self._add_environment_of_program(directory) and self._is_shown(directory):
                self._leave_out(directory, self._stray(real))
            if os.path.basename(name) == "env" and (started := started_by_env(arguments)):
                self.program(started, (), interpreters=interpreters + 1)
            if words := interpreter_of(real):
                self.program(words[0], words[1:], interpreters=interpreters + 1)

    def _executable(self, name: str) -> str | None:
        """As execvp finds it."""
        directories = [""] if "/" in name else self.environ.get("PATH", os.defpath).split(":")
        for directory in directories:
            path = os.path.join(self.cwd, directory, name)
            with suppress(OSError):
                if stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK):
                    return path
        return None

    def _add_environment_of_program(self, start: str) -> bool:
        return self._add_environment(start) or (_is_part(start) and self._add(start))

    def _stray(self, program: str) -> Conflict:
        return self.places.conflict(os.path.dirname(program)) or Conflict(
            f"{os.path.basename(program)} in it belongs to no environment that copperfs recognizes",
            "if the job writes nothing there, name it by --in-place-at DIR",
        )

    # ---- environments ----------------------------------------------------------------------------

    def _add_environment(self, start: str) -> bool:
        """Whether *start* belongs to an environment on a shared filesystem, covered or not."""
        added = [self._add(each) for each in self._marked(start) or self._prefix_or_parts(start)]
        return any(added)

    def _marked(self, start: str) -> tuple[str, ...]:
        for directory in upwards(start):
            # A stray pyvenv.cfg there does not make one environment of all that is below.
            if self.places.is_home_or_above(directory):
                break
            if _is_part(directory):
                continue  # two operations less, for each entry of PATH
            is_venv = self.lookup.is_file(os.path.join(directory, "pyvenv.cfg"))
            if is_venv:
                self._add_base(directory)
            if is_venv or self.lookup.is_directory(os.path.join(directory, "conda-meta")):
                return (directory,)
        return ()

    def _add_base(self, venv: str) -> None:
        if venv in self.venvs:
            return
        self.venvs.add(venv)
        # ValueError: a null byte in the file.
        with suppress(OSError, ValueError):
            base = base_of(venv)
            if base and base.startswith("/"):
                self.entry(base, of_program=True)

    def _prefix_or_parts(self, start: str) -> tuple[str, ...]:
        for directory in upwards(start):
            if self.places.conflict_of_place(directory):
                break
            prefix, name = os.path.split(directory)
            if name in PARTS and self._is_prefix(prefix):
                if not self._is_written_to(prefix):
                    return (prefix,)
                parts = dict.fromkeys((*MAIN_PARTS, name))
                return tuple(os.path.join(prefix, each) for each in parts)
        return ()

    def _is_prefix(self, directory: str) -> bool:
        def has(part: str) -> bool:
            return self.lookup.is_directory(os.path.join(directory, part))

        return has("bin") and (has("lib") or has("lib64"))

    def _is_written_to(self, prefix: str) -> bool:
        """Whether programs write to *prefix*, beside its software."""
        parent, name = os.path.split(prefix)
        return (
            parent == "/"  # /usr, or the top of a filesystem
            or name.startswith(".")  # ~/.local has data and state of programs
            or self.lookup.exists(os.path.join(prefix, ".git"))
            or self.places.conflict_of_place(prefix) is not None
        )

    # ---- what comes of a directory ---------------------------------------------------------------

    def _add(self, directory: str) -> bool:
        """Whether it is a directory on a shared filesystem, covered or not."""
        real = self.lookup.real(directory)
        if not self.lookup.is_directory(real) or not self._is_shown(real):
            return False
        if conflict := self.places.conflict(real):
            self._leave_out(real, conflict)
        else:
            self.found.add(real)
        return True

    def _leave_out(self, directory: str, conflict: Conflict) -> None:
        self.left_out.add(LeftOut(directory, conflict.sentence(directory)))

    def _is_shown(self, real: str) -> bool:
        return contains(self.source_root, real) and self.is_shared(real)


def _is_part(directory: str) -> bool:
    return os.path.basename(directory) in PARTS


def _start_at(link: str) -> str:
    """A link to a file, or to a whole environment, belongs to what its directory does."""
    return link if _is_part(link) else os.path.dirname(link)
