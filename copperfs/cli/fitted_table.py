"""Fitted table: a table that fits its window, without a cell that wraps.

Where columns do not fit, long texts (paths) are elided in the middle, since both ends tell them
apart. What still does not fit is dropped from the right, or in the order of ``drop``, and named
below the table. Neither happens without a window, as in a pipe.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

GAP = 2
# A path of fewer characters tells nothing.
ELIDED_MIN = 16
COLUMNS_MIN = 2


def elided(text: str, width: int) -> str:
    """*text* in at most *width* characters; the middle is left out, and more of the end kept."""
    if len(text) <= width:
        return text
    if width <= 5:
        return text[: max(width, 0)]
    end = (width - 3) * 2 // 3
    return f"{text[: width - 3 - end]}...{text[len(text) - end :]}"


@dataclass(frozen=True, slots=True)
class ElidedLine:
    """A line that names a path."""

    text: str

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        yield Text(elided(self.text, options.max_width), no_wrap=True)


@dataclass
class FittedTable:
    columns: Sequence[str]
    right: Sequence[str] = ()
    title: str | None = None
    drop: Sequence[str] = ()
    """Columns that are dropped first, in this order."""
    rows: list[tuple[str, ...]] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)

    def add_row(self, *cells: str, style: str = "") -> None:
        more = len(self.columns) - len(cells)
        self.rows.append((*cells, *("",) * more))
        self.styles.append(style)

    def widths(self, width: int) -> dict[int, int]:
        """The width of each column that is shown, by its place."""
        natural = {
            place: max([len(name), *(len(row[place]) for row in self.rows)])
            for place, name in enumerate(self.columns)
        }
        least = {place: self._least(place, natural[place]) for place in natural}
        shown = list(natural)
        for place in self._dropped_first():
            if len(shown) <= COLUMNS_MIN or _sum(least[each] for each in shown) <= width:
                break
            shown.remove(place)
        found = {place: natural[place] for place in shown}
        while (over := _sum(found.values()) - width) > 0:
            elastic = [place for place in shown if found[place] > least[place]] or [
                place for place in shown if found[place] > 1
            ]
            if not elastic:
                break
            widest = max(elastic, key=lambda place: found[place])
            floor = least[widest] if found[widest] > least[widest] else 1
            found[widest] = max(floor, found[widest] - over)
        return found

    def _least(self, place: int, natural: int) -> int:
        """Numbers are shown whole."""
        name = self.columns[place]
        return natural if name in self.right else min(natural, max(ELIDED_MIN, len(name)))

    def _dropped_first(self) -> Iterable[int]:
        named = [self.columns.index(name) for name in self.drop if name in self.columns]
        return [*named, *(p for p in reversed(range(len(self.columns))) if p not in named)]

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table
        from rich.text import Text

        widths = self.widths(options.max_width)
        result = Table(
            title=self.title and elided(self.title, options.max_width),
            title_justify="left",
            box=None,
            pad_edge=False,
            padding=(0, GAP, 0, 0),
            collapse_padding=True,
        )
        for place, width in widths.items():
            name = self.columns[place]
            justify = "right" if name in self.right else "left"
            result.add_column(
                elided(name, width),
                justify=justify,  # type: ignore[arg-type]  # rich wants a literal
                no_wrap=True,
                width=width,
            )
        for row, style in zip(self.rows, self.styles, strict=True):
            result.add_row(
                *(Text(elided(row[place], width)) for place, width in widths.items()), style=style
            )
        yield result
        left_out = [name for place, name in enumerate(self.columns) if place not in widths]
        if left_out:
            said = f"not shown, for want of width: {', '.join(left_out)}"
            yield Text(elided(said, options.max_width), "dim", no_wrap=True)

    def __rich_measure__(self, console: "Console", options: "ConsoleOptions") -> "Measurement":
        from rich.measure import Measurement

        natural = _sum(self.widths(1 << 20).values())
        return Measurement(min(natural, options.max_width), min(natural, options.max_width))


def _sum(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + GAP * (len(found) - 1)
