"""Blob reference counts: decide when a blob may be released.

The cache or a fetch *holds* a blob, and gives it up once, by ``release``. Every stream that sends
it to a peer *pins* it until the stream ends. A blob that is given up while it is pinned is doomed,
and released with the last pin. A blob that comes with an event and is not needed was never pinned:
its receiver returns ``ReleaseBlob`` directly.
"""

from collections import Counter
from dataclasses import dataclass, field

from copperfs.model.types import BlobId
from copperfs.node.actions import Action, ReleaseBlob


@dataclass(slots=True)
class BlobRefs:
    _count: Counter[BlobId] = field(default_factory=Counter)
    _doomed: set[BlobId] = field(default_factory=set)

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
        if self._count[blob]:
            self._doomed.add(blob)
            return []
        return [ReleaseBlob(blob)]

    def check_invariants(self, pinned: Counter[BlobId]) -> None:
        """*pinned* counts the streams of each blob."""
        assert pinned == +self._count
        assert self._doomed <= set(pinned)
