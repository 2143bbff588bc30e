"""Starting a cluster.

No node has to look for the others: their keys are drawn and their sockets bound here, so the roster
is there before the first daemon is. They are started one after the other without waiting, since a
node is ready only when those that it asks are; what is waited for is all of them. A daemon takes a
quarter of a second of computing time until then, so 32 take a few seconds on two cores.

If one fails, or this process is told to end, all are taken down again.
"""

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from ipaddress import IPv4Address

from copperfs.bootstrap.address import endpoint_of, open_listener
from copperfs.bootstrap.invitation import Invitation
from copperfs.bootstrap.keys import NO_KEYS, draw_pair
from copperfs.bootstrap.launch import Launch, trees_of
from copperfs.cluster.daemons import Tell, keep_told, start_daemon, wait_mounted
from copperfs.cluster.down import remove_leftovers, take_down
from copperfs.cluster.network import Network, check_possible, draw_name
from copperfs.cluster.state import Cluster, ClusterNode, load, locked
from copperfs.config import Settings
from copperfs.errors import ClusterError
from copperfs.fuse.mounting import mount_at
from copperfs.roster import Member, Roster
from copperfs.types import NodeId


def up(
    directory: str,
    nodes: int,
    settings: Settings,
    *,
    own_networks: bool,
    environ: Mapping[str, str],
    tell: Tell,
) -> Cluster:
    """Bring up a cluster of so many nodes; *settings* are those that they have in common."""
    if own_networks:
        check_possible()
    directory = os.path.realpath(directory)
    made = _make_directory(directory)
    with locked(directory):
        made |= _make_room(directory)
        cluster = Cluster(
            directory,
            [
                ClusterNode(name, os.path.join(directory, name))
                for name in (f"node{index}" for index in range(nodes))
            ],
            made,
            _shown(settings),
            network=draw_name() if own_networks else None,
        )
        if settings.tier_dir is not None:
            _place_tiers(cluster, settings.tier_dir)
        cluster.save()
        try:
            _make_tier_top(cluster)
            _start(cluster, settings, environ, tell)
            cluster.complete = True
            cluster.save()
        except BaseException:
            take_down(cluster)
            raise
    return cluster


def _make_directory(directory: str) -> bool:
    try:
        os.mkdir(directory)
    except FileExistsError:
        return False
    except OSError as error:
        raise ClusterError(f"{directory} cannot be made: {error.strerror}") from None
    return True


def _make_room(directory: str) -> bool:
    """A cluster that runs is left alone; what a killed one has left is removed. Whether that one
    had made the directory."""
    found = load(directory)
    if found is None:
        remove_leftovers(directory)
        return False
    if found.is_running():
        raise ClusterError(
            f"{directory} has a cluster of {len(found.nodes)} nodes already; end it with: "
            f"copperfs cluster down --dir {directory}"
        )
    take_down(replace(found, made_directory=False))  # it is needed again right now
    return found.made_directory


def _place_tiers(cluster: Cluster, tier_dir: str) -> None:
    """A directory for each node: where its name is in the path, or one below."""
    if "%h" not in tier_dir:
        if not os.path.isdir(tier_dir):
            cluster.made_tier_top = tier_dir
        tier_dir = os.path.join(tier_dir, "%h")
    for each in cluster.nodes:
        each.tier_dir = tier_dir.replace("%h", each.name)
        each.made_tier_dir = not os.path.lexists(each.tier_dir)


def _make_tier_top(cluster: Cluster) -> None:
    """The nodes make their own."""
    if cluster.made_tier_top is None:
        return
    try:
        os.mkdir(cluster.made_tier_top, 0o700)
    except OSError as error:
        raise ClusterError(f"{cluster.made_tier_top} cannot be made: {error.strerror}") from None


def _shown(settings: Settings) -> dict[str, object]:
    common = asdict(settings)
    for name in ("mountpoint", "node_name", "log_file", "events", "listen", "port", "metrics"):
        del common[name]
    return common


# ---- starting ------------------------------------------------------------------------------------


def _start(cluster: Cluster, settings: Settings, environ: Mapping[str, str], tell: Tell) -> None:
    network = None if cluster.network is None else Network(cluster.network)
    if network is not None:
        network.make(len(cluster.nodes))
    with ExitStack() as stack:
        launches = _launches(cluster, settings, network, stack)
        # Addresses of several machines, and one disk: what each sees, all see.
        shared = settings.shared if network is None else settings.shared or (settings.source,)
        own = [
            replace(
                settings,
                mountpoint=each.mountpoint,
                node_name=each.name,
                log_file=each.log,
                events=each.events,
                tier_dir=each.tier_dir,
                metrics=None,
                shared=shared,
            )
            for each in cluster.nodes
        ]
        started = []
        for node, each, launch in zip(cluster.nodes, own, launches, strict=True):
            _make_node_directory(node)
            keep_told(node, each, launch)
            started.append(start_daemon(cluster, node, each, launch, environ, stack))
        wait_mounted(started, tell)


def _launches(
    cluster: Cluster, settings: Settings, network: Network | None, stack: ExitStack
) -> list[Launch | None]:
    """What each node is told of the others; nothing, if there are none."""
    if len(cluster.nodes) == 1 and network is None:
        cluster.nodes[0].parents, cluster.nodes[0].depths = [None], [0]
        return [None]
    invitations = []
    for index, node in enumerate(cluster.nodes):
        keys = draw_pair() if settings.security == "curve" else NO_KEYS
        listener = (
            open_listener(IPv4Address("127.0.0.1"), 0) if network is None else network.listen(index)
        )
        stack.callback(listener.close)
        node.endpoint = endpoint_of(listener)
        member = Member(node.name, node.endpoint, keys.public, settings.tier_bytes)
        invitations.append(Invitation(member, listener, keys.secret))
    roster = Roster(secrets.token_hex(8), tuple(each.member for each in invitations))
    roster.check()
    launches: list[Launch | None] = []
    for index, node in enumerate(cluster.nodes):
        each = invitations[index]
        launch = Launch(roster, NodeId(index), each.listener, each.secret_key)
        trees = trees_of(settings, launch)
        parents = [trees.parent(tree) for tree in range(trees.count)]
        node.parents = [None if each is None else roster.member(each).name for each in parents]
        node.depths = [trees.depth(tree) for tree in range(trees.count)]
        launches.append(launch)
    return launches


def _make_node_directory(node: ClusterNode) -> None:
    try:
        os.makedirs(node.mountpoint, exist_ok=True)
        if mount_at(node.mountpoint) is not None:
            raise ClusterError(f"something else is mounted at {node.mountpoint}; unmount it")
        with open(node.log, "w", encoding="utf-8"):
            pass  # of this cluster only
    except OSError as error:
        raise ClusterError(f"{error.filename} cannot be made: {error.strerror}") from None
