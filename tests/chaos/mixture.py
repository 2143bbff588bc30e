"""Mixture: what is wrong around the nodes, as on a real cluster. It follows from the seed, too.

An *environment* lasts as long as the cluster. Each node has its own client of the source and its
own conditions (``copperfs/lab/local_cluster/conditions.py``). Ten seeds in a row share one
environment, since starting a cluster takes as long as a schedule.

*Troubles* are part of a schedule, one a line:

    0.000 sick data/d07/f0057 for 4.200 EIO
    1.250 server 3 for 2.000 slow
    2.000 crowd node5 for 3.000 300
    3.100 clear all for 0.000 once

A sick name returns an error from each operation (or only from reads: ``read-EIO``), or hangs. One
sick data server of eight does so to reads of its data, or is slow. A crowd connects to a node and
sends nothing. Besides, a thread removes and adds names in ``walk/``, through which the nodes walk.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from copperfs.lab.local_cluster.conditions import Conditions, draw_conditions
from tests.chaos.content import DIRECTORIES

SEEDS_EACH = 10
KINDS = ("sick", "server", "crowd", "clear")
HOW_SICK = {"EIO": 4, "read-EIO": 2, "EACCES": 1, "ENOTCONN": 1, "hang": 2}
HOW_SERVER = {"EIO": 1, "slow": 1}
SERVERS = 8
CROWD = 300
SLOW_S = 0.4
OWN_INODES_SHARE = 0.3
SHARES = {"server": 0.4, "crowd": 0.5, "clear": 0.5}
"""How often a schedule has any of them; each has a sick name."""
LASTS_MIN_S = 1.0

_LINE = re.compile(
    rf"(?P<at>[\d.]+) (?P<kind>{'|'.join(KINDS)}) (?P<target>\S+) for (?P<lasts>[\d.]+) "
    r"(?P<how>\S+)"
)


@dataclass(frozen=True, slots=True)
class Environment:
    number: int
    own_inodes: bool
    conditions: tuple[Conditions, ...]

    def __str__(self) -> str:
        inodes = ", and inode numbers" if self.own_inodes else ""
        lines = [
            f"# environment {self.number}: each node has its own device numbers{inodes}",
            *(f"#   node{index}: {each}" for index, each in enumerate(self.conditions)),
        ]
        return "\n".join(lines)


def draw_environment(number: int, nodes: int) -> Environment:
    own_inodes = random.Random(f"clients {number}").random() < OWN_INODES_SHARE
    return Environment(number, own_inodes, tuple(draw_conditions(number, nodes)))


@dataclass(frozen=True, slots=True, order=True)
class Trouble:
    at_s: float
    kind: str
    target: str
    """A path, the number of a server, a node, or all."""
    lasts_s: float
    how: str

    @property
    def ends_s(self) -> float:
        return self.at_s + self.lasts_s

    @property
    def node(self) -> int:
        return int(self.target.removeprefix("node"))

    def __str__(self) -> str:
        return f"{self.at_s:.3f} {self.kind} {self.target} for {self.lasts_s:.3f} {self.how}"


def parse_trouble(line: str) -> Trouble | None:
    """None if the line is about something else."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    at_s, lasts_s = float(found["at"]), float(found["lasts"])
    return Trouble(at_s, found["kind"], found["target"], lasts_s, found["how"])


def check_trouble(trouble: Trouble, nodes: int, length_s: float) -> None:
    """ValueError if it cannot be carried out."""
    hows = {"sick": HOW_SICK, "server": HOW_SERVER, "crowd": {str(CROWD)}, "clear": {"once"}}
    if trouble.how not in hows[trouble.kind]:
        raise ValueError(f"no such trouble: {trouble}")
    if trouble.kind == "server" and not 0 <= int(trouble.target) < SERVERS:
        raise ValueError(f"no such server: {trouble}")
    if trouble.kind == "crowd" and not 0 <= trouble.node < nodes:
        raise ValueError(f"no such node: {trouble}")
    if trouble.ends_s > length_s:
        raise ValueError(f"it does not end in time: {trouble}")


def siblings(path: str, files: int) -> list[str]:
    directories = min(DIRECTORIES, files)
    number = int(path.rpartition("/f")[2])
    return [path_of(each, files) for each in range(number % directories, files, directories)]


def path_of(number: int, files: int) -> str:
    return f"data/d{number % min(DIRECTORIES, files):02}/f{number:04}"


def draw_troubles(
    seed: int, environment: Environment, length_s: float, files: int
) -> tuple[Trouble, ...]:
    nodes = len(environment.conditions)
    numbers = random.Random(f"mixture {seed} {nodes}")

    def trouble(kind: str, target: str, hows: dict[str, int], *, at_once: float) -> Trouble:
        at_s = 0.0
        if numbers.random() >= at_once:
            at_s = _round(numbers.uniform(0.0, length_s - 2 * LASTS_MIN_S))
        lasts_s = _round(numbers.uniform(LASTS_MIN_S, length_s - at_s - LASTS_MIN_S / 2))
        how = numbers.choices(list(hows), list(hows.values()))[0]
        return Trouble(at_s, kind, target, lasts_s, how)

    drawn = [
        trouble("sick", path_of(numbers.randrange(files), files), HOW_SICK, at_once=0.6)
        for _ in range(numbers.randint(1, 3))
    ]
    if numbers.random() < SHARES["server"]:
        drawn.append(trouble("server", str(numbers.randrange(SERVERS)), HOW_SERVER, at_once=0.3))
    if numbers.random() < SHARES["crowd"]:
        few = [index for index, each in enumerate(environment.conditions) if each.descriptors]
        for _ in range(numbers.randint(1, 3)):
            node = numbers.choice(few if few and numbers.random() < 0.7 else range(nodes))
            drawn.append(trouble("crowd", f"node{node}", {str(CROWD): 1}, at_once=0.3))
    if numbers.random() < SHARES["clear"]:
        for _ in range(numbers.randint(1, 2)):
            at_s = _round(numbers.uniform(1.0, length_s - 1.0))
            drawn.append(Trouble(at_s, "clear", "all", 0.0, "once"))
    return tuple(sorted(drawn))


def _round(seconds: float) -> float:
    """As it is written: rounded down, so that what ends in time still does."""
    return int(seconds * 1000) / 1000
