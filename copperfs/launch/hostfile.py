"""Hostfile launch: builds the roster from a file that names all nodes (``docs/launching.md``).

Nothing is exchanged, so no node waits for another. Without sizes all nodes get the same share of
the chunks. The order of the file is that of the roster. Nodes whose hostfiles or key files
(``curve_keys.py``) differ have different job names, and refuse each other.
"""

import hashlib
import ipaddress
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from copperfs.config.settings import Settings, parse_size
from copperfs.launch.curve_keys import NO_KEYS, derive_pair, read_key_file
from copperfs.launch.listen_address import (
    Address,
    choose_address,
    interface_addresses,
    open_listener,
    resolve,
)
from copperfs.launch.node_identity import Invitation, own_name
from copperfs.launch.node_sets import expand, fold
from copperfs.model.errors import LaunchError
from copperfs.model.roster import NODES_MAX, Member, Roster
from copperfs.model.types import NodeId

PORT_DEFAULT = 4711


@dataclass(frozen=True, slots=True)
class HostLine:
    name: str
    port: int
    tier_bytes: int | None = None


def parse_hostfile(text: str, path: str, port: int) -> tuple[HostLine, ...]:
    hosts: list[HostLine] = []
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}, line {number}"
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = re.fullmatch(r"([^\s:]+)(?::(\d{1,5}))?(?:\s+tier=(\S+))?", entry, re.ASCII)
        if match is None or not 1 <= int(match[2] or port) <= 65535:
            raise LaunchError(
                f"{where}: {entry!r} is not HOST, HOST:PORT or a set such as n[1-8], with or "
                "without tier=SIZE behind it"
            )
        tier_bytes = None if match[3] is None else _tier_bytes(match[3], where)
        names = expand(match[1], where)
        hosts += [HostLine(name, int(match[2] or port), tier_bytes) for name in names]
        if len(hosts) > NODES_MAX:
            raise LaunchError(f"{path} names more than {NODES_MAX} nodes")
    if not hosts:
        raise LaunchError(f"{path} names no node; write one on each line")
    silent = [each.name for each in hosts if each.tier_bytes is None]
    if 0 < len(silent) < len(hosts):
        raise LaunchError(
            f"{path} says tier= for some nodes and not for {silent[0]}: say it for all, or for none"
        )
    return tuple(hosts)


def _tier_bytes(text: str, where: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise LaunchError(f"{where}: tier: {error}") from None


def read_hostfile(path: str, port: int) -> tuple[HostLine, ...]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"the hostfile {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LaunchError(f"the hostfile {path} is not text") from None
    return parse_hostfile(text, path, port)


def launch_by_hostfile(
    settings: Settings, hosts: tuple[HostLine, ...], job: str
) -> tuple[Roster, NodeId, Invitation]:
    me = _find_me(settings, [each.name for each in hosts])
    secret = _secret(settings)
    pairs = [derive_pair(secret, each.name) if secret else NO_KEYS for each in hosts]
    # All nodes have a tier or none has: otherwise their job names differ.
    unsaid = 1 if settings.has_tier else 0
    members = tuple(
        Member(
            host.name,
            f"tcp://{host.name}:{host.port}",
            pair.public,
            unsaid if host.tier_bytes is None else host.tier_bytes,
        )
        for host, pair in zip(hosts, pairs, strict=True)
    )
    roster = Roster(_job_name(job, secret, members), members)
    roster.check()
    listener = open_listener(_address_of(hosts[me].name, settings.listen), hosts[me].port)
    return roster, me, Invitation(members[me], listener, pairs[me].secret)


def check_names_this_node(settings: Settings, host: HostLine) -> None:
    """LaunchError if the only node of a hostfile is another: it would mount alone, unnoticed."""
    own = {own_name(settings), socket.gethostname(), "localhost"}
    short = {each.partition(".")[0] for each in own}
    if host.name in own or host.name.partition(".")[0] in short:
        return
    here = {each for found in interface_addresses().values() for each in found}
    if any(each.is_loopback or each in here for each in resolve(host.name)):
        return
    raise LaunchError(
        f"the hostfile {settings.hostfile} names only {host.name}, and this node is "
        f"{own_name(settings)}; add it, or leave --hostfile out"
    )


def _find_me(settings: Settings, names: list[str]) -> NodeId:
    own = own_name(settings)
    for wanted, shorten in ((own, False), (own.partition(".")[0], True)):
        if settings.node_name and shorten:
            break
        found = [
            place
            for place, name in enumerate(names)
            if wanted == (name.partition(".")[0] if shorten else name)
        ]
        if found:
            return NodeId(found[0])
    raise LaunchError(
        f"{own} is not in the hostfile {settings.hostfile}, which names {fold(names)}; "
        "add it, or give the right --node-name"
    )


def _secret(settings: Settings) -> bytes:
    if settings.security == "none":
        return b""
    if settings.key_file is None:
        raise LaunchError(
            "--hostfile needs a secret that all nodes share: make one with 'copperfs keygen FILE' "
            "and give all nodes --key-file FILE, or give --security none"
        )
    return read_key_file(settings.key_file)


def _job_name(job: str, secret: bytes, members: tuple[Member, ...]) -> str:
    """The same on all nodes that have the same files; it reveals none of them."""
    text = Roster(job, members).to_json().encode("utf-8", "surrogateescape")
    key = hashlib.blake2b(secret).digest()
    return hashlib.blake2b(text, digest_size=16, key=key, person=b"copperfs job").hexdigest()


def _address_of(name: str, listen: str | None) -> Address:
    """An own address that the others find by *name*, if there is one."""
    with suppress(ValueError):
        return ipaddress.ip_address(name)
    if listen is None:
        own = {each for found in interface_addresses().values() for each in found}
        for address in resolve(name):
            if address in own and (not address.is_loopback or name == "localhost"):
                return address
    return choose_address(listen)
