"""The outcomes of ``figure_ring`` as a picture: bars for receivers, a line for files per receiver.

Written by hand, because it is one picture of a few dozen shapes: a library would be more to install
than copperfs itself, and what it writes differs from release to release. This is the same text
wherever it is made, so a change in it is a change of the result. Colours are mid-tones on no
background, to be read on a white page and on a dark one.
"""

from collections.abc import Iterator, Sequence
from html import escape

from copperfs.sim.figure_ring import Experiment, Outcome

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 700, 60, 360
BAR, LINE, INK = "#5b8db8", "#d1662b", "#808080"
TICKS_MAX = 8


def picture(experiment: Experiment, outcomes: Sequence[Outcome]) -> str:
    """A whole SVG document."""
    return "\n".join(_elements(experiment, outcomes)) + "\n"


class _Scale:
    """A vertical axis from 0 to at least *most*."""

    def __init__(self, most: float) -> None:
        most = max(most, 1)
        step = next(
            digit * unit
            for unit in (1, 10, 100, 1_000, 10_000, 100_000)
            for digit in (1, 2, 5)
            if digit * unit * TICKS_MAX >= most
        )
        self.ticks = [step * tick for tick in range(TICKS_MAX + 1) if step * (tick - 1) < most]

    def y(self, value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * max(value, 0) / self.ticks[-1]


def _elements(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[str]:
    receivers = _Scale(max(each.receivers + each.receivers_deviation for each in outcomes))
    files = _Scale(max(each.files + each.files_deviation for each in outcomes))
    slot = (RIGHT - LEFT) / len(outcomes)
    middles = [LEFT + slot * (index + 0.5) for index in range(len(outcomes))]
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">'
    )
    yield _text(
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
        yield _text(
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
    yield _text((LEFT + RIGHT) / 2, BOTTOM + 38, "virtual nodes of each node")
    yield _text(
        (LEFT + RIGHT) / 2,
        BOTTOM + 55,
        "error bars: a standard deviation; lines across bars: what is expected of any good hash",
        size=11,
    )
    yield "</svg>"


def _axis(scale: _Scale, x: float, anchor: str, title: str, colour: str) -> Iterator[str]:
    out = -8 if anchor == "end" else 8
    for tick in scale.ticks:
        yield _text(x + out, scale.y(tick) + 4, f"{tick:,}", anchor=anchor, colour=colour)
    yield _text(x, TOP - 16, title, colour=colour)


def _error(x: float, scale: _Scale, mean: float, deviation: float, colour: str) -> str:
    high, low = scale.y(mean + deviation), scale.y(mean - deviation)
    return (
        f'<path d="M{x - 3:.1f} {high:.1f}h6m-3 0V{low:.1f}m-3 0h6" stroke="{colour}" fill="none"/>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "middle", colour: str = INK, size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
