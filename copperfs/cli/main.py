"""The entry point: finds the command, runs it, turns what went wrong into an exit code.

A command is a module with the four names of ``Command``, listed in ``COMMANDS``. Command modules
import what is heavy (pyfuse3, the runtime) inside ``run``: every one of them is imported whenever
any of them runs.

Exit codes: 0 done; 1 an error, told in one sentence on standard error; 2 wrong usage, as argparse
reports it; 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from copperfs import __version__
from copperfs.cli import (
    bugreport,
    clear,
    cluster_cont,
    cluster_cut,
    cluster_down,
    cluster_drop,
    cluster_heal,
    cluster_kill,
    cluster_start,
    cluster_status,
    cluster_stop,
    cluster_up,
    completion,
    config_show,
    doctor,
    keygen,
    mount,
    pfs_ask,
    pfs_sim,
    profile,
    record,
    ring,
    run,
    scrub,
    sim_calibrate,
    sim_replay,
    sim_ring,
    sim_run,
    sim_sweep,
    stats,
    top,
    tree,
    umount,
    warmup,
)
from copperfs.cli.output import print_error
from copperfs.errors import CopperError

# What --help, the man pages and docs/commands.md say of commands that say nothing else.
EXIT_CODES = """\
exit codes: 0 done; 1 an error, told in a sentence on standard error; 2 wrong usage; 130
interrupted.
"""


class Command(Protocol):
    """What a command module provides."""

    NAME: str  # "mount"; a name of two words, "config show", makes a group
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def run(self, arguments: argparse.Namespace, /) -> int: ...


COMMANDS: tuple[Command, ...] = (
    mount,
    umount,
    run,
    stats,
    top,
    tree,
    clear,
    warmup,
    record,
    ring,
    scrub,
    profile,
    config_show,
    doctor,
    bugreport,
    keygen,
    completion,
    cluster_up,
    cluster_status,
    cluster_down,
    cluster_kill,
    cluster_start,
    cluster_stop,
    cluster_cont,
    cluster_cut,
    cluster_drop,
    cluster_heal,
    pfs_sim,
    pfs_ask,
    sim_run,
    sim_sweep,
    sim_replay,
    sim_calibrate,
    sim_ring,
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="copperfs",
        description="A read-only view of a shared filesystem, read once for the whole job.",
    )
    parser.add_argument("--version", action="version", version=f"copperfs {__version__}")
    top = parser.add_subparsers(metavar="COMMAND", required=True)
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for command in COMMANDS:
        group, _, name = command.NAME.rpartition(" ")
        if group and group not in groups:
            group_parser = top.add_parser(group, help=f"commands about the {group}")
            groups[group] = group_parser.add_subparsers(metavar="COMMAND", required=True)
        command_parser = groups.get(group, top).add_parser(
            name, help=command.HELP, description=command.HELP[0].upper() + command.HELP[1:] + "."
        )
        command.add_arguments(command_parser)
        command_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        if "exit codes:" not in (command_parser.epilog or ""):
            command_parser.epilog = f"{command_parser.epilog or ''}\n{EXIT_CODES}".lstrip("\n")
        command_parser.set_defaults(command=command)
    return parser


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """What follows ``--`` is given to these commands as it is: argparse takes a positional that may
    be missing for missing as soon as an option stands before it."""
    if words[:1] != [profile.NAME] or "--" not in words:
        return build_parser().parse_args(words)
    end = words.index("--")
    arguments = build_parser().parse_args(words[:end])
    arguments.program = list(words[end + 1 :])
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(sys.argv[1:] if argv is None else list(argv))
    command: Command = arguments.command
    try:
        return command.run(arguments)
    except CopperError as error:
        if str(error):  # else another rank tells it
            print_error(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, say head, has enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
