"""Offers: what children will want next is sent to them before they ask.

The trail says who follows and what it has not had; here that is made into messages. With the answer
to an ask goes what comes after it; and what comes to this node later, because somebody else had
asked for it or because it was read ahead, is offered to all who follow, together with all that
comes within ``DELAY_S``. A child that takes it may have followers of its own.

Without the delay each thing would be a message of its own to each child; with it, seven children of
eight nodes that import at once are sent most of it in some hundred messages.
"""

from dataclasses import dataclass

from copperfs.core.actions import Action, CacheKey, ListingKey, ObjectKey
from copperfs.core.cache import Cache, Held
from copperfs.core.links import Links
from copperfs.core.listing import Listing
from copperfs.core.messages import Item, Offer, What
from copperfs.core.state import NodeStats
from copperfs.core.trail import (
    ITEM_BYTES_MAX,
    OFFER_BYTES_MAX,
    OFFER_PATH_BYTES_MAX,
    Trail,
)
from copperfs.types import BlobId, NodeId

DELAY_S = 0.01
# To one child at a time, so that others get their turn.
MESSAGES_MAX = 4


@dataclass(slots=True)
class Offers:
    stats: NodeStats
    links: Links
    cache: Cache
    trail: Trail
    _due: float | None = None

    def asked(self, now: float, peer: NodeId, key: ListingKey | ObjectKey) -> list[Action]:
        """*peer* has asked for *key*, and was answered if it is held."""
        # What it missed comes first: then it shows whether this is a step forward.
        actions = self._offer(now, peer, self.trail.behind(peer, but=key))
        return actions + self._offer(now, peer, self.trail.ahead(peer, key))

    def noted(self, now: float, key: ListingKey | ObjectKey) -> None:
        """This came, and is held or will be in a moment."""
        self.trail.note(key)
        if self._due is None and any(True for _ in self.trail.followers()):
            self._due = now + DELAY_S

    def deadline(self) -> float | None:
        return self._due

    def flush(self, now: float) -> list[Action]:
        """Time has passed: offer what has come."""
        if self._due is None or now < self._due:
            return []
        self._due = None
        actions: list[Action] = []
        for peer in list(self.trail.followers()):
            for _ in range(MESSAGES_MAX):
                behind = self.trail.behind(peer)
                if not behind or not self.links.may_offer(peer):
                    break
                actions += self._offer(now, peer, behind)
            else:
                self._due = now + DELAY_S  # more is left
        return actions

    def _offer(self, now: float, peer: NodeId, keys: list[CacheKey]) -> list[Action]:
        if not keys or not self.links.may_offer(peer):
            return []
        items: list[Item] = []
        contents: list[BlobId | Listing] = []
        size = path_size = 0
        for each in keys:
            found = self._item(now, each)
            if found is None:
                self.trail.offered(peer, each)  # it has to ask for it
                continue
            item, content = found
            size, path_size = size + item.length, path_size + len(item.path)
            if size > OFFER_BYTES_MAX or path_size > OFFER_PATH_BYTES_MAX:
                break
            items.append(item)
            contents.append(content)
            self.trail.offered(peer, each, item.length)
        if not items:
            return []
        self.stats.offers += len(items)
        return self.links.offer(peer, Offer(self.stats.epoch, tuple(items)), tuple(contents))

    def _item(self, now: float, key: CacheKey) -> tuple[Item, BlobId | Listing] | None:
        """What is held under *key*, if it is small enough to be offered."""
        value = self.cache.offerable(key, now)
        if isinstance(key, ObjectKey):
            size = key.version.size
            if value is None or isinstance(value, Held) or size > ITEM_BYTES_MAX:
                return None
            return Item(What.OBJECT, key.path, key.version, size, 0, size), value
        if not isinstance(value, Held) or not isinstance(value.source, Listing):
            return None
        size = len(value.source.packed)
        if size > ITEM_BYTES_MAX:
            return None
        left = None if value.fresh_until is None else max(0.0, value.fresh_until - now)
        listing = value.source
        return Item(What.LISTING, key.path, listing.directory, size, 0, size, left), listing

    def forget(self, peer: NodeId) -> None:
        self.trail.forget(peer)

    def clear(self) -> None:
        self.trail.clear()
        self._due = None
