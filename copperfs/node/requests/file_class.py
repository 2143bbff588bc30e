"""File classes: decide whether a file is read whole, in chunks, or directly from the source.

This is the only place that decides; the front gets ``whole_max_bytes``.

- WHOLE: one object, held in the cache. Files up to ``whole_max_bytes``, and empty dataset files.
- CHUNKED: chunks of one size, each with an owner (``chunk_reads.py``). Files above
  ``whole_max_bytes``, and all files of a dataset (``--ring``) except empty ones. Only in shared
  places, only with a data tier, and only up to ``--bypass-above``.
- DIRECT: not held at all; the application reads by a handle of its own. All other files.
"""

from dataclasses import dataclass, field
from enum import Enum

from copperfs.model.types import Path
from copperfs.node.limits_and_counters import Limits
from copperfs.node.requests.path_policy import Place, Policy


class FileClass(Enum):
    WHOLE = "whole"
    CHUNKED = "chunked"
    DIRECT = "direct"


@dataclass(slots=True)
class FileClassifier:
    policy: Policy
    limits: Limits
    whole_max_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.whole_max_bytes = self.limits.whole_max_bytes

    def of(self, path: Path, size: int) -> FileClass:
        if size <= self.whole_max_bytes and not self.policy.is_ring(path):
            return FileClass.WHOLE
        return FileClass.CHUNKED if self._has_chunks(path, size) else self.of_object(size)

    def of_object(self, size: int) -> FileClass:
        """Peers request a file as one object, and never in chunks."""
        return FileClass.WHOLE if size <= self.whole_max_bytes else FileClass.DIRECT

    def is_pushed(self, path: Path, size: int) -> bool:
        """Whether every node may hold the file whole, so that warm-ups push it. Empty files of a
        dataset are whole, but not pushed."""
        return size <= self.whole_max_bytes and not self.policy.is_ring(path)

    def is_granted(self, directory: Path) -> bool:
        """Whether the front may read all files of a directory up to ``whole_max_bytes`` without
        asking the node."""
        return not self.policy.is_ring(directory)

    def _has_chunks(self, path: Path, size: int) -> bool:
        bypass_above = self.limits.bypass_above_bytes
        if not size or not self.limits.chunk_bytes:
            return False
        if bypass_above is not None and size > bypass_above:
            return False
        return self.policy.place(path) is Place.SHARED
