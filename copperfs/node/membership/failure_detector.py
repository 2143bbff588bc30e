"""Failure detector: decides from observations alone whether a peer is good, silent, lost or gone.

After SWIM's suspicion: a peer that does not answer is first suspected (*silent*, *lost*) and only
later declared dead (*gone*). A *ping* is a ``Heartbeat`` that wants an answer. The
detector keeps no state: ``peer_state`` is a function of ``PeerObservations``, of
``Timeouts`` and of this node's own lateness. It tells three kinds of failure apart:

- A process that ended: its connections close within milliseconds, and its port refuses new ones
  (``refused``). It is *gone* at once; no timeout has to pass.
- A node that is stuck, stopped, cut off or only slow: a request and a ping are both unanswered. It
  is *silent*: it gets no new requests, and the next peer up is asked instead. This stays
  local: other nodes are not told, and any reply ends it.
- A node that gives no sign of life for longer than any slow one was ever measured: it is *gone*.

A peer that waits for its source is none of these, however long it takes: it answers pings all the
time.

*late_s* in these functions is this node's own lateness (``own_lateness.py``).
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Timeouts:
    """A live peer on a loaded node was measured to reply within 0.3 to 3 ms, with a loop at most
    1.4 s late."""

    ping_after_s: float = 0.1
    """A peer is pinged when a request is unanswered for this long: well above a fetch through five
    hops, so that requests of a healthy job cause no pings."""
    silent_s: float = 0.25
    """A ping that is unanswered for this long makes the peer silent. A read waits ``ping_after_s +
    silent_s`` for a stuck peer before it asks the next one."""
    heartbeat_s: float = 0.5
    """A parent that sent nothing for this long is pinged."""
    dead_s: float = 3.0
    """A peer that sent nothing for this long is gone: twice the measured 1.4 s. It is pinged after
    ``heartbeat_s``, so the rest counts from the ping."""
    reach_s: float = 120.0
    """A peer that was never reached is gone after this time; nodes start in any order."""
    try_gone_s: float = 5.0
    """How often the node tries to reach a gone one."""
    slow_s: float = 10.0
    """After this time another peer is asked as well: the source of a live one may hang."""

    @property
    def doubt_s(self) -> float:
        """A node whose peers are silent does not fall back to the source before its request has
        been unanswered for this long: ``ping_after_s + 2 * silent_s``. It exceeds the time until
        another peer is asked, because a needless read of the source costs more. It stays below a
        second, which an application may have to wait."""
        return self.ping_after_s + 2 * self.silent_s

    @property
    def nap_s(self) -> float:
        """A later wakeup means that the node itself was stopped."""
        return self.dead_s / 2


class PeerState(Enum):
    GOOD = "good"
    SILENT = "silent"
    """Connected, and does not reply."""
    LOST = "lost"
    """Not connected, or not yet."""
    GONE = "gone"
    """Announced to all nodes."""


@dataclass(slots=True)
class PeerObservations:
    since: float
    """When the peer was first wanted, or connected, lost, or found silent."""
    up: bool = False
    was_up: bool = False
    refused: bool = False
    """Its port has refused connections since the loss."""
    heard_at: float = 0.0
    awaited_since: float | None = None
    """Since when the oldest reply of it is awaited; None if none is."""
    ping_sent_at: float | None = None
    """When it was pinged; None once it has answered anything."""


def peer_state(now: float, seen: PeerObservations, timeouts: Timeouts, late_s: float) -> PeerState:
    """*late_s* is this node's own lateness."""
    if not seen.up:
        patient_s = timeouts.dead_s + late_s if seen.was_up else timeouts.reach_s
        gone = seen.refused or now >= seen.since + patient_s
        return PeerState.GONE if gone else PeerState.LOST
    if seen.ping_sent_at is None:
        return PeerState.GOOD
    if now >= max(seen.ping_sent_at, seen.heard_at) + _gone_after_s(timeouts, late_s):
        return PeerState.GONE
    return (
        PeerState.SILENT
        if now >= seen.ping_sent_at + timeouts.silent_s + late_s
        else PeerState.GOOD
    )


def is_ping_due(
    now: float, seen: PeerObservations, timeouts: Timeouts, heartbeat_s: float, late_s: float
) -> bool:
    """Whether to ping it: a request is unanswered for ``ping_after_s + late_s``, or nothing was
    received for *heartbeat_s*. It is pinged once, until it answers."""
    if not seen.up or seen.ping_sent_at is not None:
        return False
    return now >= _ping_due_at(seen, timeouts, heartbeat_s, late_s)


def next_check(
    now: float, seen: PeerObservations, timeouts: Timeouts, heartbeat_s: float, late_s: float
) -> float | None:
    """When the two functions above may next change their answer."""
    if not seen.up:
        patient_s = timeouts.dead_s + late_s if seen.was_up else timeouts.reach_s
        times = [seen.since + patient_s]
    elif seen.ping_sent_at is None:
        times = [_ping_due_at(seen, timeouts, heartbeat_s, late_s)]
    else:
        times = [
            seen.ping_sent_at + timeouts.silent_s + late_s,
            max(seen.ping_sent_at, seen.heard_at) + _gone_after_s(timeouts, late_s),
        ]
    return min((each for each in times if each > now), default=None)


def doubted_until(seen: PeerObservations, timeouts: Timeouts, late_s: float) -> float:
    """Until when the source is not read instead of asking this peer:

    * connected: ``doubt_s + late_s`` after the request it has not answered, or ``2 * silent_s +
      late_s`` after the ping if that is sooner
    * lost: ``doubt_s + late_s`` after the loss
    * never connected: ``ping_after_s + silent_s + late_s`` after the attempts began"""
    if seen.up:
        since = [] if seen.awaited_since is None else [seen.awaited_since]
        if seen.ping_sent_at is not None:
            since.append(seen.ping_sent_at - timeouts.ping_after_s)
        return min(since, default=seen.heard_at) + timeouts.doubt_s + late_s
    if seen.was_up:
        return seen.since + timeouts.doubt_s + late_s
    return seen.since + timeouts.ping_after_s + timeouts.silent_s + late_s


def _ping_due_at(
    seen: PeerObservations, timeouts: Timeouts, heartbeat_s: float, late_s: float
) -> float:
    at = seen.heard_at + heartbeat_s
    if seen.awaited_since is not None:
        at = min(at, seen.awaited_since + timeouts.ping_after_s + late_s)
    return at


def _gone_after_s(timeouts: Timeouts, late_s: float) -> float:
    return timeouts.dead_s - timeouts.heartbeat_s + late_s
