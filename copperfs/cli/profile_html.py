"""HTML report of ``copperfs profile``: one file, nothing from the network.

Charts are SVG, 360 units wide: readable on a telephone, several beside each other on wider pages.
The only script sorts tables.
"""

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from copperfs.cli.output import printable
from copperfs.config.settings import bytes_text

WIDTH = 360
BARS_MAX = 10
ROW = 26
ANSWER_COLOURS = {"hit": "a", "fetch": "b", "miss": "c", "bypass": "d"}
ANSWER_WORDS = {
    "hit": "from memory",
    "fetch": "waited for the source or a parent",
    "miss": "went through Python",
    "bypass": "past the cache",
}


def render(report: Any) -> str:
    totals = report["totals"]
    command = " ".join(report["command"] or ["(attached)"])
    facts = [
        ("requests", f"{totals['requests']:,}"),
        ("waited together", f"{totals['wait_us'] / 1000:,.1f} ms"),
        ("files read", f"{totals['files_read']:,}"),
        ("bytes read", bytes_text(totals["bytes"])),
        ("failed lookups", f"{totals['in_vain']:,} of {totals['lookups']:,}"),
        ("seconds", f"{report['seconds']:.2f}"),
    ]
    parts = [
        f"<h1>Profile of {_text(report['mountpoint'])}</h1><p><code>{_text(command)}</code></p>",
        "<dl>",
        *(f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>" for name, value in facts),
        "</dl>",
        '<div class="charts">',
        *_charts(report),
        "</div>",
        *_tables(report),
    ]
    if report["lost"]:
        parts.append(f"<p>{report['lost']:,} requests came too fast to be recorded.</p>")
    return _PAGE.replace("@TITLE@", _text(command)).replace("@BODY@", "\n".join(parts))


def _text(value: object) -> str:
    return html.escape(printable(str(value)))


# ---- charts --------------------------------------------------------------------------------------


def _charts(report: Any) -> Iterable[str]:
    directories = report["directories"]
    yield _bars(
        "Waiting by directory (ms)",
        [(_short(each["path"]), each["wait_us"] / 1000) for each in directories[:BARS_MAX]],
    )
    yield _stacked(report["requests"])
    yield _timeline(report["timeline"])
    shares = [(each["path"], each["used_bytes"], each["bytes"]) for each in report["wholes"]] or [
        (_short(each["path"]), each["used_bytes"], each["file_bytes"])
        for each in directories
        if each["file_bytes"]
    ]
    yield _shares(shares[:BARS_MAX])


def _figure(title: str, height: int, content: str, legend: str = "") -> str:
    return (
        f'<figure><figcaption>{_text(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{_text(title)}">{content}</svg>{legend}</figure>'
    )


def _rows(
    title: str, rows: Sequence[tuple[str, str, str]], legend: str = "", empty: str = "nothing"
) -> str:
    """Each row: its label, its bars, and the text to their right."""
    if not rows:
        return _figure(title, ROW, f'<text x="0" y="16">{empty}</text>')
    content = "".join(
        f'<g transform="translate(0 {number * (ROW + 8)})"><text x="0" y="11">{_text(label)}</text>'
        f'<text x="{WIDTH}" y="11" class="end">{_text(value)}</text>{bars}</g>'
        for number, (label, bars, value) in enumerate(rows)
    )
    return _figure(title, len(rows) * (ROW + 8), content, legend)


def _bar(start: float, width: float, style: str, title: str = "") -> str:
    tip = f"<title>{_text(title)}</title>" if title else ""
    return (
        f'<rect x="{start:.1f}" y="16" width="{max(width, 0.5):.1f}" height="9" '
        f'class="{style}">{tip}</rect>'
    )


def _bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    most = max((value for _, value in values), default=0) or 1
    return _rows(
        title,
        [(name, _bar(0, WIDTH * value / most, "a"), f"{value:,.1f}") for name, value in values],
    )


def _stacked(requests: Any) -> str:
    most = max((sum(each.values()) for each in requests.values()), default=0) or 1
    rows = []
    for kind, answers in requests.items():
        bars, at = "", 0.0
        for answer, count in answers.items():
            if count:
                width = WIDTH * count / most
                words = f"{count:,} {ANSWER_WORDS[answer]}"
                bars += _bar(at, width, ANSWER_COLOURS[answer], words)
                at += width
        rows.append((kind, bars, f"{sum(answers.values()):,}"))
    legend = "".join(
        f'<span><i class="{ANSWER_COLOURS[answer]}"></i>{words}</span>'
        for answer, words in ANSWER_WORDS.items()
    )
    return _rows("Requests by kind", rows, f'<p class="legend">{legend}</p>')


def _timeline(timeline: Any) -> str:
    bins, bin_s, height = timeline["bins"] or [[0, 0]], timeline["bin_s"], 150
    most = max(count for count, _ in bins) or 1
    step = WIDTH / len(bins)
    content = "".join(
        f'<rect x="{number * step:.2f}" y="{10 + height * (1 - count / most):.1f}" '
        f'width="{max(step * 0.9, 0.5):.2f}" height="{height * count / most:.1f}" class="a">'
        f"<title>{number * bin_s:.2f} s: {count:,} requests, {wait_us / 1000:,.1f} ms</title>"
        "</rect>"
        for number, (count, wait_us) in enumerate(bins)
        if count
    )
    end = len(bins) * bin_s
    content += (
        f'<line x1="0" x2="{WIDTH}" y1="{height + 10}" y2="{height + 10}"/>'
        f'<text x="0" y="{height + 26}">0</text>'
        f'<text x="{WIDTH}" y="{height + 26}" class="end">{end:.2f} s</text>'
        f'<text x="{WIDTH}" y="10" class="end">{most:,}</text>'
    )
    return _figure(f"Requests over time (by {bin_s:g} s)", height + 32, content)


def _shares(shares: Sequence[tuple[str, int, int]]) -> str:
    rows = []
    for name, used, there in shares:
        share = min(used / there, 1) if there else 0
        bars = _bar(0, WIDTH, "rest") + (_bar(0, WIDTH * share, "a") if share else "")
        rows.append((name, bars, f"{share:.0%} of {bytes_text(there)}"))
    return _rows("How much of the bytes there is read", rows, empty="no listing was held")


def _short(path: str) -> str:
    path = "/" + path
    while len(path) > 34 and path.count("/") > 1:
        path = "…/" + path.split("/", 2)[2]
        if not path.removeprefix("…/").count("/"):
            break
    return path if len(path) <= 36 else path[:35] + "…"


# ---- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    key: str
    show: Callable[[Any], str] | None = None
    """None: it is text, and sorted as such."""


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _ms(value: int) -> str:
    return f"{value / 1000:,.2f}"


_DIRECTORIES = (
    _Column("directory", "path"),
    _Column("waited ms", "wait_us", _ms),
    _Column("requests", "requests", _count),
    _Column("lookups", "lookups", _count),
    _Column("failed", "in_vain", _count),
    _Column("read", "bytes", bytes_text),
    _Column("files there", "files", _count),
    _Column("used", "used_files", _count),
)
_PATHS = (
    _Column("path", "path"),
    _Column("type", "type"),
    _Column("waited ms", "wait_us", _ms),
    _Column("longest ms", "max_us", _ms),
    _Column("lookups", "lookups", _count),
    _Column("reads", "reads", _count),
    _Column("read", "bytes", bytes_text),
)
_VAIN = (
    _Column("name", "name"),
    _Column("lookups", "lookups", _count),
    _Column("directories", "directories", _count),
    _Column("waited ms", "wait_us", _ms),
    _Column("for example in", "for_example"),
)
_WHOLES = (
    _Column("all below", "path"),
    _Column("files", "files", _count),
    _Column("used", "used_files", _count),
    _Column("bytes", "bytes", bytes_text),
    _Column("used bytes", "used_bytes", bytes_text),
)


def _tables(report: Any) -> Iterable[str]:
    if report["wholes"]:
        yield _table("share", "Share that is used", _WHOLES, report["wholes"])
    yield _table("directories", "Directories", _DIRECTORIES, report["directories"])
    yield _table("in-vain", "Failed lookups (ENOENT)", _VAIN, report["in_vain"])
    yield _table("paths", "Paths", _PATHS, report["paths"])


def _table(name: str, title: str, columns: Sequence[_Column], rows: Sequence[Any]) -> str:
    head = "".join(
        f'<th scope="col"{" class=n" if column.show else ""}><button type="button">{column.name}'
        "</button></th>"
        for column in columns
    )
    body = "".join(
        f"<tr>{''.join(_cell(column, row[column.key]) for column in columns)}</tr>" for row in rows
    )
    return (
        f'<section><h2>{title}</h2><div class="wide"><table id="{name}"><thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div></section>"
    )


def _cell(column: _Column, value: Any) -> str:
    if column.show is None:
        text = "/" + value.lstrip("/") if column.key in ("path", "for_example") else value
        return f"<td>{_text(text)}</td>"
    return (
        f'<td class="n" data-v="{-1 if value is None else value}">{_text(column.show(value))}</td>'
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>copperfs profile: @TITLE@</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --a: #b4622d; --b: #3b7ea1; --c: #c9a227; --d: #7a6fa8;
  --line: #8885; --back: #fff; --ink: #222 }
@media (prefers-color-scheme: dark) { :root { --back: #16181b; --ink: #ddd; --a: #d98652;
  --b: #6fb0d2; --c: #dbbb55; --d: #a79bd6 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 1400px; font: 15px/1.45 system-ui, sans-serif;
  color: var(--ink); background: var(--back); overflow-wrap: anywhere }
h1 { font-size: 1.4rem; margin: 0 } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem }
dl div { border-top: 2px solid var(--a); padding-top: .2rem } dt { opacity: .75 }
dd { margin: 0; font-size: 1.15rem; font-weight: 600 }
.charts { column-width: 330px; column-gap: 1.5rem }
figure { margin: 0 0 1.5rem; max-width: 560px; break-inside: avoid }
figcaption { font-weight: 600; margin-bottom: .4rem }
svg { width: 100%; height: auto; display: block } svg text { font-size: 12px; fill: var(--ink) }
svg .end { text-anchor: end } svg line { stroke: var(--ink); stroke-width: 1 }
.a { fill: var(--a); background: var(--a) } .b { fill: var(--b); background: var(--b) }
.c { fill: var(--c); background: var(--c) } .d { fill: var(--d); background: var(--d) }
.rest { fill: var(--line) }
.legend { font-size: .85rem; margin: .3rem 0 }
.legend span { margin-right: 1em; white-space: nowrap }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .3em }
.wide { overflow-x: auto; max-height: 70vh; overflow-y: auto }
table { border-collapse: collapse; width: 100% }
td, th { padding: .15rem .6rem .15rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line) }
td:first-child { min-width: 11rem } th { position: sticky; top: 0; background: var(--back) }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0;
  padding: 0;
  cursor: pointer; white-space: nowrap }
th[aria-sort=ascending] button::after { content: " ▲" }
th[aria-sort=descending] button::after { content: " ▼" }
</style></head><body>
@BODY@
<script>
"use strict";
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const th = button.parentElement, table = th.closest("table"), body = table.tBodies[0];
    const column = th.cellIndex, down = th.getAttribute("aria-sort") !== "descending";
    const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
    const rows = [...body.rows], numbers = rows.length > 0 && "v" in rows[0].cells[column].dataset;
    rows.sort((a, b) => numbers ? value(a) - value(b) : value(a).localeCompare(value(b)));
    if (down) rows.reverse();
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
</script></body></html>
"""
