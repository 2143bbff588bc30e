"""``copperfs sim ring``: shows which nodes get the files of a lost node."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from copperfs.cli.output import print_json, print_table, write_file
from copperfs.lab.commands.sim_parts import progress_bar
from copperfs.model.errors import SimulationError

if TYPE_CHECKING:
    from copperfs.lab.sim.lost_node_files import Outcome, RingExperiment

NAME = "sim ring"
HELP = "show who receives the files of a lost node, by number of virtual nodes"

# Limits of the ring (node/routing/hash_ring.py) and of memory: 20 million points take 1 GB.
NODES_MAX = 200_000
POINTS_MAX = 20_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from copperfs.lab.sim.lost_node_files import RingExperiment

    default = RingExperiment()
    parser.add_argument(
        "--nodes",
        type=int,
        default=default.nodes,
        metavar="N",
        help="nodes of the ring (%(default)s)",
    )
    parser.add_argument(
        "--files", type=int, default=default.files, metavar="N", help="files to place (%(default)s)"
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=default.trials,
        metavar="N",
        help="trials, of which each loses another node (%(default)s)",
    )
    parser.add_argument(
        "--rings",
        type=int,
        default=default.rings,
        metavar="N",
        help="rings that share the trials (%(default)s)",
    )
    parser.add_argument(
        "--vnodes",
        type=int,
        nargs="+",
        default=default.vnodes,
        metavar="N",
        help="numbers of virtual nodes; default " + " ".join(map(str, default.vnodes)),
    )
    parser.add_argument(
        "--rendezvous",
        action="store_true",
        help="rendezvous hashing as well; takes longer than all the rings",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=default.seed,
        metavar="N",
        help="seed of the trials (%(default)s)",
    )
    parser.add_argument("--svg", metavar="FILE", help="write a picture")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.sim.lost_node_files import RingExperiment, run

    experiment = RingExperiment(
        nodes=arguments.nodes,
        files=arguments.files,
        trials=arguments.trials,
        rings=arguments.rings,
        vnodes=tuple(arguments.vnodes),
        seed=arguments.seed,
        rendezvous=arguments.rendezvous,
    )
    check(experiment)
    if arguments.svg is not None:
        write_file(arguments.svg, "")  # better fail now than after all the work
    with progress_bar(quiet=arguments.json) as progress:
        task = progress.add_task("rings", total=experiment.steps)
        outcomes = run(experiment, lambda: progress.advance(task))
    if arguments.svg is not None:
        from copperfs.lab.sim.lost_node_svg import picture

        write_file(arguments.svg, picture(experiment, outcomes))
    if arguments.json:
        print_json(asdict(experiment) | {"outcomes": [asdict(each) for each in outcomes]})
    else:
        show(outcomes)
    return 0


def check(experiment: "RingExperiment") -> None:
    if not 2 <= experiment.nodes <= NODES_MAX:
        raise SimulationError(f"--nodes is {experiment.nodes}; give 2 to {NODES_MAX:,}")
    if experiment.files < 1:
        raise SimulationError(f"--files is {experiment.files}; give at least 1")
    if not 1 <= experiment.rings <= experiment.trials:
        raise SimulationError(
            f"{experiment.trials} trials cannot be spread over {experiment.rings} rings; give at "
            "least one trial for each ring"
        )
    if experiment.trials > experiment.nodes * experiment.rings:
        raise SimulationError(
            f"{experiment.rings} rings of {experiment.nodes} nodes are enough for "
            f"{experiment.nodes * experiment.rings} trials; give more --rings"
        )
    vnodes_max = POINTS_MAX // experiment.nodes
    for vnodes in experiment.vnodes:
        if not 1 <= vnodes <= vnodes_max:
            raise SimulationError(
                f"--vnodes has {vnodes}; with {experiment.nodes} nodes give 1 to {vnodes_max:,}"
            )


def show(outcomes: "list[Outcome]") -> None:
    columns = (
        *("virtual nodes", "receivers", "expected", "least", "most"),
        *("files per receiver", "busiest", "imbalance"),
    )
    print_table(
        columns,
        [
            (
                "rendezvous" if each.vnodes is None else str(each.vnodes),
                f"{each.receivers:.1f} ± {each.receivers_deviation:.1f}",
                f"{each.expected:.1f}",
                str(each.receivers_least),
                str(each.receivers_most),
                f"{each.files:.2f} ± {each.files_deviation:.2f}",
                f"{each.files_most:.1f}",
                f"{each.imbalance:.2f}",
            )
            for each in outcomes
        ],
        right=columns,
    )
