"""``copperfs enter``: a shell, or a command, in the namespace of an in-place run of this node."""

import argparse
import os
from contextlib import ExitStack

from copperfs.cli.output import print_error
from copperfs.model.errors import CopperError, MountError

NAME = "enter"
HELP = "start a shell or a command where a run on this node sees its files"
EPILOG = """\
For a look from outside, as by ssh or srun --overlap. Without COMMAND it is $SHELL. A process that
has entered keeps the mount until it ends.

exit codes: that of the command; 125 if copperfs failed; 126 if the command cannot be executed; 127
if there is none.
"""
FAILED = 125


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--mountpoint",
        metavar="DIR",
        help="the COPPERFS_MOUNTPOINT of the run; needed if there are several runs",
    )
    parser.add_argument("program", metavar="COMMAND", nargs="*", help="after --, as on its own")


def run(arguments: argparse.Namespace) -> int:
    try:
        mountpoint = _enter(arguments.mountpoint)
    except CopperError as error:
        print_error(str(error))
        return FAILED
    program = arguments.program or [os.environ.get("SHELL", "/bin/sh")]
    return _become(program, mountpoint)


def _enter(named: str | None) -> str:
    from copperfs.fuse.inside_mounts import inside_mounts
    from copperfs.inplace.namespace import enter, open_namespaces

    found = [each for each in inside_mounts() if named in (None, each.mountpoint)]
    if not found:
        what = "of no run" if named is None else f"of no run at {named}"
        raise MountError(
            f"this node has a namespace {what} of yours: start one with copperfs run --in-place "
            "always, or look with: copperfs doctor"
        )
    if len(found) > 1:
        names = ", ".join(each.mountpoint for each in found)
        raise MountError(f"several runs are here; give one with --mountpoint: {names}")
    [one] = found
    try:
        cwd = os.getcwd()
        with ExitStack() as life:
            enter(*open_namespaces(one.pid, life))
        os.chdir(cwd)
    except OSError as error:
        raise MountError(f"the namespace of {one.mountpoint} cannot be entered: {error}") from None
    return one.mountpoint


def _become(program: list[str], mountpoint: str) -> int:
    from copperfs.cli.child_command import NOT_EXECUTABLE, NOT_FOUND
    from copperfs.launch.launcher_variables import MOUNTPOINT_VARIABLE

    try:
        os.execvpe(program[0], program, os.environ | {MOUNTPOINT_VARIABLE: mountpoint})
    except OSError as error:
        print_error(f"{program[0]} cannot be started: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
