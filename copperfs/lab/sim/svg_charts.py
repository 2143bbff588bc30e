"""SVG charts: draws bar and line charts as SVG text.

The few dozen shapes are written by hand: a library's output differs from release to release, while
any change of this text is a change of the result. Colours are mid-tones without a background, for
white and dark pages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 700, 60, 360
BLUE, ORANGE, INK = "#5b8db8", "#d1662b", "#808080"
COLOURS = (BLUE, ORANGE, "#6a9a4b", "#9467bd", "#b8923b", "#c2508a")
TICKS_MAX = 8
LEGEND_STEP = 17
CHARACTER = 6.5  # the width of one, about
NUMBER_WIDTH = 22
FAR_APART = 20


class Linear:
    """From 0 to at least *most*."""

    def __init__(self, most: float) -> None:
        steps = [digit * 10.0**power for power in range(-6, 12) for digit in (1, 2, 5)]
        step = next((each for each in steps if each * TICKS_MAX >= most), steps[-1])
        self.ticks: list[float] = [
            step * tick for tick in range(TICKS_MAX + 1) if step * (tick - 1) < most
        ]

    def y(self, value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * max(value, 0) / self.ticks[-1]


class ChartCounts(Linear):
    def __init__(self, most: float) -> None:
        super().__init__(max(most, TICKS_MAX / 2))
        self.ticks = [round(tick) for tick in self.ticks]


class Log:
    """Powers of ten around all values; from *low* to *high* on the picture."""

    def __init__(self, values: Sequence[float], low: float, high: float) -> None:
        self._from = floor(log10(min(values)) + 1e-9)
        self._to = max(ceil(log10(max(values)) - 1e-9), self._from + 1)
        self._low, self._high = low, high
        self.ticks = [10.0**power for power in range(self._from, self._to + 1)]

    def at(self, value: float) -> float:
        share = (log10(value) - self._from) / (self._to - self._from)
        return self._low + (self._high - self._low) * share


@dataclass(frozen=True, slots=True)
class ChartLine:
    name: str
    points: Sequence[tuple[float, float]]
    is_joined: bool = True
    """False: marks alone, for published figures."""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    across: str
    up: str
    lines: Sequence[ChartLine]
    note: str = ""
    up_from_zero: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    title: str
    across: str
    up: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    """By series and group; None: no bar. A bar with room has its value above it. Values that are
    far apart get an axis of powers of ten."""
    marks: Sequence[str] = ()
    """A word below each group's name, or ""."""
    level: float | None = None
    note: str = ""


def bar_chart(bars: Bars) -> str:
    return "\n".join(_bars(bars)) + "\n"


def _bars(bars: Bars) -> Iterator[str]:
    values = [each for of in bars.series.values() for each in of if each is not None]
    up: Linear | Log = Linear(max(values))
    if max(values) > FAR_APART * min(values) > 0:
        up = Log([*values, bars.level or max(values)], BOTTOM, TOP)
    slot = (RIGHT - LEFT) / len(bars.groups)
    width = slot * 0.8 / len(bars.series)
    names = [_folded(each, slot) for each in bars.groups]
    # Below the axis: names in lines, marks, the axis label, the note and the legend.
    below = BOTTOM + 4 + 14 * max(map(len, names))
    across = below + (14 if any(bars.marks) else 0) + 18
    legend = across + (LEGEND_STEP if bars.note else 0) + 16
    yield head(legend + LEGEND_STEP * len(bars.series) + 9)
    yield text((LEFT + RIGHT) / 2, 18, bars.title, size=14)
    yield text(LEFT, TOP - 16, bars.up)
    for tick in up.ticks:
        yield from _across(height(up, tick), f"{tick:g}")
    for order, (name, of) in enumerate(bars.series.items()):
        colour = COLOURS[order % len(COLOURS)]
        for group, value in enumerate(of):
            if value is None:
                continue
            x, y = LEFT + slot * (group + 0.1) + width * order, height(up, value)
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOTTOM - y:.1f}" '
                f'fill="{colour}" fill-opacity=".8"/>'
            )
            if width >= NUMBER_WIDTH:
                yield text(x + width / 2, y - 4, f"{value:.3g}", size=9)
        y = legend + order * LEGEND_STEP
        yield f'<rect x="{LEFT}" y="{y - 5}" width="10" height="10" fill="{colour}"/>'
        yield text(LEFT + 20, y + 4, name, anchor="start")
    if bars.level is not None:
        yield f'<path d="M{LEFT} {height(up, bars.level):.1f}H{RIGHT}" stroke="{INK}"/>'
    for group, lines in enumerate(names):
        x = LEFT + slot * (group + 0.5)
        for order, line in enumerate(lines):
            yield text(x, BOTTOM + 18 + 14 * order, line)
        if group < len(bars.marks) and bars.marks[group]:
            yield text(x, below + 14, bars.marks[group], size=10)
    yield text((LEFT + RIGHT) / 2, across, bars.across)
    if bars.note:
        yield text((LEFT + RIGHT) / 2, across + LEGEND_STEP, bars.note, size=11)
    yield "</svg>"


def _folded(words: str, width: float) -> list[str]:
    lines = [""]
    for word in words.split():
        if lines[-1] and (len(lines[-1]) + len(word)) * CHARACTER > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _across(y: float, words: str) -> Iterator[str]:
    yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{INK}" stroke-opacity=".3"/>'
    yield text(LEFT - 8, y + 4, words, anchor="end")


def line_chart(chart: Chart) -> str:
    return "\n".join(_elements(chart)) + "\n"


def _elements(chart: Chart) -> Iterator[str]:
    xs = sorted({x for line in chart.lines for x, _ in line.points})
    ys = [y for line in chart.lines for _, y in line.points]
    across = Log(xs, LEFT + 20, RIGHT - 20)
    across.ticks = [x for x in xs if x in {x for x, _ in chart.lines[0].points}]
    up: Linear | Log = Linear(max(ys)) if chart.up_from_zero else Log(ys, BOTTOM, TOP)
    legend = len(chart.lines) * LEGEND_STEP
    yield head(HEIGHT + legend)
    yield text((LEFT + RIGHT) / 2, 18, chart.title, size=14)
    yield text(LEFT, TOP - 16, chart.up)
    yield text((LEFT + RIGHT) / 2, BOTTOM + 38, chart.across)
    for tick in up.ticks:
        yield from _across(height(up, tick), number(tick))
    for tick in across.ticks:
        yield text(across.at(tick), BOTTOM + 18, number(tick))
    for order, line in enumerate(chart.lines):
        colour = COLOURS[order % len(COLOURS)]
        places = [(across.at(x), height(up, y)) for x, y in line.points]
        if line.is_joined:
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        fill = colour if line.is_joined else "none"
        for x, y in [*places, (LEFT + 8, BOTTOM + 66 + order * LEGEND_STEP)]:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{fill}" stroke="{colour}"/>'
        yield text(LEFT + 20, BOTTOM + 70 + order * LEGEND_STEP, line.name, anchor="start")
    if chart.note:
        yield text((LEFT + RIGHT) / 2, BOTTOM + 54, chart.note, size=11)
    yield "</svg>"


def height(scale: Linear | Log, value: float) -> float:
    return scale.y(value) if isinstance(scale, Linear) else scale.at(value)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 and value == int(value) else f"{value:g}"


def head(height: int = HEIGHT) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">'
    )


def text(
    x: float, y: float, words: str, *, anchor: str = "middle", colour: str = INK, size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(words)}</text>'
    )
