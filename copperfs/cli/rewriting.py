"""Rewriting: redirects a command's environment to the mount: ``/lus/me/env`` becomes
``MNT/lus/me/env``.

Only absolute paths on shared filesystems change. The mount resolves them, so that thousands of
processes look up the links once.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from copperfs.inplace.interpreters import interpreter_of
from copperfs.model.types import Path, is_below
from copperfs.node.requests.path_policy import Place, Policy

if TYPE_CHECKING:
    from copperfs.config.settings import Settings
    from copperfs.fuse.mounting import Mount

PREFIX_ENV_DEFAULT = ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "CONDA_PREFIX", "VIRTUAL_ENV")


def prefix_names(text: str) -> list[str]:
    """Those of ``--prefix-env``; with a plus before any of them, the default ones as well."""
    words = [word for word in text.split(",") if word not in ("", "none")]
    names = [word.removeprefix("+") for word in words]
    if any(word.startswith("+") for word in words):
        names = [*PREFIX_ENV_DEFAULT, *names]
    return list(dict.fromkeys(names))


def policy_of_paths(settings: "Settings", all_mounts: "Sequence[Mount]", root: str) -> Policy:
    """It refuses no mount point: paths are classified before there is one, and below it."""
    from copperfs.daemon.path_policy_from_mounts import policy_for

    policy = policy_for(settings, all_mounts, os.fsencode(root))
    policy.refused = frozenset()
    return policy


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Maps paths below *source* to paths below *mountpoint*."""

    mountpoint: str
    source: str
    """As the user wrote it, absolute."""
    source_root: str
    """The same without symbolic links."""
    policy: Policy
    realpath: Callable[[str], str] = os.path.realpath
    covered: tuple[str, ...] = ()
    """Paths below these stay: the mount is seen there."""

    def environment(
        self, environ: Mapping[str, str], names: Iterable[str], given: Mapping[str, str]
    ) -> dict[str, str]:
        """*environ* with the paths in *names* rewritten, and those of *given*, which wins."""
        result = dict(environ)
        for name in names:
            if name in environ:
                result[name] = self.value(environ[name])
        return result | {name: self.value(value) for name, value in given.items()}

    def value(self, value: str) -> str:
        return ":".join(map(self.path, value.split(":")))

    def command(self, words: Sequence[str], search_path: str) -> list[str]:
        """A program keeps its own path, below the mount, although its last link may lead to a local
        interpreter: Python finds its venv by it. A script whose first line names a shared
        interpreter is run by that one, in the mount."""
        name = words[0]
        found = os.path.abspath(name) if "/" in name else shutil.which(name, path=search_path)
        if found is None or not found.startswith("/"):
            return list(words)
        program = self._program(found)
        with suppress(OSError, ValueError):
            if interpreter := interpreter_of(program):
                first = self._program(interpreter[0])
                if first != interpreter[0]:
                    return [first, *interpreter[1:], program, *words[1:]]
        return [name if program == found else program, *words[1:]]

    def _program(self, path: str) -> str:
        directory, name = os.path.split(path)
        return os.path.join(self.path(directory), name)

    def path(self, path: str) -> str:
        """A path on no shared filesystem stays as it is."""
        if not path.startswith("/") or is_below(os.fsencode(path), os.fsencode(self.mountpoint)):
            return path
        if self.covered and self._is_covered(path):
            return path
        below = self._below_source(path)
        if below is None:
            return path
        shown = os.path.join(self.mountpoint, below) if below else self.mountpoint
        real = os.fsencode(self.realpath(shown))
        top = os.fsencode(self.mountpoint)
        if not is_below(real, top):
            return path  # a link led out of the mount, to a local path
        place = self.policy.place(Path(real[len(top) :].strip(b"/")))
        return shown if place is Place.SHARED else path

    def _is_covered(self, path: str) -> bool:
        real = os.fsencode(os.path.realpath(path))
        return any(is_below(real, os.fsencode(each)) for each in self.covered)

    def _below_source(self, path: str) -> str | None:
        """The real path counts if the written one is outside the source."""
        written = os.path.normpath(path)
        for top in (self.source, self.source_root):
            if (below := _below(written, top)) is not None:
                return below
        return _below(self.realpath(path), self.source_root)


def _below(path: str, top: str) -> str | None:
    top = top.rstrip("/")
    if not is_below(os.fsencode(path), os.fsencode(top)):
        return None
    return path[len(top) :].strip("/")
