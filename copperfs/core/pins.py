"""Pins: when a blob may be released.

Two kinds of hands are on a blob. Somebody *holds* it, the shelf or a fetch, and lets go of it once:
``release``. And every stream that gives it to a peer *pins* it for as long as it goes on. Neither
knows of the other: what is let go while it is pinned is doomed, and released with the last pin.

What comes with an event and is not wanted was never pinned; whoever turns it down says
``ReleaseBlob`` by itself.
"""

from collections import Counter
from dataclasses import dataclass, field

from copperfs.core.actions import Action, ReleaseBlob
from copperfs.types import BlobId


@dataclass(slots=True)
class Pins:
    _count: Counter[BlobId] = field(default_factory=Counter)
    _doomed: set[BlobId] = field(default_factory=set)
    """Let go, and still pinned."""

    def pin(self, blob: BlobId) -> None:
        self._count[blob] += 1

    def unpin(self, blob: BlobId) -> list[Action]:
        self._count[blob] -= 1
        if self._count[blob]:
            return []
        del self._count[blob]
        if blob not in self._doomed:
            return []
        self._doomed.remove(blob)
        return [ReleaseBlob(blob)]

    def release(self, blob: BlobId) -> list[Action]:
        """Let go of *blob*, at once or when its last stream is through."""
        if self._count[blob]:
            self._doomed.add(blob)
            return []
        return [ReleaseBlob(blob)]

    def check_invariants(self, pinned: Counter[BlobId]) -> None:
        """*pinned*: how many streams there are of each blob."""
        assert pinned == +self._count
        assert self._doomed <= set(pinned)
