"""Speculative push: sends children what they will want next, before they request it.

``AccessHistory`` says which children follow and what they lack; this module makes messages
(``Offer``) of it. The reply to a request is accompanied by what comes after it. Content that
reaches this node later is offered to all followers, together with all that arrives within
``DELAY_S``. So seven children of eight nodes that import at once get most of it in some hundred
messages.
"""

from dataclasses import dataclass

from copperfs.model.listing import Listing
from copperfs.model.types import BlobId, NodeId
from copperfs.node.actions import Action, CacheKey, ListingKey, ObjectKey
from copperfs.node.cache.metadata_cache import Cache, Held
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.peer.flow_control import FlowControl
from copperfs.node.peer.messages import ContentKind, Item, Offer
from copperfs.node.prefetch.access_history import (
    ITEM_BYTES_MAX,
    OFFER_BYTES_MAX,
    OFFER_PATH_BYTES_MAX,
    AccessHistory,
)

DELAY_S = 0.01
# Messages to one child at a time, so that the others get their turn.
MESSAGES_MAX = 4


@dataclass(slots=True)
class SpeculativePush:
    stats: NodeStats
    flow: FlowControl
    cache: Cache
    history: AccessHistory
    _due: float | None = None

    def requested_by(self, now: float, peer: NodeId, key: ListingKey | ObjectKey) -> list[Action]:
        # Offer what *peer* missed first: then the history shows whether this is a step forward.
        actions = self._offer(now, peer, self.history.behind(peer, but=key))
        return actions + self._offer(now, peer, self.history.ahead(peer, key))

    def noted(self, now: float, key: ListingKey | ObjectKey) -> None:
        """*key* is held, or will be in a moment."""
        self.history.note(key)
        if self._due is None and any(True for _ in self.history.followers()):
            self._due = now + DELAY_S

    def deadline(self) -> float | None:
        return self._due

    def flush(self, now: float) -> list[Action]:
        if self._due is None or now < self._due:
            return []
        self._due = None
        actions: list[Action] = []
        for peer in list(self.history.followers()):
            for _ in range(MESSAGES_MAX):
                behind = self.history.behind(peer)
                if not behind or not self.flow.may_offer(peer):
                    break
                actions += self._offer(now, peer, behind)
            else:
                self._due = now + DELAY_S  # more is left
        return actions

    def _offer(self, now: float, peer: NodeId, keys: list[CacheKey]) -> list[Action]:
        if not keys or not self.flow.may_offer(peer):
            return []
        items: list[Item] = []
        contents: list[BlobId | Listing] = []
        size = path_size = 0
        for each in keys:
            found = self._item(now, each)
            if found is None:
                self.history.offered(peer, each)  # the child has to request it
                continue
            item, content = found
            size, path_size = size + item.length, path_size + len(item.path)
            if size > OFFER_BYTES_MAX or path_size > OFFER_PATH_BYTES_MAX:
                break
            items.append(item)
            contents.append(content)
            self.history.offered(peer, each, item.length)
        if not items:
            return []
        self.stats.offers += len(items)
        return self.flow.offer(peer, Offer(self.stats.epoch, tuple(items)), tuple(contents))

    def _item(self, now: float, key: CacheKey) -> tuple[Item, BlobId | Listing] | None:
        """None if it is not held, or too large."""
        value = self.cache.offerable(key, now)
        if isinstance(key, ObjectKey):
            size = key.version.size
            if value is None or isinstance(value, Held) or size > ITEM_BYTES_MAX:
                return None
            return Item(ContentKind.OBJECT, key.path, key.version, size, 0, size), value
        if not isinstance(value, Held) or not isinstance(value.source, Listing):
            return None
        size = len(value.source.packed)
        if size > ITEM_BYTES_MAX:
            return None
        left = None if value.fresh_until is None else max(0.0, value.fresh_until - now)
        listing = value.source
        return Item(ContentKind.LISTING, key.path, listing.directory, size, 0, size, left), listing

    def forget(self, peer: NodeId) -> None:
        self.history.forget(peer)

    def clear(self) -> None:
        self.history.clear()
        self._due = None
