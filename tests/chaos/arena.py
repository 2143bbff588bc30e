"""Arena: the cluster that is hurt, the applications that read through it, and the execution of
schedules.

One cluster serves many schedules. Each begins cold, by ``copperfs clear``, and ends with everything
healed and a reply from every node. Threads inject the faults, so that a storm hits at once. The
command restarts killed nodes, so that the daemon is no child of this process. Applications are
separate processes, which can be killed whatever their mount does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from copperfs.fuse.ioctl import IoctlRequest
from copperfs.lab.local_cluster import node_faults as hurt
from copperfs.lab.local_cluster.cluster_state import running
from copperfs.lab.local_cluster.conditions import USUAL
from copperfs.lab.local_cluster.node_networks import NodeNetworks
from copperfs.lab.pfs_sim.pfs_client import PfsSim
from tests.chaos import reader
from tests.chaos.around import Around
from tests.chaos.content import BELOW, IMPORT, WALK, Content, datasets, make_content
from tests.chaos.judge import BELIEVED_S, Applied, Imported, Outcome, Read
from tests.chaos.mixture import SERVERS, Environment, siblings
from tests.chaos.schedule import Fault, Schedule
from tests.chaos.stuck import Stuck
from tests.cluster.helpers import Cluster
from tests.mount.helpers import (
    COMMAND_TIMEOUT_S,
    COPPERFS,
    asked,
    copperfs,
    eventually,
    is_running,
)
from tests.mount.keepers import kill_with_keeper

# --source-deadline: the longest wait for a hanging source.
HANGS_AFTER_S = 75.0
WHOLE_WITHIN_S = 90.0
STARTS_WITHIN_S = 60.0
ASK_WITHIN_S = 40.0
# All nodes start cold at once, which keeps the machine busy: no time for faults.
COLD_S = 1.0
LATENCY_S = 0.0005
MEMORY = "96MiB"
TAKEOVER_FLAGS = ("--takeover", "--takeovers-max", "1000", "--hang-after", "2")
TREE_MAX = "1MiB"
"""Larger files, and half of the directories, go through the data tier."""


@dataclass(frozen=True, slots=True)
class Setup:
    nodes: int = 16
    fanout: int = 3
    rate: float = 25.0
    """Files that each node reads a second. On a busy machine every read waits for CPU time, and
    stalls show nothing."""
    files: int = 2000
    large: int = 3
    flags: tuple[str, ...] = ()
    environment: Environment | None = None
    """None: all nodes are alike, except for their clients of the source."""
    takeover: bool = False


class Arena:
    def __init__(self, directory: Path, setup: Setup) -> None:
        self.setup = setup
        self.directory = directory
        self._life = ExitStack()
        self._log_ends: dict[int, int] = {}
        self.content: Content
        self.standin: PfsSim
        self.cluster: Cluster
        self.readers: list[_Reader]

    def __enter__(self) -> Self:
        with ExitStack() as life:
            life.enter_context(guarded(self.directory / "cluster"))
            self.content = make_content(
                self.directory, files=self.setup.files, large=self.setup.large
            )
            self.cluster = life.enter_context(
                Cluster(
                    self.directory / "cluster",
                    self.setup.nodes,
                    self.content.source.parent,
                    *("--own-clients", str(self.content.source), *self._environment()),
                    *("--netns", "--fanout", str(self.setup.fanout), "--memory", MEMORY),
                    *("--tree-max", TREE_MAX, "--tier-memory", MEMORY),
                    *(f"--ring={each}" for each in datasets(self.content.source)),
                    *(TAKEOVER_FLAGS if self.setup.takeover else ()),
                    *self.setup.flags,
                )
            )
            self.standin = PfsSim.at(self.cluster.directory / "node0" / "client")
            self.standin.set(latency_s=LATENCY_S, read_latency_s=LATENCY_S, data_servers=SERVERS)
            self.network = NodeNetworks(str(running(str(self.cluster.directory)).network))
            self.readers = []
            life.callback(self._end_readers)
            for node in range(self.setup.nodes):
                self.readers.append(_Reader(self.content, self.shown(node)))
            self._life = life.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._life.__exit__(*exc)  # type: ignore[arg-type]

    def _environment(self) -> list[str]:
        environment = self.setup.environment
        if environment is None:
            return []
        own_inodes = ["--own-inodes"] if environment.own_inodes else []
        given = [
            f"{index}:{each}" for index, each in enumerate(environment.conditions) if each != USUAL
        ]
        return ["--with", *given, *own_inodes] if given else own_inodes

    def shown(self, node: int) -> Path:
        return self.cluster.mnt(node) / BELOW

    def _end_readers(self) -> None:
        for each in self.readers:
            each.end()

    # ---- one schedule ----------------------------------------------------------------------------

    def carry_out(self, schedule: Schedule) -> Outcome:
        self._clear()
        numbers = random.Random(f"{schedule.seed} applications")
        began = time.monotonic() + COLD_S
        outcome = Outcome(schedule, began)
        until = began + schedule.length_s
        with ExitStack() as stack:
            around = stack.enter_context(Around(self, schedule, outcome.sick))
            around.begin()
            for node, reading in enumerate(self.readers):
                reading.read(until, self._order(schedule, node))
            imports = [
                _Importer(node, self.shown(node) / self.content.packages)
                for node in range(self.setup.nodes)
            ]
            for each in imports:
                stack.callback(each.end)
            hand = stack.enter_context(_Hand(self))
            steps: list[tuple[float, Callable[[], object]]] = [
                (numbers.uniform(-COLD_S, schedule.length_s - 1.0), each.start) for each in imports
            ]
            for fault in schedule.faults:
                steps.append((fault.at_s, partial(hand.hurt, fault)))
                steps.append((fault.ends_s, partial(hand.heal, fault)))
            steps += around.steps()
            for at_s, step in sorted(steps, key=lambda each: each[0]):
                time.sleep(max(0.0, began + at_s - time.monotonic()))
                step()
            time.sleep(max(0.0, until - time.monotonic()))
            outcome.problems += around.finish()
            outcome.problems += hand.finish()
            outcome.applied = hand.applied
            healed = time.monotonic()
            self._gather(outcome, imports)
        self._wait_whole(outcome, healed)
        self._read_what_was_sick(outcome)
        counts = self.standin.counts()
        outcome.opened = counts.operations.get("open", {})
        outcome.openings = counts.opened_again
        outcome.listed = counts.operations.get("opendir", {})
        self._look_at_logs(outcome)
        return outcome

    def _clear(self) -> None:
        done = copperfs("clear", "--json", self.cluster.mnt(0), timeout_s=ASK_WITHIN_S)
        if done.returncode != 0:
            raise RuntimeError(f"the caches cannot be cleared: {done.stderr}")
        done = copperfs("stats", "--reset", "--all", self.cluster.mnt(0), timeout_s=ASK_WITHIN_S)
        if done.returncode != 0:
            raise RuntimeError(f"the counts cannot be reset: {done.stderr}")
        self.standin.reset()

    def _order(self, schedule: Schedule, node: int) -> dict[str, Any]:
        order = {
            "sets": f"{schedule.seed}",
            "order": f"{schedule.seed} {node}",
            "rate": self.setup.rate,
        }
        if schedule.environment is None:
            return order
        sick = [each for each in schedule.troubles if each.kind == "sick"]
        paths = [each.target for each in sick]
        hanging = [each.target for each in sick if each.how == "hang"]
        near = [path for each in sick for path in siblings(each.target, self.setup.files)]
        # One node waits for the name that hangs; the others would do nothing else.
        avoid = [] if node == schedule.seed % self.setup.nodes else hanging
        changes = {"walk": WALK, "kept": self.content.kept}
        return order | {"near": near, "sick": paths, "avoid": avoid} | changes

    def _read_what_was_sick(self, outcome: Outcome) -> None:
        """Retry on every node until the healed name can be read."""
        paths = sorted({each.target for each in outcome.schedule.troubles if each.kind == "sick"})
        if not paths or outcome.whole_s is None:
            return
        until = time.monotonic() + 2 * BELIEVED_S
        for each in self.readers:
            each.read(until, {"only": paths})
        self._gather_reads(outcome, until + HANGS_AFTER_S)

    def _gather(self, outcome: Outcome, imports: list[_Importer]) -> None:
        deadline = time.monotonic() + HANGS_AFTER_S
        self._gather_reads(outcome, deadline)
        for importer in imports:
            if not importer.wait(deadline):
                outcome.problems.append(f"the import on node{importer.node} hangs")
            elif importer.imported is not None:
                outcome.imports.append(importer.imported)

    def _gather_reads(self, outcome: Outcome, deadline: float) -> None:
        for node, each in enumerate(self.readers):
            records = each.records(deadline)
            if records is None:
                outcome.problems.append(f"the reader of node{node} hangs")
                each.end()
                self.readers[node] = _Reader(self.content, self.shown(node))
                continue
            outcome.reads += [Read(node, *record) for record in records]

    def _wait_whole(self, outcome: Outcome, healed: float) -> None:
        """Wait until the root and a leaf have replies from all."""
        deadline = healed + WHOLE_WITHIN_S
        for node in (0, self.setup.nodes - 1):
            while True:
                document = self._ask_all(node)
                if document is not None and document["nodes"] == self.setup.nodes:
                    break
                if time.monotonic() > deadline:
                    missing = (
                        None if document is None else [each["name"] for each in document["missing"]]
                    )
                    outcome.problems.append(
                        f"{WHOLE_WITHIN_S:g} s after all was healed, node{node} does not hear of "
                        f"{missing or 'anybody'}"
                    )
                    return
            outcome.nodes = document["by_node"]
        outcome.whole_s = time.monotonic() - healed
        for each in outcome.nodes:
            each["process"] |= taken_by(self.pid(each["number"]))

    def _ask_all(self, node: int) -> dict[str, Any] | None:
        try:
            done = copperfs(
                "stats", "--all", "--json", self.cluster.mnt(node), timeout_s=ASK_WITHIN_S
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            return None
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def _look_at_logs(self, outcome: Outcome) -> None:
        for node in range(self.setup.nodes):
            with self.cluster.log(node).open(errors="replace") as log:
                log.seek(self._log_ends.get(node, 0))
                said = log.read()
                self._log_ends[node] = log.tell()
            for sign in ("Traceback", "a bug:"):
                if sign in said:
                    outcome.problems.append(f"node{node} logged {sign}\n{said}")
                    break

    def pid(self, node: int) -> int:
        """With --takeover it changes, and the cluster knows the first one."""
        if not self.setup.takeover:
            return self.cluster.pid(node)
        statistics = asked(self.cluster.mnt(node), IoctlRequest.STATISTICS)
        return int(statistics["pid"])

    def kill_keeper_too(self, node: int) -> None:
        """And the daemon, so that nothing goes on. The standby ends by itself."""
        daemon = self.pid(node)
        kill_with_keeper(daemon)
        eventually(lambda: not is_running(daemon), "the daemon has ended")

    def endpoint(self, node: int) -> str:
        return running(str(self.cluster.directory)).nodes[node].endpoint


@contextmanager
def guarded(cluster: Path) -> Iterator[None]:
    """Takes the cluster down even if this process is killed."""
    down = [*COPPERFS, "cluster", "down", "--dir", str(cluster)]
    guard = subprocess.Popen(
        ["sh", "-c", 'cat; exec "$@"', "sh", *down],  # cat ends when this process does
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not meant for it
    )
    try:
        yield
    finally:
        guard.communicate(timeout=COMMAND_TIMEOUT_S)


def taken_by(pid: int) -> dict[str, int]:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return {
        "pid": pid,
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(fields["Threads"]),
        "rss_kib": int(fields["VmRSS"].split()[0]),
    }


# ---- hurting and healing -------------------------------------------------------------------------


class _Hand:
    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.directory = str(arena.cluster.directory)
        self.applied: list[Applied] = []
        self._pool = ThreadPoolExecutor(2 * arena.setup.nodes)
        self._doing: dict[Fault, Future[None]] = {}
        self._undoing: dict[Fault, Future[None]] = {}
        self._latest: dict[int, Future[None]] = {}
        """Each node's latest healing, which has to have finished."""
        self._stuck: dict[Fault, Stuck] = {}
        self._hit: dict[Fault, int] = {}
        """The daemon that was there."""
        self._by_fault: dict[Fault, Applied] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.finish()
        self._pool.shutdown()

    def hurt(self, fault: Fault) -> None:
        self._doing[fault] = self._pool.submit(self._hurt, fault, self._latest.get(fault.node))

    def heal(self, fault: Fault) -> None:
        future = self._pool.submit(self._heal, fault)
        self._undoing[fault] = self._latest[fault.node] = future

    def finish(self) -> list[str]:
        """Heal what is not healed yet, and wait for it; return what could not be done."""
        for fault in [each for each in self._doing if each not in self._undoing]:
            self.heal(fault)
        problems = []
        for fault, future in [*self._doing.items(), *self._undoing.items()]:
            try:
                future.result()
            except Exception as error:  # noqa: BLE001  # it is told as a problem of the schedule
                problems.append(f"{fault}: {type(error).__name__}: {error}")
        self._doing.clear()
        self._undoing.clear()
        return problems

    def _hurt(self, fault: Fault, after: Future[None] | None) -> None:
        if after is not None:
            wait([after])
        applied = self._by_fault[fault] = Applied(fault, time.monotonic())
        self.applied.append(applied)
        name = str(fault.node)
        match fault.kind:
            case "kill":
                if self.arena.setup.takeover:
                    self.arena.kill_keeper_too(fault.node)
                hurt.kill(self.directory, [name])
            case "stop":
                hurt.stop(self.directory, [name])
            case "cut":
                self.arena.network.cut(fault.node)
            case "drop":
                self.arena.network.drop(
                    fault.node,
                    fault.share,
                    towards=fault.direction != "away",
                    away=fault.direction != "towards",
                )
            case "stick":
                self._stuck[fault] = Stuck(self.arena.pid(fault.node))
            case "die" | "hang":
                number = signal.SIGKILL if fault.kind == "die" else signal.SIGSTOP
                self._hit[fault] = daemon = self.arena.pid(fault.node)
                os.kill(daemon, number)
            case "upgrade":
                self._hit[fault] = self.arena.pid(fault.node)
                done = copperfs("upgrade", self.arena.cluster.mnt(fault.node))
                if done.returncode != 0:
                    raise RuntimeError(done.stderr)

    def _heal(self, fault: Fault) -> None:
        with suppress(Exception):  # reported as a problem by the thread that injected it
            self._doing[fault].result()
        name = str(fault.node)
        if applied := self._by_fault.get(fault):
            applied.healing = time.monotonic()
        try:
            match fault.kind:
                case "kill":
                    done = copperfs(
                        *("cluster", "start", name, "--dir", self.directory),
                        timeout_s=STARTS_WITHIN_S,
                    )
                    if done.returncode != 0:
                        raise RuntimeError(done.stderr)
                case "stop":
                    hurt.cont(self.directory, [name])
                case "cut" | "drop":
                    self.arena.network.heal(fault.node)
                case "stick":
                    if stuck := self._stuck.pop(fault, None):
                        stuck.release()
                case "die" | "hang" | "upgrade":
                    if self.arena.pid(fault.node) == self._hit[fault]:
                        raise RuntimeError("no other daemon has gone on")
        finally:
            if applied := self._by_fault.get(fault):
                applied.ended = time.monotonic()


# ---- applications --------------------------------------------------------------------------------


class _Reader:
    def __init__(self, content: Content, mountpoint: Path) -> None:
        arguments = [mountpoint, content.known, content.index]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-S", reader.__file__, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._came = threading.Event()
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def read(self, until: float, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._came.clear()
        self._lines.clear()
        self._process.stdin.write(json.dumps(order | {"until": until}) + "\n")
        self._process.stdin.flush()

    def records(self, deadline: float) -> list[list[Any]] | None:
        """None if it reports nothing by then."""
        if not self._came.wait(max(0.0, deadline - time.monotonic())) or not self._lines:
            return None
        records: list[list[Any]] = json.loads(self._lines[0])
        return records

    def end(self) -> None:
        self._process.kill()  # also works while it waits for its mount
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            self._came.set()
        self._came.set()  # it has ended


class _Importer:
    def __init__(self, node: int, packages: Path) -> None:
        self.node = node
        self.packages = packages
        self.imported: Imported | None = None
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._began = 0.0

    def start(self) -> None:
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-P", "-c", IMPORT],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(self.packages), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self._thread = threading.Thread(target=self._hear, args=[self._process], daemon=True)
        self._thread.start()

    def _hear(self, process: subprocess.Popen[str]) -> None:
        _, said = process.communicate()
        self.imported = Imported(
            self.node, self._began, time.monotonic(), process.returncode, said.strip()
        )

    def wait(self, deadline: float) -> bool:
        if self._thread is None:
            return True
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def end(self) -> None:
        if self._process is not None:
            if is_running(self._process.pid):
                self._process.send_signal(signal.SIGKILL)
            if self._thread is not None:
                self._thread.join()
