"""Chunks: how a large file, or one of a dataset, is read.

Such a file is never fetched whole. A read of it becomes a *want* of the chunk that it falls into,
which is answered from the tier's memory (``tier.py``) or by a fetch, like everything else: from its
owner, or where this node is the owner from its disk and at last from the source. Wants of one chunk
wait on one fetch, by whomever they were put.

What its owner has read from the source goes to its disk after it was given to those who wait for
it. It comes to a disk nowhere else, so that each chunk is on one node's. Who takes over from an
owner that is silent keeps what it reads, too: when that one is found dead a moment later, it is
the owner, and would have to read it again. If that one is back instead, the chunk lies on two disks
until it is evicted from the one where nobody asks for it.

An owner that many ask at the same time gives a chunk to some of them and sends the others there
(``takers.py``). Who was sent asks for what is *held*, and never causes another fetch. In a job of
very many nodes what they all read comes up the tree instead (``crowds.py``).

So there are three kinds of waiting for another node: for one above in the tree; for an owner, which
is before oneself in the chunk's order; and for one that was named, which came to the owner earlier.
Mixed they could make a circle, when an owner is gone and one that it had sent elsewhere is the next
one: therefore whoever is asked as an owner waits for other owners only.
"""

import errno
from dataclasses import dataclass, field

from copperfs.core.actions import Action, Publish, Send, StoreChunk
from copperfs.core.ahead import NOBODY, is_nobodys
from copperfs.core.answers import Answers
from copperfs.core.asking import Fetch
from copperfs.core.crowds import Crowds
from copperfs.core.events import HaveRead, Loaded, Read, WantChunk
from copperfs.core.fetches import Fetches
from copperfs.core.links import Links
from copperfs.core.messages import Ask, How, Redirect
from copperfs.core.pins import Pins
from copperfs.core.policy import Place, Policy
from copperfs.core.routing import Routing
from copperfs.core.rows import Next, Rows
from copperfs.core.state import Kind, Limits, NodeStats, Subject
from copperfs.core.takers import Takers
from copperfs.core.tier import Tier, cost_of
from copperfs.types import BlobId, ChunkKey, NodeId, Path, PeerRequest, Version


@dataclass(slots=True)
class Chunks:
    policy: Policy
    limits: Limits
    stats: NodeStats
    pins: Pins
    links: Links
    tier: Tier
    fetches: Fetches
    answers: Answers
    routing: Routing
    crowds: Crowds = field(init=False)
    takers: Takers = field(init=False)
    rows: Rows = field(init=False)

    def __post_init__(self) -> None:
        nodes = 1 if self.routing.trees is None else self.routing.trees.nodes
        self.crowds = Crowds(self.policy, nodes > self.limits.crowds_above)
        self.takers = Takers(self.limits.takers_max)
        self.rows = Rows(self.limits.chunk_bytes)

    def is_chunked(self, path: Path, version: Version) -> bool:
        """Whether a file of that size is read in chunks here."""
        size, bypass_above = version.size, self.limits.bypass_above_bytes
        if not size or (bypass_above is not None and size > bypass_above):
            return False
        if self.policy.place(path) is not Place.SHARED:
            return False
        return size > self.limits.whole_max_bytes or self.policy.is_ring(path)

    # --- wants -----------------------------------------------------------------------------------

    def read(self, now: float, question: Read) -> list[Action]:
        """Somebody of this node reads a chunked file."""
        chunk_bytes = self.limits.chunk_bytes
        last = (question.version.size - 1) // chunk_bytes
        index = min(question.offset // chunk_bytes, last)
        key = ChunkKey(question.path, question.version, index)
        how = How.TREE if self.crowds.goes_up(now, question.path) else How.ANY
        is_there = key in self.tier or self.fetches.is_under_way(_subject(key))
        actions = self.want(now, WantChunk(question.request, key, how))
        if question.size:
            ends_in = min((question.offset + question.size - 1) // chunk_bytes, last)
            begins = not question.offset and question.size >= chunk_bytes
            ahead = self.rows.next(now, key, ends_in, begins=begins, is_there=is_there)
            actions += self._read_ahead(now, key, ahead)
        return actions

    def want(self, now: float, question: WantChunk) -> list[Action]:
        if question.keeps:
            return self._keep(now, question)
        blob = self.tier.blob(question.key)
        if question.how is How.TREE and not self._is_shared(now, question, blob):
            return self.answers.with_error(question, errno.EAGAIN)
        if blob is not None:
            self.stats.answered_from_shelf += 1
            self.stats.tier_from_memory += 1
            return self._answer(now, question, blob)
        subject = _subject(question.key)
        running = self.fetches.join(subject, question)
        if running is not None:
            if question.how.is_of_owner and isinstance(question.request, PeerRequest):
                return self.fetches.asking.asked_as_owner(now, running, question.passed)
            return []
        if question.how is How.HELD:
            return self.answers.with_error(question, errno.EAGAIN)
        return self.fetches.begin(now, subject, question)

    def _keep(self, now: float, question: WantChunk) -> list[Action]:
        """This node is told to have a chunk before somebody wants it (``runtime/filling.py``)."""
        key = question.key
        if self.tier.size_of(key) <= 0 or not self.routing.is_mine(key):
            return self.answers.with_error(question, errno.EXDEV)
        actions = self.tier.keep(key)
        blob = self.tier.blob(key)
        if blob is None:
            return self.want(now, WantChunk(question.request, key))
        if self.limits.tier_has_disk:
            actions.append(StoreChunk(key, blob))  # it may have been refused when it came
        return actions + self._answer(now, question, blob)

    def serve(self, now: float, peer: NodeId, ask: Ask) -> list[Action]:
        """A peer wants one."""
        assert ask.version is not None, "the codec sees to it"
        request, key = PeerRequest(peer, ask.number), ChunkKey(ask.path, ask.version, ask.first)
        passed = tuple(filter(self.routing.is_other, ask.passed))
        question = WantChunk(request, key, ask.how, passed)
        if self.tier.size_of(key) <= 0:
            return self.answers.with_error(question, errno.EINVAL)
        if ask.how is How.ANY:
            other = self.takers.other_for(now, key, peer, self.routing.gone())
            if other is not None:
                self.stats.redirects += 1
                self.links.served(peer, ask.number)
                return [Send(peer, Redirect(ask.number, self.stats.epoch, other))]
        return self.want(now, question)

    def _is_shared(self, now: float, question: WantChunk, blob: BlobId | None) -> bool:
        """Whether what goes up the tree for this file is wanted by more than one. This node itself
        is never refused: its parent says."""
        subject = _subject(question.key)
        shared = blob is not None or self.fetches.is_under_way(subject)
        is_crowd = self.crowds.asked(now, question.path, shared=shared)
        return shared or is_crowd or not isinstance(question.request, PeerRequest)

    def goes_alone(self, now: float, fetch: Fetch) -> None:
        """A parent has said that nobody else reads this file where this node does."""
        self.crowds.goes_alone(now, fetch.subject[1])

    def _read_ahead(self, now: float, key: ChunkKey, ahead: Next) -> list[Action]:
        """If nobody has to wait for room, and nothing that is waited for has to go."""
        actions: list[Action] = []
        for index in ahead.known:
            # A use: what was read already is to go before it.
            self.tier.used(ChunkKey(key.path, key.version, index))
        for index in ahead.fresh:
            each = ChunkKey(key.path, key.version, index)
            fetched = self._fetch_ahead(now, each)
            if fetched is None:
                self.rows.found_no_room(each)
                break
            actions += fetched
        return actions

    def _fetch_ahead(self, now: float, key: ChunkKey) -> list[Action] | None:
        """None: there is no room for it."""
        subject = _subject(key)
        blob = self.tier.blob(key)
        if blob is not None:
            # Its reader finds it published, and does not ask: this is where it is counted.
            self.stats.tier_from_memory += 1
            return self._publish_ahead(key, blob)
        how = How.TREE if self.crowds.goes_up(now, key.path) else How.ANY
        question = WantChunk(NOBODY, key, how)
        if self.fetches.join(subject, question) is not None:
            return []  # for a peer, perhaps; it is published when it comes
        owned = self.routing.is_mine(key)
        if not self.tier.has_room(cost_of(self.tier.size_of(key)), owned=owned):
            return None
        self.stats.tier_ahead += 1
        return self.fetches.begin(now, subject, question)

    def _publish_ahead(self, key: ChunkKey, blob: BlobId) -> list[Action]:
        return [] if self.rows.is_marker(key) else [Publish(key, blob)]

    def _answer(self, now: float, question: WantChunk, blob: BlobId) -> list[Action]:
        size = self.tier.size_of(question.key)
        return self.answers.with_chunk(now, question, blob, size, self.limits.chunk_bytes)

    # --- outcomes --------------------------------------------------------------------------------

    def conclude(self, now: float, fetch: Fetch, outcome: Loaded | HaveRead) -> list[Action]:
        """The disk or the source has said something."""
        takes_over = fetch.takes_over
        if isinstance(outcome, HaveRead):
            self.stats.tier_from_source += 1
            stores = self.limits.tier_has_disk
            return self._take(now, fetch, outcome.blob, takes_over=takes_over, stores=stores)
        if outcome.blob is None:
            return [self.fetches.asking.from_source(fetch)]
        self.stats.tier_from_disk += 1
        return self._take(now, fetch, outcome.blob, takes_over=takes_over)

    def take_given(self, now: float, fetch: Fetch, blob: BlobId) -> list[Action]:
        """A peer has given it."""
        self.stats.tier_from_peers += 1
        return self._take(now, fetch, blob, takes_over=False)

    def _take(
        self, now: float, fetch: Fetch, blob: BlobId, *, takes_over: bool, stores: bool = False
    ) -> list[Action]:
        actions = self.fetches.end(fetch)
        key = fetch.subject[2]
        assert isinstance(key, ChunkKey)
        for question in fetch.asked:
            assert isinstance(question, WantChunk)
            if is_nobodys(question):
                actions += self._publish_ahead(key, blob)
            else:
                actions += self._answer(now, question, blob)
        owned = takes_over or self.routing.is_mine(key)
        if stores and owned:
            actions.append(StoreChunk(key, blob))
        return actions + self.tier.admit(key, blob, owned=owned)


def _subject(key: ChunkKey) -> Subject:
    return (Kind.CHUNK, key.path, key)
