"""The trail: in which order things were first had here, and who follows it.

The nodes of a job run the same program, so what one of them wanted next the others will want next.
A node keeps the order in which listings and small objects came to it, whoever had asked. A child
whose asks move forward along that order *follows*: with its next answer it is *offered* what comes
after, as far as it is held, in one message, and need not ask for each. One child leads and pays for
each step; those behind it catch up in strides, however far they fell behind.

Nothing is offered to who does not follow: a node that reads its own part of a data set jumps on the
trails of others, or leaves them at once, and would be sent what it never wants. What was offered to
a child is not offered again, and it drops what it has no free room for.
"""

from dataclasses import dataclass, field

from copperfs.core.actions import CacheKey, ListingKey, ObjectKey
from copperfs.types import NodeId

TRAIL_MAX = 1 << 16
# So many asks in a row along the trail make a follower ...
FOLLOWS_AFTER = 2
# ... each at most so far beyond the one before: programs skip a little, because the kernel or the
# node has something already.
STEP_MAX = 32
# An offer is one message: more would delay what is asked for.
OFFER_ITEMS_MAX = 64
OFFER_BYTES_MAX = 512 << 10
# What is larger is worth an ask of its own.
ITEM_BYTES_MAX = 128 << 10
OFFER_PATH_BYTES_MAX = 16 << 10


@dataclass(slots=True)
class _Follower:
    at: int
    """The last place on the trail that it asked for or was offered."""
    steps: int = 0
    """How many asks in a row were a step forward from there."""


@dataclass(slots=True)
class Trail:
    _keys: list[CacheKey] = field(default_factory=list)
    _places: dict[CacheKey, int] = field(default_factory=dict)
    _followers: dict[NodeId, _Follower] = field(default_factory=dict)

    def note(self, key: ListingKey | ObjectKey) -> None:
        """This came; only the first time counts."""
        if key in self._places:
            return
        if len(self._keys) >= TRAIL_MAX:
            self.clear()
        self._places[key] = len(self._keys)
        self._keys.append(key)

    def ahead(self, peer: NodeId, key: ListingKey | ObjectKey) -> list[CacheKey]:
        """*peer* asks for *key*; what comes next on the trail, if it follows it."""
        place = self._places.get(key)
        if place is None:
            return []  # it leads, for this step
        follower = self._followers.get(peer)
        if follower is None:
            self._followers[peer] = _Follower(place)
            return []
        if not follower.at < place <= follower.at + STEP_MAX:
            follower.at, follower.steps = place, 0
            return []
        follower.at = place
        follower.steps += 1
        if follower.steps < FOLLOWS_AFTER:
            return []
        return self._keys[place + 1 : place + 1 + OFFER_ITEMS_MAX]

    def offered(self, peer: NodeId, key: CacheKey) -> None:
        """*peer* got this with an offer: it goes on from here."""
        self._followers[peer].at = max(self._followers[peer].at, self._places[key])

    def forget(self, peer: NodeId) -> None:
        """It was started anew, or is gone."""
        self._followers.pop(peer, None)

    def clear(self) -> None:
        """A new epoch: what is wanted may be in another order."""
        self._keys.clear()
        self._places.clear()
        self._followers.clear()
