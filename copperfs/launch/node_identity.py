"""Node identity: a node's name, listening socket, keys and tier size for the launch."""

import socket
from dataclasses import dataclass, field

from copperfs import __version__
from copperfs.config.settings import Settings
from copperfs.launch.curve_keys import NO_KEYS, draw_pair
from copperfs.launch.listen_address import choose_address, endpoint_of, open_listener
from copperfs.model.roster import BadRoster, Member, Roster
from copperfs.wire.wire_version import VERSION, mismatch_sentence


@dataclass(frozen=True, slots=True)
class Invitation:
    member: Member
    listener: socket.socket
    secret_key: str = field(repr=False)


def invite(settings: Settings) -> Invitation:
    """LaunchError says why the others cannot reach this node."""
    keys = draw_pair() if settings.security == "curve" else NO_KEYS
    listener = open_listener(choose_address(settings.listen), settings.port or 0)
    endpoint = endpoint_of(listener)
    member = Member(own_name(settings), endpoint, keys.public, settings.tier_bytes)
    return Invitation(member, listener, keys.secret)


def own_version() -> list[int | str]:
    return [VERSION, __version__]


def other_version(name: str, runs: object, me: str) -> str | None:
    """A sentence if the node *name* has another version; one that sent no *runs* is older."""
    if runs == own_version():
        return None
    match runs:
        case [int(version), str(release)]:
            return mismatch_sentence(name, version, release, me)
    return (
        f"{name} runs an older copperfs and {me} runs copperfs {__version__} (wire version "
        f"{VERSION}): start all nodes from one installation"
    )


def own_name(settings: Settings) -> str:
    return settings.node_name or socket.gethostname()


def check(roster: Roster) -> None:
    """BadRoster if the nodes could not reach each other."""
    roster.check()
    inside = [
        each.name
        for each in roster.members
        if each.endpoint.startswith(("tcp://127.", "tcp://[::1]", "tcp://localhost:"))
    ]
    if 0 < len(inside) < len(roster):
        raise BadRoster(
            f"{inside[0]} listens on the loopback address only, which other nodes do not reach; "
            "give --listen with an interface or a network that all nodes have"
        )
