"""Scenario language: golden scenarios of several nodes, as plain text, in virtual time.

A scenario opens with a sentence of intent (``# ...``). Then come the settings, the events and the
expectations, one line each (``VERBS``, ``EXPECTATIONS``; docs/develop.md). Times are in seconds,
paths below the source::

    # A child whose parent dies while it waits asks elsewhere, and its reader sees no error.
    nodes 8 fanout 2
    file lib/a.py 100
    node 3 reads lib/a.py
    run until 3 sends Ask
    crash 1
    finish
    expect node 3 has lib/a.py

At the end the job has to be at rest, no promise of ``checkers.py`` broken, and, unless it says
``errors are expected``, no application on a live node may have got one. ``needs SOMETHING`` marks a
scenario of a feature that is not built.
"""

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from copperfs.lab.sim import checkers
from copperfs.lab.sim.file_reader import Reading
from copperfs.lab.sim.scenario_message_names import WORDS
from copperfs.lab.sim.world import MIB, Job, World
from copperfs.model.types import NodeId, Path

SIZES = {"": 1, "K": 1 << 10, "M": MIB}
RESTS_S = 2.0
"""For what is still under way when all have what they wanted."""


class NotALine(ValueError):
    """A line is not in the language."""


class Unmet(AssertionError):
    """An expectation is not met."""


@dataclass(slots=True, repr=False)
class Scenario:
    seed: int = 0
    exact: bool = True
    job: Job = field(default_factory=lambda: Job(1))
    errors_expected: bool = False
    called: list[int] | None = None
    """Nodes with results in the last collective."""
    _world: World | None = None
    _files: list[tuple[Path, int]] = field(default_factory=list)

    @property
    def world(self) -> World:
        if self._world is None:
            self._world = World(self.seed, self.job, self.exact)
            for path, size in self._files:
                self._world.source.add(path, size)
            self._world.start()
        return self._world

    def tell(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), 1):
            line = line.partition("#")[0].strip()
            if line and not line.startswith("needs "):
                try:
                    self._say(line)
                except AssertionError as error:
                    raise Unmet(f"line {number}, {line!r}: {error!r}") from error
        self._end()

    def _say(self, line: str) -> None:
        for pattern, do in (*SETTINGS.items(), *VERBS.items(), *EXPECTATIONS.items()):
            if match := re.fullmatch(pattern, line):
                do(self, *match.groups())
                return
        raise NotALine(f"not a line of a scenario: {line}")

    def _end(self) -> None:
        world = self.world
        world.run_until_read()
        world.run_until_source_rests()
        world.run(RESTS_S)
        checkers.check_answered(world)
        if not self.errors_expected:
            checkers.check_errors(world, world.readings)
        checkers.check_at_rest(world)

    # --- settings --------------------------------------------------------------------------------

    def set_nodes(self, nodes: str, fanout: str) -> None:
        self.job = replace(self.job, nodes=int(nodes), fanout=int(fanout))

    def set_trees(self, trees: str) -> None:
        self.job = replace(self.job, trees=int(trees))

    def set_seconds(self, name: str, seconds: str) -> None:
        assert self._world is None, "settings come first"
        if name == "deadline":
            self.job = replace(self.job, source_deadline_s=float(seconds))
        else:
            self.job = replace(self.job, revalidate_s=float(seconds))

    def set_memory(self, count: str, unit: str) -> None:
        self.job = replace(self.job, memory_bytes=int(count) * SIZES[unit])

    def set_tier(self, chunk: str, unit: str, directory: str, disk: str | None) -> None:
        ring = (*self.job.ring, _path(directory))
        chunk_bytes = int(chunk) * SIZES[unit]
        self.job = replace(
            self.job, ring=ring, chunk_bytes=chunk_bytes, tier_has_disk=disk is not None
        )

    def add_file(self, path: str, count: str, unit: str) -> None:
        self._files.append((_path(path), int(count) * SIZES[unit]))
        if self._world is not None:
            self._world.source.add(*self._files[-1])

    def add_files(self, count: str, pattern: str, size: str, unit: str) -> None:
        for number in range(int(count)):
            self.add_file(pattern.replace("*", str(number)), size, unit)

    # --- events ----------------------------------------------------------------------------------

    def read(self, nodes: str, path: str) -> None:
        for node in self.nodes(nodes):
            for each in self.paths(path):
                self.world.read(node, each)

    def run_until_message(self, node: str, what: str, kind: str, count: str | None) -> None:
        left = int(count or 1)
        world = self.world
        if kind not in WORDS:
            raise NotALine(f"no message is called {kind}")

        def watch(passes: str, me: NodeId, _peer: NodeId, message: object) -> None:
            nonlocal left
            if passes == what and me == int(node) and isinstance(message, WORDS[kind]):
                left -= 1

        world.network.watch = watch
        came = world.run_until(lambda: left <= 0, 60.0)
        world.network.watch = None
        assert came, f"node {node} {what} {int(count or 1) - left} of them"

    def run_until_source(self, kind: str, path: str) -> None:
        key, world = (kind, _path(path)), self.world
        before = world.source.counts[key]
        assert world.run_until(lambda: world.source.counts[key] > before, 60.0), "it does not"

    def finish(self) -> None:
        assert self.world.run_until_read(), "; ".join(
            str(each) for each in self.world.readings if not each.is_over
        )

    def each(self, do: Callable[[World, int], None], nodes: str) -> None:
        for node in self.nodes(nodes):
            do(self.world, node)

    def take_over(self, nodes: str, seconds: str) -> None:
        for node in self.nodes(nodes):
            self.world.take_over(node, float(seconds))

    def part(self, nodes: str) -> None:
        self.world.part(set(self.nodes(nodes)))

    def call(self, node: str) -> None:
        self.called = None

        def ended(result: bytes) -> None:
            self.called = sorted(map(int, result.split()))

        self.world[int(node)].call("here", b"", 5.0, ended)
        assert self.world.run_until(lambda: self.called is not None, 10.0), "it does not end"

    def fail_source(self, path: str, name: str) -> None:
        self.world.source.failing[_path(path)] = getattr(errno, name)

    def slow_source(self, path: str, seconds: str) -> None:
        for each in self.paths(path):
            self.world.source.slow[each] = float(seconds)

    def stall_source(self, seconds: str) -> None:
        self.world.source.stalled_until = self.world.clock.now + float(seconds)

    def only_search(self) -> None:
        self.world.source.only_searched = True

    def mend_source(self) -> None:
        self.world.source.failing.clear()
        self.world.source.slow.clear()
        for host in self.world.hosts:
            host.hands.is_sick = False

    def expect_errors(self) -> None:
        self.errors_expected = True

    # --- expectations ----------------------------------------------------------------------------

    def expect_has(self, nodes: str, path: str) -> None:
        for node in self.nodes(nodes):
            for each in self.paths(path):
                found = self.readings(node, each)
                assert found, f"node {node} never asked for {each.decode()}"
                assert found[-1].is_well, str(found[-1])
                assert found[-1].has_bytes, "it was given a handle"

    def expect_error(self, node: str, name: str, path: str) -> None:
        last = self.readings(int(node), _path(path))[-1]
        assert last.error == getattr(errno, name), str(last)

    def expect_source(self, kind: str, path: str, most: str | None, count: str) -> None:
        for each in self.paths(path):
            found = self.world.source.counts[kind.rstrip("s"), each]
            ok = found <= int(count) if most else found == int(count)
            assert ok, f"{each.decode()} {found} times"

    def expect_sum(self, kind: str, path: str, count: str) -> None:
        each = {p: self.world.source.counts[kind.rstrip("s"), p] for p in self.paths(path)}
        assert sum(each.values()) == int(count), str(each)

    def expect_stall(self, seconds: str) -> None:
        worst = max(self.world.readings, key=lambda each: max(each.stall_s, each.waits_s()))
        stall_s = max(worst.stall_s, worst.waits_s())
        assert stall_s < float(seconds), f"{stall_s:.3f} s: {worst}"

    def expect_taken(self, node: str, count: str, unit: str) -> None:
        found = self.world[int(node)].peers.taken_bytes
        assert found <= int(count) * SIZES[unit], f"{found} bytes"

    def expect_count(self, what: str, nodes: str | None, most: str | None, count: str) -> None:
        chosen = self.nodes(nodes or "all")
        each = {n: getattr(self.world[n].node.statistics(), what) for n in chosen}
        found = sum(each.values())
        assert (found <= int(count)) if most else (found == int(count)), str(each)

    def expect_connected(self, one: str, no: str | None, other: str) -> None:
        found = int(other) in self.world[int(one)].peers.session.connected
        assert found is not bool(no), "it is" if found else "it is not"

    def expect_called(self, nodes: str) -> None:
        assert self.called == self.nodes(nodes), str(self.called)

    def expect_epoch(self, nodes: str, epoch: str) -> None:
        found = {n: self.world[n].node.epoch for n in self.nodes(nodes)}
        assert set(found.values()) == {int(epoch)}, str(found)

    def expect_view(self, nodes: str, without: str, others: str) -> None:
        for node in self.nodes(nodes):
            gone = checkers.gone_in_view_of(self.world, node)
            for other in self.nodes(others, dead=True):
                there = other not in gone
                assert there is (without == "with"), f"node {node} believes {sorted(gone)} gone"

    # --- words -----------------------------------------------------------------------------------

    def nodes(self, text: str, *, dead: bool = False) -> list[int]:
        """``3``, ``1-4``, ``1 2 5``, ``all``, ``all but 0``."""
        if text.startswith("all"):
            everyone = range(self.world.job.nodes) if dead else self.world.alive()
            but = self.nodes(text.removeprefix("all but"), dead=True) if "but" in text else []
            return [each for each in everyone if each not in but]
        found: list[int] = []
        for word in text.split():
            first, _, last = word.partition("-")
            found += range(int(first), int(last or first) + 1)
        return found

    def paths(self, text: str) -> list[Path]:
        if "*" not in text:
            return [_path(text)]
        pattern = re.compile(re.escape(text).replace(r"\*", "[^/]*").encode())
        return [each for each in self.world.source.files() if pattern.fullmatch(each)]

    def readings(self, node: int, path: Path) -> list[Reading]:
        return [each for each in self.world.readings if each.node == node and each.path == path]


def _path(text: str) -> Path:
    return Path(text.encode().strip(b"/"))


Do = Callable[..., object]
_N = r"([\d -]+|all|all but [\d -]+)"

SETTINGS: dict[str, Do] = {
    r"nodes (\d+) fanout (\d+)": Scenario.set_nodes,
    r"trees (\d+)": Scenario.set_trees,
    r"(deadline|revalidate) ([\d.]+)": Scenario.set_seconds,
    r"memory (\d+)(K|M|)": Scenario.set_memory,
    r"chunks of (\d+)(K|M|) below (\S+?)( on disks)?": Scenario.set_tier,
    r"file (\S+) (\d+)(K|M|)": Scenario.add_file,
    r"(\d+) files (\S+) (\d+)(K|M|)": Scenario.add_files,
    r"errors are expected": Scenario.expect_errors,
}
VERBS: dict[str, Do] = {
    rf"nodes? {_N} reads? (\S+)": Scenario.read,
    r"push (\d+) (\S+)": lambda s, node, path: s.world.push(int(node), s.paths(path)),
    r"run ([\d.]+)": lambda s, seconds: s.world.run(float(seconds)),
    r"run until (\d+) (sends|takes) (\w+)(?: (\d+))?": Scenario.run_until_message,
    r"run until source (read|scan|look|open)s (\S+)": Scenario.run_until_source,
    r"finish": Scenario.finish,
    # nodes
    rf"crash {_N}": lambda s, nodes: s.each(World.crash, nodes),
    rf"power off {_N}": lambda s, nodes: s.each(World.power_off, nodes),
    rf"stop {_N}": lambda s, nodes: s.each(World.stop, nodes),
    rf"hang {_N}": lambda s, nodes: s.each(World.hang, nodes),
    rf"continue {_N}": lambda s, nodes: s.each(World.go_on, nodes),
    r"late (\d+) by ([\d.]+)": lambda s, n, seconds: s.world.be_late(int(n), float(seconds)),
    rf"restart {_N}": lambda s, nodes: s.each(World.restart, nodes),
    rf"take over {_N} after ([\d.]+)": Scenario.take_over,
    rf"leave {_N}": lambda s, nodes: s.each(World.leave, nodes),
    r"clear (\d+)": lambda s, node: s.world.clear(int(node)),
    r"call (\d+)": Scenario.call,
    # cables
    r"cut (\d+) (\d+)": lambda s, one, other: s.world.cut(int(one), int(other)),
    r"cut (\d+) to (\d+)": lambda s, a, b: s.world.cut(int(a), int(b), both_ways=False),
    rf"isolate {_N}": lambda s, nodes: s.each(World.isolate, nodes),
    rf"part {_N}": Scenario.part,
    r"heal": lambda s: s.world.heal(),
    r"break (\d+) (\d+)": lambda s, one, other: s.world.break_connections(int(one), int(other)),
    r"spoil (\d+) to (\d+)": lambda s, one, other: s.world.spoil_next(int(one), int(other)),
    r"delay (\d+) to (\d+) ([\d.]+)": lambda s, a, b, x: s.world.delay(int(a), int(b), float(x)),
    # the source
    r"source fails (\S+) (\w+)": Scenario.fail_source,
    rf"source gives errors to {_N}": lambda s, nodes: s.each(World.sicken, nodes),
    r"source is slow for (\S+) ([\d.]+)": Scenario.slow_source,
    r"source stalls ([\d.]+)": Scenario.stall_source,
    r"source is well": Scenario.mend_source,
    r"source may only be searched": Scenario.only_search,
    r"source changes (\S+)": lambda s, path: s.world.source.change(_path(path)),
}

EXPECTATIONS: dict[str, Do] = {
    rf"expect nodes? {_N} ha(?:s|ve) (\S+)": Scenario.expect_has,
    r"expect node (\d+) is told (\w+) for (\S+)": Scenario.expect_error,
    r"expect source (reads|scans|looks|opens|chunks) (\S+) (at most )?(\d+)": (
        Scenario.expect_source
    ),
    r"expect source (reads|chunks) (\S+) (\d+) in all": Scenario.expect_sum,
    r"expect node (\d+) took at most (\d+)(K|M|)": Scenario.expect_taken,
    r"expect stall below ([\d.]+)": Scenario.expect_stall,
    rf"expect (\w+)(?: of {_N})? (at most )?(\d+)": Scenario.expect_count,
    r"expect (\d+) (not )?connected to (\d+)": Scenario.expect_connected,
    rf"expect answers from {_N}": Scenario.expect_called,
    rf"expect {_N} in epoch (\d+)": Scenario.expect_epoch,
    rf"expect view of {_N} (with|without) {_N}": Scenario.expect_view,
}


def needs(text: str) -> set[str]:
    """Features that are not built yet."""
    return set(re.findall(r"^needs (\w+)", text, re.MULTILINE))
