"""``copperfs sim calibrate``: measures the costs of this machine's real daemons, for ``--costs``.

Two nodes read each file of a directory once: first the root, at the cost of a miss and the source,
then the other node, at the cost of a miss and one request to the root. The kernel gives the
daemons' CPU time.

Latency and bandwidth are those of this machine's loopback: take those of a cluster from its preset,
or write them into the file.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from copperfs.cli.output import print_table, waiting, write_file
from copperfs.model.errors import SimulationError
from copperfs.startup.bundle import environment_python

if TYPE_CHECKING:
    from copperfs.lab.sim.costs import Costs

NAME = "sim calibrate"
HELP = "measure what this machine's daemons take, for sim run --costs"

SMALL_BYTES, LARGE_BYTES = 2048, 8 << 20
LARGE_FILES = 16
SENDS_SHARE = 12 / 29
"""The part for sending in a root's cost of a request (docs/simulator.md)."""
WITHIN_S = 180.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="write the costs there")
    parser.add_argument(
        "--files",
        type=int,
        default=2000,
        metavar="N",
        help="small files to read; default %(default)s",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="medians of so many (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the costs as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.files < 100 or arguments.repeats < 1:
        raise SimulationError("give at least 100 --files and 1 of --repeats")
    if arguments.output is not None:
        write_file(arguments.output, "")
    rounds = []
    with waiting("two nodes are started") as say:
        for number in range(arguments.repeats):
            say(f"round {number + 1} of {arguments.repeats}")
            rounds.append(_measure(arguments.files))
    measured = _median(rounds)
    costs = _costs(measured)
    if arguments.output is not None:
        write_file(arguments.output, costs.to_json())
    if arguments.json:
        print(costs.to_json(), end="")
    else:
        show(measured, costs)
    return 0


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds for each small file, or for each byte of large ones."""

    direct_s: float
    """Read from the directory itself."""
    alone_s: float
    """Through the root, which reads the source."""
    alone_cpu_s: float
    asked_s: float
    """Through the other node, which asks the root."""
    asked_cpu_s: float
    served_cpu_s: float
    """CPU time of the root meanwhile."""
    direct_byte_s: float
    alone_byte_s: float
    received_byte_s: float
    sent_byte_s: float
    """CPU time of the two."""


def _measure(files: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="copperfs-calibrate-") as base:
        source = Path(base).resolve() / "source"
        small, large = _make_files(source, files)
        with _cluster(Path(base).resolve() / "cluster", source) as nodes:
            direct_s, _, _ = _read(source, small, nodes)
            direct_large_s, _, _ = _read(source, large, nodes)
            alone_s, alone_cpu, _ = _read(nodes[0].mountpoint, small, nodes)
            # In reverse: in the same order the node would get the next files offered.
            asked_s, served_cpu, asked_cpu = _read(nodes[1].mountpoint, small[::-1], nodes)
            alone_large_s, _, _ = _read(nodes[0].mountpoint, large, nodes)
            _, sent_cpu, received_cpu = _read(nodes[1].mountpoint, large[::-1], nodes)
    count, size = len(small), len(large) * LARGE_BYTES
    return Measured(
        direct_s / count,
        alone_s / count,
        alone_cpu / count,
        asked_s / count,
        asked_cpu / count,
        served_cpu / count,
        direct_large_s / size,
        alone_large_s / size,
        received_cpu / size,
        sent_cpu / size,
    )


def _costs(measured: Measured) -> "Costs":
    from copperfs.lab.sim.costs import Costs

    costs = Costs("calibrated")
    message_s = measured.served_cpu_s
    miss_s = max(1e-6, measured.alone_s - measured.direct_s)
    # Four ends of two messages, and the way there and back.
    latency_s = max(1e-6, (measured.asked_s - miss_s - 2 * message_s) / 2)
    send_s = message_s * SENDS_SHARE
    network = replace(
        costs.network,
        latency_s=latency_s,
        bytes_per_s=10e9,
        send_s=send_s,
        receive_s=message_s - send_s,
        send_byte_s=measured.sent_byte_s,
        receive_byte_s=measured.received_byte_s,
    )
    source = replace(
        costs.source,
        servers=os.cpu_count() or 1,
        operation_s=measured.direct_s,
        latency_s=0.0,
        bytes_per_s=1 / measured.direct_byte_s,
        client_bytes_per_s=1 / measured.direct_byte_s,
    )
    node = replace(
        costs.node,
        miss_s=miss_s,
        miss_cpu_s=min(miss_s, max(1e-6, measured.alone_cpu_s)),
        byte_s=max(0.0, measured.alone_byte_s - measured.direct_byte_s),
    )
    return replace(costs, network=network, source=source, node=node)


# --- files and nodes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RealNode:
    mountpoint: Path
    pid: int

    def cpu_s(self) -> float:
        with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _make_files(source: Path, count: int) -> tuple[list[str], list[str]]:
    """Each file of a directory has another ending, so none is prefetched."""
    small = [f"small{number % 16}/f.{number}" for number in range(count)]
    large = [f"large/f.{number}" for number in range(LARGE_FILES)]
    for names, size in ((small, SMALL_BYTES), (large, LARGE_BYTES)):
        for name in names:
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(min(size, 4096)).ljust(size, b"x"))
    return small, large


def _read(
    base: Path, names: Sequence[str], nodes: Sequence[_RealNode]
) -> tuple[float, float, float]:
    """Seconds for all files, and the CPU time of each node."""
    for directory in sorted({os.path.dirname(name) for name in names}):
        os.listdir(base / directory)
    before = [node.cpu_s() for node in nodes]
    began = time.perf_counter()
    for name in names:
        (base / name).read_bytes()
    took = time.perf_counter() - began
    first, second = (node.cpu_s() - cpu for node, cpu in zip(nodes, before, strict=True))
    return took, first, second


@contextmanager
def _cluster(place: Path, source: Path) -> Iterator[list[_RealNode]]:
    options = ("--source", source, "--no-read-ahead", "--memory", "512MiB")
    try:
        _copperfs("cluster", "up", "-n", 2, "--dir", place, *options)
        state = json.loads(_copperfs("cluster", "status", "--dir", place, "--json"))
        yield [_RealNode(Path(each["mountpoint"]), int(each["pid"])) for each in state["nodes"]]
    finally:
        _copperfs("cluster", "down", "--dir", place)


def _copperfs(*arguments: object) -> str:
    done = subprocess.run(
        [environment_python(), "-m", "copperfs.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    if done.returncode != 0:
        raise SimulationError(f"copperfs {arguments[0]} {arguments[1]}: {done.stderr.strip()}")
    return done.stdout


def _median(rounds: Sequence[Measured]) -> Measured:
    def middle(of: Callable[[Measured], float]) -> float:
        return sorted(map(of, rounds))[len(rounds) // 2]

    return Measured(
        *(middle(lambda each, name=name: getattr(each, name)) for name in Measured.__slots__)  # type: ignore[misc]
    )


def show(measured: Measured, costs: "Costs") -> None:
    def us(seconds: float) -> str:
        return f"{1e6 * seconds:.0f} us"

    print_table(
        ("what", "measured"),
        [
            ("a small file from the directory itself", us(measured.direct_s)),
            ("through a node that reads the source", us(measured.alone_s)),
            ("through one that asks another", us(measured.asked_s)),
            ("computing time of the one that is asked", us(measured.served_cpu_s)),
            ("of the one that asks", us(measured.asked_cpu_s)),
            (
                "a message to be sent, a message to be taken in",
                us(costs.network.send_s) + ", " + us(costs.network.receive_s),
            ),
            (
                "a mebibyte to be sent, to be taken in",
                us(measured.sent_byte_s * 2**20) + ", " + us(measured.received_byte_s * 2**20),
            ),
            ("a miss, without the source", us(costs.node.miss_s)),
            ("a mebibyte read from the mount, beyond", us(costs.node.byte_s * 2**20)),
            ("one way between two nodes", us(costs.network.latency_s)),
        ],
        right=("measured",),
    )
