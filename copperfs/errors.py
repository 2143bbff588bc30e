"""The errors that end a command.

Each carries one clear sentence: what is wrong, then what to do about it. The command line prints
that sentence and nothing else, so whoever raises one of these writes for a user. Errors that a
reader of the mount is to see are errnos, not these.
"""


class CopperError(Exception):
    """A command cannot go on; ``str()`` of it is the sentence for the user."""


class ConfigError(CopperError):
    """A setting has a value that it cannot have, or there is no such setting."""


class MountError(CopperError):
    """Mounting, unmounting or cleaning up a mount point failed."""


class ControlError(CopperError):
    """A running mount could not be asked, or refused."""


class LaunchError(CopperError):
    """The nodes of a job did not find each other. Empty if another process tells why."""


class ClusterError(CopperError):
    """A cluster on this machine could not be started, looked at or ended."""


class SimulationError(CopperError):
    """What was to be simulated cannot be, or not as asked."""


class StoreError(CopperError):
    """A directory cannot be used to hold chunks."""
