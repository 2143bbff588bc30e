"""``copperfs sim sweep``: varies one parameter, or runs seeds."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from copperfs.cli.output import print_json, print_progress, print_table, write_file
from copperfs.lab.commands.sim_parts import add_costs, add_workload, progress_bar, workload_of
from copperfs.model.errors import SimulationError

if TYPE_CHECKING:
    from copperfs.lab.sim.parameter_sweeps import Effect

NAME = "sim sweep"
HELP = "simulate many jobs: a chart of one effect, or random runs with faults"

EFFECTS = ("cold", "warm", "fanout", "trees", "push", "cut-through", "listing")
NODES = {
    "cold": (32, 128, 512, 2048, 8300),
    "warm": (32, 128, 512, 2048, 8300),
    "push": (8, 32, 128, 512),
    "listing": (8, 32, 128),
}
NODES_OF_ONE = 512
FANOUTS, TREES, SIZES_MIB = (2, 4, 8, 16, 32, 64), (1, 2, 4, 8), (1, 4, 16, 64)

EPILOG = """\
exit codes: 0 done; 1 an error, or a seed that broke a promise; 2 wrong usage; 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("what", choices=(*EFFECTS, "seeds"), metavar="WHAT", help=_help())
    add_workload(parser)
    add_costs(parser)
    parser.add_argument("--nodes", type=int, nargs="+", metavar="N", help="numbers of nodes")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="so many seeds (300)")
    parser.add_argument(
        "--failed", metavar="FILE", help="seeds that failed before: run, and added to"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="at once (one for each core)")
    parser.add_argument("--svg", metavar="FILE", help="write a picture")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _help() -> str:
    return ", ".join(EFFECTS) + ", or seeds: random runs with faults"


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "seeds":
        return _seeds(arguments)
    from copperfs.lab.sim.experiment import run as run_one
    from copperfs.lab.sim.process_pool import Broken, run_all

    effect = _effect(arguments)
    if arguments.svg is not None:
        write_file(arguments.svg, "")  # better fail now than after all the work
    results = {}
    with progress_bar(quiet=arguments.json) as progress:
        task = progress.add_task(effect.name, total=len(effect.points))
        # The largest first, so that none runs alone at the end.
        order = sorted(
            range(len(effect.points)), key=lambda n: -effect.points[n].experiment.job.nodes
        )
        tasks = [lambda experiment=effect.points[n].experiment: run_one(experiment) for n in order]
        try:
            for number, result in run_all(tasks, arguments.processes):
                results[order[number]] = result
                progress.advance(task)
        except Broken as error:
            raise SimulationError(str(error)) from None
    done = [results[number] for number in range(len(effect.points))]
    chart = effect.chart(done)
    if arguments.svg is not None:
        from copperfs.lab.sim.svg_charts import line_chart

        write_file(arguments.svg, line_chart(chart))
    rows = [(line.name, f"{x:g}", f"{y:.3f}") for line in chart.lines for x, y in line.points]
    if arguments.json:
        points = [
            {"line": point.line, "x": point.x, "seconds": point.value(result)} | asdict(result)
            for point, result in zip(effect.points, done, strict=True)
        ]
        lines = [asdict(line) for line in chart.lines]
        print_json({"what": effect.name, "title": chart.title, "lines": lines, "points": points})
    else:
        print_table((chart.title, chart.across, chart.up), rows, right=(chart.across, chart.up))
    return 0


def _effect(arguments: argparse.Namespace) -> "Effect":
    from copperfs.lab.sim import parameter_sweeps as effects
    from copperfs.lab.sim.costs import costs_of

    what, costs = arguments.what, costs_of(arguments.costs)
    counts: list[int] = arguments.nodes or list(NODES.get(what, (NODES_OF_ONE,)))
    if min(counts) < 1:
        raise SimulationError("--nodes are at least 1")
    one = counts[0]
    workload = workload_of(arguments, max(counts))
    match what:
        case "cold" | "warm":
            return effects.imports(workload, costs, counts, cold=what == "cold")
        case "fanout":
            return effects.fanouts(workload, costs, one, FANOUTS)
        case "trees":
            return effects.trees(workload, costs, one, TREES)
        case "push":
            return effects.pushes(workload, costs, counts)
        case "cut-through":
            return effects.cut_through(costs, one, SIZES_MIB)
        case _:
            return effects.listings(workload, costs, counts)


# --- seeds ----------------------------------------------------------------------------------------


def _seeds(arguments: argparse.Namespace) -> int:
    from copperfs.lab.sim.seed_sweep import Night, read_seeds

    kept = [] if arguments.failed is None else read_seeds(arguments.failed)
    night = Night(arguments.first, arguments.count, kept)
    bad = []
    with progress_bar(quiet=arguments.json) as progress:
        task = progress.add_task("seeds", total=len(night.seeds))
        for verdict in night.run(arguments.processes):
            progress.advance(task)
            if verdict.fault is not None:
                bad.append(verdict)
                if not arguments.json:
                    print_progress(f"seed {verdict.seed}: {verdict.fault}")
                    print_progress(f"  environment: {', '.join(verdict.environment)}")
    if arguments.failed is not None and bad:
        new = sorted({each.seed for each in bad} - set(kept))
        write_file(arguments.failed, "".join(f"{seed}\n" for seed in [*kept, *new]))
    summary = night.summary()
    if arguments.json:
        print_json(asdict(summary) | {"failed": [asdict(each) for each in bad]})
    else:
        print_table(
            ("seeds", "failed", "nodes", "faults", "messages", "CPU s"),
            [
                (
                    f"{summary.seeds:,}",
                    f"{len(bad):,}",
                    f"{summary.nodes:,}",
                    f"{summary.faults:,}",
                    f"{summary.messages:,}",
                    f"{summary.cpu_s:.0f}",
                )
            ],
            right=("seeds", "failed", "nodes", "faults", "messages", "CPU s"),
        )
        print_table(
            ("environment", "seeds"),
            [(what, f"{count:,}") for what, count in summary.environments.items()],
            right=("seeds",),
        )
    for each in bad:
        print_progress(f"copperfs sim replay --seed {each.seed}")
    return 1 if bad else 0
