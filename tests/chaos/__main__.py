"""``python -m tests.chaos``: hurt a cluster by as many schedules as wanted, and judge each."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import FrameType

from rich.console import Console

from tests.chaos.arena import Arena, Setup
from tests.chaos.judge import Outcome, judge
from tests.chaos.mixture import Environment, draw_environment
from tests.chaos.report import complaints, line, show, write
from tests.chaos.schedule import (
    KINDS,
    OWN_KINDS,
    TAKEOVER_KINDS,
    Schedule,
    draw,
    is_drawn_with_takeover,
    parse,
)
from tests.conftest import daemons_with, mounts_below

# In the environment of every process of the run, to find its leftovers.
RUN_VARIABLE = "COPPER_CHAOS_RUN"
PREFIX = "copperfs-chaos-"


def arguments() -> argparse.Namespace:
    usual = Setup()
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Hurt a real cluster at random, and judge it."
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the first schedule")
    parser.add_argument("--schedules", type=int, default=1, metavar="N", help="seeds S to S+N-1")
    parser.add_argument("--nodes", type=int, default=usual.nodes, metavar="N")
    parser.add_argument("--fanout", type=int, default=usual.fanout, metavar="K")
    parser.add_argument("--files", type=int, default=usual.files, metavar="N")
    parser.add_argument(
        "--large",
        type=int,
        default=usual.large,
        metavar="N",
        help="files of 5 to 40 MiB beside them",
    )
    parser.add_argument(
        "--rate", type=float, default=usual.rate, metavar="R", help="files a node reads a second"
    )
    parser.add_argument("--length", type=float, metavar="SECONDS", help="of all schedules")
    parser.add_argument(
        "--calm", action="store_true", help="no faults at all: what the machine does by itself"
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=sorted({*KINDS, *TAKEOVER_KINDS}),
        help="only these faults",
    )
    parser.add_argument(
        "--spare", nargs="+", type=int, default=[], metavar="NODE", help="never kill these"
    )
    parser.add_argument(
        "--alike", action="store_true", help="nothing around the nodes is wrong: only faults"
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="carry out the schedule in FILE instead"
    )
    parser.add_argument(
        "--until-found", action="store_true", help="end with the first schedule that is bad"
    )
    parser.add_argument("--show", action="store_true", help="print the schedules, and do nothing")
    parser.add_argument("--report", action="store_true", help="tables of stalls at the end")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--mount", nargs="+", default=[], metavar="OPTION", help="of the mounts, as trees=4"
    )
    parser.add_argument(
        "--takeover",
        action="store_true",
        help="all mounts with --takeover, whose daemons die, hang and are upgraded (in half of the "
        "environments)",
    )
    return parser.parse_args()


def has_takeover(options: argparse.Namespace, seed: int) -> bool:
    if options.kinds is None:
        return options.takeover or is_drawn_with_takeover(seed)
    return options.takeover or not set(OWN_KINDS).isdisjoint(options.kinds)


def schedules(options: argparse.Namespace) -> list[Schedule]:
    if options.replay is not None:
        return [parse(options.replay.read_text())]
    seeds = range(options.seed, options.seed + options.schedules)
    if options.calm:
        return [
            Schedule(seed, options.nodes, options.fanout, options.length or 8.0, "calm", ())
            for seed in seeds
        ]
    return [
        draw(
            seed,
            options.nodes,
            options.fanout,
            length_s=options.length,
            kinds=options.kinds,
            spared=options.spare,
            mixed_files=None if options.alike else options.files,
            takeover=has_takeover(options, seed),
        )
        for seed in seeds
    ]


def environment_of(schedule: Schedule) -> Environment | None:
    number = schedule.environment
    return None if number is None else draw_environment(number, schedule.nodes)


def main() -> int:
    options = arguments()
    console = Console(width=160, highlight=False, markup=False)
    wanted = schedules(options)
    if options.show:
        for each in wanted:
            console.print(str(each), soft_wrap=True)
            if (environment := environment_of(each)) is not None:
                console.print(str(environment), soft_wrap=True)
        return 0
    os.environ[RUN_VARIABLE] = token = uuid.uuid4().hex
    flags = [f"--{each}" for each in options.mount]
    setup = Setup(
        wanted[0].nodes,
        wanted[0].fanout,
        options.rate,
        options.files,
        options.large,
        tuple(flags),
    )
    outcomes: list[Outcome] = []
    bad = 0
    left: list[str] = []
    with ended_by_sigterm(), ExitStack() as directories:
        top = Path(directories.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))).resolve()
        try:
            # The environment around the nodes stays the same as long as they exist.
            for _, together in groupby(wanted, lambda each: (each.environment, each.takeover)):
                alike = list(together)
                first = alike[0]
                around = environment_of(first)
                if around is not None:
                    console.print(str(around), soft_wrap=True)
                place = top if first is wanted[0] else top / f"from-{first.seed}"
                place.mkdir(exist_ok=True)
                own = replace(setup, environment=around, takeover=first.takeover)
                with Arena(place, own) as arena:
                    for schedule in alike:
                        console.print(str(schedule), soft_wrap=True)
                        outcome = arena.carry_out(schedule)
                        outcomes.append(outcome)
                        verdict = judge(outcome)
                        console.print(line(outcome, verdict), soft_wrap=True)
                        for complaint in complaints(outcome, verdict):
                            console.print(f"  {complaint}", soft_wrap=True)
                        bad += not verdict.is_good
                        if bad and options.until_found:
                            break
                        if outcome.whole_s is None:
                            console.print("what is not whole is not hurt again")
                            break
                shutil.rmtree(place / "source")
                if (bad and options.until_found) or outcomes[-1].whole_s is None:
                    break
        finally:
            left = [
                f"process {pid}: {what}" for pid, what in daemons_with(token, RUN_VARIABLE).items()
            ]
            left += [f"mount {each}" for each in mounts_below(top)]
            for thing in left:
                console.print(f"LEFT BEHIND: {thing}")
            if options.json is not None:
                write(options.json, outcomes)
            if options.report:
                show(outcomes, console)
    console.print(f"{len(outcomes) - bad} of {len(wanted)} schedules were good")
    return 1 if bad or left or len(outcomes) < len(wanted) else 0


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
