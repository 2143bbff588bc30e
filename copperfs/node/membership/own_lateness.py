"""Own lateness: how late this node's timers fire, which is added to its timeouts for peers.

A late clock must not make others suspect. A loaded machine wakes this node late, and its peers then
had less time to answer than the timeout says. So this node's own lateness is added to each timeout,
up to ``silent_s``. A longer stall is subtracted from the waits that were under way, but does not
extend later ones, unless it happens again within ``LATE_FOR_S``. Otherwise a node that was stuck
for a second would wait two seconds longer when another node is stuck soon after. After a stall
longer than ``nap_s`` (the node was stopped, or stuck) it forgets what it was waiting for.

``Membership`` changes the waits; this module decides what is added.
"""

from dataclasses import dataclass

# An observation of this node's own lateness stays valid for this long.
LATE_FOR_S = 5.0


@dataclass(slots=True)
class OwnLateness:
    added_s: float = 0.0
    """Is added to each timeout."""
    _added_at: float = float("-inf")
    _stall_s: float = 0.0
    """The last lateness above ``silent_s``. It counts in full only if it happens again soon."""
    _stalled_at: float = float("-inf")

    def note(self, now: float, late_s: float, silent_s: float) -> None:
        """A timer fired *late_s* too late."""
        counted_s = min(late_s, silent_s)
        if counted_s < late_s:
            if now <= self._stalled_at + LATE_FOR_S:
                # It happened before: the node was not stuck once, it is loaded.
                counted_s = max(counted_s, min(late_s, self._stall_s))
            self._stall_s, self._stalled_at = late_s, now
        if counted_s >= self.added_s or now > self._added_at + LATE_FOR_S:
            self.added_s, self._added_at = counted_s, now
