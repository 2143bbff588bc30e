"""Roster: the nodes given at launch, in an order that all of them share. It never changes.

A node's position in it is its ``NodeId``. ``MemberTable`` keeps which nodes are believed alive.
"""

import json
from dataclasses import asdict, dataclass

from copperfs.model.types import NodeId

NODES_MAX = 200_000
# Sums and quotients of the sizes of all nodes stay exact enough below this.
TIER_BYTES_MAX = 1 << 60


class BadRoster(ValueError):
    """It says what is wrong with the roster, and what to do."""


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    """Unique; for users."""
    endpoint: str
    """``tcp://HOST:PORT``, where the node listens."""
    public_key: str = ""
    """CURVE, in z85; empty without security."""
    tier_bytes: int = 0
    """Memory and disk. Its share of all chunks is proportional to this."""


@dataclass(frozen=True, slots=True)
class Roster:
    job: str
    """Random; nodes of different jobs do not talk to each other."""
    members: tuple[Member, ...]

    def __len__(self) -> int:
        return len(self.members)

    def member(self, node: NodeId) -> Member:
        return self.members[node]

    def check(self) -> None:
        """BadRoster unless every node has a name and an endpoint of its own."""
        if not 1 <= len(self.members) <= NODES_MAX:
            raise BadRoster(f"a roster has 1 to {NODES_MAX} nodes, not {len(self.members)}")
        for word, values in (
            ("name", [each.name for each in self.members]),
            ("endpoint", [each.endpoint for each in self.members]),
            ("key", [each.public_key for each in self.members if each.public_key]),
        ):
            seen: set[str] = set()
            for value in values:
                if value in seen:
                    raise BadRoster(
                        f"two nodes have the {word} {value!r}: start one daemon on each node"
                    )
                seen.add(value)
        if any(not 0 <= each.tier_bytes <= TIER_BYTES_MAX for each in self.members):
            raise BadRoster("the size of a node's tier is no size: give it as 512MiB or 1TiB")
        with_key = sum(bool(each.public_key) for each in self.members)
        if with_key not in (0, len(self.members)):
            raise BadRoster("some nodes have a key and some have not: give all the same --security")

    def to_json(self) -> str:
        members = [asdict(each) for each in self.members]
        return json.dumps({"job": self.job, "members": members}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Roster":
        try:
            value = json.loads(text)
            members = tuple(Member(**each) for each in value["members"])
            roster = cls(str(value["job"]), members)
            if not all(
                isinstance(field, str)
                for each in members
                for field in (each.name, each.endpoint, each.public_key)
            ):
                raise TypeError("a member's name, endpoint and key are strings")
            if not all(type(each.tier_bytes) is int for each in members):
                raise TypeError("the size of a tier is a number of bytes")
        except (KeyError, TypeError, ValueError) as error:
            raise BadRoster(f"this is no roster: {error}") from error
        roster.check()
        return roster
