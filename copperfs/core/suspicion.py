"""Suspicion: what is believed of a peer, from what was seen of it, and how long to wait for what.

Nothing here remembers anything: ``standing`` is a function of what was seen (``Seen``), of the
times in ``Patience`` and of how late this node itself was lately. Three kinds of trouble look
different, and each is noticed by another sign:

- A process that ended: its connections are gone within milliseconds, and nobody listens where it
  did (``refused``). No time has to pass.
- A node that is stuck, stopped, cut off or only slow: it owes an answer, was asked for a sign of
  life, and gives none. It is *silent*: it is asked nothing new, and what it was asked is asked of
  the next one up as well. Nobody is told; when anything is heard of it, all is as before.
- A node that gives no sign of life for as long as no slow one was ever seen to: it is *gone*.

Who waits for the source, however long, is none of these: it gives signs of life all the time.

A late clock is no reason to suspect others: on a loaded machine this node wakes up late, and then
those that it waits for had less time than it thinks. So its own lateness is added to each wait, up
to ``silent_s``. Of more than that the time in which it did nothing does not count for those whom it
is waiting for, but nobody is given as much again: else whoever was stuck for a second would wait
for a second longer, twice, when another node is stuck soon after. And when it slept for longer than
``nap_s`` (it was stopped, or stuck) it forgets what it was waiting for.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what. Measured on loaded nodes: an answer of one that lives takes 0.3 to
    3 ms, its loop may be 1.4 s late at worst."""

    probe_s: float = 0.1
    """An answer is owed for so long: ask for a sign of life. Well above what a fetch through five
    hops takes, so that a healthy job asks for none; whoever waits for a slow source sends one
    small message in this time."""
    silent_s: float = 0.25
    """No sign of life for so long after it was asked for: silent. ``probe_s + silent_s`` is what a
    read waits for a peer that is stuck, before the next one is asked."""
    heartbeat_s: float = 0.5
    """A parent that said nothing for so long is asked for a sign of life."""
    dead_s: float = 3.0
    """Nothing was heard for so long: gone. Twice the 1.4 s by which the heartbeats of a loaded node
    were seen to be late."""
    reach_s: float = 120.0
    """A peer that was never reached counts as gone after so long: nodes start in any order."""
    try_gone_s: float = 5.0
    """While anybody is gone, one of them is tried to be reached so often."""
    slow_s: float = 10.0
    """A peer that lives did not answer for so long: another one is asked as well, since its source
    may hang. One more read of the source for each such time, not one for each node."""

    @property
    def doubt_s(self) -> float:
        """For so long after an answer was owed, a node whose peers are silent does not read the
        source in their place: ``probe_s + 2 * silent_s``. Longer than until it asks another peer,
        because a needless read of the source costs more; below a second, which is what an
        application may have to wait."""
        return self.probe_s + 2 * self.silent_s

    @property
    def nap_s(self) -> float:
        """A clock that is later than this tells that this node slept: ``dead_s / 2``."""
        return self.dead_s / 2


class Standing(Enum):
    GOOD = "good"
    SILENT = "silent"
    """Connected, and does not answer."""
    LOST = "lost"
    """Not connected, or not yet."""
    GONE = "gone"
    """To be told to all."""


@dataclass(slots=True)
class Seen:
    """What was seen of one peer."""

    since: float
    """When it was first wanted, or connected, or lost."""
    up: bool = False
    was_up: bool = False
    refused: bool = False
    """Nobody listens where it did, since it was lost."""
    heard_at: float = 0.0
    owed_since: float | None = None
    """An answer is owed, and nothing was heard since then."""
    asked_at: float | None = None
    """For a sign of life, since when nothing was heard."""


def standing(now: float, seen: Seen, patience: Patience, late_s: float) -> Standing:
    """* not connected: *gone* if refused after it had been connected, or ``dead_s + late_s`` after
      it was lost, or ``reach_s`` after it was first wanted; else *lost*
    * asked for a sign of life for ``dead_s - heartbeat_s + late_s``: *gone*
    * asked for one for ``silent_s + late_s``: *silent*
    * else *good*"""
    if not seen.up:
        patient_s = patience.dead_s + late_s if seen.was_up else patience.reach_s
        gone = seen.refused or now >= seen.since + patient_s
        return Standing.GONE if gone else Standing.LOST
    if seen.asked_at is None:
        return Standing.GOOD
    if now >= seen.asked_at + _gone_after_s(patience, late_s):
        return Standing.GONE
    return Standing.SILENT if now >= seen.asked_at + patience.silent_s + late_s else Standing.GOOD


def asks_for_sign(
    now: float, seen: Seen, patience: Patience, heartbeat_s: float, late_s: float
) -> bool:
    """Whether it is to be asked for a sign of life: when an answer is owed for ``probe_s + late_s``
    or nothing was heard for *heartbeat_s*; once, until something is heard."""
    if not seen.up or seen.asked_at is not None:
        return False
    return now >= _asks_at(seen, patience, heartbeat_s, late_s)


def next_look(
    now: float, seen: Seen, patience: Patience, heartbeat_s: float, late_s: float
) -> float | None:
    """When the answers of the two above may be others, if nothing is seen until then."""
    if not seen.up:
        patient_s = patience.dead_s + late_s if seen.was_up else patience.reach_s
        times = [seen.since + patient_s]
    elif seen.asked_at is None:
        times = [_asks_at(seen, patience, heartbeat_s, late_s)]
    else:
        times = [
            seen.asked_at + patience.silent_s + late_s,
            seen.asked_at + _gone_after_s(patience, late_s),
        ]
    return min((each for each in times if each > now), default=None)


def doubted_until(seen: Seen, patience: Patience, late_s: float) -> float:
    """Until when the source is not read in this peer's place: ``doubt_s + late_s`` after it owed an
    answer or was lost, ``2 * silent_s + late_s`` after it was asked for a sign of life if that is
    sooner, ``probe_s + silent_s + late_s`` after one began to connect that never was."""
    if seen.up:
        since = [] if seen.owed_since is None else [seen.owed_since]
        if seen.asked_at is not None:
            since.append(seen.asked_at - patience.probe_s)
        return min(since, default=seen.heard_at) + patience.doubt_s + late_s
    if seen.was_up:
        return seen.since + patience.doubt_s + late_s
    return seen.since + patience.probe_s + patience.silent_s + late_s


def _asks_at(seen: Seen, patience: Patience, heartbeat_s: float, late_s: float) -> float:
    at = seen.heard_at + heartbeat_s
    if seen.owed_since is not None:
        at = min(at, seen.owed_since + patience.probe_s + late_s)
    return at


def _gone_after_s(patience: Patience, late_s: float) -> float:
    return patience.dead_s - patience.heartbeat_s + late_s
