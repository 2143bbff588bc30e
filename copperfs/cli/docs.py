"""``python -m copperfs.cli.docs > docs/options.md``: the option table as a document.

A test compares the document with the table.
"""

import sys

from copperfs.cli.options import FILE_DEFAULT, FILE_VARIABLE, default_text
from copperfs.config import OPTIONS, SWITCH, Option

HEADER = f"""\
# Options

<!-- Made by `python -m copperfs.cli.docs > docs/options.md`; change copperfs/config.py instead. -->

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


if __name__ == "__main__":
    sys.stdout.write(render())
