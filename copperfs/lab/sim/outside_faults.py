"""Troubles: what goes wrong around a random run's job, beside the faults of its nodes and cables.

They have a random stream of their own. Each is over sooner than a request's deadline, except a sick
name, which affects only those that request it.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from copperfs.lab.sim.random_environment import AHEAD_S_MAX, HANGS, WALKED, Environment
from copperfs.lab.sim.sim_source import FOREVER
from copperfs.lab.sim.world import World
from copperfs.model.types import Path

LASTS_S_MAX = 20.0
SIZE = 5_000
FILE_SERVERS = 4
STRANGERS_EACH_S = 0.001


@dataclass(slots=True, repr=False)
class Troubles:
    world: World
    environment: Environment
    files: list[Path]
    calm: bool
    """The only faults are those from the start."""
    random: Random = field(init=False)
    sick: dict[Path, set[int]] = field(default_factory=dict)
    """Names for which applications may get these errors."""
    written: set[Path] = field(default_factory=set)
    clears: int = 0
    count: int = 0
    kept: set[bytes] = field(default_factory=set)
    """Names that stay, in the directory that is walked."""

    def __post_init__(self) -> None:
        self.random = Random(f"troubles {self.world.seed}")
        source, environment = self.world.source, self.environment
        source.tick_s, source.file_servers = environment.tick_s, FILE_SERVERS
        if environment.mounted is not None:
            source.filesystems[environment.mounted] = 1 + sum(environment.mounted)

    def begin(self) -> None:
        source = self.world.source
        for number in range(self.environment.walked):
            source.add(Path(b"%s/w%d" % (WALKED, number)), 1)
            if number % 3:
                self.kept.add(b"w%d" % number)
        for path, error in self.environment.sick.items():
            source.add(path, SIZE)
            if error == HANGS:
                source.hanging[path] = FOREVER
                self.sick[path] = {errno.ETIMEDOUT}
            else:
                source.failing[path] = error
                self.sick[path] = {error}

    def hurt(self) -> None:
        """Draw troubles between two rounds of reads; a calm job reads the sick names, too."""
        alive = self.world.alive()
        if not alive:
            return  # the next daemons have not begun
        for path in self.environment.sick:
            for _ in range(self.random.randint(1, 4)):
                self.world.read(self.random.choice(alive), path)
        if self.calm:
            return
        self._walk()
        hurts: tuple[Callable[[], None], ...] = (
            self._sick_server,
            self._hang_name,
            self._hang_disk,
            self._write_twice,
            self._write_twice,
            self._strangers,
            self._resolver,
            self._step_clock,
            self._not_connected,
        )
        for _ in range(self.random.choice((0, 0, 0, 1, 1))):
            self.count += 1
            self.random.choice(hurts)()

    def end(self) -> None:
        for host in self.world.hosts:
            host.port.strangers.clear()
            names = host.port.names
            if names is not None:
                names.takes_s = min(names.takes_s, 1.0)
                names.fails_until = min(names.fails_until, self.world.clock.now)

    def _upright(self) -> list[int]:
        return [host.me for host in self.world.hosts if host.is_upright]

    def _lasts_s(self) -> float:
        return self.random.uniform(0.1, LASTS_S_MAX)

    def _sick_server(self) -> None:
        if self.world.source.sick_server is None:
            self.world.sicken_server(self.random.randrange(FILE_SERVERS), self._lasts_s())

    def _hang_name(self) -> None:
        path = self.random.choice(self.files)
        if path not in self.world.source.hanging:
            self.world.hang_name(path, self.world.clock.now + self._lasts_s())

    def _not_connected(self) -> None:
        """The server is gone, and the client reports that."""
        path = self.random.choice(self.files)
        self.sick.setdefault(path, set()).add(errno.ENOTCONN)
        self.world.fail_source(path, errno.ENOTCONN)

    def _hang_disk(self) -> None:
        self.world.hang_disk(self.random.choice(self._upright()), self._lasts_s())

    def _write_twice(self) -> None:
        """Write a file while a node looks it up, and mostly again in the same tick while it is
        read."""
        path = self.random.choice(self.files)
        self.written.add(path)
        self._clear()
        self.world.clock.after(self.random.uniform(0.05, 0.5), self._read_rewritten, path)

    def _read_rewritten(self, path: Path) -> None:
        world = self.world
        world.rewrite(path)
        alive = world.alive()
        count = self.random.randint(1, 4)
        drawn = [self.random.choice(alive) for _ in range(count if alive else 0)]
        for node in sorted({*drawn, *alive[:4]}):
            world.read(node, path)

    def _strangers(self) -> None:
        some = [node for node in self._upright() if self.world[node].port.descriptors is not None]
        if some:
            node = self.random.choice(some)
            limit = self.world[node].port.descriptors
            assert limit is not None
            self.world.strangers(node, 2 * limit, STRANGERS_EACH_S)

    def _resolver(self) -> None:
        some = [node for node in self._upright() if self.world[node].port.names is not None]
        if some:
            until = self.world.clock.now + self.random.uniform(0, LASTS_S_MAX / 2)
            self.world.resolve(self.random.choice(some), self.random.choice((0.3, 5.0)), until)

    def _step_clock(self) -> None:
        node = self.random.choice(self._upright())
        self.world.step_clock(node, self.random.uniform(-AHEAD_S_MAX, AHEAD_S_MAX))

    def _walk(self) -> None:
        if not self.kept or self.world.source.only_searched or self.random.random() < 0.5:
            return
        world, clock = self.world, self.world.clock
        for _ in range(self.random.randint(1, 3)):
            at_once, pause_s = self.random.randint(1, 20), self.random.choice((0.0, 0.01, 0.1))
            world.walk(self.random.choice(world.alive()), WALKED, at_once, pause_s)
        clock.after(self.random.uniform(0.001, 0.2), self._remove_some)
        clock.after(self.random.uniform(0.1, 0.3), self._clear)

    def _remove_some(self) -> None:
        source = self.world.source
        left = [path for path in source.files() if path.startswith(WALKED)]
        gone = [path for path in left if path.rpartition(b"/")[2] not in self.kept]
        for path in self.random.sample(gone, min(len(gone), 5)):
            self.world.remove(path)

    def _clear(self) -> None:
        upright = self._upright()
        if upright:
            self.clears += 1
            self.world.clear(self.random.choice(upright))
