"""Writable places: the directories that the job may write to, which no cover may contain: home, the
working directory, temporary files, and those of ``--writable``."""

import os
import pwd
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from copperfs.inplace.path_lookup import PathLookup, contains


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a directory is not covered."""

    because: str
    remedy: str

    def sentence(self, directory: str) -> str:
        return f"{directory} is not shown in place because {self.because}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class WritablePlaces:
    """All without symbolic links."""

    homes: tuple[str, ...]
    """$HOME, and the one of the user database."""
    temporary: tuple[str, ...]
    cwd: str
    named: tuple[str, ...]
    """By --writable. A cover may contain one: it is left out of the cover."""

    @classmethod
    def around(
        cls, environ: Mapping[str, str], cwd: str, named: tuple[str, ...], lookup: PathLookup
    ) -> "WritablePlaces":
        homes = [environ.get("HOME", "")]
        with suppress(KeyError):  # the user has no entry, as in a container
            homes.append(pwd.getpwuid(os.getuid()).pw_dir)
        temporary = [environ.get("TMPDIR", ""), "/tmp"]
        return cls(
            _existing_or_not(homes, cwd, lookup),
            _existing_or_not(temporary, cwd, lookup),
            cwd,
            named,
        )

    def conflict(self, directory: str) -> Conflict | None:
        return self.conflict_of_place(directory) or self.conflict_of_option(directory)

    def conflict_of_place(self, directory: str) -> Conflict | None:
        lasting = "name the software in it by --in-place-at DIR"
        places = (
            *((home, "home directory", lasting) for home in self.homes),
            *((each, "directory of temporary files", lasting) for each in self.temporary),
            (self.cwd, "working directory", "start the command from a directory outside of it"),
        )
        for place, what, remedy in places:
            if directory == place:
                return Conflict(f"it is the {what}", remedy)
        for place, what, remedy in places:
            if contains(directory, place):
                return Conflict(f"the {what} {place} is in it", remedy)
        return None

    def conflict_of_option(self, directory: str) -> Conflict | None:
        for each in self.named:
            if contains(each, directory):
                how = "names it" if each == directory else "contains it"
                return Conflict(f"--writable {each} {how}", "leave that option out to show it")
        return None

    def is_home_or_above(self, directory: str) -> bool:
        return any(contains(directory, home) for home in self.homes)


def _existing_or_not(paths: Iterable[str], cwd: str, lookup: PathLookup) -> tuple[str, ...]:
    """Without links, each once."""
    return tuple(dict.fromkeys(lookup.real(os.path.join(cwd, each)) for each in paths if each))
