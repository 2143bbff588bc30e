"""Node networks: a network namespace with one address for each node, and a switch between them.

The switch is a bridge in a namespace of its own, so the machine's interfaces, addresses and routes
do not change, and the nodes reach each other and nothing else.

A daemon enters only its network (``nsenter --net``). ``ip netns exec`` would also hide its mounts
from other processes.
"""

import ctypes
import json
import os
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import TypeVar

from copperfs.lab.local_cluster.cluster_state import Cluster
from copperfs.launch.listen_address import open_listener
from copperfs.model.errors import ClusterError, CopperError

PREFIX = "copperfs-"
ADDRESSES = IPv4Network("10.77.0.0/16")
WITHIN_S = 60.0
_CLONE_NEWNET = 0x40000000
_NAMESPACES = "/run/netns"
Made = TypeVar("Made")


def draw_name() -> str:
    return f"{PREFIX}{secrets.token_hex(4)}"


def check_possible() -> None:
    if os.geteuid() != 0:
        raise ClusterError("--netns makes network namespaces, which needs root; leave it out")
    for tool, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            raise ClusterError(f"--netns needs the command {tool}; install the package {package}")


@dataclass(frozen=True, slots=True)
class NodeNetworks:
    """The namespaces of one cluster, whose names begin with ``name``."""

    name: str

    @property
    def switch(self) -> str:
        return f"{self.name}-switch"

    def namespace(self, index: int) -> str:
        return f"{self.name}-{index}"

    def address(self, index: int) -> IPv4Address:
        return ADDRESSES[index + 1]

    def make(self, nodes: int) -> None:
        lines = [
            f"netns add {self.switch}",
            f"link add switch netns {self.switch} type bridge",
        ]
        lines += [f"netns add {self.namespace(index)}" for index in range(nodes)]
        # One by one, each with both ends where they belong.
        lines += [
            f"link add eth0 netns {self.namespace(index)} type veth peer name port{index} "
            f"netns {self.switch}"
            for index in range(nodes)
        ]
        _ip_batch(lines)
        for index in range(nodes):
            up = f"{self.address(index)}/{ADDRESSES.prefixlen}"
            _ip_batch(
                [f"address add {up} dev eth0", "link set lo up", "link set eth0 up"],
                namespace=self.namespace(index),
            )
        lines = ["link set switch up"]
        lines += [f"link set port{index} master switch up" for index in range(nodes)]
        _ip_batch(lines, namespace=self.switch)

    def remove(self) -> None:
        """Remove what exists of it, once the processes in it have ended."""
        if not os.path.isdir(_NAMESPACES):
            return
        mine = [each for each in os.listdir(_NAMESPACES) if each.startswith(f"{self.name}-")]
        for each in sorted(mine):
            _run(["ip", "netns", "delete", each])

    def listen(self, index: int, port: int = 0) -> socket.socket:
        """A socket on this node's address, in its namespace; port 0 takes any."""
        return self.within(index, lambda: open_listener(self.address(index), port))

    def within(self, index: int, do: Callable[[], Made]) -> Made:
        made: list[Made] = []
        failed: list[Exception] = []

        def make() -> None:
            # A namespace belongs to a thread, and this thread ends right away.
            try:
                _enter(os.path.join(_NAMESPACES, self.namespace(index)))
                made.append(do())
            except (CopperError, OSError) as error:
                failed.append(error)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if failed:
            raise ClusterError(f"{self.namespace(index)} cannot be used: {failed[0]}")
        return made[0]

    def inside(self, index: int) -> list[str]:
        return ["nsenter", f"--net={_NAMESPACES}/{self.namespace(index)}", "--"]

    def cut(self, index: int) -> None:
        _run(["ip", "-n", self.switch, "link", "set", f"port{index}", "down"])

    def drop(self, index: int, share: float, *, towards: bool, away: bool) -> None:
        """Drop this share of the packets *towards* the node, *away* from it, or both; replaces an
        earlier loss."""
        port = f"port{index}"
        of_thousand = max(1, round(share * 1000))
        lost = f"numgen random mod 1000 < {of_thousand} drop" if of_thousand < 1000 else "drop"
        rules = [f'oifname "{port}" {lost}'] if towards else []
        rules += [f'iifname "{port}" {lost}'] if away else []
        chain = "type filter hook forward priority 0"
        self._nft(
            f"table bridge {port}",
            f"delete table bridge {port}",
            f"table bridge {port} {{",
            f"chain lose {{ {chain}; {'; '.join(rules)}; }}",
            "}",
        )

    def heal(self, index: int) -> None:
        _run(["ip", "-n", self.switch, "link", "set", f"port{index}", "up"])
        if index in self.bad_links():
            self._nft(f"delete table bridge port{index}")

    def cut_links(self) -> set[int]:
        shown = json.loads(_run(["ip", "-n", self.switch, "-json", "link", "show"]) or "[]")
        ports = {each["ifname"]: each.get("flags", []) for each in shown if "ifname" in each}
        return {
            int(name.removeprefix("port"))
            for name, flags in ports.items()
            if name.startswith("port") and "UP" not in flags
        }

    def bad_links(self) -> set[int]:
        if shutil.which("nft") is None:
            return set()  # so no command can have set a loss
        tables = self._nft("list tables").split()
        return {int(each.removeprefix("port")) for each in tables if each.startswith("port")}

    def _nft(self, *lines: str) -> str:
        # "ip netns exec" would also make mounts each time.
        inside = ["nsenter", f"--net={_NAMESPACES}/{self.switch}", "--"]
        return _run([*inside, "nft", "-f", "-"], "".join(f"{line}\n" for line in lines))


def check_drop_possible() -> None:
    if shutil.which("nft") is None:
        raise ClusterError("losing packets needs the command nft; install the package nftables")


def network_of(cluster: Cluster, node: str) -> tuple[NodeNetworks, int]:
    index = cluster.nodes.index(cluster.node(node))
    if cluster.network is None:
        raise ClusterError(
            "the nodes of this cluster share the loopback interface, of which no link can be cut; "
            "start it with --netns"
        )
    return NodeNetworks(cluster.network), index


def _ip_batch(lines: Sequence[str], namespace: str | None = None) -> None:
    inside = [] if namespace is None else ["-n", namespace]
    _run(["ip", *inside, "-batch", "-"], "".join(f"{line}\n" for line in lines))


def _run(command: Sequence[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    except FileNotFoundError:
        raise ClusterError("the command ip is missing; install the package iproute2") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(command)}: no end within {WITHIN_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ClusterError(f"{' '.join(command)}: {said[0]}")
    return done.stdout


def _enter(namespace: str) -> None:
    """os.setns came with 3.12."""
    library = ctypes.CDLL(None, use_errno=True)
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if library.setns(fd, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)
