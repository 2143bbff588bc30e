"""Fitted tables: what is elided, dropped and kept where a window is narrow."""

import pytest
from rich.console import Console

from copperfs.cli.fitted_table import FittedTable, elided

PATH = "/lus/projects/me/environments/lib/python3.11/site-packages/numpy"


def printed(table: FittedTable, columns: int) -> list[str]:
    console = Console(width=columns, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", range(1, 70))
def test_a_text_is_elided_in_the_middle(width: int) -> None:
    short = elided(PATH, width)
    assert len(short) == min(width, len(PATH))
    if 12 <= width < len(PATH):
        head, tail = short.split("...")
        assert PATH.startswith(head)
        assert PATH.endswith(tail)
        assert len(tail) >= len(head)


def test_numbers_are_whole_and_paths_are_elided() -> None:
    table = FittedTable(("path", "bytes"), right=("bytes",))
    table.add_row(PATH, "1,234,567,890")
    assert printed(table, 80)[1] == f"{PATH}  1,234,567,890"
    row = printed(table, 40)[1]
    assert len(row) == 40
    assert row.startswith("/lus")
    assert row.endswith("/numpy  1,234,567,890")


def test_columns_are_dropped_in_their_order_and_named() -> None:
    table = FittedTable(("mount", "state", "source", "log"), drop=("log", "source"))
    table.add_row("/tmp/mnt", "ok", PATH, PATH)
    assert [line.split() for line in printed(table, 60)[:1]] == [
        ["mount", "state", "source", "log"]
    ]
    lines = printed(table, 34)
    assert lines[0].split() == ["mount", "state", "source"]
    assert lines[-1] == "not shown, for want of width: log"
    lines = printed(table, 20)
    assert lines[0].split() == ["mount", "state"]
    assert "source" in lines[-1] or "..." in lines[-1]


def test_nothing_is_elided_where_there_is_room() -> None:
    table = FittedTable(("path",))
    table.add_row(PATH)
    assert printed(table, 4096) == ["path", PATH]
