"""Archive of Debian's kernels: finds which release has which, and fetches their packages.

The archive is the one that this machine installs from (``apt-get indextargets``, with apt's own
settings). Every release gets an apt directory of its own below the work directory, so the newest
kernel there is the one meant, and the machine's own sources stay as they are. A package is fetched
again when the archive has a newer one. Only the kernel and the modules that a guest may load are
unpacked.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

METAPACKAGE = "linux-image-amd64"
APT_TIMEOUT_S = 300.0
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

UNPACKED = [
    "*/vmlinuz*",
    *(
        f"*/modules/*/kernel/{part}/*"
        for part in ("fs", "lib", "crypto", "arch", "net/9p", "drivers/virtio", "drivers/block")
    ),
    "*/modules/*/modules.builtin*",
]


class Unavailable(Exception):
    """The text says what to do."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, and the releases that have it; the first available one counts."""

    name: str
    releases: tuple[str, ...]


KERNELS = (
    Kernel("5.10", ("bullseye",)),
    Kernel("6.1", ("bookworm",)),
    Kernel("6.12", ("trixie", "bookworm-backports")),
    Kernel("newest", ("sid", "trixie-backports")),
)


def _said(command: list[str | Path]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=APT_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise Unavailable(f"there is no {command[0]} here; Debian has it") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise Unavailable(f"{command[0]} failed: {' '.join(last)}")
    return done.stdout


def mirror() -> str:
    addresses = _said(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)",
         "Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main"]
    ).split()  # fmt: skip
    if not addresses:
        raise Unavailable("apt knows no archive of Debian here: run apt-get update")
    return addresses[0]


class Release:
    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory / name
        for each in ("lists/partial", "cache/archives/partial"):
            (self.directory / each).mkdir(parents=True, exist_ok=True)
        (self.directory / "status").touch()
        self._sources = self.directory / "sources.list"
        self._sources.write_text(f"deb [signed-by={KEYS}] {mirror()} {name} main\n")

    def _options(self) -> list[str]:
        where = self.directory
        settings = {
            "Dir::Etc::sourcelist": self._sources,
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": where / "lists",
            "Dir::State::status": where / "status",
            "Dir::Cache": where / "cache",
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "root",  # another user may not enter the work directory
        }
        return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]

    def update(self) -> None:
        _said(["apt-get", "-qq", *self._options(), "update", "-o", "APT::Update::Error-Mode=any"])

    def _needed_by(self, package: str) -> list[str]:
        shown = _said(["apt-cache", *self._options(), "depends", package])
        return [line.split()[1] for line in shown.splitlines() if "Depends:" in line]

    def packages(self) -> list[str]:
        """The packages of the kernel that the release installs by default: one until Debian 13,
        later one for the kernel and one for its modules."""
        found = [each for each in self._needed_by(METAPACKAGE) if each.startswith("linux-image-")]
        if not found:
            raise Unavailable(f"{self.name} has no {METAPACKAGE}")
        parts = ("linux-base-", "linux-binary-", "linux-modules-")
        return found[:1] + [each for each in self._needed_by(found[0]) if each.startswith(parts)]

    def fetch(self) -> list[Path]:
        """Under apt's names; files that are here already stay."""
        files = []
        for package in self.packages():
            said = _said(["apt-get", *self._options(), "download", "--print-uris", package])
            file = self.directory / said.split()[1]
            if not file.exists():
                subprocess.run(
                    ["apt-get", "-qq", *self._options(), "download", package],
                    cwd=self.directory, check=True, timeout=APT_TIMEOUT_S,
                    stdin=subprocess.DEVNULL,
                )  # fmt: skip
            if not file.exists():
                raise Unavailable(f"apt-get download gave no {file.name}")
            files.append(file)
        for old in set(self.directory.glob("*.deb")) - set(files):
            old.unlink()
        return files


def unpack(packages: list[Path], into: Path) -> None:
    stamp, names = into / "unpacked", " ".join(each.name for each in packages)
    if stamp.exists() and stamp.read_text() == names:
        return
    subprocess.run(["rm", "-rf", into], check=True, timeout=60)
    into.mkdir(parents=True)
    for package in packages:
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE
        ) as contents:
            # A pattern may match nothing: the check below finds what is missing.
            subprocess.run(
                ["tar", "-x", "-C", into, "--wildcards", *UNPACKED],
                stdin=contents.stdout, check=False, timeout=300, stderr=subprocess.DEVNULL,
            )  # fmt: skip
    if not list(into.glob("**/vmlinuz*")):
        raise Unavailable(f"there is no kernel in {names}")
    stamp.write_text(names)


def get(kernel: Kernel, work: Path) -> Path:
    said = []
    for name in kernel.releases:
        release = Release(name, work / "archive")
        into = work / "kernels" / kernel.name
        try:
            release.update()
            unpack(release.fetch(), into)
        except (Unavailable, subprocess.SubprocessError) as error:
            said.append(f"{name}: {error}")
            continue
        return into
    raise Unavailable("; ".join(said))
