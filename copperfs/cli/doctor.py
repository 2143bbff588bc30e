"""``copperfs doctor``: checks whether this node can mount and reach its peers."""

import argparse
import os

from rich.text import Text

from copperfs.cli.options import add_option_flags, resolve_settings
from copperfs.cli.output import console, print_json, printable

NAME = "doctor"
HELP = "check whether mounts work on this node, and say how to repair what fails"
EPILOG = """\
It judges by the options of copperfs mount, mounts nothing, and waits only seconds for what hangs.

exit codes: 0 if no check failed, warnings or not; 1 if one did.
"""
STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "path",
        metavar="MNT",
        nargs="?",
        help="a mount whose readahead and nodes are checked, too",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--peer",
        metavar="HOST[:PORT]",
        action="append",
        default=[],
        help="a node to reach, besides those of --hostfile; repeatable",
    )
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(os.devnull, arguments)
    from copperfs.cli.doctor_checks import LOCAL_CHECKS, CheckedMachine, CheckVerdict
    from copperfs.cli.doctor_peer_checks import PEER_CHECKS
    from copperfs.launch.hostfile import PORT_DEFAULT
    from copperfs.launch.launcher_variables import look_around

    machine = CheckedMachine(
        settings,
        peers=arguments.peer,
        nodes=settings.nodes or look_around(os.environ).nodes or 1,
        port=settings.port or PORT_DEFAULT,
        # Some checks run in processes with another working directory.
        mountpoint=arguments.path and os.path.abspath(arguments.path),
    )
    found = []
    for check in (*LOCAL_CHECKS, *PEER_CHECKS):
        for each in check(machine):
            found.append(each)
            if not arguments.json:
                _print(each.name, each.verdict.value, each.found, each.remedy)
    count = {verdict: sum(each.verdict is verdict for each in found) for verdict in CheckVerdict}
    if arguments.json:
        print_json(
            {
                "version": 1,
                "failed": count[CheckVerdict.FAILED],
                "warnings": count[CheckVerdict.WARNING],
                "checks": [
                    {
                        "name": each.name,
                        "verdict": each.verdict.value,
                        "found": each.found,
                        "remedy": each.remedy or None,
                    }
                    for each in found
                ],
            }
        )
    else:
        console().print(
            f"{count[CheckVerdict.OK]} ok, {count[CheckVerdict.WARNING]} warnings, "
            f"{count[CheckVerdict.FAILED]} failed"
        )
    return 1 if count[CheckVerdict.FAILED] else 0


def _print(name: str, verdict: str, found: str, remedy: str) -> None:
    """Print results as they come: some checks take seconds."""
    head = Text.assemble((f"{verdict:8}", STYLES[verdict]), f"{name}: ", printable(found))
    console().print(head, soft_wrap=True)
    if remedy:
        console().print(Text(f"{'':8}{printable(remedy)}", "dim"), soft_wrap=True)
