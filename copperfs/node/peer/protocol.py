"""Peer protocol: turns messages of peers into requests of this node and results of its fetches.

A peer's request goes to ``RequestHandler`` like one of this node; ``ReplyBuilder`` knows the way
back. A peer's reply completes the fetch that asked for it, by the number of the request. A reply
under a number that is no longer expected is consumed, so that its credit goes back, and dropped. A
peer that sends corrupt parts is asked again, and then the source is read instead.

Every message carries its sender's epoch. A node that receives a later one clears before it reads
the rest of the message. So a reply never predates the last clear that its requester knew of.

The loss of a peer enters here: ``_connection_changed`` when its connection is lost, ``reconsider``
when membership finds it silent or gone. Both let the fetches ask other peers instead;
``membership/swim.py`` has the whole story.

This module only forwards the batches of a push; their contents arrive as ``Pushed`` and
``PushedListing``.
"""

import errno
from dataclasses import dataclass, replace

from copperfs.model.listing import Listing
from copperfs.model.types import BlobId, ChunkKey, NodeId, PeerRequest, Version
from copperfs.node.actions import Action, ListingKey, ObjectKey, ReleaseBlob, Send
from copperfs.node.cache.error_cache import WITNESSED, WITNESSES_ENOUGH
from copperfs.node.cache.metadata_cache import Cache, believed
from copperfs.node.events import (
    BatchTaken,
    FromPeer,
    ListingTaken,
    ListRequest,
    LookupRequest,
    PartCorrupt,
    PartReceived,
    PartSkipped,
    PayloadConsumed,
    PeerDown,
    PeerMessage,
    PeerUp,
    Probed,
    PushBatch,
    Pushed,
    PushedListing,
    ReadRequest,
)
from copperfs.node.fetch.fetch import Fetch, Received
from copperfs.node.fetch.table import FetchTable
from copperfs.node.limits_and_counters import FetchKind, NodeStats
from copperfs.node.membership.swim import Membership
from copperfs.node.peer.collectives import Collectives
from copperfs.node.peer.flow_control import FlowControl, PushForward, part_size, parts_in
from copperfs.node.peer.inode_agreement import InodeNumbers
from copperfs.node.peer.messages import (
    EPOCH_LEAP_MAX,
    LISTING_MAX_BYTES,
    Batch,
    Cancel,
    CollectiveReply,
    CollectiveRequest,
    ContentKind,
    CopyOffer,
    CopyReport,
    Credit,
    DataReply,
    Delayed,
    EntryReply,
    ErrorReply,
    Heartbeat,
    Hello,
    MembershipUpdate,
    Redirect,
    Request,
)
from copperfs.node.prefetch.speculative_push import SpeculativePush
from copperfs.node.requests.copies import CopyKeeper
from copperfs.node.requests.handler import TRUE_OF_THE_FILE, RequestHandler
from copperfs.node.requests.path_policy import Place, Policy
from copperfs.node.requests.replies import ReplyBuilder
from copperfs.node.routing.route import Routing

# Pushes that this node makes or takes by itself: none of them is a sign of life from a peer.
Alone = PushBatch | Pushed | PushedListing


@dataclass(slots=True)
class PeerProtocol:
    policy: Policy
    stats: NodeStats
    flow: FlowControl
    routing: Routing
    cache: Cache
    fetches: FetchTable
    replies: ReplyBuilder
    handler: RequestHandler
    collectives: Collectives
    offers: SpeculativePush
    membership: Membership | None
    inode_numbers: InodeNumbers | None
    """None for a job of one node."""
    copies: CopyKeeper | None = None
    """None if no path is protected."""

    def step(self, now: float, event: FromPeer) -> list[Action]:
        membership = self.membership
        if membership is None or isinstance(event, Alone):
            return self._take(now, event)
        if isinstance(event, Probed):
            return membership.probed(now, event.peer, refused=event.refused)
        actions = self._take(now, event)
        if not isinstance(event, PeerUp | PeerDown):
            actions += membership.heard(now, event.peer, answers=_answers(event))
        return actions

    def reconsider(self, now: float) -> list[Action]:
        """Connect to the peers that this node needs; let fetches ask others if a peer's state
        changed."""
        if self.membership is None:
            return []
        actions = self.membership.settle(now)
        for peer in self.membership.take_overdue():
            actions += self.fetches.reply_overdue(now, peer)
        if self.membership.take_state_change():
            if self.inode_numbers is not None:
                actions += self.inode_numbers.sample_if_first()
            actions += self.fetches.machine.reconsider(now, self.fetches.running())
        return actions

    def _take(self, now: float, event: FromPeer) -> list[Action]:
        match event:
            case PeerUp(peer):
                return self._connection_changed(now, peer, up=True)
            case PeerDown(peer):
                return self._connection_changed(now, peer, up=False)
            case Probed():
                return []
            case PeerMessage(peer, message):
                return self._hear(now, peer, message)
            case PartReceived(peer, part, blob):
                return self._took(peer, part) + self._take_part(now, peer, part, blob)
            case PartSkipped(peer, part):
                return self._took(peer, part) + self._take_skipped(now, peer, part)
            case ListingTaken(peer, part, listing):
                return self._took(peer, part) + self._take_listing(now, peer, part, listing)
            case PartCorrupt(peer, part):
                return self._took(peer, part) + self._spoil(now, peer, part)
            case PushBatch(batch, blob, size):
                return self._spread(now, None, batch, blob, size)
            case BatchTaken(peer, batch, blob, size):
                actions = self._hear_epoch(now, batch.epoch)
                return actions + self._spread(now, peer, batch, blob, size)
            case PayloadConsumed(peer, size, epoch):
                return self._hear_epoch(now, epoch) + self.flow.took(peer, size)
            case Pushed(path, version, blob, offered):
                if self.policy.place(path) is not Place.SHARED:
                    return [ReleaseBlob(blob)]  # a peer's file at this path is a different file
                self.offers.noted(now, ObjectKey(path, version))
                return self.cache.take_pushed(ObjectKey(path, version), blob, offered=offered)
            case PushedListing():
                return self._take_pushed_listing(now, event)

    def _connection_changed(self, now: float, peer: NodeId, *, up: bool) -> list[Action]:
        """Requests to the peer are sent again, to it or to another. Requests of the peer are
        forgotten, because a restarted peer numbers its requests from the beginning."""
        actions, lost = self.flow.down(peer)
        self.fetches.forget_requests_of(peer)
        self.offers.forget(peer)
        if self.handler.chunks is not None:
            self.handler.chunks.redirects.forget(peer)
        if self.copies is not None:
            self.copies.connection_changed(peer, up=up)
        actions += self.collectives.peer_changed(peer)
        if up:
            self.flow.up(peer)
        if self.membership is not None:
            happens = self.membership.up if up else self.membership.down
            actions += happens(now, peer)
        return actions + self.fetches.lost(now, peer, lost)

    def _hear(self, now: float, peer: NodeId, message: object) -> list[Action]:
        match message:
            case Hello(_, _, _, epoch):
                return self._hear_epoch(now, epoch)
            case Request():
                return self._hear_epoch(now, message.epoch) + self._serve(now, peer, message)
            case EntryReply() | ErrorReply() | Redirect() | Delayed():
                actions = self._hear_epoch(now, message.epoch)
                return actions + self._take_reply(now, peer, message)
            case Heartbeat() if self.membership is not None:
                actions = self._hear_epoch(now, message.epoch)
                return actions + self.membership.hear_heartbeat(now, peer, message)
            case MembershipUpdate() if self.membership is not None:
                return self.membership.hear_update(now, peer, message)
            case Credit(count_bytes):
                return self.flow.credited(now, self.stats.epoch, peer, count_bytes)
            case CollectiveRequest(number, operation, argument, within_s, identity):
                requester = PeerRequest(peer, number)
                return self.collectives.start(
                    now, requester, operation, argument, within_s, identity
                )
            case CollectiveReply():
                return self.collectives.returned(peer, message)
            case CopyOffer():
                return self._hear_offer(now, peer, message)
            case CopyReport():
                return [] if self.copies is None else self.copies.hear_report(now, peer, message)
            case Cancel(number):
                if self.flow.is_serving(peer, number):
                    self.fetches.forget_request(peer, number)
                    if self.copies is not None:
                        self.copies.forget_request(PeerRequest(peer, number))
                return self.flow.stop(peer, number)
            case _:
                return []

    def _hear_offer(self, now: float, peer: NodeId, offer: CopyOffer) -> list[Action]:
        """Nothing is kept of a version with an inode number that does not count any more."""
        key = ChunkKey(offer.path, offer.version, offer.index)
        numbers = self.inode_numbers
        is_old = numbers is not None and numbers.ignoring and offer.version.inode != 0
        if self.copies is None or is_old:
            return [Send(peer, CopyReport(key.path, key.version, key.index, is_kept=False))]
        return self.copies.hear_offer(now, peer, key)

    def _hear_epoch(self, now: float, epoch: int) -> list[Action]:
        if not self.stats.epoch < epoch <= self.stats.epoch + EPOCH_LEAP_MAX:
            return []
        return self.handler.clear(now, epoch)

    # --- requests of peers -----------------------------------------------------------------------

    def _serve(self, now: float, peer: NodeId, message: Request) -> list[Action]:
        self.stats.peer_questions += 1
        request = PeerRequest(peer, message.number)
        if not self.flow.serve(peer, message.number):
            self.stats.peers_refused += 1
            return [Send(peer, ErrorReply(message.number, self.stats.epoch, errno.EBUSY))]
        if self.policy.place(message.path) is not Place.SHARED:
            return self.replies.with_error(LookupRequest(request, message.path), errno.EXDEV)
        numbers = self.inode_numbers
        ignores_inodes = numbers is not None and numbers.ignoring
        if ignores_inodes and message.version is not None and message.version.inode:
            # The requester did not know yet that inode numbers do not count.
            message = replace(message, version=message.version._replace(inode=0))
        match message.what:
            case ContentKind.ENTRY:
                return self.handler.handle(now, LookupRequest(request, message.path))
            case ContentKind.LISTING:
                actions = self.handler.handle(now, ListRequest(request, message.path))
                return actions + self.offers.requested_by(now, peer, ListingKey(message.path))
            case ContentKind.CHUNK:
                if self.handler.chunks is None:
                    return self.replies.with_error(
                        LookupRequest(request, message.path), errno.EXDEV
                    )
                return self.handler.chunks.serve(now, peer, message)
            case ContentKind.OBJECT:
                assert message.version is not None, "the codec sees to it"
                first = min(message.first, parts_in(message.version.size) - 1)
                node_request = ReadRequest(request, message.path, message.version, first)
                actions = self.handler.handle(now, node_request)
                return actions + self.offers.requested_by(
                    now, peer, ObjectKey(message.path, message.version)
                )

    # --- replies of peers ------------------------------------------------------------------------

    def wanted(self, peer: NodeId, part: DataReply) -> tuple[ContentKind, BlobId | None] | None:
        """The kind of *part*, and its blob if that has begun. None if the part was not requested,
        or does not fit."""
        fetch = self.fetches.of_request(peer, part.number)
        if fetch is None:
            return None
        kind, _, version = fetch.subject
        there = (
            fetch.attempts[peer].parts_received
            if kind is FetchKind.LISTING
            else fetch.received.parts
        )
        if part.index >= parts_in(part.total_bytes) or part.index != there:
            return None
        if kind is FetchKind.LISTING:
            return (ContentKind.LISTING, None) if part.total_bytes <= LISTING_MAX_BYTES else None
        if kind is FetchKind.OBJECT:
            assert isinstance(version, Version)
            return (
                (ContentKind.OBJECT, fetch.received.blob)
                if part.total_bytes == version.size
                else None
            )
        if isinstance(version, ChunkKey) and self.handler.chunks is not None:
            size = self.handler.chunks.chunk_cache.size_of(version)
            return (ContentKind.CHUNK, None) if part.total_bytes == size else None
        return None

    def _take_reply(
        self, now: float, peer: NodeId, message: EntryReply | ErrorReply | Redirect | Delayed
    ) -> list[Action]:
        fetch = self.fetches.of_request(peer, message.number)
        if fetch is None:
            return []
        if isinstance(message, Delayed):
            if self.handler.chunks is None or fetch.subject[0] is not FetchKind.CHUNK:
                return []
            waits = self.fetches.machine.delayed(now, fetch, peer)
            actions = self.handler.wait_outside(now, fetch) if waits else []
            return actions + self.handler.chunks.tell_delayed(fetch)
        if isinstance(message, Redirect):
            if fetch.subject[0] is not FetchKind.CHUNK:
                return []
            if not self.routing.is_other(message.peer):
                return self.fetches.machine.refused(now, fetch, peer)
            return self.fetches.machine.redirected(now, fetch, peer, message.peer)
        if isinstance(message, ErrorReply):
            return self._take_refusal(now, peer, fetch, message)
        if fetch.subject[0] is not FetchKind.ENTRY:
            return []
        self.stats.answers += 1
        limit_s = self.policy.fresh_s(fetch.subject[1])
        fresh_until, since = believed(now, message.fresh_for_s, limit_s)
        actions = self.fetches.machine.settle_attempt(fetch, peer)
        return actions + self.handler.take_entry(now, fetch, message.entry, fresh_until, since)

    def _take_refusal(
        self, now: float, peer: NodeId, fetch: Fetch, refusal: ErrorReply
    ) -> list[Action]:
        error = refusal.error
        if error not in TRUE_OF_THE_FILE:  # the error may be the peer's own
            machine = self.fetches.machine
            _hear_witnesses(fetch, peer, refusal.witnesses)
            # A peer without a lookup of its own may have lacked memory.
            has_tried = refusal.witnesses > 0 or fetch.subject[0] is FetchKind.ENTRY
            is_last = has_tried and machine.is_last_word(fetch, peer)
            if fetch.witnesses.count < WITNESSES_ENOUGH and not is_last:
                if fetch.plan.chunk_up_tree and error == errno.EAGAIN:
                    assert self.handler.chunks is not None
                    self.handler.chunks.goes_alone(now, fetch)
                return machine.refused(now, fetch, peer)
            error = fetch.witnesses.own_error or error
        self.stats.answers += 1
        actions = self.fetches.machine.settle_attempt(fetch, peer)
        return actions + self.handler.fail(now, fetch, error)

    def _take_part(self, now: float, peer: NodeId, part: DataReply, blob: BlobId) -> list[Action]:
        fetch = self.fetches.of_request(peer, part.number)
        assert fetch is not None, "it was wanted"
        if fetch.subject[0] is FetchKind.CHUNK:
            if self.routing.owners is not None:
                self.routing.owners.gave(peer)
            actions = self.fetches.machine.settle_attempt(fetch, peer)
            return actions + self.handler.take_chunk(now, fetch, blob)
        fetch.received = Received(blob, part.index + 1)
        if fetch.received.parts == parts_in(part.total_bytes):
            self.stats.answers += 1
            actions = self.fetches.machine.settle_attempt(fetch, peer)
            return actions + self.handler.take_object(now, fetch, blob)
        actions = self.fetches.machine.progressed(fetch, peer)
        if part.index == 0:
            for request in fetch.waiters:
                actions += self.replies.start_forwarding(now, fetch, request)
        return actions + self.replies.forward_more(now, fetch, blob, fetch.received.parts)

    def _take_listing(
        self, now: float, peer: NodeId, part: DataReply, listing: Listing
    ) -> list[Action]:
        actions = self._hear_epoch(now, part.epoch)
        fetch = self.fetches.of_request(peer, part.number)
        if fetch is None:
            return actions  # requested in an older epoch
        self.stats.answers += 1
        actions += self.fetches.machine.settle_attempt(fetch, peer)
        limit_s = self.policy.listing_fresh_s(fetch.subject[1])
        fresh_until, since = believed(now, part.fresh_for_s, limit_s)
        return actions + self.handler.take_listing(now, fetch, listing, fresh_until, since)

    def _take_skipped(self, now: float, peer: NodeId, part: DataReply) -> list[Action]:
        """A part that was not kept: it is one more of a listing, or a faster peer sent it, or it
        does not fit."""
        fetch = self.fetches.of_request(peer, part.number)
        if fetch is None:
            return []
        kind, _, version = fetch.subject
        if kind is FetchKind.LISTING and self.wanted(peer, part) is not None:
            fetch.attempts[peer].parts_received += 1
            return []
        has_come = part.index < fetch.received.parts
        if has_come and isinstance(version, Version) and part.total_bytes == version.size:
            return []
        return self._spoil(now, peer, part)

    def _spoil(self, now: float, peer: NodeId, part: DataReply) -> list[Action]:
        self.stats.spoiled += 1
        fetch = self.fetches.of_request(peer, part.number)
        return [] if fetch is None else self.fetches.machine.spoiled(now, fetch, peer)

    def _took(self, peer: NodeId, part: DataReply) -> list[Action]:
        return self.flow.took(peer, part_size(part.index, part.total_bytes))

    # --- pushes ----------------------------------------------------------------------------------

    def _spread(
        self, now: float, sender: NodeId | None, batch: Batch, blob: BlobId, size: int
    ) -> list[Action]:
        forward = PushForward(batch, blob, size, sender, 0)
        children = self.routing.push_children(batch.tree)
        return self.flow.spread(now, self.stats.epoch, children, forward)

    def _take_pushed_listing(self, now: float, event: PushedListing) -> list[Action]:
        actions = self._hear_epoch(now, event.epoch)
        if event.epoch < self.stats.epoch or self.policy.place(event.path) is not Place.SHARED:
            return actions
        self.offers.noted(now, ListingKey(event.path))
        return actions + self.cache.take_pushed_listing(
            now, event.path, event.listing, event.fresh_for_s, offered=event.offered
        )


def _hear_witnesses(fetch: Fetch, peer: NodeId, witnesses: int) -> None:
    """Chunk owners do not ask each other, so each adds a witness. Otherwise this node is below the
    witnesses and adds itself."""
    kind = fetch.subject[0]
    if not witnesses or kind not in WITNESSED:
        return
    if kind is not FetchKind.CHUNK:
        witnesses += bool(fetch.witnesses.own_error)
    elif fetch.attempts[peer].how.is_of_owner:
        witnesses = max(witnesses, fetch.witnesses.count + 1)
    fetch.witnesses = fetch.witnesses.at_least(witnesses)


def _answers(event: FromPeer) -> bool:
    """Whether *event* proves that the peer receives what this node sends."""
    if isinstance(event, PeerMessage):
        message = event.message
        if isinstance(message, Heartbeat):
            return not message.wants_answer
        return isinstance(
            message,
            EntryReply | ErrorReply | Redirect | Delayed | CollectiveReply | CopyReport | Credit,
        )
    return isinstance(event, PartReceived | PartSkipped | PartCorrupt | ListingTaken)
