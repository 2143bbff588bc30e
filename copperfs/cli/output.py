"""Output of commands: tables for people, JSON for programs, one sentence for an error.

Rich shows colour only on terminals without ``NO_COLOR``. Markup and emoji are off, since paths may
contain brackets and colons, and text is made printable, since names need not be UTF-8. Commands
that print JSON or nothing do not load rich, and start sooner.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any

from copperfs.cli.fitted_table import FittedTable
from copperfs.model.errors import CopperError, IncompleteError, OutputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TextColumn
    from rich.text import Text

    from copperfs.fuse.ioctl import IoctlRequest

# The wait after which a user looks for a sign of life.
WONDERING_AFTER_S = 0.5
# Without a terminal rich assumes 80 columns and would break lines.
WIDTH_WITHOUT_TERMINAL = 4096
# Of documents that have none of their own.
DOCUMENT_VERSION = 1
# The most nodes that a sentence names; more are counted.
NAMES_MAX = 16


def console() -> "Console":
    """A new console each time, so that a replaced ``sys.stdout`` gets the output."""
    from rich.console import Console

    unbounded = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(
        width=WIDTH_WITHOUT_TERMINAL if unbounded else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def printable(text: str) -> str:
    """Unprintable characters, such as undecodable bytes, become escapes."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    right: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> FittedTable:
    """Columns named in ``right`` are aligned right; where there is no room, those in ``drop`` are
    left out first."""
    result = FittedTable(columns, right, title, drop)
    for row in rows:
        result.add_row(*map(printable, row))
    return result


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    console().print(table(columns, rows, right=right))


def transfer_progress(console: "Console", *columns: "TextColumn", shown: bool) -> "Progress":
    """*columns* stand behind the bar."""
    from rich import progress

    return progress.Progress(
        *(progress.TextColumn("{task.description}"), progress.BarColumn(), *columns),
        *(progress.DownloadColumn(), progress.TransferSpeedColumn()),
        console=console,
        transient=True,
        disable=not shown or not console.file.isatty(),
    )


def names_of(members: Sequence[Any]) -> str:
    names = [printable(each["name"]) for each in members[:NAMES_MAX]]
    more = len(members) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def answered_text(document: Any) -> "Text":
    from rich.text import Text

    text = Text(f"{document['nodes']} of {document['roster']} nodes answered")
    if document["missing"]:
        text.append(f"; missing: {missing_names(document['missing'])}", "bold red")
    return text


def refuse_missing(document: Any, what: str) -> None:
    """Raise IncompleteError if some nodes did not do *what*."""
    if missing := document.get("missing"):
        raise IncompleteError(
            f"{len(missing)} of {document['roster']} nodes did not {what}: {missing_names(missing)}"
        )


def missing_names(missing: Sequence[Any]) -> str:
    """The silent nodes, and separately those that they cut off."""
    silent = [each for each in missing if each["behind"] is None]
    behind = [each for each in missing if each["behind"] is not None]
    text = names_of(silent)
    return f"{text}, and not reached behind them {names_of(behind)}" if behind else text


def print_json(data: object) -> None:
    """Undecodable bytes become escaped surrogates. Each document says the version of its keys; a
    list has no place for it."""
    if isinstance(data, dict):
        data = {"version": DOCUMENT_VERSION, **data}
    print(json.dumps(data, indent=2))


def print_document(document: Any, shown: Callable[[Any], object], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        # A sentence is broken by the terminal, if at all: rich would break paths in it.
        what = shown(document)
        console().print(what, soft_wrap=isinstance(what, str))


def write_file(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show progress on standard error, on a terminal and after a moment; yields a function that
    changes the text. Callers must not print to standard output meanwhile: rich would print it to
    standard error."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    on_stderr = Console(stderr=True, markup=False, highlight=False, emoji=False)
    status = on_stderr.status(Text(printable(text)))
    shown = Timer(WONDERING_AFTER_S, status.start)
    shown.daemon = True
    shown.start()
    try:
        yield lambda text: status.update(Text(printable(text)))
    finally:
        shown.cancel()
        shown.join()
        status.stop()


def ask(path: str, request: "IoctlRequest", argument: bytes = b"") -> Any:
    """``ask_mount``, with a sign of progress."""
    from copperfs.fuse.ioctl import ask_mount

    with waiting(f"asking {path}"):
        return ask_mount(path, request, argument)


def print_error(sentence: str) -> None:
    print(f"copperfs: {printable(sentence)}", file=sys.stderr)


def print_json_error(error: CopperError) -> None:
    """On standard error, so that standard output has nothing but the document."""
    kind = type(error).__name__.removesuffix("Error").lower()
    told = {"kind": kind, "exit_code": error.exit_code, "message": printable(str(error))}
    print(json.dumps({"version": 1, "error": told}), file=sys.stderr)


def sentence_of(errors: str) -> str:
    """The error that a command printed on standard error, with or without ``--json``."""
    last = errors.strip().rpartition("\n")[2]
    try:
        return str(json.loads(last)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return last.removeprefix("copperfs: ")


def print_warning(sentence: str) -> None:
    print(f"copperfs: warning: {printable(sentence)}", file=sys.stderr, flush=True)


def print_progress(sentence: str) -> None:
    """Standard output has only the requested data."""
    print(f"copperfs: {printable(sentence)}", file=sys.stderr, flush=True)
