"""A network of its own for each node: a namespace with one address, and a switch between them.

The switch is a bridge in a namespace of its own, so nothing appears among the interfaces, addresses
and routes of the machine, and no range of addresses can collide with one that is used there. It
also means that the nodes reach each other and nothing else.

A daemon enters only the network of its node (``nsenter --net``). ``ip netns exec`` would also give
it another view of the mounts, in which what it mounts could be seen by nobody else.
"""

import ctypes
import json
import os
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from copperfs.bootstrap.address import open_listener
from copperfs.cluster.state import Cluster
from copperfs.errors import ClusterError, CopperError

PREFIX = "copperfs-"
ADDRESSES = IPv4Network("10.77.0.0/16")
WITHIN_S = 60.0
_CLONE_NEWNET = 0x40000000
_NAMESPACES = "/run/netns"


def draw_name() -> str:
    return f"{PREFIX}{secrets.token_hex(4)}"


def check_possible() -> None:
    """ClusterError, one sentence, if this user or this machine cannot."""
    if os.geteuid() != 0:
        raise ClusterError("--netns makes network namespaces, which needs root; leave it out")
    for tool, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            raise ClusterError(f"--netns needs the command {tool}; install the package {package}")


@dataclass(frozen=True, slots=True)
class Network:
    """The namespaces of one cluster; their names all begin with ``name``."""

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
        # One link after the other, each with both ends where they are to be.
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
        """Whatever there is of it. What runs in a namespace has to have ended."""
        if not os.path.isdir(_NAMESPACES):
            return
        mine = [each for each in os.listdir(_NAMESPACES) if each.startswith(f"{self.name}-")]
        for each in sorted(mine):
            _run(["ip", "netns", "delete", each])

    def listen(self, index: int, port: int = 0) -> socket.socket:
        """A socket that listens on the address of this node, in its namespace; port 0 takes any."""
        made: list[socket.socket] = []
        failed: list[Exception] = []

        def listen() -> None:
            # Namespaces belong to threads, and this one ends right away.
            try:
                _enter(os.path.join(_NAMESPACES, self.namespace(index)))
                made.append(open_listener(self.address(index), port))
            except (CopperError, OSError) as error:
                failed.append(error)

        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        if failed:
            raise ClusterError(f"{self.namespace(index)} cannot be used: {failed[0]}")
        return made[0]

    def inside(self, index: int) -> list[str]:
        """The command that runs another one in the namespace of a node."""
        return ["nsenter", f"--net={_NAMESPACES}/{self.namespace(index)}", "--"]

    def cut(self, index: int) -> None:
        """As if the cable had been pulled at the switch."""
        _run(["ip", "-n", self.switch, "link", "set", f"port{index}", "down"])

    def drop(self, index: int, share: float, *, towards: bool, away: bool) -> None:
        """As if the cable were bad: the switch loses that share of the packets *towards* the node,
        of those that come *away* from it, or of both. In place of what it lost before."""
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
        """Whatever was done to its link."""
        _run(["ip", "-n", self.switch, "link", "set", f"port{index}", "up"])
        if index in self.bad_links():
            self._nft(f"delete table bridge port{index}")

    def cut_links(self) -> set[int]:
        """The nodes whose link is cut."""
        shown = json.loads(_run(["ip", "-n", self.switch, "-json", "link", "show"]) or "[]")
        ports = {each["ifname"]: each.get("flags", []) for each in shown if "ifname" in each}
        return {
            int(name.removeprefix("port"))
            for name, flags in ports.items()
            if name.startswith("port") and "UP" not in flags
        }

    def bad_links(self) -> set[int]:
        """The nodes whose link loses packets."""
        if shutil.which("nft") is None:
            return set()  # so nobody can have made it so
        tables = self._nft("list tables").split()
        return {int(each.removeprefix("port")) for each in tables if each.startswith("port")}

    def _nft(self, *lines: str) -> str:
        # Not "ip netns exec": it would also mount things, each time.
        inside = ["nsenter", f"--net={_NAMESPACES}/{self.switch}", "--"]
        return _run([*inside, "nft", "-f", "-"], "".join(f"{line}\n" for line in lines))


def check_drop_possible() -> None:
    """ClusterError, one sentence, if this machine cannot lose packets on purpose."""
    if shutil.which("nft") is None:
        raise ClusterError("losing packets needs the command nft; install the package nftables")


def network_of(cluster: Cluster, node: str) -> tuple[Network, int]:
    """The network of *cluster*, and which of its nodes is meant."""
    index = cluster.nodes.index(cluster.node(node))
    if cluster.network is None:
        raise ClusterError(
            "the nodes of this cluster share the loopback interface, of which no link can be cut; "
            "start it with --netns"
        )
    return Network(cluster.network), index


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
    """This thread's network is that of *namespace* from here on; os.setns came with 3.12."""
    library = ctypes.CDLL(None, use_errno=True)
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if library.setns(fd, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)
