"""Membership: detects which nodes are alive, and spreads what it detects.

After SWIM: a failure detector that first suspects (``failure_detector``), and incarnations by which
a node refutes its death (``member_table``). Two things differ. A node does not ping random members:
it watches the peers in its connection plan (``connection_plan``), those it is connected to or wants
to be, and the children that should connect to it. And no third node is asked to ping a suspect
(SWIM's indirect probe): suspicion stays on the node that has it, costs the suspect only new
requests, and ends with any reply.

How the failure of a parent is handled, in the order of this file:

1. *No reply in time.* ``await_reply`` notes when a request went out. After ``ping_after_s`` without
   the reply, or ``heartbeat_s`` without any message, ``_check`` pings the parent. If a reply is
   overdue it also pings the peers that would be asked next, so that nodes that are stuck together
   are found together.
2. *A sign of life* ends the story (``heard``).
3. *The connection is lost* (``down``), because the process ended or the network failed. The parent
   is *lost*, and a *probe* tries its port: a refusal proves that the process ended (``probed``).
4. *Suspect, then dead.* ``_set_state``: without an answer to the ping the parent is *silent* after
   ``silent_s`` and *gone* after ``dead_s``. One whose port refuses is *gone* at once.
5. *Asking again at once.* ``PeerProtocol`` learns of each of these after the step that found it,
   and the fetches ask other peers for what the parent has not sent: all of them when the connection
   is lost (``PeerProtocol._connection_changed``), else those that now have a better peer to ask
   (``take_state_change``); owners of chunks that would be next are pinged first (``take_overdue``).
   ``settle`` computes the new parent, to which a connection mostly exists already, and connects to
   the next candidate.
6. *The death spreads.* ``_believe`` records it, and ``_announce`` sends it ``ANNOUNCE_DELAY_S``
   later over the connections of the overlay and a few others, so that many deaths are one message.
   A node that still hears the dead one does not believe it (``hear_update``). It forwards the
   message to that peer, which refutes it with its next incarnation.

Two nodes that connect exchange their whole member tables, and heartbeats carry a digest of it, so
an update that was lost on the way still arrives.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from copperfs.model.types import NodeId
from copperfs.node.actions import Action, LogEvent, Probe, Send
from copperfs.node.limits_and_counters import NodeStats
from copperfs.node.membership.connection_plan import CONNECTS_WITHIN_S, ConnectionPlan, Peer
from copperfs.node.membership.failure_detector import (
    PeerObservations,
    PeerState,
    Timeouts,
    doubted_until,
    is_ping_due,
    next_check,
    peer_state,
)
from copperfs.node.membership.member_table import MemberTable
from copperfs.node.membership.own_lateness import OwnLateness
from copperfs.node.peer.flow_control import FlowControl
from copperfs.node.peer.messages import RECORDS_MAX, Heartbeat, MembershipUpdate, MemberStatus
from copperfs.node.routing.trees import Trees

# Updates within this time go out in one message.
ANNOUNCE_DELAY_S = 0.02
# The heartbeat interval of a standby parent, in intervals of a parent.
STANDBY_BEATS = 4
# The heartbeat interval of a peer outside the overlay, in times of ``dead_s``: there may be as many
# as nodes.
STRANGER_BEATS = 5
# At most this many of those get an update at once; their own overlay tells them, too.
STRANGERS_TOLD_MAX = 16
# For how long a lost peer is probed, and how often.
PROBE_EVERY_S = 0.03
PROBE_FOR_S = 0.5
# After a sign of life a peer is not pinged for this long.
PINGED_FOR_S = 0.05


@dataclass(slots=True)
class Membership:
    """Membership as one node sees it. A *record* is a ``MemberStatus``."""

    trees: Trees
    timeouts: Timeouts
    stats: NodeStats
    flow: FlowControl
    random: Random
    members: MemberTable = field(init=False)
    plan: ConnectionPlan = field(init=False)
    _peers: dict[NodeId, Peer] = field(default_factory=dict)
    _checks: list[tuple[float, NodeId]] = field(default_factory=list)
    """A heap; some entries are outdated."""
    _to_announce: dict[MemberStatus, NodeId | None] = field(default_factory=dict)
    """Each with the peer it came from."""
    _announce_at: float | None = None
    """When to announce them."""
    _lateness: OwnLateness = field(default_factory=OwnLateness)
    _believed_at: float = float("-inf")
    _overdue: list[NodeId] = field(default_factory=list)
    """Peers pinged because a reply is overdue, until ``take_overdue``."""
    _plan_is_stale: bool = False
    """The connection plan may be outdated; see ``settle``."""
    _states_changed: bool = False
    """The state of a peer changed, until ``take_state_change``."""
    _started: bool = False

    def __post_init__(self) -> None:
        self.members = MemberTable(self.trees.me, self.trees.nodes)
        self.plan = ConnectionPlan(
            self.trees, self.timeouts, self.stats, self.flow, self.random, self.members, self._peers
        )

    def start(self) -> None:
        self._started = self._plan_is_stale = True

    # --- 1. a reply is awaited; without it in time: ping ------------------------------------------

    def await_reply(self, now: float, peer: NodeId) -> None:
        """A request went to *peer*: await its reply."""
        found = self._peers.get(peer)
        if found is not None and found.seen.up and found.seen.awaited_since is None:
            found.seen.awaited_since = now
            self._check_by(peer, now + self.timeouts.ping_after_s + self._lateness.added_s)

    def tick(self, now: float) -> list[Action]:
        """Check each peer that is due, announce, and try to reach a node that is gone."""
        actions: list[Action] = []
        self._plan_is_stale |= self.plan.try_the_gone(now)
        while (at := self.deadline()) is not None and at <= now:
            if self._announce_at == at:
                actions += self._announce()
                continue
            if self._checks[0][0] != at:
                break  # the deadline was that of ``try_the_gone``
            _, peer = heappop(self._checks)
            self._peers[peer].check_at = None
            actions += self._check(now, peer)
        return actions

    def _check(self, now: float, peer: NodeId) -> list[Action]:
        """Ping *peer* if that is due, judge its state, and probe its port if it may be exiting."""
        found, late_s = self._peers[peer], self._lateness.added_s
        seen = found.seen
        actions: list[Action] = []
        if is_ping_due(now, seen, self.timeouts, self._heartbeat_interval_s(peer), late_s):
            actions += self._send_ping(now, peer)
            if seen.awaited_since is not None:
                self._overdue.append(peer)
                actions += self._ping_candidates(now)
        actions += self._set_state(now, peer, peer_state(now, seen, self.timeouts, late_s))
        if self._may_be_exiting(now, peer) and not found.probing:
            found.probing = True
            actions.append(Probe(peer))
        self._schedule_check(now, peer)
        self._plan_is_stale |= not seen.up
        return actions

    def _ping_candidates(self, now: float) -> list[Action]:
        """Ping the peers that may be asked next. If they are stuck as well, they must not be found
        stuck one by one."""
        actions: list[Action] = []
        for peer in sorted(self.plan.upstream & self.plan.wanted):
            seen = self._peers[peer].seen
            if seen.up and seen.ping_sent_at is None:
                actions += self._send_ping(now, peer)
        return actions

    def _send_ping(self, now: float, peer: NodeId) -> list[Action]:
        found = self._peers[peer]
        found.seen.ping_sent_at = found.ping_last_sent_at = now
        self._schedule_check(now, peer)
        return [Send(peer, self._heartbeat(wants_answer=True))]

    def ping(self, now: float, peer: NodeId) -> list[Action]:
        """Ping *peer*, which is asked, or would be, instead of a silent one: stuck peers are found
        together."""
        found = self._peers.get(peer)
        if found is None or not found.seen.up or found.seen.ping_sent_at is not None:
            return []
        if now < found.seen.heard_at + PINGED_FOR_S:
            return []
        return self._send_ping(now, peer)

    # --- 2. a sign of life ends all suspicion -----------------------------------------------------

    def heard(self, now: float, peer: NodeId, *, answers: bool = True) -> list[Action]:
        """A message that answers nothing shows that the peer can send, not that it receives. Then
        the peer is pinged again."""
        found = self._peers.get(peer)
        if found is None:
            return []
        seen, was_pinged = found.seen, found.seen.ping_sent_at is not None
        seen.heard_at = now
        if not answers:
            if not was_pinged or now < found.ping_last_sent_at + self.timeouts.heartbeat_s:
                return []
            found.ping_last_sent_at = now
            return [Send(peer, self._heartbeat(wants_answer=True))]
        seen.ping_sent_at = seen.awaited_since = None
        if self.flow[peer].outstanding:
            self.await_reply(now, peer)
        if found.state is PeerState.GOOD or not seen.up:
            if was_pinged and seen.up:
                self._schedule_check(now, peer)  # cancels the timer of its silence
            return []
        was_silent_s = now - seen.since
        found.state = PeerState.GOOD
        self._states_changed = self._plan_is_stale = True
        actions: list[Action] = [LogEvent("answers again", peer, seconds=was_silent_s)]
        if peer in self.members.gone:  # only the peer itself can refute its death
            actions.append(Send(peer, MembershipUpdate((self.members.death_of(peer),))))
        return actions

    def hear_heartbeat(self, now: float, peer: NodeId, beat: Heartbeat) -> list[Action]:
        actions: list[Action] = []
        if beat.wants_answer:
            actions.append(Send(peer, self._heartbeat(wants_answer=False)))
        found = self._peers.get(peer)
        if found is None or beat.view == self.members.digest:
            return actions
        spreads_until = max(found.table_sent_at, self._believed_at) + 2 * self.timeouts.heartbeat_s
        if now < spreads_until:
            return actions  # it has not received all updates yet
        return actions + self._send_table(now, peer)

    def _heartbeat(self, *, wants_answer: bool) -> Heartbeat:
        return Heartbeat(self.stats.epoch, self.members.digest, wants_answer)

    # --- 3. the connection is lost: probe the port ------------------------------------------------

    def up(self, now: float, peer: NodeId) -> list[Action]:
        self._peers[peer] = Peer(
            PeerObservations(now, up=True, was_up=True, heard_at=now), PeerState.GOOD
        )
        self.plan.away.discard(peer)
        self._states_changed = self._plan_is_stale = True
        self._schedule_check(now, peer)
        return self._send_table(now, peer)

    def down(self, now: float, peer: NodeId) -> list[Action]:
        found = self._peers.get(peer)
        if found is None or not found.seen.up:
            return []
        found.seen = PeerObservations(now, was_up=True, heard_at=found.seen.heard_at)
        self.plan.away.add(peer)
        if found.dropped:
            self._plan_is_stale = True
            return []
        found.state = PeerState.LOST
        self._states_changed = self._plan_is_stale = True
        if self.members.leaving or peer in self.members.gone:
            return []
        self._schedule_check(now, peer)
        found.probing = True
        return [LogEvent("lost", peer), Probe(peer)]

    def probed(self, now: float, peer: NodeId, *, refused: bool) -> list[Action]:
        found = self._peers.get(peer)
        if found is None or found.seen.up:
            return []
        found.seen.refused = refused
        # A peer that does not refuse, and that this node does not want, has another parent, which
        # watches it.
        actions = self._check(now, peer) if refused else []
        found.probing = False
        self._plan_is_stale = True
        return actions

    def _may_be_exiting(self, now: float, peer: NodeId) -> bool:
        """A killed process closes its descriptors one after the other, so its connections may be
        gone before its port refuses new ones."""
        seen = self._peers[peer].seen
        lost = seen.was_up and not seen.up and peer not in self.members.gone
        return lost and now < seen.since + PROBE_FOR_S

    # --- 4. suspect, then dead --------------------------------------------------------------------

    def _set_state(self, now: float, peer: NodeId, new: PeerState) -> list[Action]:
        """The failure detector judges *peer* so. Only *gone* concerns other nodes."""
        found = self._peers[peer]
        before, found.state = found.state, new
        if new is before or peer in self.members.gone:
            return []
        self._states_changed = True
        if new is not PeerState.GONE:
            found.seen.since = now
            self._plan_is_stale = True
            return [LogEvent(new.value, peer)]
        seen = found.seen
        took_s = now - (seen.since if not seen.up else seen.awaited_since or seen.heard_at)
        self.stats.deaths += 1
        self.stats.max_detection_ms = max(self.stats.max_detection_ms, round(took_s * 1000))
        how = "nobody listens" if seen.refused else "no sign of life"
        return self._believe(now, self.members.death_of(peer), None, how, took_s)

    def _believe(
        self,
        now: float,
        record: MemberStatus,
        peer: NodeId | None,
        how: str,
        seconds: float | None = None,
    ) -> list[Action]:
        """Enter *record* into the member table, and announce what the table makes of it. It came
        from *peer*, or from this node's own detection; *how* and *seconds* are for the log."""
        told = self.members.hear(record)
        assert told is not None, "it was news"
        self._states_changed = self._plan_is_stale = True
        self._believed_at = now
        self.plan.members_changed(now)
        here = self._peers.get(told.node)
        if not told.is_gone and here is not None and not here.seen.up:
            here.seen.since, here.seen.refused = now, False
            here.state = PeerState.LOST
            self._schedule_check(now, told.node)
        self._to_announce[told] = peer if told == record else None
        self._announce_at = min(now + ANNOUNCE_DELAY_S, self._announce_at or float("inf"))
        if told.node == self.members.me:
            self.stats.refutations += told != record
            return [LogEvent("refutes its end", None, how)] if told != record else []
        if told.is_gone:
            if how == "was told" and peer == told.node:
                how = "has left"
            return [LogEvent("gone", told.node, how, seconds)]
        self.stats.returns += 1
        return [LogEvent("is back", told.node, how), *self.plan.try_again(told.node)]

    # --- 5. the fetches ask other peers, and the node connects to another parent ------------------

    def take_overdue(self) -> list[NodeId]:
        """Peers pinged since the last call because a reply is overdue."""
        overdue, self._overdue = self._overdue, []
        return overdue

    def take_state_change(self) -> bool:
        changed, self._states_changed = self._states_changed, False
        return changed

    def settle(self, now: float) -> list[Action]:
        if not self._plan_is_stale or not self._started or self.members.leaving:
            return []
        self._plan_is_stale = False
        actions = self.plan.settle(now)
        for peer in self.plan.new:
            if peer in self._peers:  # otherwise it was wanted for a moment only
                self._schedule_check(now, peer)
        self.plan.new.clear()
        return actions

    # --- 6. the death is announced, and others' announcements arrive ------------------------------

    def _announce(self) -> list[Action]:
        records, self._to_announce, self._announce_at = self._to_announce, {}, None
        actions: list[Action] = []
        strangers = 0
        for peer in self._up():
            if not self.plan.is_close(peer):
                strangers += 1
                if strangers > STRANGERS_TOLD_MAX:
                    continue
            actions += _in_messages(
                peer, [each for each, sender in records.items() if sender != peer]
            )
        return actions

    def hear_update(self, now: float, peer: NodeId, update: MembershipUpdate) -> list[Action]:
        actions: list[Action] = []
        for record in update.records:
            if not self.members.is_news(record):
                continue
            if record.is_gone and record.node != peer and self._is_heard(now, record.node):
                actions.append(Send(record.node, MembershipUpdate((record,))))
                continue
            actions += self._believe(now, record, peer, "was told")
        return actions

    def _is_heard(self, now: float, node: NodeId) -> bool:
        """Whether this node hears *node*, and so knows better than a report of its death."""
        found = self._peers.get(node)
        if found is None or not found.seen.up or found.state is not PeerState.GOOD:
            return False
        return now - found.seen.heard_at < 2 * self.timeouts.heartbeat_s

    def _send_table(self, now: float, peer: NodeId) -> list[Action]:
        self._peers[peer].table_sent_at = now
        return _in_messages(peer, list(self.members.records()))

    def _up(self) -> Iterator[NodeId]:
        return (peer for peer, found in self._peers.items() if found.seen.up)

    # --- this node leaves -------------------------------------------------------------------------

    def leave(self, now: float) -> list[Action]:
        """No peer has to detect that this node leaves. A second call checks that all that was sent
        meanwhile was received."""
        record = self.members.death_of(self.members.me)
        actions: list[Action] = [] if self.members.leaving else [LogEvent("leaves")]
        self.members.leaving = True
        self.members.hear(record)
        beat = self._heartbeat(wants_answer=True)
        for peer in self._up():
            # A peer that answers the heartbeat has received all that was sent before.
            actions += [Send(peer, MembershipUpdate((record,))), Send(peer, beat)]
            self._peers[peer].seen.ping_sent_at = now
        return actions

    def is_known_to_leave(self) -> bool:
        """Whether all connected peers have acknowledged that this node leaves."""
        return all(self._peers[peer].seen.ping_sent_at is None for peer in self._up())

    # --- when to check each peer ------------------------------------------------------------------

    def deadline(self) -> float | None:
        checks, peers = self._checks, self._peers
        soonest = None
        while checks:
            at, peer = checks[0]
            found = peers.get(peer)
            if found is not None and found.check_at == at:
                soonest = at
                break
            heappop(checks)  # outdated
        if self._announce_at is not None and (soonest is None or self._announce_at < soonest):
            soonest = self._announce_at
        if self.members.gone and not self.members.leaving:
            try_at = self.plan.try_gone_at
            soonest = try_at if soonest is None else min(soonest, try_at)
        return soonest

    def _schedule_check(self, now: float, peer: NodeId) -> None:
        found = self._peers[peer]
        if peer in self.members.gone and not found.seen.up:
            return
        at = next_check(
            now, found.seen, self.timeouts, self._heartbeat_interval_s(peer), self._lateness.added_s
        )
        if at is None and found.seen.up:
            at = now + self.timeouts.dead_s  # announced as gone, and perhaps received from again
        connects_by = found.seen.since + CONNECTS_WITHIN_S
        if at is not None and not found.seen.was_up and now < connects_by:
            at = connects_by
        if at is not None and self._may_be_exiting(now, peer):
            at = min(at, now + PROBE_EVERY_S)
        if at is not None:
            found.check_at = None
            self._check_by(peer, at)

    def _check_by(self, peer: NodeId, at: float) -> None:
        found = self._peers[peer]
        if found.check_at is None or at < found.check_at:
            found.check_at = at
            heappush(self._checks, (at, peer))

    def _heartbeat_interval_s(self, peer: NodeId) -> float:
        if peer in self.plan.near:
            return self.timeouts.heartbeat_s
        if peer in self.plan.upstream:
            return self.timeouts.heartbeat_s * STANDBY_BEATS
        if peer not in self.plan.expected:
            return self.timeouts.dead_s * STRANGER_BEATS
        return self.timeouts.dead_s / 2  # children ping this node themselves

    # --- this node's own lateness -----------------------------------------------------------------

    def on_late_wakeup(self, now: float, late_s: float) -> None:
        """A timer fired *late_s* too late."""
        if late_s > self.timeouts.nap_s:
            self._restart_waits(now)
            return
        if late_s > self.timeouts.silent_s:
            self._extend_waits(now, late_s)
        self._lateness.note(now, late_s, self.timeouts.silent_s)

    def _restart_waits(self, now: float) -> None:
        """A node that was stopped received nothing, which says nothing about its peers."""
        for peer, found in self._peers.items():
            seen = found.seen
            if seen.up:
                seen.heard_at, seen.ping_sent_at = now, None
                seen.awaited_since = now if self.flow[peer].outstanding else None
            else:
                seen.since = now
            self._schedule_check(now, peer)

    def _extend_waits(self, now: float, seconds: float) -> None:
        """Subtract a stall of this node from all waits for peers."""
        for peer, found in self._peers.items():
            seen = found.seen
            seen.since = min(now, seen.since + seconds)
            seen.heard_at = min(now, seen.heard_at + seconds)
            if seen.awaited_since is not None:
                seen.awaited_since = min(now, seen.awaited_since + seconds)
            if seen.ping_sent_at is not None:
                seen.ping_sent_at = min(now, seen.ping_sent_at + seconds)
            self._schedule_check(now, peer)

    # --- queries of the other parts ---------------------------------------------------------------

    def is_good(self, peer: NodeId) -> bool:
        return self.plan.is_good(peer)

    @property
    def parents(self) -> list[NodeId | None]:
        return self.plan.parents

    def doubted_until(self, peer: NodeId) -> float:
        """Until when the source is not read instead of asking *peer*."""
        found = self._peers.get(peer)
        if found is None or peer in self.members.gone:
            return float("-inf")
        return doubted_until(found.seen, self.timeouts, self._lateness.added_s)

    def silent_until(self, since: float) -> float:
        """All peers found silent since *since* get no longer together than one."""
        return since + self.timeouts.silent_s + self._lateness.added_s

    def connects_until(self, now: float, peer: NodeId) -> float | None:
        return self.plan.connects_until(now, peer)

    def reach(self, now: float, peer: NodeId) -> None:
        self._plan_is_stale |= self.plan.reach(now, peer)

    def is_in_touch(self) -> bool:
        """Whether all parents and pushers are good."""
        return self._started and all(self.is_good(peer) for peer in self.plan.near)

    def waited_for(self) -> set[NodeId]:
        """Parents and pushers that were never reached."""
        return {
            peer
            for peer in self.plan.near
            if (found := self._peers.get(peer)) is not None
            and not (found.seen.up or found.seen.was_up)
        }

    def is_upstream(self, peer: NodeId) -> bool:
        return peer in self.plan.upstream

    def suspects(self) -> list[NodeId]:
        """Silent or lost, and not announced as gone."""
        return sorted(
            peer
            for peer, each in self._peers.items()
            if each.state in (PeerState.SILENT, PeerState.LOST)
            and peer not in self.members.gone
            and (each.seen.was_up or peer in self.plan.near)
        )

    # --- invariants -------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        self.members.check_invariants()
        assert self.members.leaving or self.plan.wanted <= set(self._peers)
        assert self.plan.away == {peer for peer, each in self._peers.items() if not each.seen.up}
        checks = set(self._checks)
        for peer, found in self._peers.items():
            assert not (found.seen.up and found.seen.refused), peer
            assert found.check_at is None or (found.check_at, peer) in checks


def _in_messages(peer: NodeId, records: list[MemberStatus]) -> list[Action]:
    return [
        Send(peer, MembershipUpdate(tuple(records[start : start + RECORDS_MAX])))
        for start in range(0, len(records), RECORDS_MAX)
    ]
