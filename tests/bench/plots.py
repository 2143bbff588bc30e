"""Plots what `make bench` has written: bars of ratios and times, a line for the tree.

    python -m tests.bench.plots build/bench.json... --out build/plots

Each picture is made from the JSON of one benchmark alone: medians, or their ratios to the yardstick
of the same run. A benchmark that was not run gives no picture. A test makes the pictures in
`docs/plots/` anew from the JSON beside them. A `from` there says that the run's JSON was not kept:
it has the medians of that document's tables, as of that day.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from copperfs.lab.sim.svg_charts import Bars, Chart, ChartLine, bar_chart, line_chart
from tests.bench.results import JUDGED

Measured = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    up: str
    label: Callable[[str], str | None]
    of: str
    """`ratio` or `median`."""
    left_out: tuple[str, ...] = ()
    """The yardstick of ratios is a line at 1."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Labels of contestants whose names do not tell what they are."""

    def draw(self, measures: Sequence[Measured], note: str) -> str | None:
        groups = {label: each for each in measures if (label := self.label(each["name"]))}
        names = dict.fromkeys(name for each in groups.values() for name in each["contestants"])
        yardsticks = {each["yardstick"] for each in groups.values()}
        series: dict[str, list[float | None]] = {}
        for name in sorted(names, key=lambda name: name != JUDGED):
            if name in self.left_out or (self.of == "ratio" and name in yardsticks):
                continue
            found = [each["contestants"].get(name) for each in groups.values()]
            series[self.names.get(name, name)] = [one[self.of] if one else None for one in found]
        if not any(value is not None for each in series.values() for value in each):
            return None  # without the yardstick there are no ratios
        return bar_chart(
            Bars(
                self.title, "", self.up, list(groups), series,
                level=1 if self.of == "ratio" else None, note=note,
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lines:
    title: str

    def draw(self, measures: Sequence[Measured], note: str) -> str | None:
        points: dict[str, list[tuple[float, float]]] = {}
        for each in measures:
            what, _, security = each["name"].removeprefix("there and back, ").partition(", ")
            for name, found in each["contestants"].items():
                line = f"{name}, CURVE" if security else name
                points.setdefault(line, []).append((_bytes(what), found["median"] * 1e3))
        if not points:
            return None
        lines = [ChartLine(name, of) for name, of in points.items()]
        return line_chart(Chart(self.title, "bytes", "ms", lines, note))


def _bytes(text: str) -> float:
    count, unit = text.split()
    return float(count) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]


def _import(name: str) -> str | None:
    what, _, kind = name.partition(": ")
    packages, _, state = what.partition(", ")
    packages, _, count = packages.partition(" x")
    again = {"warm": "again", "cold": "first"}.get(state, state)
    return f"{packages}, {again}, {count} proc." if kind == "wall" else None


def _job(name: str) -> str | None:
    what, _, kind = name.partition(": ")
    packages, _, state = what.partition(", ")
    state = state.partition(", ")[2].replace("cold", "first")
    return f"{packages}, {state}" if kind == "wall" else None


def _push(name: str) -> str | None:
    if "CPU" in name:
        return None
    return "with CURVE" if name.endswith("curve") else "without CURVE"


def _front(name: str) -> str | None:
    return name if name in ("getattr", "lookup", "lookup of a missing name") else None


PLOTS: dict[str, Plot | Lines] = {
    "import": Plot(
        "Import of packages, beside a bind mount (1)", "ratio of wall times", _import, "ratio"
    ),
    "kernel-cached": Plot(
        "What the kernel has cached, beside a bind mount (1)", "ratio", lambda name: name, "ratio",
    ),
    "front": Plot(
        "Answered by the daemon, beside libfuse's passthrough_hp (1)", "ratio", _front, "ratio",
        left_out=("bind",),
    ),
    "tree": Lines("There and back through a tree of 31 processes, eight hops"),
    "push": Plot(
        "728 files, 36.3 MB, to 31 nodes", "seconds",
        _push, "median",
        names={"pull": "asked for by all nodes at once", JUDGED: "pushed by copperfs warmup"},
    ),
    "job": Plot("An import on eight nodes at once", "seconds", _job, "median"),
}  # fmt: skip


def pictures(report: Measured) -> Iterator[tuple[str, str]]:
    machine = report["machine"]
    note = (
        f"{report['started'][:10]}, {machine['cores']} cores, Linux {machine['kernel']}; "
        f"medians of {report['repeats']}"
    )
    for bench, plot in PLOTS.items():
        measures = [each for each in report["measures"] if each["bench"] == bench]
        drawn = plot.draw(measures, note) if measures else None
        if drawn is not None:
            yield bench, drawn


def write(report: Measured, out: Path) -> list[Path]:
    written = []
    for bench, picture in pictures(report):
        out.mkdir(parents=True, exist_ok=True)
        written.append(out / f"{bench}.svg")
        written[-1].write_text(picture)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.plots", description="Draw what make bench has written."
    )
    parser.add_argument("json", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("build/plots"), metavar="DIR")
    options = parser.parse_args()
    for each in options.json:
        for path in write(json.loads(each.read_text()), options.out):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
