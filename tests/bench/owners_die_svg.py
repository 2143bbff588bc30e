"""What `owners-die` measured as a picture: each epoch's time, beside FT-Cache's Figure 6(a)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from copperfs.sim.svg import BOTTOM, COLOURS, HEIGHT, INK, LEFT, RIGHT, TOP, Linear, head, text

LEGEND_STEP = 17


def picture(walls: Mapping[str, Sequence[Sequence[float]]], about: str) -> str:
    """Bars for the epochs (the medians of what was measured of each), a colour for each way."""
    return "\n".join(_elements(walls, about)) + "\n"


def _elements(walls: Mapping[str, Sequence[Sequence[float]]], about: str) -> Iterator[str]:
    times = {name: [median(each) for each in epochs] for name, epochs in walls.items()}
    up = Linear(max(max(each) for each in times.values()))
    count = len(next(iter(times.values())))
    slot = (RIGHT - LEFT) / count
    bar = slot * 0.8 / len(times)
    yield head(HEIGHT + LEGEND_STEP * len(times))
    yield text((LEFT + RIGHT) / 2, 18, f"Owners that die, epoch by epoch ({about})", size=14)
    yield text(LEFT, TOP - 16, "seconds")
    for tick in up.ticks:
        y = up.y(tick)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{INK}" stroke-opacity=".3"/>'
        yield text(LEFT - 8, y + 4, f"{tick:g}", anchor="end")
    for order, (name, each) in enumerate(times.items()):
        colour = COLOURS[order % len(COLOURS)]
        for epoch, value in enumerate(each):
            x, y = LEFT + slot * (epoch + 0.1) + bar * order, up.y(value)
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{BOTTOM - y:.1f}" '
                f'fill="{colour}" fill-opacity=".8"/>'
            )
        y = BOTTOM + 66 + order * LEGEND_STEP
        yield f'<rect x="{LEFT}" y="{y - 5}" width="10" height="10" fill="{colour}"/>'
        yield text(LEFT + 20, y + 4, name, anchor="start")
    for epoch in range(count):
        x = LEFT + slot * (epoch + 0.5)
        yield text(x, BOTTOM + 18, f"{epoch + 1}")
        if epoch % 2:
            yield text(x, BOTTOM + 32, "killed", size=10)
    yield text((LEFT + RIGHT) / 2, BOTTOM + 50, "epoch; in those so marked a node is killed")
    yield "</svg>"
