"""The trail: in which order things were first had here, and who follows it.

The nodes of a job run the same program, so what one of them wanted next the others will want next.
A node keeps the order in which listings and small objects came to it, whoever had asked. A child
whose asks move forward along that order *follows*: it is *offered* what comes after, as far as it
is held, and need not ask for each. One child leads and pays for each step; those behind it catch up
in strides, however far they fell behind, and then are told of each step that another one makes.

Nothing is offered to who does not follow: a node that reads its own part of a data set jumps on the
trails of others, or leads for ever, and would be sent what it never wants. What was offered to a
child or asked for by it is not offered again, and it drops what it has no free room for. Who says
nothing for long is offered no more until it asks for something.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from copperfs.core.actions import CacheKey, ListingKey, ObjectKey
from copperfs.types import NodeId

TRAIL_MAX = 1 << 16
# So many asks in a row along the trail make a follower ...
FOLLOWS_AFTER = 2
# ... each at most so far beyond the one before: programs skip a little, because the kernel or the
# node has something already.
STEP_MAX = 32
# An offer and an ask for what is in it pass each other; and what is too large to be offered is
# asked for. Who asks for what is further behind has begun something else.
BEHIND_MAX = 256
# Who only ever asks for what nobody has had does not do what the others do.
LEADS_MAX = 16
# An offer is one message: more would delay what is asked for.
OFFER_ITEMS_MAX = 64
OFFER_BYTES_MAX = 512 << 10
# What is larger is worth an ask of its own.
ITEM_BYTES_MAX = 128 << 10
OFFER_PATH_BYTES_MAX = 16 << 10
# So much is offered to one who does not ask for anything any more.
SILENT_BYTES_MAX = 8 << 20


@dataclass(slots=True)
class _Follower:
    at: int
    """The last place on the trail that it was offered; of one that does not follow, asked for."""
    steps: int = 0
    """How many asks in a row were a step forward."""
    leads: int = 0
    """How many in a row were for what nobody had had."""
    had: set[int] = field(default_factory=set)
    """Places further on that it asked for by itself."""
    silent_bytes: int = 0
    """What it was offered since it last asked for something."""

    @property
    def follows(self) -> bool:
        return self.steps >= FOLLOWS_AFTER


@dataclass(slots=True)
class Trail:
    _keys: list[CacheKey] = field(default_factory=list)
    _places: dict[CacheKey, int] = field(default_factory=dict)
    _followers: dict[NodeId, _Follower] = field(default_factory=dict)
    _awaited: dict[CacheKey, list[NodeId]] = field(default_factory=dict)
    """What was not there when these asked for it: they get it as an answer."""

    def note(self, key: ListingKey | ObjectKey) -> None:
        """This came; only the first time counts."""
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
        """*peer* asks for *key*; what comes next on the trail, if it follows it."""
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
        """What *peer* has not had of what comes next, if it follows; not *but* this."""
        follower = self._followers.get(peer)
        if follower is None or not follower.follows:
            return []
        if follower.silent_bytes >= SILENT_BYTES_MAX:
            return []
        places = range(follower.at + 1, len(self._keys))
        missing = (self._keys[at] for at in places if at not in follower.had)
        return list(islice((key for key in missing if key != but), OFFER_ITEMS_MAX))

    def followers(self) -> Iterator[NodeId]:
        """Those who have not had all."""
        end = len(self._keys) - 1
        for peer, follower in self._followers.items():
            if follower.follows and follower.at < end:
                yield peer

    def offered(self, peer: NodeId, key: CacheKey, size: int = 0) -> None:
        """*peer* got this with an offer, or is to ask for it: it goes on from here."""
        follower, place = self._followers[peer], self._places[key]
        follower.silent_bytes += size
        if place > follower.at:
            follower.at = place
            follower.had = {each for each in follower.had if each > place}

    def forget(self, peer: NodeId) -> None:
        """It was started anew, or is gone."""
        self._followers.pop(peer, None)

    def clear(self) -> None:
        """A new epoch: what is wanted may be in another order."""
        self._keys.clear()
        self._places.clear()
        self._followers.clear()
        self._awaited.clear()
