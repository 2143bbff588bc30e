"""Bring-up: starts the daemons of a cluster, and waits until all have mounted.

This process draws the keys and binds the sockets, so the roster exists before the first daemon
does. It starts the daemons without waiting for each, since a node is ready only when the nodes that
it asks are. If one fails, or this process is told to end, all are taken down again.
"""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Address

from copperfs.config.settings import MIB, Settings
from copperfs.fuse.mounting import mount_at
from copperfs.lab.local_cluster import surroundings
from copperfs.lab.local_cluster.cluster_state import Cluster, ClusterNode, load, locked
from copperfs.lab.local_cluster.conditions import Conditions
from copperfs.lab.local_cluster.node_networks import NodeNetworks, check_possible, draw_name
from copperfs.lab.local_cluster.start_nodes import Tell, keep_told, start_daemon, wait_mounted
from copperfs.lab.local_cluster.teardown import remove_leftovers, take_down
from copperfs.launch.curve_keys import NO_KEYS, draw_pair
from copperfs.launch.launch_method import Launch, trees_of
from copperfs.launch.listen_address import endpoint_of, open_listener
from copperfs.launch.node_identity import Invitation
from copperfs.model.errors import ClusterError
from copperfs.model.roster import Member, Roster
from copperfs.model.types import NodeId


@dataclass(frozen=True, slots=True)
class Differing:
    mixed: int | None = None
    conditions: Sequence[Conditions] = ()
    clients_at: str | None = None
    """Each node has a client of its own of this directory."""
    own_inodes: bool = False
    """These clients number files differently."""


ALIKE = Differing()


def up(
    directory: str,
    nodes: int,
    settings: Settings,
    *,
    own_networks: bool,
    differing: Differing = ALIKE,
    environ: Mapping[str, str],
    tell: Tell,
) -> Cluster:
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
            mixed=differing.mixed,
            clients_at=differing.clients_at and os.path.realpath(differing.clients_at),
        )
        for node, conditions in zip(cluster.nodes, differing.conditions, strict=False):
            node.conditions = conditions
        _check_possible(cluster, settings)
        if settings.tier_dir is not None:
            _place_tiers(cluster, settings.tier_dir)
        cluster.save()
        try:
            _make_tier_top(cluster)
            surroundings.make(cluster, differing.own_inodes)
            _start(cluster, settings, environ, tell)
            cluster.complete = True
            cluster.save()
        except BaseException:
            take_down(cluster)
            raise
    return cluster


def _check_possible(cluster: Cluster, settings: Settings) -> None:
    surroundings.check_possible(cluster)
    at, source = cluster.clients_at, os.path.realpath(settings.source)
    if at is not None and os.path.commonpath((at, source)) != source:
        raise ClusterError(f"{at} is not below the source, {source}; give another --own-clients")


def _part(whole_bytes: int, node: ClusterNode) -> int:
    """This node's share of the memory that the nodes get."""
    part = int(whole_bytes * node.conditions.memory)
    return whole_bytes if part == whole_bytes else part // MIB * MIB


def _make_directory(directory: str) -> bool:
    try:
        os.mkdir(directory)
    except FileExistsError:
        return False
    except OSError as error:
        raise ClusterError(f"{directory} cannot be made: {error.strerror}") from None
    return True


def _make_room(directory: str) -> bool:
    """Remove what a killed cluster left, and leave a running one alone; whether the killed one had
    made the directory."""
    found = load(directory)
    if found is None:
        remove_leftovers(directory)
        return False
    if found.is_running():
        raise ClusterError(
            f"{directory} has a cluster of {len(found.nodes)} nodes already; end it with: "
            f"copperfs cluster down --dir {directory}"
        )
    take_down(replace(found, made_directory=False))  # it is needed again
    return found.made_directory


def _place_tiers(cluster: Cluster, tier_dir: str) -> None:
    if "%h" not in tier_dir:
        if not os.path.isdir(tier_dir):
            cluster.made_tier_top = tier_dir
        tier_dir = os.path.join(tier_dir, "%h")
    for each in cluster.nodes:
        each.tier_dir = tier_dir.replace("%h", each.name)
        each.made_tier_dir = not os.path.lexists(each.tier_dir)


def _make_tier_top(cluster: Cluster) -> None:
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
    network = None if cluster.network is None else NodeNetworks(cluster.network)
    if network is not None:
        network.make(len(cluster.nodes))
    with ExitStack() as stack:
        launches = _launches(cluster, settings, network, stack)
        surroundings.start_name_server(cluster)
        # The addresses differ, but the nodes share one disk.
        alike = network is None and cluster.clients_at is None
        shared = settings.shared if alike else settings.shared or (settings.source,)
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
                memory_bytes=_part(settings.memory_bytes, each),
                tier_memory_bytes=_part(settings.tier_memory_bytes, each),
            )
            for each in cluster.nodes
        ]
        started = []
        began = time.monotonic()
        in_order = sorted(
            zip(cluster.nodes, own, launches, strict=True),
            key=lambda each: each[0].conditions.start,
        )
        for node, each, launch in in_order:
            _make_node_directory(node)
            keep_told(node, each, launch)
            time.sleep(max(0.0, began + node.conditions.start - time.monotonic()))
            started.append(start_daemon(cluster, node, each, launch, environ, stack))
        wait_mounted(started, tell)


def _launches(
    cluster: Cluster, settings: Settings, network: NodeNetworks | None, stack: ExitStack
) -> list[Launch | None]:
    """Each node's launch; None for a single node."""
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
        endpoint = node.endpoint
        if surroundings.is_named(cluster):
            endpoint = f"tcp://{surroundings.host_of(node)}:{endpoint.rpartition(':')[2]}"
        tier_bytes = replace(
            settings, tier_memory_bytes=_part(settings.tier_memory_bytes, node)
        ).tier_bytes
        member = Member(node.name, endpoint, keys.public, tier_bytes)
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
