"""The outcomes of ``lost_node_files`` as a picture."""

from collections.abc import Iterator, Sequence

from copperfs.lab.sim.lost_node_files import Outcome, RingExperiment
from copperfs.lab.sim.svg_charts import (
    BLUE,
    BOTTOM,
    INK,
    LEFT,
    ORANGE,
    RIGHT,
    TOP,
    ChartCounts,
    head,
    text,
)

BAR, LINE = BLUE, ORANGE


def picture(experiment: RingExperiment, outcomes: Sequence[Outcome]) -> str:
    return "\n".join(_elements(experiment, outcomes)) + "\n"


def _elements(experiment: RingExperiment, outcomes: Sequence[Outcome]) -> Iterator[str]:
    receivers = ChartCounts(max(each.receivers + each.receivers_deviation for each in outcomes))
    files = ChartCounts(max(each.files + each.files_deviation for each in outcomes))
    slot = (RIGHT - LEFT) / len(outcomes)
    middles = [LEFT + slot * (index + 0.5) for index in range(len(outcomes))]
    yield head()
    yield text(
        (LEFT + RIGHT) / 2,
        18,
        f"One of {experiment.nodes:,} nodes is lost: who receives its files "
        f"({experiment.files:,} in all, {experiment.trials:,} trials)",
        size=14,
    )
    yield from _axis(receivers, LEFT, "end", "receivers", BAR)
    yield from _axis(files, RIGHT, "start", "files per receiver", LINE)
    for tick in receivers.ticks:
        y = receivers.y(tick)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{INK}" stroke-opacity=".3"/>'
    for outcome, x in zip(outcomes, middles, strict=True):
        y = receivers.y(outcome.receivers)
        yield (
            f'<rect x="{x - slot * 0.3:.1f}" y="{y:.1f}" width="{slot * 0.6:.1f}" '
            f'height="{BOTTOM - y:.1f}" fill="{BAR}" fill-opacity=".7"/>'
        )
        yield _error(x - 4, receivers, outcome.receivers, outcome.receivers_deviation, INK)
        y = receivers.y(outcome.expected)
        yield f'<path d="M{x - slot * 0.36:.1f} {y:.1f}h{slot * 0.72:.1f}" stroke="{INK}"/>'
        yield text(
            x, BOTTOM + 18, "rendezvous" if outcome.vnodes is None else f"{outcome.vnodes:,}"
        )
    for outcome, x in zip(outcomes, middles, strict=True):
        yield _error(x + 4, files, outcome.files, outcome.files_deviation, LINE)
        yield f'<circle cx="{x + 4:.1f}" cy="{files.y(outcome.files):.1f}" r="3.5" fill="{LINE}"/>'
    ring = [
        f"{x + 4:.1f},{files.y(each.files):.1f}"
        for each, x in zip(outcomes, middles, strict=True)
        if each.vnodes is not None
    ]
    yield f'<polyline points="{" ".join(ring)}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'
    yield text((LEFT + RIGHT) / 2, BOTTOM + 38, "virtual nodes of each node")
    yield text(
        (LEFT + RIGHT) / 2,
        BOTTOM + 55,
        "error bars: a standard deviation; lines across bars: what is expected of any good hash",
        size=11,
    )
    yield "</svg>"


def _axis(scale: ChartCounts, x: float, anchor: str, title: str, colour: str) -> Iterator[str]:
    out = -8 if anchor == "end" else 8
    for tick in scale.ticks:
        yield text(x + out, scale.y(tick) + 4, f"{tick:,}", anchor=anchor, colour=colour)
    yield text(x, TOP - 16, title, colour=colour)


def _error(x: float, scale: ChartCounts, mean: float, deviation: float, colour: str) -> str:
    high, low = scale.y(mean + deviation), scale.y(mean - deviation)
    return (
        f'<path d="M{x - 3:.1f} {high:.1f}h6m-3 0V{low:.1f}m-3 0h6" stroke="{colour}" fill="none"/>'
    )
