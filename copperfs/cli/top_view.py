"""The frames of ``copperfs top``: rates for people."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from copperfs.cli.fitted_table import FittedTable
from copperfs.cli.output import names_of, printable, table
from copperfs.cli.tree import takeovers_text
from copperfs.config.settings import bytes_text

BAR = 16
NODES_MAX = 40
_TAKEN_OVER = "taken over"
_ANSWERS = ("hit", "fetch", "miss", "bypass")


def frame(view: Any, *, title: str, hint: str = "", nodes_max: int = NODES_MAX) -> RenderableType:
    """More nodes than *nodes_max* are counted."""
    body = _job(view, nodes_max) if "by_node" in view else _node(view)
    head = Text.assemble((printable(title), "bold"), f"  {hint}")
    return Group(head, *body)


# ---- one node ------------------------------------------------------------------------------------


def _node(view: Any) -> Iterator[RenderableType]:
    yield Columns(
        [
            Panel(_operations(view), title="requests per second", title_align="left"),
            Panel(
                Group(_levels(view), Text(), _memory(view), Text(), _source(view)),
                title="where it comes from",
                title_align="left",
            ),
        ]
    )
    members, pool = view["members"], view["pool"]
    words = Text(
        f"pending {view['pending']}   source threads {pool['busy']} busy of {pool['threads']}, "
        f"{pool['queued']} queued, {pool['stuck']} stuck   "
        f"resident {bytes_text(view['resident_bytes'])}"
    )
    if members["gone"] or members["suspects"]:
        words.append(f"   nodes gone {members['gone']}, suspected {members['suspects']}", "yellow")
    if view["takeovers"]["count"]:
        last = view["takeovers"]["latest"][-1]
        words.append(f"   {takeovers_text(view['takeovers'] | last)}", "yellow")
    yield words


def _operations(view: Any) -> FittedTable:
    rows = []
    for kind, answers in view["operations"].items():
        counted = [each for each in answers.values() if "p50_us" in each]
        if counted:
            rows.append(
                (
                    kind,
                    *(_rate(answers[answer]["per_s"]) for answer in _ANSWERS),
                    f"{max(each['p50_us'] for each in counted):,.0f}",
                    f"{max(each['p99_us'] for each in counted):,.0f}",
                )
            )
    columns = ("operation", "hit", "fetch", "miss", "bypass", "p50 us", "p99 us")
    return table(columns, rows, right=columns[1:])


def _levels(view: Any) -> Table:
    """The share of requests that each level answers."""
    levels = view["levels"]
    grid = Table.grid(padding=(0, 1))
    for name, value in (
        ("from memory", levels["memory"]),
        ("else from parents", levels["parents"]),
        ("else from the source", levels["source"]),
    ):
        grid.add_row(name, _bar(value), "-" if value is None else f"{value:.1%}")
    return grid


def _memory(view: Any) -> Table:
    memory = view["memory"]
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        "memory held       ",
        _bar(memory["held_bytes"] / memory["budget_bytes"] if memory["budget_bytes"] else None),
        f"{memory['held_bytes'] / memory['budget_bytes']:.1%}" if memory["budget_bytes"] else "-",
    )
    return grid


def _source(view: Any) -> Table:
    passed, source = view["bytes"], view["source"]
    grid = Table.grid(padding=(0, 1))
    rows = [
        ("from memory", bytes_text(passed["from_memory_per_s"]) + "/s"),
        ("from parents", bytes_text(passed["from_parents_per_s"]) + "/s"),
        ("to children", bytes_text(passed["to_children_per_s"]) + "/s"),
        (
            "from the source",
            f"{bytes_text(source['read_bytes_per_s'] + passed['from_source_files_per_s'])}/s",
        ),
        (
            "open/s stat/s list/s",
            f"{_rate(source['open_per_s'])}  {_rate(source['stat_per_s'])}  "
            f"{_rate(source['scandir_per_s'])}",
        ),
        (
            "memory held",
            f"{bytes_text(view['memory']['held_bytes'])} of "
            f"{bytes_text(view['memory']['budget_bytes'])}",
        ),
        ("evicted", f"{_rate(view['evictions_per_s'])}/s"),
    ]
    for row in rows:
        grid.add_row(*row)
    return grid


# ---- all nodes -----------------------------------------------------------------------------------


def _job(view: Any, nodes_max: int) -> Iterator[RenderableType]:
    text = Text(f"{view['nodes']} of {view['roster']} nodes answered")
    if view["missing"]:
        names = [{"name": name} for name in view["missing"]]
        text.append(f"; missing: {names_of(names)}", "bold red")
    yield text
    total = view["total"]
    if total:
        yield Columns(
            [
                Panel(
                    Group(_levels(total), Text(), _memory(total)),
                    title=f"all nodes: {_rate(total['requests_per_s'])} requests/s",
                    title_align="left",
                ),
                Panel(_source(total), title="bytes", title_align="left"),
            ]
        )
    yield Panel.fit(_tree(view["by_node"], nodes_max), title="tree", title_align="left")


def _tree(nodes: Sequence[Any], nodes_max: int) -> FittedTable:
    below: dict[int | None, list[Any]] = {}
    for node in nodes:
        if not node["gone"]:
            below.setdefault(node["parent"], []).append(node)
    columns = ("node", "requests/s", "from source", "from parents", "to children", "held", "state")
    ordered = list(_in_order(below, None))
    # A remarkable node is shown in any case.
    shown = [
        node
        for number, node in enumerate(ordered)
        if number < nodes_max
        or node["suspect"]
        or node["hot"]
        or node["takeovers"]
        or not node["answered"]
    ]
    rows = [(_indented(node), *_node_cells(node)) for node in shown]
    rows += [(node["name"], *("",) * 5, "gone") for node in nodes if node["gone"]]
    if len(shown) < len(ordered):
        rows.append((f"and {len(ordered) - len(shown):,} more", *("",) * 6))
    dropped = ("to children", "from parents", "held")
    result = table(columns, [], right=columns[1:-1], drop=dropped)
    for row in rows:
        if row[-1] in ("missing", "gone"):
            style = "red"
        else:
            style = "yellow" if row[-1] not in ("", _TAKEN_OVER) else ""
        result.add_row(*map(printable, row), style=style)
    return result


def _in_order(below: dict[int | None, list[Any]], top: int | None) -> Iterator[Any]:
    waiting = list(reversed(below.get(top, [])))
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(below.get(node["number"], []))


def _indented(node: Any) -> str:
    return f"{'  ' * (node['depth'] or 0)}{node['name']}"


def _node_cells(node: Any) -> tuple[str, ...]:
    state = ", ".join(
        word
        for word, holds in (
            ("missing", not node["answered"]),
            ("suspect", node["suspect"]),
            ("hot", node["hot"]),
            (_TAKEN_OVER, node["takeovers"]),
        )
        if holds
    )
    rates = node["rates"]
    if rates is None:
        return (*("-",) * 5, state)
    passed, memory = rates["bytes"], rates["memory"]
    return (
        _rate(rates["requests_per_s"]),
        bytes_text(rates["source"]["read_bytes_per_s"] + passed["from_source_files_per_s"]) + "/s",
        bytes_text(passed["from_parents_per_s"]) + "/s",
        bytes_text(passed["to_children_per_s"]) + "/s",
        f"{memory['held_bytes'] / memory['budget_bytes']:.0%}" if memory["budget_bytes"] else "-",
        state,
    )


# ---- cells ---------------------------------------------------------------------------------------


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def _bar(value: float | None) -> Text:
    full = round(min(value or 0, 1) * BAR)
    return Text.assemble(("█" * full, "green"), ("░" * (BAR - full), "dim"))
