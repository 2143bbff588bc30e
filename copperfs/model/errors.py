"""Errors that end a command.

Each carries one sentence for the user: what is wrong, then what to do about it. The command line
prints that sentence and nothing else. Errors for readers of the mount are errnos, not these.
"""


class CopperError(Exception):
    """A command cannot continue; ``str()`` of it is the sentence for the user."""


class ConfigError(CopperError):
    """A setting has an invalid value, or does not exist."""


class NotBuiltError(CopperError):
    """The C extension is missing, or cannot be loaded."""


class MountError(CopperError):
    """Mounting, unmounting or cleaning up a mount point failed."""


class ControlError(CopperError):
    """A running mount could not be reached, or refused the command."""


class LaunchError(CopperError):
    """The nodes of a job did not find each other. Empty if another process reports the reason."""


class ClusterError(CopperError):
    """A cluster on this machine could not be started, inspected or stopped."""


class SimulationError(CopperError):
    """The simulator cannot run this, or not with these options."""


class StoreError(CopperError):
    """A directory cannot be used to hold chunks."""
