"""Push: receives a working set that comes down the push tree in batches.

The pieces of one listing or object follow each other in a push, so a node has at most one
unfinished item per push. It drops a piece that does not continue this item.

Every batch is forwarded (``BatchTaken``), whatever becomes of its items, with two exceptions: a
duplicate, which arrives when the push tree has changed meanwhile, and a batch of a node that is not
above this one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from copperfs.model.types import BlobId, NodeId, PayloadId
from copperfs.node.cache.metadata_cache import Cache
from copperfs.node.events import BatchTaken, FromPeer, PayloadConsumed, Pushed, PushedListing
from copperfs.node.limits_and_counters import Limits
from copperfs.node.peer.messages import LISTING_MAX_BYTES, Batch, ContentKind, Item
from copperfs.node.peer.reassembly import Payloads, Slice
from copperfs.node.requests.file_class import FileClassifier
from copperfs.node.requests.path_policy import Place, Policy
from copperfs.node.routing.trees import Trees

# Pushes whose batches came before their collective.
UNCALLED_MAX = 64
# The share of the memory for unfinished items of all pushes.
UNFINISHED_SHARE = 8


@dataclass(slots=True)
class Unfinished:
    first: Item
    blob: BlobId
    there: int

    def goes_on_with(self, item: Item) -> bool:
        return (
            item.offset == self.there
            and item.total_bytes == self.first.total_bytes
            and (item.what, item.path, item.version)
            == (self.first.what, self.first.path, self.first.version)
        )


@dataclass(slots=True, eq=False)
class Push:
    heard_at: float
    bytes: int = 0
    """Of files that were packed here, or arrived."""
    failed: int = 0
    """Files that the root could not read."""
    is_called: bool = False
    sequence: int = 0
    """The next batch that is sent here."""
    is_over: bool = False
    unfinished: Unfinished | None = None
    sequences: set[int] = field(default_factory=set)
    """Batches that have arrived."""


@dataclass(slots=True)
class Pushes:
    policy: Policy
    limits: Limits
    files: FileClassifier
    cache: Cache
    trees: Trees | None
    payloads: Payloads | None = None
    """None in a job of one node."""
    running: dict[int, Push] = field(default_factory=dict)

    def watch(self, now: float, number: int) -> Push:
        push = self._push(now, number)
        push.is_called = True
        return push

    def end(self, number: int) -> None:
        push = self.running.pop(number, None)
        if push is not None:
            self._give_up(push)

    def batch(
        self, now: float, peer: NodeId, batch: Batch, payload: PayloadId | None
    ) -> Iterator[FromPeer]:
        """Without a payload only the batch itself counts."""
        payloads, trees = self.payloads, self.trees
        assert payloads is not None, "attached before peers are heard"
        size = 0 if payload is None else payloads.size(payload)
        if trees is None or batch.tree >= trees.count or not trees.is_before(peer, batch.tree):
            yield PayloadConsumed(peer, size, batch.epoch)  # returns the credit
            return
        push = self._push(now, batch.push)
        if batch.sequence in push.sequences and not batch.last:
            yield PayloadConsumed(peer, size, batch.epoch)
            return
        push.sequences.add(batch.sequence)
        push.heard_at = now
        passed_on = payloads.empty() if payload is None else payloads.keep(payload)
        yield BatchTaken(peer, batch, passed_on, size)
        at = 0
        for number, item in enumerate(batch.items):
            if payload is None or at + item.length > size:
                break
            if item.digest:  # not verified: only the digest of the whole payload was
                item = replace(item, digest=b"")
            yield from self._take(push, batch.epoch, payload, Slice(number, at, item))
            at += item.length
        if batch.last:
            self._give_up(push)
            push.is_over = True

    def corrupt(self, now: float, peer: NodeId, batch: Batch) -> Iterator[FromPeer]:
        """The items are missing, but a last batch still ends the push."""
        if batch.last:
            yield from self.batch(now, peer, replace(batch, items=()), None)

    def _take(self, push: Push, epoch: int, payload: PayloadId, where: Slice) -> Iterator[FromPeer]:
        item, payloads = where.item, self.payloads
        assert payloads is not None
        if item.what is ContentKind.OBJECT:
            push.bytes += item.length
        if item.offset == 0:
            self._give_up(push)
            if not self._wants(item) or not self._make_room(item.total_bytes):
                return
            if item.what is ContentKind.LISTING and item.length == item.total_bytes:
                listing = payloads.item_listing(payload, where)
                if listing is not None:
                    yield PushedListing(item.path, listing, epoch, item.fresh_for_s)
                return
        coming = push.unfinished
        if item.offset and (coming is None or not coming.goes_on_with(item)):
            self._give_up(push)
            return
        if item.offset + item.length > item.total_bytes:
            self._give_up(push)
            return
        blob = payloads.take_item(payload, where, None if coming is None else coming.blob)
        there = item.offset + item.length
        if there < item.total_bytes:
            push.unfinished = Unfinished(item, blob, there)
            return
        push.unfinished = None
        if item.what is ContentKind.OBJECT:
            assert item.version is not None
            yield Pushed(item.path, item.version, blob)
            return
        listing = payloads.blob_listing(blob, item.version)
        payloads.release(blob)
        if listing is not None:
            yield PushedListing(item.path, listing, epoch, item.fresh_for_s)

    def _wants(self, item: Item) -> bool:
        """The node drops what it holds, what is not shared, what is too large for it, and what
        contradicts its own description."""
        if self.policy.place(item.path) is not Place.SHARED:
            return False
        if item.what is ContentKind.LISTING:
            return item.total_bytes <= LISTING_MAX_BYTES
        if item.version is None or item.version.size != item.total_bytes:
            return False
        fits = item.total_bytes > 0 and self.files.is_pushed(item.path, item.version.size)
        return fits and not self.cache.holds(item.path, item.version)

    def _make_room(self, size: int) -> bool:
        """The oldest unfinished items are dropped."""
        most = max(self.limits.whole_max_bytes, self.limits.memory_bytes // UNFINISHED_SHARE)
        begun = [push for push in self.running.values() if push.unfinished is not None]
        total = size + sum(p.unfinished.first.total_bytes for p in begun if p.unfinished)
        for push in begun:
            if total <= most:
                break
            assert push.unfinished is not None
            total -= push.unfinished.first.total_bytes
            self._give_up(push)
        return total <= most

    def _push(self, now: float, number: int) -> Push:
        if number not in self.running:
            uncalled = [each for each, push in self.running.items() if not push.is_called]
            for each in uncalled[: max(0, len(uncalled) - UNCALLED_MAX + 1)]:
                self.end(each)
            self.running[number] = Push(now)
        return self.running[number]

    def _give_up(self, push: Push) -> None:
        if push.unfinished is not None and self.payloads is not None:
            self.payloads.release(push.unfinished.blob)
        push.unfinished = None
