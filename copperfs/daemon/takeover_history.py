"""Takeover history: how often a mount got another daemon, why, and how long it had none.

Each successor adds a record, and gets those before it with the handover. So the history outlives
every daemon of the mount, and ends with the mount.
"""

import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

LATEST_MAX = 10


@dataclass(frozen=True, slots=True)
class TakeoverRecord:
    number: int
    cause: str
    """As in ``Takeover``."""
    took_s: float
    """How long no daemon had answered."""
    at: float
    """When the successor went on, seconds since 1970."""


@dataclass(slots=True)
class TakeoverHistory:
    count: int = 0
    by_cause: Counter[str] = field(default_factory=Counter)
    """Without a successor that ended before it served: *count* has it."""
    latest: deque[TakeoverRecord] = field(default_factory=lambda: deque(maxlen=LATEST_MAX))
    """The newest is the last."""

    @property
    def last(self) -> TakeoverRecord | None:
        return self.latest[-1] if self.latest else None

    def add(self, number: int, cause: str, took_s: float) -> None:
        """A keeper that has replaced another one begins its *number* anew."""
        self.count = max(number, self.count + 1)
        self.by_cause[cause] += 1
        self.latest.append(TakeoverRecord(self.count, cause, round(took_s, 3), time.time()))

    def to_json(self) -> dict[str, Any]:
        """For the statistics and for the next successor."""
        return {
            "count": self.count,
            "last_s": 0.0 if self.last is None else self.last.took_s,
            "by_cause": dict(self.by_cause),
            "latest": [asdict(each) for each in self.latest],
        }

    @classmethod
    def of_json(cls, words: dict[str, Any]) -> "TakeoverHistory":
        history = cls(words["count"], Counter(words["by_cause"]))
        for each in words["latest"]:
            history.latest.append(
                TakeoverRecord(each["number"], each["cause"], each["took_s"], each["at"])
            )
        return history

    def of_a_node(self) -> dict[str, Any] | None:
        """As ``copperfs tree`` shows it of each."""
        if self.last is None:
            return None
        last = self.last
        return {"count": self.count, "cause": last.cause, "took_s": last.took_s, "at": last.at}

    def of_a_sum(self) -> dict[str, Any]:
        """As nodes are added up."""
        last_s = 0.0 if self.last is None else self.last.took_s
        return {"count": self.count, "by_cause": dict(self.by_cause), "max_last_s": last_s}
