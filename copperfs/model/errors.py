"""Errors that end a command.

Each carries one sentence for the user: what is wrong, then what to do about it. Errors for readers
of the mount are errnos, not these.
"""


class CopperError(Exception):
    """``str()`` of it is the sentence for the user."""


class ConfigError(CopperError):
    """A setting is invalid or unknown."""


class NotBuiltError(CopperError):
    """The C extension cannot be loaded."""


class MountError(CopperError):
    """Mounting, unmounting or cleaning up failed."""


class ControlError(CopperError):
    """A running mount could not be reached, or refused."""


class LaunchError(CopperError):
    """The nodes of a job did not find each other. Empty: another process reports the reason."""


class ClusterError(CopperError):
    """A cluster on this machine cannot be used."""


class SimulationError(CopperError):
    """The simulator cannot run it."""


class StoreError(CopperError):
    """A directory cannot hold chunks."""
