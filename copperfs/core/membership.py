"""Membership: who is there.

It watches every peer that it has a connection to or wants one to, and those who should ask it
(``company``). What is seen of a peer becomes a standing by ``suspicion``; only one that is *gone*
is told of to others, as a fate that spreads over all connections (``view``), a moment later so that
many at once are one message.

A node that lost a connection tries whether anybody listens at the other end: of a process that
ended it knows so within milliseconds. A node that is told that another is gone, which it hears
itself, does not believe it, and passes the rumour to that one, who refutes it.

Two who connect tell each other all that they believe, and heartbeats carry a digest of it, so that
nothing that was lost on the way stays unknown.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from copperfs.core.actions import Action, Happened, Probe, Send
from copperfs.core.company import CONNECTS_WITHIN_S, Company, Peer
from copperfs.core.links import Links
from copperfs.core.messages import FATES_MAX, Fate, Heartbeat, News
from copperfs.core.state import NodeStats
from copperfs.core.suspicion import (
    Patience,
    Seen,
    Standing,
    asks_for_sign,
    doubted_until,
    next_look,
    standing,
)
from copperfs.core.trees import Trees
from copperfs.core.view import View
from copperfs.types import NodeId

# Fates that come within this time of each other go on in one message.
SPREAD_S = 0.02
# A heartbeat to one that is only kept for when a parent fails, in those of a parent.
STANDBY_BEATS = 4
# A heartbeat to one that is connected for the sake of chunks, or has another view of the trees, in
# times of ``dead_s``: there may be as many of them as there are nodes.
STRANGER_BEATS = 5
# To so many of those what befell others is told at once; they hear it from their own overlay, too.
STRANGERS_TOLD_MAX = 16
# Whether anybody listens at a peer that was just lost is tried so often, and for so long.
PROBE_EVERY_S = 0.03
PROBE_FOR_S = 0.5
# Who gave a sign of life this moment is not asked for another one.
SOUND_FOR_S = 0.05
# What is seen of this node's own lateness holds for so long.
LATE_FOR_S = 5.0


@dataclass(slots=True)
class Membership:
    trees: Trees
    patience: Patience
    stats: NodeStats
    links: Links
    random: Random
    view: View = field(init=False)
    company: Company = field(init=False)
    _peers: dict[NodeId, Peer] = field(default_factory=dict)
    _looks: list[tuple[float, NodeId]] = field(default_factory=list)
    """When to look at a peer again; a heap in which some are out of date."""
    _untold: dict[Fate, NodeId | None] = field(default_factory=dict)
    """Fates that are to be spread, and from whom they are."""
    _tell_at: float | None = None
    _late_s: float = 0.0
    _late_at: float = float("-inf")
    _much_late_s: float = 0.0
    """When it was late for longer than that counts at once."""
    _much_late_at: float = float("-inf")
    _believed_at: float = float("-inf")
    """When the view changed last."""
    _owing: list[NodeId] = field(default_factory=list)
    _stale: bool = False
    """Whom this node needs may be others now; see ``settle``."""
    _changed: bool = False
    _started: bool = False

    def __post_init__(self) -> None:
        self.view = View(self.trees.me, self.trees.nodes)
        self.company = Company(
            self.trees, self.patience, self.stats, self.links, self.random, self.view, self._peers
        )

    # --- what others ask -------------------------------------------------------------------------

    def is_good(self, peer: NodeId) -> bool:
        """Whether to ask it."""
        return self.company.is_good(peer)

    @property
    def parents(self) -> list[NodeId | None]:
        """Whom this node asks in each tree, as it believes now."""
        return self.company.parents

    def doubted_until(self, peer: NodeId) -> float:
        """Until when the source is not to be read in the place of a peer that is not good."""
        found = self._peers.get(peer)
        if found is None or peer in self.view.gone:
            return float("-inf")
        return doubted_until(found.seen, self.patience, self._late_s)

    def silent_until(self, since: float) -> float:
        """Until when those are waited for who were found silent one after the other, the first of
        them at *since*: for all together no longer than for one."""
        return since + self.patience.silent_s + self._late_s

    def is_in_touch(self) -> bool:
        """Whether all whom this node asks, or is pushed to by, can be talked to."""
        return self._started and all(self.is_good(peer) for peer in self.company.near)

    def waited_for(self) -> set[NodeId]:
        """Those of them that were never reached."""
        return {
            peer
            for peer in self.company.near
            if (found := self._peers.get(peer)) is not None
            and not (found.seen.up or found.seen.was_up)
        }

    def is_wanted(self, peer: NodeId) -> bool:
        """Whether it is one of those above, whom this node keeps in touch with."""
        return peer in self.company.overlay

    def reach(self, now: float, peer: NodeId) -> None:
        """An owner of a chunk is about to be asked: be in touch with it."""
        self._stale |= self.company.reach(now, peer)

    def connects_until(self, now: float, peer: NodeId) -> float | None:
        """How long to wait for a connection that is being made; None if there is nothing to wait
        for."""
        return self.company.connects_until(now, peer)

    def suspects(self) -> list[NodeId]:
        """Those that are doubted, and not told of."""
        return sorted(
            peer
            for peer, each in self._peers.items()
            if each.standing in (Standing.SILENT, Standing.LOST)
            and peer not in self.view.gone
            and (each.seen.was_up or peer in self.company.near)
        )

    def take_changed(self) -> bool:
        """Whether anybody's standing is another one since this was asked last."""
        changed, self._changed = self._changed, False
        return changed

    # --- what is seen ----------------------------------------------------------------------------

    def start(self) -> None:
        """The node is up: ``settle`` says to whom it connects."""
        self._started = self._stale = True

    def owes(self, now: float, peer: NodeId) -> None:
        """It was asked something."""
        found = self._peers.get(peer)
        if found is not None and found.seen.up and found.seen.owed_since is None:
            found.seen.owed_since = now
            self._look_by(peer, now + self.patience.probe_s + self._late_s)

    def sound(self, now: float, peer: NodeId) -> list[Action]:
        """*peer* is asked in the place of one that is silent, or would be: ask it for a sign of
        life at once, unless it gave one a moment ago; those who hang are found out together."""
        found = self._peers.get(peer)
        if found is None or not found.seen.up or found.seen.asked_at is not None:
            return []
        if now < found.seen.heard_at + SOUND_FOR_S:
            return []
        return self._ask_for_sign(now, peer)

    def take_owing(self) -> list[NodeId]:
        """Those that were asked for a sign of life since this was asked last, for what they owe."""
        owing, self._owing = self._owing, []
        return owing

    def heard(self, now: float, peer: NodeId, *, answers: bool = True) -> list[Action]:
        """Anything came from it. What answers nothing, as news do not, says that it lives, and not
        that it hears: so it is no sign of life for who waits for one. It is asked again."""
        found = self._peers.get(peer)
        if found is None:
            return []
        seen, was_asked = found.seen, found.seen.asked_at is not None
        seen.heard_at = now
        if not answers:
            if not was_asked or now < found.asked_last_at + self.patience.heartbeat_s:
                return []
            found.asked_last_at = now
            return [Send(peer, self._heartbeat(wants_answer=True))]
        seen.asked_at = seen.owed_since = None
        if self.links[peer].asked:
            self.owes(now, peer)
        if found.standing is Standing.GOOD or not seen.up:
            if was_asked and seen.up:
                self._look_again(now, peer)  # not for its silence: that would be to wake in vain
            return []
        was_silent_s = now - seen.since
        found.standing = Standing.GOOD
        self._changed = self._stale = True
        actions: list[Action] = [Happened("answers again", peer, seconds=was_silent_s)]
        if peer in self.view.gone:  # it has to say so itself
            actions.append(Send(peer, News((self.view.end_of(peer),))))
        return actions

    def up(self, now: float, peer: NodeId) -> list[Action]:
        self._peers[peer] = Peer(Seen(now, up=True, was_up=True, heard_at=now), Standing.GOOD)
        self.company.away.discard(peer)
        self._changed = self._stale = True
        self._look_again(now, peer)
        return self._tell_all(now, peer)

    def down(self, now: float, peer: NodeId) -> list[Action]:
        """Its connection is gone."""
        found = self._peers.get(peer)
        if found is None or not found.seen.up:
            return []
        found.seen = Seen(now, was_up=True, heard_at=found.seen.heard_at)
        self.company.away.add(peer)
        if found.dropped:
            self._stale = True
            return []
        found.standing = Standing.LOST
        self._changed = self._stale = True
        if self.view.leaving or peer in self.view.gone:
            return []
        self._look_again(now, peer)
        found.probed = True
        return [Happened("lost", peer), Probe(peer)]

    def probed(self, now: float, peer: NodeId, *, refused: bool) -> list[Action]:
        """Whether anybody listens where *peer* did."""
        found = self._peers.get(peer)
        if found is None or found.seen.up:
            return []
        found.seen.refused = refused
        # If it does not, and nobody wants it, it has turned to another parent, which watches it.
        actions = self._look(now, peer) if refused else []
        found.probed = False
        self._stale = True
        return actions

    def hear_heartbeat(self, now: float, peer: NodeId, beat: Heartbeat) -> list[Action]:
        actions: list[Action] = []
        if beat.wants_answer:
            actions.append(Send(peer, self._heartbeat(wants_answer=False)))
        found = self._peers.get(peer)
        if found is None or beat.view == self.view.digest:
            return actions
        spreads_until = max(found.told_all_at, self._believed_at) + 2 * self.patience.heartbeat_s
        if now < spreads_until:
            return actions  # it has not heard all of it yet
        return actions + self._tell_all(now, peer)

    def hear_news(self, now: float, peer: NodeId, news: News) -> list[Action]:
        actions: list[Action] = []
        for fate in news.fates:
            if not self.view.is_news(fate):
                continue
            if fate.is_gone and fate.node != peer and self._is_heard(now, fate.node):
                actions.append(Send(fate.node, News((fate,))))
                continue
            actions += self._believe(now, fate, peer, "was told")
        return actions

    def leave(self, now: float) -> list[Action]:
        """Tell everybody that this node goes, at once: so none has to find out. May be said again,
        to know that all that was said meanwhile was heard."""
        fate = self.view.end_of(self.view.me)
        actions: list[Action] = [] if self.view.leaving else [Happened("leaves")]
        self.view.leaving = True
        self.view.hear(fate)
        beat = self._heartbeat(wants_answer=True)
        for peer in self._up():
            # Whoever answers the second has heard the first, and all that was said before.
            actions += [Send(peer, News((fate,))), Send(peer, beat)]
            self._peers[peer].seen.asked_at = now
        return actions

    def is_known_to_leave(self) -> bool:
        """Whether all who can be told were told."""
        return all(self._peers[peer].seen.asked_at is None for peer in self._up())

    # --- time passes -----------------------------------------------------------------------------

    def deadline(self) -> float | None:
        looks, peers = self._looks, self._peers
        soonest = None
        while looks:
            at, peer = looks[0]
            found = peers.get(peer)
            if found is not None and found.look_at == at:
                soonest = at
                break
            heappop(looks)  # it is outdated
        if self._tell_at is not None and (soonest is None or self._tell_at < soonest):
            soonest = self._tell_at
        if self.view.gone and not self.view.leaving:
            try_at = self.company.try_gone_at
            soonest = try_at if soonest is None else min(soonest, try_at)
        return soonest

    def woke(self, now: float, late_s: float) -> None:
        """The clock woke this node, so much too late."""
        if late_s > self.patience.nap_s:
            self._forget_nap(now)
            return
        counted_s = min(late_s, self.patience.silent_s)
        if counted_s < late_s:
            self._discount(now, late_s)
            if now <= self._much_late_at + LATE_FOR_S:
                # Not for the first time: it was not stuck for once, it is loaded.
                counted_s = max(counted_s, min(late_s, self._much_late_s))
            self._much_late_s, self._much_late_at = late_s, now
        if counted_s >= self._late_s or now > self._late_at + LATE_FOR_S:
            self._late_s, self._late_at = counted_s, now

    def tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        self._stale |= self.company.try_the_gone(now)
        while (at := self.deadline()) is not None and at <= now:
            if self._tell_at == at:
                actions += self._spread()
                continue
            if self._looks[0][0] != at:
                break  # it was for trying the gone
            _, peer = heappop(self._looks)
            self._peers[peer].look_at = None
            actions += self._look(now, peer)
        return actions

    def _forget_nap(self, now: float) -> None:
        """What this node did not hear while it slept says nothing about the others."""
        for peer, found in self._peers.items():
            seen = found.seen
            if seen.up:
                seen.heard_at, seen.asked_at = now, None
                seen.owed_since = now if self.links[peer].asked else None
            else:
                seen.since = now
            self._look_again(now, peer)

    def _discount(self, now: float, seconds: float) -> None:
        """For so long this node did nothing: that is not what it waited for others."""
        for peer, found in self._peers.items():
            seen = found.seen
            seen.since = min(now, seen.since + seconds)
            seen.heard_at = min(now, seen.heard_at + seconds)
            if seen.owed_since is not None:
                seen.owed_since = min(now, seen.owed_since + seconds)
            if seen.asked_at is not None:
                seen.asked_at = min(now, seen.asked_at + seconds)
            self._look_again(now, peer)

    def _look(self, now: float, peer: NodeId) -> list[Action]:
        """See what has become of it."""
        found = self._peers[peer]
        seen = found.seen
        actions: list[Action] = []
        if asks_for_sign(now, seen, self.patience, self._beat_s(peer), self._late_s):
            actions += self._ask_for_sign(now, peer)
            if seen.owed_since is not None:
                self._owing.append(peer)
                # If it is stuck, those who would be asked next must not be found so one by one.
                for other in sorted(self.company.overlay & self.company.wanted):
                    rest = self._peers[other].seen
                    if rest.up and rest.asked_at is None:
                        actions += self._ask_for_sign(now, other)
        actions += self._judge(now, peer, standing(now, seen, self.patience, self._late_s))
        if self._may_be_ending(now, peer) and not found.probed:
            found.probed = True
            actions.append(Probe(peer))
        self._look_again(now, peer)
        self._stale |= not seen.up
        return actions

    def _may_be_ending(self, now: float, peer: NodeId) -> bool:
        """A process that was killed closes one descriptor after the other: its connections may be
        gone before nobody listens there any more."""
        seen = self._peers[peer].seen
        lost = seen.was_up and not seen.up and peer not in self.view.gone
        return lost and now < seen.since + PROBE_FOR_S

    def _ask_for_sign(self, now: float, peer: NodeId) -> list[Action]:
        found = self._peers[peer]
        found.seen.asked_at = found.asked_last_at = now
        self._look_again(now, peer)
        return [Send(peer, self._heartbeat(wants_answer=True))]

    def _judge(self, now: float, peer: NodeId, new: Standing) -> list[Action]:
        found = self._peers[peer]
        before, found.standing = found.standing, new
        if new is before or peer in self.view.gone:
            return []
        self._changed = True
        if new is not Standing.GONE:
            found.seen.since = now
            self._stale = True
            return [Happened(new.value, peer)]
        seen = found.seen
        took_s = now - (seen.since if not seen.up else seen.owed_since or seen.heard_at)
        self.stats.deaths += 1
        self.stats.max_detection_ms = max(self.stats.max_detection_ms, round(took_s * 1000))
        how = "nobody listens" if seen.refused else "no sign of life"
        return self._believe(now, self.view.end_of(peer), None, how, took_s)

    def _heartbeat(self, *, wants_answer: bool) -> Heartbeat:
        return Heartbeat(self.stats.epoch, self.view.digest, wants_answer)

    def _beat_s(self, peer: NodeId) -> float:
        if peer in self.company.near:
            return self.patience.heartbeat_s
        if peer in self.company.overlay:
            return self.patience.heartbeat_s * STANDBY_BEATS
        if peer not in self.company.expected:
            return self.patience.dead_s * STRANGER_BEATS
        return self.patience.dead_s / 2  # those who ask this node see to it themselves

    def _look_again(self, now: float, peer: NodeId) -> None:
        found = self._peers[peer]
        if peer in self.view.gone and not found.seen.up:
            return
        at = next_look(now, found.seen, self.patience, self._beat_s(peer), self._late_s)
        if at is None and found.seen.up:
            at = now + self.patience.dead_s  # gone, and perhaps heard of again
        connects_by = found.seen.since + CONNECTS_WITHIN_S
        if at is not None and not found.seen.was_up and now < connects_by:
            at = connects_by
        if at is not None and self._may_be_ending(now, peer):
            at = min(at, now + PROBE_EVERY_S)
        if at is not None:
            found.look_at = None
            self._look_by(peer, at)

    def _look_by(self, peer: NodeId, at: float) -> None:
        found = self._peers[peer]
        if found.look_at is None or at < found.look_at:
            found.look_at = at
            heappush(self._looks, (at, peer))

    # --- fates -----------------------------------------------------------------------------------

    def _believe(
        self, now: float, fate: Fate, peer: NodeId | None, how: str, seconds: float | None = None
    ) -> list[Action]:
        told = self.view.hear(fate)
        assert told is not None, "it was news"
        self._changed = self._stale = True
        self._believed_at = now
        self.company.view_changed(now)
        here = self._peers.get(told.node)
        if not told.is_gone and here is not None and not here.seen.up:
            here.seen.since, here.seen.refused = now, False
            here.standing = Standing.LOST
            self._look_again(now, told.node)
        self._untold[told] = peer if told == fate else None
        self._tell_at = min(now + SPREAD_S, self._tell_at or float("inf"))
        if told.node == self.view.me:
            self.stats.refutations += told != fate
            return [Happened("refutes its end", None, how)] if told != fate else []
        if told.is_gone:
            if how == "was told" and peer == told.node:
                how = "has left"
            return [Happened("gone", told.node, how, seconds)]
        self.stats.returns += 1
        return [Happened("is back", told.node, how), *self.company.try_again(told.node)]

    def _is_heard(self, now: float, node: NodeId) -> bool:
        """This node knows better than whoever says that *node* is gone."""
        found = self._peers.get(node)
        if found is None or not found.seen.up or found.standing is not Standing.GOOD:
            return False
        return now - found.seen.heard_at < 2 * self.patience.heartbeat_s

    def _spread(self) -> list[Action]:
        untold, self._untold, self._tell_at = self._untold, {}, None
        actions: list[Action] = []
        strangers = 0
        for peer in self._up():
            if not self.company.is_close(peer):
                strangers += 1
                if strangers > STRANGERS_TOLD_MAX:
                    continue
            actions += _in_messages(peer, [f for f, sender in untold.items() if sender != peer])
        return actions

    def _tell_all(self, now: float, peer: NodeId) -> list[Action]:
        self._peers[peer].told_all_at = now
        return _in_messages(peer, list(self.view.fates()))

    def _up(self) -> Iterator[NodeId]:
        return (peer for peer, found in self._peers.items() if found.seen.up)

    # --- with whom it keeps in touch -------------------------------------------------------------

    def settle(self, now: float) -> list[Action]:
        """Connect to whom this node needs now, and no longer to whom it does not; after each step
        that may have changed that."""
        if not self._stale or not self._started or self.view.leaving:
            return []
        self._stale = False
        actions = self.company.settle(now)
        for peer in self.company.new:
            if peer in self._peers:  # it was wanted for a moment, and is gone
                self._look_again(now, peer)
        self.company.new.clear()
        return actions

    def check_invariants(self) -> None:
        self.view.check_invariants()
        assert self.view.leaving or self.company.wanted <= set(self._peers)
        assert self.company.away == {peer for peer, each in self._peers.items() if not each.seen.up}
        looks = set(self._looks)
        for peer, found in self._peers.items():
            assert not (found.seen.up and found.seen.refused), peer
            assert found.look_at is None or (found.look_at, peer) in looks


def _in_messages(peer: NodeId, fates: list[Fate]) -> list[Action]:
    return [
        Send(peer, News(tuple(fates[start : start + FATES_MAX])))
        for start in range(0, len(fates), FATES_MAX)
    ]
