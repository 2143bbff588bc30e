"""Generator of the documents made from the program's own texts; tests compare them.

python -m copperfs.lab.manual.markdown > docs/options.md
python -m copperfs.lab.manual.markdown commands > docs/commands.md
"""

import sys

from copperfs.cli.command_tree import Argument, Page, pages
from copperfs.cli.main import build_parser
from copperfs.cli.options import FILE_DEFAULT, FILE_VARIABLE, default_text
from copperfs.config.settings import OPTIONS, SWITCH, Option
from copperfs.lab.manual.page_texts import paragraphs, usage

HEADER = f"""\
# Options

<!-- Made by `python -m copperfs.lab.manual.markdown > docs/options.md`; change
copperfs/config/settings.py instead. -->

A setting can be given in four places; the later one wins:

1. the default below,
2. a TOML file: `--config FILE`, else `${FILE_VARIABLE}`, else `{FILE_DEFAULT}` if it exists,
3. a variable, `COPPERFS_` and the name in capitals,
4. a flag of `copperfs mount`.

`copperfs config show` prints each setting with its value and its origin, and takes the same flags.
The name is the same everywhere: `--tree-max 20MiB`, `COPPERFS_TREE_MAX=20MiB`, and in the file
`tree-max = "20MiB"`.

Sizes are bytes, or have a unit: `512k` and `512KiB` are 524,288, `512KB` is 512,000. Durations are
seconds. `none` stands for no value where the table says so. A switch is `--NAME` or `--no-NAME`
as a flag, `yes` or `no` in a variable, `true` or `false` in the file.
"""


def render() -> str:
    """The whole document."""
    parts = [HEADER]
    for group in dict.fromkeys(option.group for option in OPTIONS):
        parts.append(f"\n## {group}\n")
        parts += [_section(option) for option in OPTIONS if option.group == group]
    return "".join(parts)


def _section(option: Option) -> str:
    usage = option.flag if option.kind is SWITCH else f"{option.flag} {option.kind.metavar}"
    if option.multi:
        usage += "..."
    return (
        f"\n### `{usage}`\n\n{option.help}\n\n"
        f"Variable `{option.variable}`, key `{option.key}`. "
        f"{'May be `none`. ' if option.optional else ''}Default: {default_text(option)}.\n"
    )


# ---- the commands --------------------------------------------------------------------------------

COMMANDS_HEADER = """\
# Commands

<!-- Made by `python -m copperfs.lab.manual.markdown commands > docs/commands.md` from what --help
says. -->

Every command has `--help` and a man page (`man copperfs-mount`), and ends with one sentence on
standard error if it cannot do what it was asked for. Those that print have `--json`. Colours are
shown on terminals only, and not if `NO_COLOR` is set; bars of progress on terminals only.
`copperfs completion` has shells complete all of this.

"""


def render_commands() -> str:
    found = list(pages(build_parser()))
    lines = ["| command | |", "| --- | --- |"]
    for page in found:
        anchor = f"copperfs-{page.name.replace(' ', '-')}"
        lines.append(f"| [`{page.name}`](#{anchor}) | {_cell(page.summary)} |")
    return COMMANDS_HEADER + "\n".join(lines) + "\n" + "".join(map(_command_section, found))


def _command_section(page: Page) -> str:
    text, codes = paragraphs(page)
    own = [each for each in page.arguments if each.group == "" and each.flags != ("-h", "--help")]
    rows = "".join(
        f"| `{_cell(_spelled(each))}` | {_cell(each.help or 'the command, after --')} |\n"
        for each in own
    )
    table = f"| | |\n| --- | --- |\n{rows}" if rows else ""
    options = any(each.group for each in page.arguments)
    return (
        f"\n## copperfs {page.name}\n\n`{usage(page)}`\n\n{page.summary}.\n"
        + (f"\n{' '.join(text.split())}\n" if text else "")
        + (f"\n{table}" if table else "")
        + ("\nIt also takes the [options](options.md) of a mount.\n" if options else "")
        + f"\nExit codes: {' '.join(codes.split())}\n"
    )


def _spelled(argument: Argument) -> str:
    return " ".join(filter(None, [", ".join(argument.flags), argument.metavar]))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render_commands() if sys.argv[1:] == ["commands"] else render())
