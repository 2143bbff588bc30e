"""``copperfs cluster status``: shows the state of a cluster's nodes."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from copperfs.cli.output import console, print_json, print_table

if TYPE_CHECKING:
    from copperfs.lab.local_cluster.cluster_health import NodeStatus
    from copperfs.lab.local_cluster.cluster_state import Cluster

NAME = "cluster status"
HELP = "show the nodes of a cluster, and whether each is well"
EPILOG = """\
exit codes: 0 if all are well; 1 if not, or an error; 2 wrong usage; 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", required=True, metavar="D", help="the cluster's directory")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.lab.local_cluster.cluster_state import running

    return 0 if report(running(arguments.dir), as_json=arguments.json) else 1


def report(cluster: "Cluster", *, as_json: bool) -> bool:
    """Print the state of the nodes; returns whether all are well."""
    from copperfs.lab.local_cluster.cluster_health import status_of

    found = status_of(cluster)
    is_well = cluster.complete and all(each.is_well for each in found)
    if as_json:
        print_json(_document(cluster, found, is_well=is_well))
    else:
        _show(cluster, found)
    return is_well


def _document(cluster: "Cluster", found: "list[NodeStatus]", *, is_well: bool) -> dict[str, object]:
    return {
        "directory": cluster.directory,
        "complete": cluster.complete,
        "well": is_well,
        "network": cluster.network,
        "mixed": cluster.mixed,
        "clients_at": cluster.clients_at,
        "settings": cluster.settings,
        "nodes": [
            {
                "name": each.node.name,
                "mountpoint": each.node.mountpoint,
                "log": each.node.log,
                "pid": each.node.pid,
                "alive": each.alive,
                "mounted": each.mounted,
                "answers": each.answers,
                "cut": each.cut,
                "loses": each.loses,
                "endpoint": each.node.endpoint,
                "parents": each.node.parents,
                "depths": each.node.depths,
                "conditions": asdict(each.node.conditions),
                "client": None if cluster.clients_at is None else each.node.client,
            }
            for each in found
        ],
    }


def _show(cluster: "Cluster", found: "list[NodeStatus]") -> None:
    from copperfs.lab.local_cluster.conditions import USUAL

    if not cluster.complete:
        console().print("It was never brought up completely; end it with: copperfs cluster down")
    if cluster.clients_at is not None:
        console().print(
            f"Each node has a client of {cluster.clients_at} of its own; what reaches it is "
            f"counted: copperfs pfs-ask {cluster.nodes[0].client} counts"
        )
    differ = any(each.node.conditions != USUAL for each in found)
    print_table(
        ("node", "pid", "daemon", "mount", "endpoint", "asks", "mounted at")
        + (("conditions",) if differ else ()),
        [
            (
                each.node.name,
                str(each.node.pid or "-"),
                "runs" if each.alive else "has ended",
                _mount(each),
                _endpoint(each),
                _parents(each.node.parents),
                each.node.mountpoint,
                *([str(each.node.conditions)] if differ else []),
            )
            for each in found
        ],
        right=("pid",),
    )


def _mount(status: "NodeStatus") -> str:
    if not status.mounted:
        return "is not there"
    return "answers" if status.answers else "does not answer"


def _endpoint(status: "NodeStatus") -> str:
    cut, loses = " (cut)" if status.cut else "", " (loses packets)" if status.loses else ""
    return (status.node.endpoint or "-") + cut + loses


def _parents(parents: list[str | None]) -> str:
    """Each tree has a parent, but its root asks the source."""
    return ", ".join(each or "the source" for each in parents) or "-"
