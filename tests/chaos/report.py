"""Report of a run: one line for each schedule while it runs, tables and JSON at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.judge import (
    COLD,
    NONE,
    Outcome,
    Read,
    Verdict,
    beyond_faults,
    judge,
    more_than_once,
    quantile,
    stalls,
)

SHOWN_MAX = 20
LONG_S = 0.15


def line(outcome: Outcome, verdict: Verdict) -> str:
    others = [
        read.took_s
        for (label, whose), reads in stalls(outcome).items()
        if label not in (COLD, NONE) and whose == "others"
        for read in reads
    ]
    own = [
        read.took_s
        for (_, whose), reads in stalls(outcome).items()
        if whose == "own"
        for read in reads
    ]
    extra = more_than_once(outcome.opened)
    sick = verdict.excused["sick"]
    whole = "never" if outcome.whole_s is None else f"{outcome.whole_s:.1f} s"
    return (
        f"schedule {outcome.schedule.seed}: {'good' if verdict.is_good else 'BAD'}, "
        f"{len(outcome.reads)} reads, {len(verdict.errors)} errors, {len(verdict.wrong)} wrong, "
        f"{sick} of sick files, {len(verdict.imports)} failed imports, "
        f"longest stall {max(others, default=0):.3f} s"
        f" (own link {max(own, default=0):.3f} s), {len(extra)} objects read more than once "
        f"({sum(extra.values()) - len(extra)} times, {len(beyond_faults(outcome))} of them more "
        f"often than there were faults), whole again after {whole}"
    )


def complaints(outcome: Outcome, verdict: Verdict) -> list[str]:
    found = list(verdict.problems)
    found += [_told(outcome, each) for each in [*verdict.wrong, *verdict.errors][:SHOWN_MAX]]
    hidden = len(verdict.wrong) + len(verdict.errors) - SHOWN_MAX
    if hidden > 0:
        found.append(f"and {hidden} more")
    found += [
        f"at {each.began - outcome.began:.3f}: the import on node{each.node} failed after "
        f"{each.took_s:.3f} s: {each.said[-500:]}"
        for each in verdict.imports
    ]
    return found


def opened_beyond_faults(outcome: Outcome) -> list[str]:
    """Who opened them and when, and which nodes read in another's place."""
    found = []
    for path in beyond_faults(outcome):
        times = [
            f"{at_s - outcome.began:.3f} by {Path(client).name}"
            for at_s, client in outcome.openings.get(path, ())
        ]
        found.append(f"{path} was opened at {', '.join(times)}")
    for number, each in enumerate(outcome.nodes):
        counted = {name: each["node"][name] for name in ("fallbacks", "took_over")}
        if found and any(counted.values()):
            found.append(f"node{number} counted {counted}")
    return found


def longest(outcomes: Sequence[Outcome]) -> list[str]:
    found = [
        (read, outcome)
        for outcome in outcomes
        for reads in stalls(outcome).values()
        for read in reads
        if read.took_s >= LONG_S
    ]
    found.sort(key=lambda each: -each[0].took_s)
    return [
        f"schedule {outcome.schedule.seed} {_told(outcome, read)}"
        for read, outcome in found[:SHOWN_MAX]
    ]


def _told(outcome: Outcome, read: Read) -> str:
    during = [
        str(each.fault)
        for each in outcome.applied
        if each.during(read.began - 1.0, read.ended + 1.0)
    ]
    return f"at {read.began - outcome.began:.3f}: {read} [{'; '.join(during) or 'no fault'}]"


def all_stalls(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for outcome in outcomes:
        for key, reads in stalls(outcome).items():
            found.setdefault(key, []).extend(each.took_s for each in reads)
    return {key: sorted(durations) for key, durations in sorted(found.items())}


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    table = Table("put down to", "nodes", title="Stalls: how long an open and read took, ms")
    for name in ("reads", "p50", "p99", "p99.9", "max", ">150 ms", ">1 s"):
        table.add_column(name, justify="right")
    for (label, whose), durations in all_stalls(outcomes).items():
        table.add_row(
            label,
            whose,
            str(len(durations)),
            *(f"{quantile(durations, share) * 1000:.1f}" for share in (0.5, 0.99, 0.999, 1.0)),
            str(sum(each > LONG_S for each in durations)),
            str(sum(each > 1.0 for each in durations)),
        )
    console.print(table)
    for each in longest(outcomes):
        console.print(each, soft_wrap=True)
    times = Counter(count for each in outcomes for count in each.opened.values())
    console.print(
        "source: files read "
        + ", ".join(f"{count} times: {many}" for count, many in sorted(times.items()))
    )
    imports = sorted(each.took_s for outcome in outcomes for each in outcome.imports)
    if imports:
        console.print(
            f"imports: {len(imports)}, p50 {quantile(imports, 0.5):.2f} s, longest "
            f"{imports[-1]:.2f} s"
        )
    returns = sorted(
        each.ended - each.began - each.fault.lasts_s
        for outcome in outcomes
        for each in outcome.applied
        if each.fault.kind == "kill"
    )
    if returns:
        console.print(
            f"killed nodes: {len(returns)}, started again within {quantile(returns, 0.5):.2f} s "
            f"(p50), {returns[-1]:.2f} s (longest)"
        )
    leaks = _leaks(outcomes)
    if leaks.row_count:
        console.print(leaks)


def _leaks(outcomes: Sequence[Outcome]) -> Table:
    lives: dict[int, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        for each in outcome.nodes:
            lives.setdefault(each["process"]["pid"], []).append(each)
    table = Table("node", title="Daemons after their first schedule and after their last")
    for name in ("schedules", "fds", "threads", "tasks", "RSS MiB"):
        table.add_column(name, justify="right")
    for life in sorted(lives.values(), key=lambda each: int(each[0]["number"])):
        if len(life) > 1:
            first, last = life[0]["process"], life[-1]["process"]
            table.add_row(
                life[0]["name"],
                str(len(life)),
                *(f"{first[key]} -> {last[key]}" for key in ("fds", "threads", "tasks")),
                f"{first['rss_kib'] / 1024:.1f} -> {last['rss_kib'] / 1024:.1f}",
            )
    return table


def write(path: Path, outcomes: Sequence[Outcome]) -> None:
    documents = []
    for outcome in outcomes:
        verdict = judge(outcome)
        documents.append(
            {
                "schedule": str(outcome.schedule).splitlines(),
                "good": verdict.is_good,
                "complaints": complaints(outcome, verdict),
                "excused": verdict.excused,
                "reads": len(outcome.reads),
                "stalls": [
                    {
                        "put_down_to": label,
                        "nodes": whose,
                        "reads": len(reads),
                        "longest_s": max(each.took_s for each in reads),
                        "long": [
                            asdict(each)
                            | {"began": each.began - outcome.began, "ended": each.took_s}
                            for each in reads
                            if each.took_s >= LONG_S
                        ],
                    }
                    for (label, whose), reads in stalls(outcome).items()
                ],
                "imports_s": sorted(each.took_s for each in outcome.imports),
                "applied": [
                    [str(each.fault), each.began - outcome.began, each.ended - outcome.began]
                    for each in outcome.applied
                ],
                "opened_more_than_once": more_than_once(outcome.opened),
                "opened_beyond_faults": beyond_faults(outcome),
                "listed_more_than_once": more_than_once(outcome.listed),
                "whole_s": outcome.whole_s,
                "nodes": outcome.nodes,
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "schedules": documents}, indent=1))
