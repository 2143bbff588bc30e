"""Machine: the properties of one machine of a job: clocks, client of the source, limits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    own_numbers: bool = False
    """Its client of the source gives files inode numbers that no other client gives them."""
    ahead_s: float = 0.0
    """Seconds by which its wall clock is ahead of the server's."""
    boot_s: float = 0.0
    """What its monotonic clock showed when virtual time began,"""
    rate: float = 1.0
    """and how many seconds pass on it in one."""
    memory_bytes: int | None = None
    """None: as the job says."""
    descriptors: int | None = None
    """Its limit; None: as many as are wanted."""
    resolver_s: float | None = None
    """The time of its resolver for each name; None: it has addresses."""
    resolver_fails_until: float = 0.0
    starts_s: float = 0.0
    """Seconds from the start of the first node to its own."""


PLAIN = Machine()
