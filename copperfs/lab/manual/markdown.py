"""Generator of the documents made from the program's own texts; tests compare them.

python -m copperfs.lab.manual.markdown > docs/options.md
python -m copperfs.lab.manual.markdown commands > docs/commands.md
"""

import sys

from copperfs.cli.main import EXIT_CODES, build_parser
from copperfs.cli.options import FILE_DEFAULT, FILE_VARIABLE, INTERNAL, default_text
from copperfs.cli.parser_outline import Argument, Page, pages
from copperfs.config.settings import OPTIONS, SWITCH, Option
from copperfs.lab.manual.page_texts import paragraphs, usage

HEADER = f"""\
# Options

<!-- Made by `python -m copperfs.lab.manual.markdown > docs/options.md` from
copperfs/config/settings.py. -->

A setting has the same name in all places that can give it; a later one wins:

1. the default below,
2. `tree-max = "20MiB"` in a TOML file: `--config`, else `${FILE_VARIABLE}`, else `{FILE_DEFAULT}`,
3. a variable, `COPPERFS_TREE_MAX=20MiB`,
4. a flag, `--tree-max 20MiB`.

A list is several flags, `--shared /lus --shared /home`; colons separate its values in a variable.
`copperfs config show` takes the same flags, and prints each setting with its value and origin.

Sizes are bytes, or have a unit: `512k` and `512KiB` are 524,288, `512KB` is 512,000. A size without
a unit below 1 MiB is warned of. Durations are seconds. `none` stands for no value. A switch is
`--NAME` or `--no-NAME` as a flag, `yes` or `no` in a variable, `true` or `false` in the file.
"""

INTERNAL_HEADER = """
## Not meant to be chosen

These tune the protocol, for tests and measurements. `--help` does not show them; they go on
working.
"""


def render() -> str:
    parts = [HEADER]
    shown = [option for option in OPTIONS if option.name not in INTERNAL]
    for group in dict.fromkeys(option.group for option in shown):
        parts.append(f"\n## {group}\n")
        parts += [_section(option) for option in shown if option.group == group]
    parts.append(INTERNAL_HEADER)
    parts += [_section(option) for option in OPTIONS if option.name in INTERNAL]
    return "".join(parts)


def _section(option: Option) -> str:
    usage = option.flag if option.kind is SWITCH else f"{option.flag} {option.kind.metavar}"
    return (
        f"\n### `{usage}`\n\n{option.help}\n\n"
        f"{'May be `none`. ' if option.optional and option.default_text else ''}"
        f"Default: {default_text(option)}.\n"
    )


# ---- the commands --------------------------------------------------------------------------------

COMMANDS_HEADER = """\
# Commands

<!-- Made by `python -m copperfs.lab.manual.markdown commands > docs/commands.md` from what --help
says. -->

Every command has `--help` and a man page (`man copperfs-mount`). Those that print have `--json`; an
error is a JSON object on standard error then. MNT may be left out where `$COPPERFS_MOUNTPOINT` is
set, or one mount of this user is on this node. Colours and bars of progress are shown on terminals
only, colours not if `NO_COLOR` is set.

Exit codes are, unless a command names others: {codes}

"""
MOUNT_GROUPS = {option.group.lower() for option in OPTIONS}
SAID_ABOVE = {"-h", "--config"}


def render_commands() -> str:
    found = list(pages(build_parser()))
    names = [f"[`{page.name}`](#copperfs-{page.name.replace(' ', '-')})" for page in found]
    header = COMMANDS_HEADER.format(codes=_codes(EXIT_CODES))
    return header + ",\n".join(names) + "\n" + "".join(map(_command_section, found))


def _command_section(page: Page) -> str:
    text, codes = paragraphs(page)
    rows = "".join(
        f"- `{_spelled(each)}`: {each.help}\n"
        for each in page.arguments
        if each.group not in MOUNT_GROUPS
        and not SAID_ABOVE.intersection(each.flags)
        and each.help != "print JSON"
    )
    takes_options = any(each.group in MOUNT_GROUPS for each in page.arguments)
    own_codes = "" if codes in EXIT_CODES else f"\nExit codes: {' '.join(codes.split())}\n"
    return (
        f"\n## copperfs {page.name}\n\n`{usage(page)}`\n\n{page.summary}.\n"
        + (f"\n{' '.join(text.split())}\n" if text else "")
        + (f"\n{rows}" if rows else "")
        + ("\nIt also takes the [options](options.md) of a mount.\n" if takes_options else "")
        + own_codes
    )


def _spelled(argument: Argument) -> str:
    return " ".join(filter(None, [", ".join(argument.flags), argument.metavar]))


def _codes(epilog: str) -> str:
    return " ".join(epilog.partition("exit codes:")[2].split())


if __name__ == "__main__":
    sys.stdout.write(render_commands() if sys.argv[1:] == ["commands"] else render())
