"""Errors that end a command.

Each carries one sentence for the user: what is wrong, then what to do about it. Errors for readers
of the mount are errnos, not these. The kind of an error decides the exit code of the command;
``EXIT_CODES`` of ``cli/main.py`` explains them.
"""

from typing import ClassVar


class CopperError(Exception):
    """``str()`` of it is the sentence for the user."""

    exit_code: ClassVar[int] = 1


class UsageError(CopperError):
    """A command was called wrongly."""

    exit_code = 2

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint
        """Where the right use is explained."""


class ConfigError(CopperError):
    """A setting is invalid or unknown."""

    exit_code = 2


class NotBuiltError(CopperError):
    """The C extension cannot be loaded."""

    exit_code = 3


class MountError(CopperError):
    """Mounting, unmounting or cleaning up failed."""

    exit_code = 4


class ControlError(CopperError):
    """A running mount could not be reached, or refused."""

    exit_code = 5


class IncompleteError(CopperError):
    """Some nodes of the job did not do what the others did."""


class LaunchError(CopperError):
    """The nodes of a job did not find each other. Empty: another process reports the reason."""

    exit_code = 6


class OutputError(CopperError):
    """A file that was asked for cannot be written."""


class ClusterError(CopperError):
    """A cluster on this machine cannot be used."""


class SimulationError(CopperError):
    """The simulator cannot run it."""


class StoreError(CopperError):
    """A directory cannot hold chunks."""
