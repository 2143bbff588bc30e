"""Access history: the order in which content first came to this node, and which children follow it.

The nodes of a job run the same program, so what one node wanted next the others will want next. A
child whose requests move forward in the order in which listings and small objects came here
*follows*: it is *offered* what comes next. One child leads and pays for each step. The others catch
up in large steps, and then receive each step that another one makes. A child that reads its own
part of a data set does not follow, and gets no offers of what it never wants.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from copperfs.model.types import NodeId
from copperfs.node.actions import CacheKey, ListingKey, ObjectKey

TRAIL_MAX = 1 << 16
# This many requests in a row along the history make a follower.
FOLLOWS_AFTER = 2
# Each is at most this far beyond the one before: programs skip a little, because the kernel or the
# node has something already.
STEP_MAX = 32
# A request from further behind than this means that the child has begun something else. Less shows
# only that an offer and a request crossed, or that an item was too large to offer.
BEHIND_MAX = 256
# A child that leads for more requests than this does not do what the others do.
LEADS_MAX = 16
# A larger message would delay replies.
OFFER_ITEMS_MAX = 64
OFFER_BYTES_MAX = 512 << 10
# A larger item is worth a request of its own.
ITEM_BYTES_MAX = 128 << 10
OFFER_PATH_BYTES_MAX = 16 << 10
# A child that sends no requests is offered no more than this.
SILENT_BYTES_MAX = 8 << 20


@dataclass(slots=True)
class _Follower:
    at: int
    """The last place in the history that it was offered; for a non-follower, requested."""
    steps: int = 0
    """Requests in a row that were a step forward."""
    leads: int = 0
    """Requests in a row for content that no node had had."""
    had: set[int] = field(default_factory=set)
    """Later places that it requested."""
    silent_bytes: int = 0

    @property
    def follows(self) -> bool:
        return self.steps >= FOLLOWS_AFTER


@dataclass(slots=True)
class AccessHistory:
    _keys: list[CacheKey] = field(default_factory=list)
    _places: dict[CacheKey, int] = field(default_factory=dict)
    _followers: dict[NodeId, _Follower] = field(default_factory=dict)
    _awaited: dict[CacheKey, list[NodeId]] = field(default_factory=dict)
    """These children requested content that was not here, and get it as a reply."""

    def note(self, key: ListingKey | ObjectKey) -> None:
        """Only the first time counts."""
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
        """Returns what comes next after *key*, if *peer* follows."""
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
        """The next items that a following *peer* lacks, without *but*."""
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
        """*peer* got *key* with an offer, or has to request it."""
        follower, place = self._followers[peer], self._places[key]
        follower.silent_bytes += size
        if place > follower.at:
            follower.at = place
            follower.had = {each for each in follower.had if each > place}

    def forget(self, peer: NodeId) -> None:
        self._followers.pop(peer, None)

    def clear(self) -> None:
        """In a new epoch the order may be another."""
        self._keys.clear()
        self._places.clear()
        self._followers.clear()
        self._awaited.clear()
