"""``copperfs sim run``: simulates a workload on a number of nodes."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from copperfs.cli.output import print_json, print_table, write_file
from copperfs.config.settings import format_size, parse_size
from copperfs.lab.commands.sim_parts import add_costs, add_workload, progress_bar, workload_of
from copperfs.model.errors import SimulationError
from copperfs.model.types import FANOUT

if TYPE_CHECKING:
    from copperfs.lab.sim.experiment import Result

NAME = "sim run"
HELP = "simulate a workload on a job of any size"

NODES_MAX = 200_000
WHOLE_MAX = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload(parser)
    add_costs(parser)
    parser.add_argument(
        "--nodes", type=int, default=32, metavar="N", help="nodes of the job (%(default)s)"
    )
    parser.add_argument(
        "--fanout",
        type=int,
        default=FANOUT,
        metavar="N",
        help="nodes that ask one node (%(default)s)",
    )
    parser.add_argument(
        "--push-fanout",
        type=int,
        default=2,
        metavar="N",
        help="nodes that each passes a push on to (%(default)s)",
    )
    parser.add_argument(
        "--trees",
        type=int,
        default=1,
        metavar="N",
        help="trees that share the source (%(default)s)",
    )
    parser.add_argument(
        "--memory",
        type=parse_size,
        default="1GiB",
        metavar="SIZE",
        help="cache of each node (1 GiB)",
    )
    parser.add_argument(
        "--chunk-size",
        type=parse_size,
        default="1MiB",
        metavar="SIZE",
        help="chunks of the data tier (1 MiB); 0: no tier, each node reads large files itself",
    )
    parser.add_argument("--push", action="store_true", help="push the set to all nodes first")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of all that is random (%(default)s)"
    )
    parser.add_argument(
        "--stand-for",
        type=int,
        metavar="N",
        help="simulate one of N siblings, with all below it (1; 8 above 10,000 nodes)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--output", metavar="FILE", help="write JSON there, too")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.sim.costs import costs_of
    from copperfs.lab.sim.experiment import Experiment, run
    from copperfs.lab.sim.parameter_sweeps import AHEAD_MAX, STAND_FOR, TIER_MEMORY_BYTES
    from copperfs.lab.sim.world import Job

    nodes: int = arguments.nodes
    if not 1 <= nodes <= NODES_MAX:
        raise SimulationError(f"--nodes is {nodes}; give 1 to {NODES_MAX:,}")
    if min(arguments.fanout, arguments.push_fanout, arguments.trees) < 1:
        raise SimulationError("--fanout, --push-fanout and --trees are at least 1")
    stand_for = arguments.stand_for
    if stand_for is None:
        stand_for = 1 if nodes <= WHOLE_MAX or arguments.push else STAND_FOR
    if stand_for < 1 or (stand_for > 1 and (arguments.trees > 1 or arguments.push)):
        raise SimulationError(
            "--stand-for is at least 1, and more only for one tree and without --push: in "
            "another tree a leaf is no leaf"
        )
    job = Job(
        nodes,
        fanout=arguments.fanout,
        push_fanout=arguments.push_fanout,
        trees=arguments.trees,
        memory_bytes=arguments.memory,
        ahead_max=AHEAD_MAX,
        chunk_bytes=arguments.chunk_size,
        tier_memory_bytes=TIER_MEMORY_BYTES,
    )
    experiment = Experiment(
        workload_of(arguments, nodes),
        job,
        costs_of(arguments.costs),
        arguments.seed,
        push=arguments.push,
        stand_for=stand_for,
    )
    with progress_bar(quiet=arguments.json) as progress:
        task = progress.add_task("programs", total=100)
        result = run(experiment, lambda share: progress.update(task, completed=round(100 * share)))
    told = asdict(result) | {"workload": experiment.workload.name, "costs": experiment.costs.name}
    if arguments.output is not None:
        import json

        write_file(arguments.output, json.dumps(told, indent=2) + "\n")
    if arguments.json:
        print_json(told)
    else:
        show(result)
    return 0


def show(result: "Result") -> None:
    rows = [
        ("nodes", f"{result.nodes:,}", f"{result.simulated:,} of them simulated by themselves"),
        ("cold", f"{result.cold_s:.3f} s", f"{result.misses:.0f} waits for each program"),
        ("again", f"{result.warm_s:.3f} s", ""),
        (
            "messages",
            f"{result.messages_total:,}",
            f"{result.messages_total / result.nodes:.0f} a node",
        ),
        ("their bytes", format_size(result.message_bytes), ""),
        (
            "at the source",
            f"{sum(result.source.values()):,}",
            ", ".join(f"{count:,} {kind}" for kind, count in sorted(result.source.items())),
        ),
        ("the same", f"{result.source_most:,}", "times at most"),
        ("simulated in", f"{result.cpu_s:.1f} s", format_size(result.memory_bytes)),
    ]
    if result.pushed_s is not None:
        rows.insert(1, ("pushed", f"{result.pushed_s:.3f} s", "until all had all"))
    print_table(("what", "", " "), rows, right=("",))
