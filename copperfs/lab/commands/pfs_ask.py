"""``copperfs pfs-ask``: shows what reached a simulated filesystem, and changes, fails or hangs it.

It uses the control socket, not the mount: so it is not counted, and works while everything hangs.
"""

import argparse
import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from copperfs.cli.output import console, print_json, table
from copperfs.lab.commands.pfs_sim import add_speed
from copperfs.lab.pfs_sim.pfs_faults import OPERATIONS
from copperfs.lab.pfs_sim.pfs_settings import format_duration, parse_duration
from copperfs.model.errors import ControlError

if TYPE_CHECKING:
    from copperfs.lab.pfs_sim.pfs_client import PfsSim

NAME = "pfs-ask"
HELP = "ask a pfs-sim for its counts, or change, fail or hang it"
PATHS_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="any mount point of it")
    requests = parser.add_subparsers(metavar="REQUEST", required=True)

    def add(name: str, text: str, action: Callable[..., object]) -> argparse.ArgumentParser:
        request = requests.add_parser(name, help=text, description=text)
        request.add_argument("--json", action="store_true", help="print JSON")
        request.set_defaults(action=action)
        return request

    counts = add("counts", "what was asked, by operation and path", _counts)
    counts.add_argument(
        "--paths", type=int, default=PATHS_SHOWN, metavar="N",
        help=f"show the N most requested paths. Default: {PATHS_SHOWN}.",
    )  # fmt: skip
    add("reset", "count from zero again", lambda sim, _: sim.ask("reset"))
    add("info", "its process, directory, mount points and settings", _info)
    add_speed(add("set", "change the servers from now on", _set), with_defaults=False)
    fail = add("fail", "make operations fail", _fail)
    _add_rule(fail)
    fail.add_argument("--errno", default="EIO", help="by name or number. Default: EIO.")
    _add_rule(add("hang", "make operations wait until released", _hang))
    slow = add("slow", "make operations take longer", _slow)
    _add_rule(slow)
    slow.add_argument(
        "--by", type=parse_duration, required=True, metavar="DURATION", help="how much longer"
    )
    release = add("release", "remove one rule, and release what hangs on it", _release)
    release.add_argument("rule", type=int, metavar="RULE", help="the number of the rule to remove")
    add("heal", "remove all rules", lambda sim, _: sim.ask("heal"))
    add("rules", "the rules in force", _rules)
    add("stop", "release what hangs, unmount and end", _stop)


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.pfs_sim.pfs_client import PfsSim

    outcome = arguments.action(PfsSim.at(arguments.mountpoint), arguments)
    if arguments.json:
        print_json(outcome)
    elif isinstance(outcome, Group | str):
        console().print(outcome)
    return 0


def _add_rule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        help="below the mount point, or relative to it; 'x/**' is x and all below, '**' all",
    )
    parser.add_argument(
        "--ops", nargs="+", default=[], choices=sorted(OPERATIONS), metavar="OPERATION",
        help=f"only these: {', '.join(sorted(OPERATIONS))}. Default: all.",
    )  # fmt: skip
    parser.add_argument("--times", type=int, metavar="N", help="only for the next N operations")
    parser.add_argument(
        "--server", type=int, metavar="K",
        help="only reads of files on data server K (inode number modulo data servers)",
    )  # fmt: skip


def _rule(sim: "PfsSim", arguments: argparse.Namespace, do: str, **details: object) -> object:
    path: str = arguments.path
    if path.startswith("/"):
        for mountpoint in sim.hello()["mountpoints"]:
            if f"{path}/".startswith(f"{mountpoint}/"):
                path = os.path.relpath(path, mountpoint)
                break
        else:
            raise ControlError(f"{path} is not below a mount point of this pfs-sim")
    reply = sim.ask(
        do, path=path, ops=arguments.ops, times=arguments.times, server=arguments.server, **details
    )
    if arguments.json:
        return reply
    return (
        f"rule {reply['rule']}; undo it with: copperfs pfs-ask MOUNTPOINT release {reply['rule']}"
    )


def _fail(sim: "PfsSim", arguments: argparse.Namespace) -> object:
    name = arguments.errno.upper()
    code = int(name) if name.isdigit() else getattr(errno, name, 0) if name[:1] == "E" else 0
    if code not in errno.errorcode:
        raise ControlError(f"{arguments.errno} is not an errno; write for instance EIO")
    return _rule(sim, arguments, "fail", errno=code)


def _hang(sim: "PfsSim", arguments: argparse.Namespace) -> object:
    return _rule(sim, arguments, "hang")


def _slow(sim: "PfsSim", arguments: argparse.Namespace) -> object:
    return _rule(sim, arguments, "delay", seconds=arguments.by)


def _release(sim: "PfsSim", arguments: argparse.Namespace) -> object:
    return sim.ask("release", rule=arguments.rule)


def _stop(sim: "PfsSim", _: argparse.Namespace) -> object:
    sim.stop()
    return {}


def _rules(sim: "PfsSim", arguments: argparse.Namespace) -> object:
    rules = sim.rules()
    if arguments.json:
        return rules
    rows = [
        (
            str(each["rule"]),
            each["kind"],
            each["path"],
            "all" if len(each["ops"]) == len(OPERATIONS) else " ".join(each["ops"]),
            _detail(each),
            "" if each["times_left"] is None else str(each["times_left"]),
        )
        for each in rules
    ]
    return Group(table(("rule", "kind", "path", "operations", "how", "times left"), rows))


def _detail(rule: dict[str, Any]) -> str:
    where = "" if rule["server"] is None else f" on data server {rule['server']}"
    if rule["kind"] == "fail":
        return errno.errorcode[rule["errno"]] + where
    return (format_duration(rule["seconds"]) if rule["kind"] == "delay" else "") + where


def _set(sim: "PfsSim", arguments: argparse.Namespace) -> object:
    chosen = {
        "latency_s": arguments.latency,
        "servers": arguments.servers,
        "read_latency_s": arguments.read_latency,
        "bandwidth_bytes": arguments.bandwidth,
        "data_servers": arguments.data_servers,
    }
    return sim.ask("set", **{key: value for key, value in chosen.items() if value is not None})


def _info(sim: "PfsSim", arguments: argparse.Namespace) -> object:
    info = sim.hello()
    if arguments.json:
        return info
    return Group(table(("what", "value"), [(key, str(value)) for key, value in info.items()]))


def _counts(sim: "PfsSim", arguments: argparse.Namespace) -> object:
    counts = sim.ask("counts")
    if arguments.json:
        return counts
    totals: dict[str, int] = counts["totals"]
    asked = sum(count for op, count in totals.items() if not op.startswith("release"))
    metadata, data = counts["metadata"], counts["data"]
    summary = Text(
        f"{asked} operations, {sum(counts['not_found'].values())} lookups that found nothing, "
        f"{sum(counts['read_bytes'].values())} bytes read, {counts['hanging']} hanging\n"
        f"metadata: {_waited(metadata)}; data: {_waited(data)}"
    )
    by_path: dict[str, dict[str, int]] = {}
    for op, paths in counts["operations"].items():
        for path, count in paths.items():
            by_path.setdefault(path, {})[op] = count
    most = sorted(by_path.items(), key=lambda item: -sum(item[1].values()))[: arguments.paths]
    ops = list(totals)
    path_rows = [
        (path, *(str(each.get(op, "")) for op in ops), str(counts["read_bytes"].get(path, "")))
        for path, each in most
    ]
    client_rows = [
        (where, *(str(each.get(op, "")) for op in ops)) for where, each in counts["clients"].items()
    ]
    return Group(
        summary,
        table(("operation", "count"), [(op, str(count)) for op, count in totals.items()],
              right=("count",)),
        table(("client", *ops), client_rows, right=ops, title="\nClients"),
        table(("path", *ops, "bytes"), path_rows, right=(*ops, "bytes"), title="\nPaths"),
    )  # fmt: skip


def _waited(load: dict[str, Any]) -> str:
    mean_s = load["queued_s"] / load["operations"] if load["operations"] else 0.0
    return (
        f"{load['operations']} operations, in the queue for {mean_s * 1e3:.2f} ms each, "
        f"{load['queued_max_s'] * 1e3:.1f} ms at most"
    )
