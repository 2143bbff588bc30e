"""Access history: the order in which content first came to this node, and which children follow it.

The nodes of a job run the same program, so what one node wanted next the others will want next. A
node records the order in which listings and small objects came to it, whichever node had asked. A
child whose requests move forward in that order *follows*: it is *offered* what comes next, as far
as it is held, and need not request each item. One child leads and pays for each step. Those behind
it catch up in large steps, however far they fell behind, and then receive each step that another
one makes.

A child that does not follow is offered nothing. A node that reads its own part of a data set jumps
about in the histories of others, or always leads, and would be sent what it never wants. An item
that a child was offered or has requested is not offered again, and the child drops what it has no
free memory for. A child that is silent for long gets no more offers until its next request.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from copperfs.model.types import NodeId
from copperfs.node.actions import CacheKey, ListingKey, ObjectKey

TRAIL_MAX = 1 << 16
# This many requests in a row along the history make a follower ...
FOLLOWS_AFTER = 2
# ... each at most this far beyond the one before: programs skip a little, because the kernel or the
# node has something already.
STEP_MAX = 32
# An offer and a request for its content cross on the way, and items too large to offer are
# requested. A request from further behind than this means that the child has begun something else.
BEHIND_MAX = 256
# A child that leads for more requests than this does not do what the others do.
LEADS_MAX = 16
# An offer is one message: a larger one would delay replies.
OFFER_ITEMS_MAX = 64
OFFER_BYTES_MAX = 512 << 10
# A larger item is worth a request of its own.
ITEM_BYTES_MAX = 128 << 10
OFFER_PATH_BYTES_MAX = 16 << 10
# At most this much is offered to a child that has stopped sending requests.
SILENT_BYTES_MAX = 8 << 20


@dataclass(slots=True)
class _Follower:
    at: int
    """The last place in the history that it was offered; for a non-follower, requested."""
    steps: int = 0
    """How many requests in a row were a step forward."""
    leads: int = 0
    """How many in a row were for content that no node had had."""
    had: set[int] = field(default_factory=set)
    """Later places that it requested itself."""
    silent_bytes: int = 0
    """Bytes it was offered since its last request."""

    @property
    def follows(self) -> bool:
        return self.steps >= FOLLOWS_AFTER


@dataclass(slots=True)
class AccessHistory:
    _keys: list[CacheKey] = field(default_factory=list)
    _places: dict[CacheKey, int] = field(default_factory=dict)
    _followers: dict[NodeId, _Follower] = field(default_factory=dict)
    _awaited: dict[CacheKey, list[NodeId]] = field(default_factory=dict)
    """Content that was not here when these children requested it: they get it as a reply."""

    def note(self, key: ListingKey | ObjectKey) -> None:
        """Record that *key* came; only the first time counts."""
        if key in self._places:
            return
        if len(self._keys) >= TRAIL_MAX:
            self.clear()
        place = self._places[key] = len(self._keys)
        self._keys.append(key)
        for peer in self._awaited.pop(key, ()):
            if peer in self._followers:
                self._followers[peer].had.add(place)

    def ahead(self, peer: NodeId, key: ListingKey | ObjectKey) -> list[CacheKey]:
        """*peer* requests *key*; returns what comes next in the history, if it follows."""
        place = self._places.get(key)
        follower = self._followers.get(peer)
        if place is None:
            self._lead(peer, follower, key)
        elif follower is None:
            self._followers[peer] = _Follower(place)
        else:
            self._step(follower, place)
        return self.behind(peer)

    def _lead(self, peer: NodeId, follower: _Follower | None, key: CacheKey) -> None:
        if follower is None or not follower.follows:
            return
        follower.silent_bytes = 0
        follower.leads += 1
        if follower.leads > LEADS_MAX:
            follower.steps = follower.leads = 0
            return
        if len(self._awaited) < TRAIL_MAX:
            self._awaited.setdefault(key, []).append(peer)

    @staticmethod
    def _step(follower: _Follower, place: int) -> None:
        follower.leads = follower.silent_bytes = 0
        if follower.follows and follower.at - BEHIND_MAX <= place <= follower.at + STEP_MAX:
            if place > follower.at:
                follower.had.add(place)
        elif follower.at < place <= follower.at + STEP_MAX:
            follower.at = place
            follower.steps += 1
        else:
            follower.at, follower.steps = place, 0
            follower.had.clear()

    def behind(self, peer: NodeId, but: CacheKey | None = None) -> list[CacheKey]:
        """What *peer* lacks of what comes next, if it follows; without *but*."""
        follower = self._followers.get(peer)
        if follower is None or not follower.follows:
            return []
        if follower.silent_bytes >= SILENT_BYTES_MAX:
            return []
        places = range(follower.at + 1, len(self._keys))
        missing = (self._keys[at] for at in places if at not in follower.had)
        return list(islice((key for key in missing if key != but), OFFER_ITEMS_MAX))

    def followers(self) -> Iterator[NodeId]:
        """The followers that lack something."""
        end = len(self._keys) - 1
        for peer, follower in self._followers.items():
            if follower.follows and follower.at < end:
                yield peer

    def offered(self, peer: NodeId, key: CacheKey, size: int = 0) -> None:
        """*peer* got this with an offer, or has to request it: it continues from here."""
        follower, place = self._followers[peer], self._places[key]
        follower.silent_bytes += size
        if place > follower.at:
            follower.at = place
            follower.had = {each for each in follower.had if each > place}

    def forget(self, peer: NodeId) -> None:
        """*peer* was restarted, or is gone."""
        self._followers.pop(peer, None)

    def clear(self) -> None:
        """Start anew in a new epoch, in which the order may be another."""
        self._keys.clear()
        self._places.clear()
        self._followers.clear()
        self._awaited.clear()
