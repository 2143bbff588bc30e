"""Join socket: further runs of a node join the first one by it, without Python.

The program ``copperfs`` binds it before it becomes Python, and names it in
``COPPERFS_JOIN_SOCKET``. Once the mount can be used, this process gives it to the daemon together
with a ``ResolvedRun``: the values that decided about the run, and the command that they lead to.
``startup/join.c`` has the messages, and is the other end.
"""

import os
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from copperfs.launch.launcher_variables import MOUNTPOINT_VARIABLE, RUN_VARIABLE, same_for_all
from copperfs.launch.run_report import RunReport
from copperfs.launch.shared_mount_client import refuse_all

VARIABLE = "COPPERFS_JOIN_SOCKET"
# What ``run`` reads besides the launcher's, its own and those of --prefix-env.
READ_BY_RUN = (
    *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CONDA_PREFIX", "VIRTUAL_ENV"),
    *("HOME", "TMPDIR", "KRB5CCNAME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"),
)
OWN_PREFIX = "COPPERFS_"
# These are for the command.
NOT_READ = (VARIABLE, RUN_VARIABLE, MOUNTPOINT_VARIABLE)
LENGTH = struct.Struct("=I")


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    words: tuple[str, ...]
    """The arguments of ``copperfs run`` that decide."""
    cwd: str
    environ: dict[str, str]
    """The values that decided."""
    prefix_names: tuple[str, ...]
    command: tuple[str, ...]
    """The program to execute, without the arguments that it is given."""
    variables: dict[str, str]
    """Those that the command finds changed."""
    mountpoint: str
    remove: bool
    with_parent: bool
    report: RunReport

    @classmethod
    def of_line(cls, words: Mapping[str, Any]) -> "ResolvedRun":
        report = words["report"]
        covered = report["covered"]
        values = {
            **words,
            "words": tuple(words["words"]),
            "command": tuple(words["command"]),
            "prefix_names": tuple(words["prefix_names"]),
            "report": RunReport(
                **{
                    **report,
                    "covered": None if covered is None else tuple(covered),
                    "left_out": tuple(report["left_out"]),
                }
            ),
        }
        return cls(**values)

    def line(self) -> dict[str, Any]:
        return asdict(self)

    def fits(self, request: "JoinRequest") -> bool:
        """Whether Python would find out the same."""
        same = request.cwd == self.cwd and decisive(request.words) == self.words
        return same and read_by_run(request.environ, self.prefix_names) == self.environ

    def answer(self, request: "JoinRequest", fds: int) -> bytes:
        """*fds* is the number of descriptors that come with it."""
        flags = ("1" if each else "0" for each in (self.remove, self.with_parent))
        command = (*self.command, *request.words[len(decisive(request.words)) :])
        return message(
            *("run", self.mountpoint, str(fds), *flags),
            *(str(len(command)), *command),
            *(f"{name}={value}" for name, value in self.variables.items()),
        )


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The question of a further run."""

    token: str
    cwd: str
    words: tuple[str, ...]
    environ: dict[str, str]

    @classmethod
    def of(cls, strings: list[str]) -> "JoinRequest":
        """ValueError if it is none."""
        version, token, cwd, number, *rest = strings
        count = int(number)
        if version != "1" or not 0 < count <= len(rest):
            raise ValueError(f"a run asks with version {version} and {number} words")
        pairs = (each.partition("=") for each in rest[count:])
        environ = {name: value for name, _, value in pairs}
        return cls(token, cwd, tuple(rest[:count]), environ)


def decisive(words: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments that decide what a run does: the options and the program after ``--``. Without
    it, where options end is not looked for; and ``env`` has another program in its arguments."""
    if "--" not in words:
        return words
    end = words.index("--") + 2
    is_env = end <= len(words) and os.path.basename(words[end - 1]) == "env"
    return words if is_env else words[:end]


def read_by_run(environ: Mapping[str, str], prefix_names: Iterable[str]) -> dict[str, str]:
    """The variables that decide what a run does, without those that differ between ranks."""
    names = {*READ_BY_RUN, *prefix_names}
    names |= {each for each in environ if each.startswith(OWN_PREFIX) and each not in NOT_READ}
    found = {name: environ[name] for name in names if name in environ}
    return found | same_for_all(environ)


def taken_from_environment() -> socket.socket | None:
    """The join socket, which neither the daemon nor the command inherits."""
    number = os.environ.pop(VARIABLE, "")
    if not number.isdecimal():
        return None
    try:
        listener = socket.socket(fileno=int(number))
    except OSError:  # the variable was inherited, and not the socket
        return None
    listener.set_inheritable(False)
    return listener


def refuse(listener: socket.socket, sentence: str) -> None:
    """The waiting runs end with the same sentence."""
    refuse_all(listener, message("error", sentence))


def message(*strings: str) -> bytes:
    body = b"".join(os.fsencode(each) + b"\0" for each in strings)
    return LENGTH.pack(len(body)) + body


def strings_of(body: bytes) -> list[str]:
    return [os.fsdecode(each) for each in body.removesuffix(b"\0").split(b"\0")]
