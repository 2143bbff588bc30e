"""Man page generator, ``python -m copperfs.lab.manual.man man``; a test compares ``man/``, which
the package ships."""

import re
import sys
from pathlib import Path

from copperfs import __version__
from copperfs.cli.main import build_parser
from copperfs.cli.options import FILE_DEFAULT, FILE_VARIABLE
from copperfs.cli.parser_outline import Argument, Page, pages
from copperfs.lab.manual.page_texts import paragraphs, usage


def render_all() -> dict[str, str]:
    """Each page by its file name."""
    parser = build_parser()
    found = list(pages(parser))
    files = {f"{_title(page)}.1": _page(page) for page in found}
    return {"copperfs.1": _overview(parser.description or "", found), **files}


def _title(page: Page) -> str:
    return f"copperfs-{page.name.replace(' ', '-')}"


def _head(title: str, summary: str) -> list[str]:
    summary = summary[:1].lower() + summary[1:]
    return [
        f'.TH "{title.upper()}" "1" "" "copperfs {__version__}" "copperfs"',
        *(".SH NAME", f"{_roff(title)} \\- {_roff(summary)}"),
    ]


def _overview(description: str, found: list[Page]) -> str:
    lines = [
        *_head("copperfs", description.rstrip(".")),
        *(".SH SYNOPSIS", ".B copperfs", "COMMAND [ARGUMENTS]"),
        *(".SH DESCRIPTION", "Each command has a page of its own and", ".B \\-\\-help ."),
    ]
    for page in found:
        lines += [".TP", f".BR {_roff(_title(page))} (1)", _roff(page.summary) + "."]
    lines += [
        *(".SH FILES", f".I {_roff(FILE_DEFAULT)}", "settings, unless"),
        *(f".B ${FILE_VARIABLE}", "or", ".B \\-\\-config", "names another file"),
    ]
    return "\n".join(lines) + "\n"


def _page(page: Page) -> str:
    text, codes = paragraphs(page)
    lines = [
        *_head(_title(page), page.summary),
        *(".SH SYNOPSIS", _roff(usage(page))),
        *(".SH DESCRIPTION", _roff(page.summary) + "."),
        *([".PP", *_paragraph(text)] if text else []),
    ]
    for positional in (each for each in page.arguments if not each.flags):
        lines += _item(positional)
    group = None
    for each in (each for each in page.arguments if each.flags):
        if each.group != group:
            group = each.group
            lines.append(f'.SH "{_roff(group.upper())}"' if group else ".SH OPTIONS")
        lines += _item(each)
    if codes:
        lines += [".SH EXIT STATUS", *_paragraph(codes)]
    lines += [".SH SEE ALSO", ".BR copperfs (1)"]
    return "\n".join(lines) + "\n"


def _item(argument: Argument) -> list[str]:
    value = f" \\fI{_roff(argument.metavar)}\\fR" if argument.metavar else ""
    if argument.flags:
        term = ", ".join(f"\\fB{_roff(flag)}\\fR" for flag in argument.flags) + value
    else:
        term = value.strip()
    return [".TP", term, _roff(argument.help[:1].upper() + argument.help[1:]) or "\\&"]


def _paragraph(text: str) -> list[str]:
    return [_roff(" ".join(text.split()))]


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def main() -> int:
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    wanted = render_all()
    for stale in set(directory.glob("*.1")) - {directory / name for name in wanted}:
        stale.unlink()
    for name, text in wanted.items():
        (directory / name).write_text(text, encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
