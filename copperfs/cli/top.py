"""``copperfs top``: shows what a mount, or all nodes of its job, do now."""

import argparse
import io
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, SegmentLines
from rich.text import Text

from copperfs.cli.output import console, print_json, write_file
from copperfs.cli.top_rates import of_job, of_node
from copperfs.cli.top_view import frame
from copperfs.cli.which_mount import add_mount_argument, which_mount
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError

NAME = "top"
HELP = "show what a mount, or all nodes of its job, do now"
EPILOG = """\
keys: a all nodes or this one; j, k, arrows, space, b, g, G scroll; q end. Without a terminal it
prints one frame.

exit codes: 0, also when the mount is unmounted meanwhile; 5 if it cannot be asked; 2 wrong
usage.
"""
# A request for the tree pings parents, and places rarely change.
TREE_EVERY_S = 5.0
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 3600.0
SVG_COLUMNS = 118
# A terminal can scroll.
NODES_LIVE_MAX = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_mount_argument(parser, "the mount to watch", dest="path")
    parser.add_argument("--all", action="store_true", help="all nodes of the job, as a tree")
    parser.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="between two frames (%(default)s)",
    )
    parser.add_argument("--count", type=_count, metavar="N", help="end after so many frames")
    parser.add_argument("--json", action="store_true", help="print JSON, a document for each frame")
    parser.add_argument("--svg", metavar="FILE", help="write one frame as a picture")


def _interval(text: str) -> float:
    value = float(text)
    if not INTERVAL_MIN_S <= value <= INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(f"{text} is not from {INTERVAL_MIN_S} to 3600 seconds")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no number of frames")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    look = _Look(which_mount(arguments.path), all_nodes=arguments.all)
    if arguments.svg is not None:
        time.sleep(arguments.interval)
        _write_svg(arguments.svg, frame(look.again(), title=look.title))
        return 0
    live = not arguments.json and sys.stdout.isatty()
    frames = arguments.count or (None if live or (arguments.json and sys.stdout.isatty()) else 1)
    try:
        if live:
            _watch(look, arguments.interval, frames)
        else:
            _print(look, arguments.interval, frames, as_json=arguments.json)
    except _UnmountedError:
        pass
    return 0


class _UnmountedError(Exception):
    """The mount went away while ``top`` polled it."""


class _Look:
    """Polls the mount, and keeps the latest documents."""

    def __init__(self, path: str, *, all_nodes: bool) -> None:
        self.path = path
        self.all_nodes = all_nodes
        self._tree: Any = None
        self._tree_at = 0.0
        self._begin()

    @property
    def title(self) -> str:
        return f"copperfs top {self.path}, {'all nodes' if self.all_nodes else 'this node'}"

    def toggle(self) -> None:
        self.all_nodes = not self.all_nodes
        self._begin()

    def _begin(self) -> None:
        self._before = self._ask()
        self._at = time.monotonic()

    def again(self) -> dict[str, Any]:
        try:
            now = self._ask()
            at = time.monotonic()
            tree = self._ask_tree() if self.all_nodes else None
        except ControlError:
            raise _UnmountedError from None
        seconds = max(at - self._at, 0.001)
        before, self._before, self._at = self._before, now, at
        if self.all_nodes:
            return of_job(now, before, seconds, tree)
        return of_node(now, before, seconds)

    def _ask(self) -> Any:
        request = IoctlRequest.ALL_STATISTICS if self.all_nodes else IoctlRequest.STATISTICS
        return ask_mount(self.path, request)

    def _ask_tree(self) -> Any:
        if self._tree is None or time.monotonic() - self._tree_at > TREE_EVERY_S:
            self._tree = ask_mount(self.path, IoctlRequest.TREE)
            self._tree_at = time.monotonic()
        return self._tree


def _print(look: _Look, interval_s: float, frames: int | None, *, as_json: bool) -> None:
    shown = 0
    while frames is None or shown < frames:
        time.sleep(interval_s)
        view = look.again()
        if as_json:
            print_json(view)
            sys.stdout.flush()
        else:
            console().print(frame(view, title=look.title))
        shown += 1


def _watch(look: _Look, interval_s: float, frames: int | None) -> None:
    hint = "a: all or this node, q: end"
    shown = 0
    window = ScrolledWindow(console())
    with _keys() as pressed, Live(console=window.console, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + interval_s
        while frames is None or shown < frames:
            key = pressed(max(due - time.monotonic(), 0))
            if key == "q":
                return
            if key == "a":
                look.toggle()
                window.scroll("g")
                continue
            if key and window.scroll(key):
                live.update(window.shown(), refresh=True)
            if time.monotonic() < due:
                continue
            due = time.monotonic() + interval_s
            view = look.again()
            window.lines_of(frame(view, title=look.title, hint=hint, nodes_max=NODES_LIVE_MAX))
            live.update(window.shown(), refresh=True)
            shown += 1


class ScrolledWindow:
    """The part of a frame that fits the terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._lines: list[list[Segment]] = []
        self._top = 0

    def lines_of(self, frame: RenderableType) -> None:
        self._lines = self.console.render_lines(frame, pad=False)

    def scroll(self, key: str) -> bool:
        """Whether the key is one for scrolling."""
        page = max(self._rows() - 1, 1)
        by = {"j": 1, "k": -1, "\x1b[B": 1, "\x1b[A": -1, " ": page, "b": -page}
        by |= {"\x1b[6~": page, "\x1b[5~": -page, "g": -len(self._lines), "G": len(self._lines)}
        if key not in by:
            return False
        self._top = max(min(self._top + by[key], len(self._lines) - self._rows()), 0)
        return True

    def _rows(self) -> int:
        """Of the terminal, without the line below a frame that does not fit."""
        height = self.console.size.height
        return height if len(self._lines) <= height else max(height - 1, 1)

    def shown(self) -> RenderableType:
        rows = self._rows()
        self._top = max(min(self._top, len(self._lines) - rows), 0)
        part = self._lines[self._top : self._top + rows]
        if len(part) == len(self._lines):
            return SegmentLines(part, new_lines=True)
        where = (
            f"lines {self._top + 1} to {self._top + len(part)} of {len(self._lines)}; j, k: scroll"
        )
        below = Text(where, "dim", no_wrap=True, overflow="ellipsis", end="")
        return Group(SegmentLines(part, new_lines=True), below)


@contextmanager
def _keys() -> Iterator[Any]:
    """Yields a function that waits for a key, if there is a keyboard."""
    if not sys.stdin.isatty():

        def nobody(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield nobody
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([fd], [], [], seconds)
        # An arrow is three characters.
        return os.read(fd, 8).decode("ascii", "replace") if ready else ""

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _write_svg(path: str, shown: Any) -> None:
    recorder = Console(
        record=True, width=SVG_COLUMNS, file=io.StringIO(), highlight=False, emoji=False
    )
    recorder.print(shown)
    # A browser would fetch its fonts from the network.
    picture = re.sub(
        r"@font-face \{.*?\}", "", recorder.export_svg(title="copperfs top"), flags=re.DOTALL
    )
    write_file(path, picture)
