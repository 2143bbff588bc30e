"""Results of a run: values, ratios, targets; as a table and as JSON.

A `Measure` is one row: the samples of every contestant for one question. Its ratio is median over
median of the yardstick. A `Target` is what issue 2 asks of copperfs; it is met when any of its
bounds holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

JUDGED = "copperfs"
COLUMNS = ("bindfs", "squashfuse", JUDGED)
MIB = 1 << 20

Unit = Literal["s", "ns", "bytes/s", "bytes", "1/s", "requests"]


@dataclass(frozen=True, slots=True)
class Bound:
    """On the judged contestant's ratio, or on its value in the measure's unit."""

    sense: Literal["at most", "at least"]
    limit: float
    of: Literal["ratio", "value"] = "ratio"

    def holds(self, ratio: float | None, value: float) -> bool | None:
        judged = ratio if self.of == "ratio" else value
        if judged is None:
            return None
        return judged <= self.limit if self.sense == "at most" else judged >= self.limit


@dataclass(frozen=True, slots=True)
class Target:
    bounds: tuple[Bound, ...]

    def text(self, unit: Unit) -> str:
        return " or ".join(
            f"{bound.sense} "
            + (f"{bound.limit:g}" if bound.of == "ratio" else shown(bound.limit, unit))
            for bound in self.bounds
        )


def at_most(limit: float, of: Literal["ratio", "value"] = "ratio") -> Target:
    return Target((Bound("at most", limit, of),))


def at_least(limit: float, of: Literal["ratio", "value"] = "ratio") -> Target:
    return Target((Bound("at least", limit, of),))


@dataclass(frozen=True, slots=True)
class Measure:
    bench: str
    name: str
    unit: Unit
    samples: dict[str, list[float]]
    yardstick: str | None = "bind"
    target: Target | None = None
    details: dict[str, float] = field(default_factory=dict)

    def value(self, contestant: str) -> float | None:
        taken = self.samples.get(contestant)
        return statistics.median(taken) if taken else None

    def ratio(self, contestant: str) -> float | None:
        value = self.value(contestant)
        base = self.value(self.yardstick) if self.yardstick else None
        return value / base if value is not None and base else None

    def met(self) -> bool | None:
        """None when that cannot be said."""
        value = self.value(JUDGED)
        if self.target is None or value is None:
            return None
        held = [bound.holds(self.ratio(JUDGED), value) for bound in self.target.bounds]
        if any(held):
            return True
        return None if None in held else False

    def as_json(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "name": self.name,
            "unit": self.unit,
            "yardstick": self.yardstick,
            "contestants": {
                name: {
                    "median": self.value(name),
                    "min": min(taken),
                    "max": max(taken),
                    "ratio": self.ratio(name),
                    "samples": taken,
                }
                for name, taken in self.samples.items()
                if taken
            },
            "target": self.target.text(self.unit) if self.target else None,
            "met": self.met(),
            **({"details": self.details} if self.details else {}),
        }


def shown(value: float, unit: Unit) -> str:
    match unit:
        case "s":
            return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
        case "ns":
            return f"{value / 1e6:.3g} ms" if value >= 1e6 else f"{value / 1e3:.3g} us"
        case "bytes/s":
            return f"{value / MIB:.0f} MiB/s"
        case "bytes":
            return f"{value / MIB:.1f} MiB"
        case "1/s":
            return f"{value:,.0f}/s"
        case "requests":
            return f"{value:,.0f}"


def table(measures: Sequence[Measure]) -> Table:
    result = Table(title="medians, as ratios to the yardstick", title_justify="left")
    result.add_column("measure")
    result.add_column("yardstick")
    for name in COLUMNS:
        result.add_column(name, justify="right")
    result.add_column("target")
    result.add_column("met")
    bench = None
    for measure in measures:
        if measure.bench != bench:
            bench = measure.bench
            result.add_section()
            result.add_row(f"[bold]{bench}[/bold]")
        base = measure.value(measure.yardstick) if measure.yardstick else None
        yardstick = f"{measure.yardstick} {shown(base, measure.unit)}" if base is not None else ""
        met = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}[measure.met()]
        result.add_row(
            escape(measure.name),
            yardstick,
            *(_cell(measure, name) for name in COLUMNS),
            measure.target.text(measure.unit) if measure.target else "",
            met,
        )
    return result


def _cell(measure: Measure, name: str) -> str:
    value = measure.value(name)
    if value is None:
        return "-"
    ratio = measure.ratio(name)
    if ratio is None or name == measure.yardstick:
        return shown(value, measure.unit)
    return f"[bold]{ratio:.2f}[/bold] ({shown(value, measure.unit)})"
