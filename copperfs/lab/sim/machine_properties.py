"""Machine properties: how the machines of a job differ from each other."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    own_numbers: bool = False
    """Its client of the source gives files numbers of its own."""
    ahead_s: float = 0.0
    """Its wall clock's lead over the server's."""
    boot_s: float = 0.0
    """The reading of its monotonic clock when virtual time began,"""
    rate: float = 1.0
    """and how many of its seconds pass in one."""
    memory_bytes: int | None = None
    """None: as the job says."""
    descriptors: int | None = None
    """None: as many as are wanted."""
    resolver_s: float | None = None
    """The time of its resolver for a name; None: it has addresses."""
    resolver_fails_until: float = 0.0
    starts_s: float = 0.0
    """Seconds after the first node's start."""


PLAIN = Machine()
