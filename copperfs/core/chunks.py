"""Chunks: how a large file, or one of a dataset, is read.

Such a file is never fetched whole. A read of it becomes a *want* of the chunk that it falls into,
which is answered from the tier's memory (``tier.py``) or by a fetch, like everything else: from its
owner, or where this node is the owner from its disk and at last from the source. Wants of one chunk
wait on one fetch, by whomever they were put.

What its owner has read from the source goes to its disk after it was given to those who wait for
it. A disk that is slower than the source holds up what is read there (``writeback.py``). A chunk
comes to a disk nowhere else, so that each is on one node's. Who takes over from an owner that is
silent keeps what it reads, too: when that one is found dead a moment later, it is
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

from copperfs.core.actions import Action, Publish, Send
from copperfs.core.ahead import NOBODY, is_nobodys
from copperfs.core.answers import Answers
from copperfs.core.asking import Fetch
from copperfs.core.crowds import Crowds
from copperfs.core.events import HaveRead, Loaded, Question, Read, Stored, WantChunk
from copperfs.core.fetches import Fetches
from copperfs.core.links import Links
from copperfs.core.messages import Ask, Delayed, How, Redirect
from copperfs.core.pins import Pins
from copperfs.core.policy import Place, Policy
from copperfs.core.routing import Routing
from copperfs.core.rows import Next, Rows
from copperfs.core.state import Kind, Limits, NodeStats, Subject
from copperfs.core.takers import Takers
from copperfs.core.tier import Tier, cost_of
from copperfs.core.writeback import WriteBack
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
    disk: WriteBack
    crowds: Crowds = field(init=False)
    takers: Takers = field(init=False)
    rows: Rows = field(init=False)
    _for_disk: set[Subject] = field(default_factory=set)
    """Fetches that were begun so that the disk has a chunk which it was not given."""

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
            if not isinstance(question.request, PeerRequest):
                return []
            if self.disk.is_waiting(running):
                return [self._delayed(question.request)]
            if question.how.is_of_owner:
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
        actions += self.disk.store(key, blob)  # it may have been refused when it came
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
        size = self.tier.size_of(key)
        if not self.tier.has_room(cost_of(size), owned=owned):
            return None
        if not self.disk.may_read_ahead(size) if owned else self.fetches.is_held_up(key):
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
        takes_over, key = fetch.takes_over, _key_of(fetch)
        if isinstance(outcome, HaveRead):
            self.stats.tier_from_source += 1
            for_disk = any(map(_is_for_disk, fetch.asked))
            self.stats.tier_read_again += for_disk or self.disk.owes(key)
            self.stats.tier_read_for_disk += for_disk
            return self._take(now, fetch, outcome.blob, takes_over=takes_over, stores=True)
        if outcome.blob is None:
            return self._read_source(now, fetch, key)
        self.stats.tier_from_disk += 1
        return self._take(now, fetch, outcome.blob, takes_over=takes_over)

    def _read_source(self, now: float, fetch: Fetch, key: ChunkKey) -> list[Action]:
        """The disk does not hold the chunk. If it is to, the read may have to wait for it."""
        is_kept = fetch.takes_over or self.routing.is_mine(key)
        if not is_kept or self.disk.may_read(now, fetch, key):
            return [self.fetches.asking.from_source(fetch)]
        self.fetches.give_back_room(fetch)
        return self.tell_delayed(fetch)

    def tell_delayed(self, fetch: Fetch) -> list[Action]:
        """The peers that wait for it: this node, or the one that it asks, waits for its disk."""
        askers = (each.request for each in fetch.asked)
        return [self._delayed(each) for each in askers if isinstance(each, PeerRequest)]

    def _delayed(self, asker: PeerRequest) -> Action:
        return Send(asker.peer, Delayed(asker.number, self.stats.epoch))

    def take_given(self, now: float, fetch: Fetch, blob: BlobId) -> list[Action]:
        """A peer has given it."""
        self.stats.tier_from_peers += 1
        return self._take(now, fetch, blob, takes_over=False)

    def _take(
        self, now: float, fetch: Fetch, blob: BlobId, *, takes_over: bool, stores: bool = False
    ) -> list[Action]:
        actions = self.fetches.end(fetch)
        key = _key_of(fetch)
        for question in fetch.asked:
            assert isinstance(question, WantChunk)
            if _is_for_disk(question):
                continue
            if is_nobodys(question):
                actions += self._publish_ahead(key, blob)
            else:
                actions += self._answer(now, question, blob)
        owned = takes_over or self.routing.is_mine(key)
        self.disk.settled(key)
        if stores and owned:
            actions += self.disk.store(key, blob)
        for_disk = all(map(_is_for_disk, fetch.asked)) and bool(fetch.asked)
        return actions + self.tier.admit(key, blob, owned=owned, oldest=for_disk)

    # --- the disk --------------------------------------------------------------------------------

    def stored(self, outcome: Stored) -> None:
        self.disk.stored(
            outcome.key,
            written=outcome.written,
            is_degraded=outcome.is_degraded,
            is_outgrown=outcome.is_outgrown,
        )

    def go_on(self, now: float) -> list[Action]:
        """The disk, or memory, may have room again for what waits for it."""
        actions = self.disk.pay_from_memory()
        while (fetch := self.disk.next_to_read(_is_wanted)) is not None:
            evicted = self.fetches.take_room(fetch, _key_of(fetch))
            if evicted is None:
                break
            self.disk.begin(fetch)
            actions += [*evicted, self.fetches.asking.from_source(fetch)]
        return actions + self._read_for_disk(now)

    def _read_for_disk(self, now: float) -> list[Action]:
        """Read again what memory has evicted before the disk could take it, as far as no reader has
        to wait for the room."""
        actions: list[Action] = []
        self._for_disk = {each for each in self._for_disk if self.fetches.is_under_way(each)}
        while (key := self.disk.debt_to_read(len(self._for_disk))) is not None:
            subject = _subject(key)
            # What is under way is stored when it comes.
            if self.routing.is_mine(key) and not self.fetches.is_under_way(subject):
                if not self.tier.has_room(cost_of(self.tier.size_of(key)), owned=True):
                    break
                self._for_disk.add(subject)
                actions += self.fetches.begin(now, subject, WantChunk(NOBODY, key, keeps=True))
            self.disk.settled(key)
        return actions

    def tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for fetch in self.disk.have_waited(now):
            if _is_wanted(fetch):
                self.disk.go_on(fetch)
            else:
                actions += self.fetches.end(fetch)
        if self.disk.tick(now):
            actions += [each for fetch in self.disk.waiting() for each in self.tell_delayed(fetch)]
        return actions + self.go_on(now)


def _key_of(fetch: Fetch) -> ChunkKey:
    key = fetch.subject[2]
    assert isinstance(key, ChunkKey)
    return key


def _is_wanted(fetch: Fetch) -> bool:
    """Somebody waits for it."""
    return not all(map(is_nobodys, fetch.asked))


def _is_for_disk(question: Question) -> bool:
    return isinstance(question, WantChunk) and question.keeps and is_nobodys(question)


def _subject(key: ChunkKey) -> Subject:
    return (Kind.CHUNK, key.path, key)
