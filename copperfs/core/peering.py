"""What peers say: asks become questions, what they give becomes outcomes.

An ask of a peer is put to ``Questions`` like one of this node; ``Answers`` knows the way back. What
a peer gives ends the fetch that asked for it, under the number of the ask: what comes under a
number by which nothing is expected any more is taken in, so that its credit goes back, and dropped.
Who gives spoiled parts is asked again, and then passed over for the source.

Every message has its sender's epoch. Whoever hears of a later one clears, before anything else that
the message says; so an answer never comes from before the last clear that its asker knew of.

Of a working set this part only passes batches on; what is in them comes as ``Pushed`` and
``PushedListing``.
"""

import errno
from dataclasses import dataclass

from copperfs.core.actions import Action, ListingKey, ObjectKey, ReleaseBlob, Send
from copperfs.core.answers import Answers
from copperfs.core.asking import Fetch
from copperfs.core.cache import Cache, believed
from copperfs.core.calls import Calls
from copperfs.core.events import (
    BatchTaken,
    FromPeer,
    Heard,
    List,
    ListingTaken,
    Look,
    OfferTaken,
    PartPassed,
    PartSpoiled,
    PartTaken,
    PeerDown,
    PeerUp,
    Probed,
    PushBatch,
    Pushed,
    PushedListing,
    Read,
)
from copperfs.core.fetches import Fetches
from copperfs.core.links import Links, Passing, part_size, parts_in
from copperfs.core.listing import Listing
from copperfs.core.membership import Membership
from copperfs.core.messages import (
    LISTING_MAX_BYTES,
    Ask,
    Batch,
    Call,
    Credit,
    Delayed,
    GiveEntry,
    GivePart,
    Heartbeat,
    Hello,
    News,
    Redirect,
    Refuse,
    Return,
    What,
    Withdraw,
)
from copperfs.core.offers import Offers
from copperfs.core.policy import Place, Policy
from copperfs.core.questions import TRUE_OF_THE_FILE, Questions
from copperfs.core.routing import Routing
from copperfs.core.sick_names import WITNESSES_ENOUGH
from copperfs.core.state import Kind, NodeStats
from copperfs.types import BlobId, ChunkKey, NodeId, PeerRequest, Version

EPOCH_LEAP_MAX = 1 << 20
# What comes from this node itself.
Alone = PushBatch | Pushed | PushedListing


@dataclass(slots=True)
class Peering:
    policy: Policy
    stats: NodeStats
    links: Links
    routing: Routing
    cache: Cache
    fetches: Fetches
    answers: Answers
    questions: Questions
    calls: Calls
    offers: Offers
    membership: Membership | None
    """None for a node that is a job by itself."""

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
        """After each step: connect to whom it needs; and if anybody is believed to be better or
        worse off, others may have to be asked."""
        if self.membership is None:
            return []
        actions = self.membership.settle(now)
        for peer in self.membership.take_owing():
            actions += self.fetches.owed_by(now, peer)
        if self.membership.take_changed():
            actions += self.fetches.asking.reconsider(now, self.fetches.running())
        return actions

    def _take(self, now: float, event: FromPeer) -> list[Action]:
        match event:
            case PeerUp(peer):
                return self._changed(now, peer, up=True)
            case PeerDown(peer):
                return self._changed(now, peer, up=False)
            case Probed():
                return []
            case Heard(peer, message):
                return self._hear(now, peer, message)
            case PartTaken(peer, part, blob):
                return self._took(peer, part) + self._take_part(now, peer, part, blob)
            case PartPassed(peer, part):
                return self._took(peer, part) + self._pass(now, peer, part)
            case ListingTaken(peer, part, listing):
                return self._took(peer, part) + self._take_listing(now, peer, part, listing)
            case PartSpoiled(peer, part):
                return self._took(peer, part) + self._spoil(now, peer, part)
            case PushBatch(batch, blob, size):
                return self._spread(now, None, batch, blob, size)
            case BatchTaken(peer, batch, blob, size):
                actions = self._hear_epoch(now, batch.epoch)
                return actions + self._spread(now, peer, batch, blob, size)
            case OfferTaken(peer, size, epoch):
                return self._hear_epoch(now, epoch) + self.links.took(peer, size)
            case Pushed(path, version, blob, offered):
                if self.policy.place(path) is not Place.SHARED:
                    return [ReleaseBlob(blob)]  # what a peer has there is something else
                self.offers.noted(now, ObjectKey(path, version))
                return self.cache.take_pushed(ObjectKey(path, version), blob, offered=offered)
            case PushedListing():
                return self._take_pushed_listing(now, event)

    def _changed(self, now: float, peer: NodeId, *, up: bool) -> list[Action]:
        """A connection was made, or the last one is gone. What passed before is lost: what the peer
        was asked is asked again, of it or of another; what it asked for is forgotten, because one
        that was started anew counts from the beginning."""
        actions, lost = self.links.down(peer)
        self.fetches.forget_questions_of(peer)
        self.offers.forget(peer)
        if self.questions.chunks is not None:
            self.questions.chunks.takers.forget(peer)
        actions += self.calls.peer_changed(peer)
        if up:
            self.links.up(peer)
        if self.membership is not None:
            happens = self.membership.up if up else self.membership.down
            actions += happens(now, peer)
        return actions + self.fetches.lost(now, peer, lost)

    def _hear(self, now: float, peer: NodeId, message: object) -> list[Action]:
        match message:
            case Hello(_, _, _, epoch):
                return self._hear_epoch(now, epoch)
            case Ask():
                return self._hear_epoch(now, message.epoch) + self._serve(now, peer, message)
            case GiveEntry() | Refuse() | Redirect() | Delayed():
                actions = self._hear_epoch(now, message.epoch)
                return actions + self._take_reply(now, peer, message)
            case Heartbeat() if self.membership is not None:
                actions = self._hear_epoch(now, message.epoch)
                return actions + self.membership.hear_heartbeat(now, peer, message)
            case News() if self.membership is not None:
                return self.membership.hear_news(now, peer, message)
            case Credit(count_bytes):
                return self.links.credited(now, self.stats.epoch, peer, count_bytes)
            case Call(number, operation, argument, within_s, identity):
                asker = PeerRequest(peer, number)
                return self.calls.start(now, asker, operation, argument, within_s, identity)
            case Return():
                return self.calls.returned(peer, message)
            case Withdraw(number):
                if self.links.is_serving(peer, number):
                    self.fetches.forget_question(peer, number)
                return self.links.stop(peer, number)
            case _:
                return []

    def _hear_epoch(self, now: float, epoch: int) -> list[Action]:
        # A leap is somebody's mistake, and would leave no room for the epochs to come.
        if not self.stats.epoch < epoch <= self.stats.epoch + EPOCH_LEAP_MAX:
            return []
        return self.questions.clear(now, epoch)

    # --- what they ask ---------------------------------------------------------------------------

    def _serve(self, now: float, peer: NodeId, ask: Ask) -> list[Action]:
        self.stats.peer_questions += 1
        request = PeerRequest(peer, ask.number)
        if not self.links.serve(peer, ask.number):
            self.stats.peers_refused += 1
            return [Send(peer, Refuse(ask.number, self.stats.epoch, errno.EBUSY))]
        if self.policy.place(ask.path) is not Place.SHARED:
            return self.answers.with_error(Look(request, ask.path), errno.EXDEV)
        match ask.what:
            case What.ENTRY:
                return self.questions.ask(now, Look(request, ask.path))
            case What.LISTING:
                actions = self.questions.ask(now, List(request, ask.path))
                return actions + self.offers.asked(now, peer, ListingKey(ask.path))
            case What.CHUNK:
                if self.questions.chunks is None:
                    return self.answers.with_error(Look(request, ask.path), errno.EXDEV)
                return self.questions.chunks.serve(now, peer, ask)
            case What.OBJECT:
                assert ask.version is not None, "the codec sees to it"
                first = min(ask.first, parts_in(ask.version.size) - 1)
                question = Read(request, ask.path, ask.version, first)
                actions = self.questions.ask(now, question)
                return actions + self.offers.asked(now, peer, ObjectKey(ask.path, ask.version))

    # --- what they give --------------------------------------------------------------------------

    def wanted(self, peer: NodeId, part: GivePart) -> tuple[What, BlobId | None] | None:
        """Whether to keep the bytes of *part*, and where: for an object what came before is in the
        blob, unless it is the first. None: they are not asked for, or not what they have to be."""
        fetch = self.fetches.of_ask(peer, part.number)
        if fetch is None:
            return None
        kind, _, version = fetch.subject
        there = fetch.asks[peer].there if kind is Kind.SCAN else fetch.there
        if part.index >= parts_in(part.total_bytes) or part.index != there:
            return None
        if kind is Kind.SCAN:
            return (What.LISTING, None) if part.total_bytes <= LISTING_MAX_BYTES else None
        if kind is Kind.READ:
            assert isinstance(version, Version)
            return (What.OBJECT, fetch.blob) if part.total_bytes == version.size else None
        if isinstance(version, ChunkKey) and self.questions.chunks is not None:
            size = self.questions.chunks.tier.size_of(version)
            return (What.CHUNK, None) if part.total_bytes == size else None
        return None

    def _take_reply(
        self, now: float, peer: NodeId, message: GiveEntry | Refuse | Redirect | Delayed
    ) -> list[Action]:
        fetch = self.fetches.of_ask(peer, message.number)
        if fetch is None:
            return []
        if isinstance(message, Delayed):
            if self.questions.chunks is None or fetch.subject[0] is not Kind.CHUNK:
                return []
            waits = self.fetches.asking.delayed(now, fetch, peer)
            actions = self.questions.wait_outside(now, fetch) if waits else []
            return actions + self.questions.chunks.tell_delayed(fetch)
        if isinstance(message, Redirect):
            if fetch.subject[0] is not Kind.CHUNK:
                return []
            if not self.routing.is_other(message.peer):
                return self.fetches.asking.refused(now, fetch, peer)
            return self.fetches.asking.redirected(now, fetch, peer, message.peer)
        if isinstance(message, Refuse):
            return self._take_refusal(now, peer, fetch, message)
        if fetch.subject[0] is not Kind.LOOK:
            return []
        self.stats.answers += 1
        limit_s = self.policy.fresh_s(fetch.subject[1])
        fresh_until, since = believed(now, message.fresh_for_s, limit_s)
        actions = self.fetches.asking.answered(fetch, peer)
        return actions + self.questions.take_entry(now, fetch, message.entry, fresh_until, since)

    def _take_refusal(
        self, now: float, peer: NodeId, fetch: Fetch, refusal: Refuse
    ) -> list[Action]:
        error = refusal.error
        if error not in TRUE_OF_THE_FILE:  # it may be the peer's own
            asking = self.fetches.asking
            if fetch.subject[0] is Kind.LOOK:
                witnesses = refusal.witnesses + bool(fetch.looked_error)
                fetch.witnesses = min(max(fetch.witnesses, witnesses), WITNESSES_ENOUGH)
            if fetch.witnesses < WITNESSES_ENOUGH and not asking.is_last_word(fetch, peer):
                if fetch.goes_up and error == errno.EAGAIN:
                    assert self.questions.chunks is not None
                    self.questions.chunks.goes_alone(now, fetch)
                return asking.refused(now, fetch, peer)
            error = fetch.looked_error or error
        self.stats.answers += 1
        actions = self.fetches.asking.answered(fetch, peer)
        return actions + self.questions.fail(now, fetch, error)

    def _take_part(self, now: float, peer: NodeId, part: GivePart, blob: BlobId) -> list[Action]:
        fetch = self.fetches.of_ask(peer, part.number)
        assert fetch is not None, "it was wanted"
        if fetch.subject[0] is Kind.CHUNK:
            if self.routing.owners is not None:
                self.routing.owners.gave(peer)
            actions = self.fetches.asking.answered(fetch, peer)
            return actions + self.questions.take_chunk(now, fetch, blob)
        fetch.blob, fetch.there = blob, part.index + 1
        if fetch.there == parts_in(part.total_bytes):
            self.stats.answers += 1
            actions = self.fetches.asking.answered(fetch, peer)
            return actions + self.questions.take_object(now, fetch, blob)
        actions = self.fetches.asking.progressed(fetch, peer)
        if part.index == 0:
            for question in fetch.asked:
                actions += self.answers.pass_on(now, fetch, question)
        return actions + self.answers.pass_more(now, fetch, blob, fetch.there)

    def _take_listing(
        self, now: float, peer: NodeId, part: GivePart, listing: Listing
    ) -> list[Action]:
        actions = self._hear_epoch(now, part.epoch)
        fetch = self.fetches.of_ask(peer, part.number)
        if fetch is None:
            return actions  # it was asked for in an older epoch
        self.stats.answers += 1
        actions += self.fetches.asking.answered(fetch, peer)
        limit_s = self.policy.listing_fresh_s(fetch.subject[1])
        fresh_until, since = believed(now, part.fresh_for_s, limit_s)
        return actions + self.questions.take_listing(now, fetch, listing, fresh_until, since)

    def _pass(self, now: float, peer: NodeId, part: GivePart) -> list[Action]:
        """More of a listing is to come; another peer was faster; or the part is not what it has to
        be."""
        fetch = self.fetches.of_ask(peer, part.number)
        if fetch is None:
            return []
        kind, _, version = fetch.subject
        if kind is Kind.SCAN and self.wanted(peer, part) is not None:
            fetch.asks[peer].there += 1
            return []
        if isinstance(version, Version) and (part.total_bytes, part.index < fetch.there) == (
            version.size,
            True,
        ):
            return []
        return self._spoil(now, peer, part)

    def _spoil(self, now: float, peer: NodeId, part: GivePart) -> list[Action]:
        self.stats.spoiled += 1
        fetch = self.fetches.of_ask(peer, part.number)
        return [] if fetch is None else self.fetches.asking.spoiled(now, fetch, peer)

    def _took(self, peer: NodeId, part: GivePart) -> list[Action]:
        return self.links.took(peer, part_size(part.index, part.total_bytes))

    # --- working sets ----------------------------------------------------------------------------

    def _spread(
        self, now: float, sender: NodeId | None, batch: Batch, blob: BlobId, size: int
    ) -> list[Action]:
        passing = Passing(batch, blob, size, sender, 0)
        children = self.routing.push_children(batch.tree)
        return self.links.spread(now, self.stats.epoch, children, passing)

    def _take_pushed_listing(self, now: float, event: PushedListing) -> list[Action]:
        actions = self._hear_epoch(now, event.epoch)
        if event.epoch < self.stats.epoch or self.policy.place(event.path) is not Place.SHARED:
            return actions
        self.offers.noted(now, ListingKey(event.path))
        return actions + self.cache.take_pushed_listing(
            now, event.path, event.listing, event.fresh_for_s, offered=event.offered
        )


def _answers(event: FromPeer) -> bool:
    """Whether it comes because this node said something, and was heard."""
    if isinstance(event, Heard):
        message = event.message
        if isinstance(message, Heartbeat):
            return not message.wants_answer
        return isinstance(message, GiveEntry | Refuse | Redirect | Delayed | Return | Credit)
    return isinstance(event, PartTaken | PartPassed | PartSpoiled | ListingTaken)
