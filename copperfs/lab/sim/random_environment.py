"""Random environment: draws how the machines of a random run differ, and what is wrong around them.

Its own random stream keeps a seed's faults unchanged. A calm seed differs only in what no job
should notice, and may have a sick name, whose error only those get that ask for it.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from copperfs.lab.sim.machine_properties import PLAIN, Machine
from copperfs.model.types import Path, split

AHEAD_S_MAX = 2.0
BOOT_S_MAX = 1e5
RATE_MAX = 50e-6
"""A crystal's error. An answer may be late by 10 ms in a minute (``SLACK_S``)."""
TICKS_S = (0.004, 0.004, 0.01)
SMALL_BYTES = 24 << 20
RESOLVERS_S = (0.3, 3.0)
FAILS_UNTIL_S = (0.0, 2.0, 10.0)
SPREADS_S = (0.3, 1.0, 5.0)
HANGS = 0
"""In place of an errno: a name that does not answer."""
WALKED = Path(b"walked")


@dataclass(slots=True)
class Environment:
    machines: dict[int, Machine]
    inodes: str
    """"auto": inode numbers are compared; "ignore": they are left out."""
    mounted: Path | None
    """A directory on a filesystem of its own."""
    tick_s: float
    sick: dict[Path, int]
    """Names with this error until the faults end, or that hang."""
    walked: int
    """The number of names in a directory that nodes walk through while names are removed; 0:
    none."""
    drawn: list[str] = field(default_factory=list)
    """For people and for counting."""

    def __str__(self) -> str:
        return ", ".join(self.drawn) or "nothing"

    @property
    def starts_within_s(self) -> float:
        return max(machine.starts_s for machine in self.machines.values())


def draw_environment(seed: int, nodes: int, files: list[Path], *, calm: bool) -> Environment:
    return _Draw(Random(f"environment {seed}"), nodes, files, calm).environment()


@dataclass(slots=True)
class _Draw:
    random: Random
    nodes: int
    files: list[Path]
    calm: bool
    drawn: list[str] = field(default_factory=list)

    def environment(self) -> Environment:
        own_numbers = self._own_numbers()
        inodes = self._of("inode numbers ignored", 0.15)
        mounted = self._mounted()
        clocks = list(self._clocks())
        memory = self._some("little memory on some nodes", 0.2, 0.2)
        few = self._some("few descriptors on some nodes", 0.3, 0.3)
        starts_s = self._starts_s()
        resolvers = self._resolvers()
        sick = self._sick()
        walks = not self.calm and self._of("walks while names are removed", 0.3)
        machines = {}
        for node, clock in enumerate(clocks):
            resolver_s, fails_until = resolvers.get(node, (None, 0.0))
            machines[node] = Machine(
                own_numbers=node in own_numbers,
                ahead_s=clock.ahead_s,
                boot_s=clock.boot_s,
                rate=clock.rate,
                memory_bytes=SMALL_BYTES if node in memory else None,
                descriptors=160 + 4 * self.nodes if node in few else None,
                resolver_s=resolver_s,
                resolver_fails_until=fails_until,
                starts_s=starts_s[node],
            )
        return Environment(
            machines,
            "ignore" if inodes else "auto",
            mounted,
            self.random.choice(TICKS_S),
            sick,
            self.random.randint(20, 120) if walks else 0,
            self.drawn,
        )

    def _of(self, what: str, share: float) -> bool:
        is_so = self.random.random() < share
        if is_so:
            self.drawn.append(what)
        return is_so

    def _some(self, what: str, share: float, of_nodes: float) -> set[int]:
        found = {node for node in range(self.nodes) if self.random.random() < of_nodes}
        return found if self._of(what, share) else set()

    def _own_numbers(self) -> set[int]:
        how, one = self.random.random(), self.random.randrange(self.nodes)
        if how < 0.65:
            return set()
        if how < 0.75:
            self.drawn.append("inode numbers differ on one node")
            return {one}
        self.drawn.append("inode numbers differ on all nodes")
        return set(range(self.nodes))

    def _mounted(self) -> Path | None:
        directories = sorted({split(path)[0] for path in self.files})
        which = directories[self.random.randrange(3) % len(directories)]
        return which if self._of("a filesystem below the root", 0.4) else None

    def _clocks(self) -> Iterator[Machine]:
        differ = self._of("clocks off", 0.7)
        for _ in range(self.nodes):
            clock = Machine(
                ahead_s=self.random.uniform(-AHEAD_S_MAX, AHEAD_S_MAX),
                boot_s=self.random.uniform(0, BOOT_S_MAX),
                rate=1 + self.random.uniform(-RATE_MAX, RATE_MAX),
            )
            yield clock if differ else PLAIN

    def _starts_s(self) -> list[float]:
        how, within_s = self.random.random(), self.random.choice(SPREADS_S)
        spread = [self.random.uniform(0, within_s) for _ in range(self.nodes)]
        if how < 0.5:
            return [0.0] * self.nodes
        if how < 0.7:
            self.drawn.append("the root starts last")
            return [within_s, *[0.0] * (self.nodes - 1)]
        self.drawn.append("starts spread")
        spread[self.random.randrange(self.nodes)] = 0.0
        return spread

    def _resolvers(self) -> dict[int, tuple[float, float]]:
        some = {node for node in range(self.nodes) if self.random.random() < 0.3}
        how = self.random.choice(RESOLVERS_S), self.random.choice(FAILS_UNTIL_S)
        if self.calm or not self._of("slow or failing resolvers", 0.2):
            return {}
        return dict.fromkeys(sorted(some), how)

    def _sick(self) -> dict[Path, int]:
        beside = self.random.choice(self.files)
        error = self.random.choice((errno.EIO, errno.ENOTCONN, HANGS))
        if not self._of("a sick name", 0.3):
            return {}
        self.drawn[-1] += ": " + (errno.errorcode[error] if error else "it hangs")
        return {Path(beside + b".sick"): error}
