"""Crowds: large files that all nodes read at the same time, in a job of many.

A library that every process maps would have each of thousands of nodes ask its owner, if only to be
sent elsewhere. So in a job of many nodes (``Limits.crowds_above``) a large file is first asked for
*up* the tree, like a small one: a parent that reads it, too, has the chunk or is getting it, and
the root asks the owner. No connection has to be made for that, and nobody is asked by more than its
children.

A dataset in large files is no crowd: there each node reads something else, and would have it come
through all of those above. A parent notices, because what one of its children asks for nobody else
wants. Then it refuses, and that child asks the owners of this file by itself for a while. Datasets
that are named by ``--ring`` never go up.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from copperfs.core.policy import Policy
from copperfs.types import Path

# So many chunks of a file are asked for before it is judged, and this part of them has to be
# wanted by two at least. A parent of 16 that read the same shares 15 of 16.
JUDGED_AFTER = 16
SHARED_PART = 4
FORGOTTEN_AFTER_S = 10.0
ALONE_FOR_S = 60.0
FILES_MAX = 4096


@dataclass(slots=True)
class _Crowd:
    since: float
    asked: int = 0
    shared: int = 0


@dataclass(slots=True)
class Crowds:
    policy: Policy
    is_large: bool
    """The job."""
    _alone: OrderedDict[Path, float] = field(default_factory=OrderedDict)
    """Files whose owners this node asks by itself, and until when."""
    _crowds: OrderedDict[Path, _Crowd] = field(default_factory=OrderedDict)

    def goes_up(self, now: float, path: Path) -> bool:
        if not self.is_large or self.policy.is_ring(path):
            return False
        return now >= self._alone.get(path, now)

    def goes_alone(self, now: float, path: Path) -> None:
        """Its parent says that nobody else reads what this node reads."""
        self._alone[path] = now + ALONE_FOR_S
        self._alone.move_to_end(path)
        if len(self._alone) > FILES_MAX:
            self._alone.popitem(last=False)

    def asked(self, now: float, path: Path, *, shared: bool) -> bool:
        """Here or by a child for a chunk of this file, which somebody else has wanted, too, or not;
        whether those who read it are a crowd, as far as one can tell."""
        crowd = self._crowds.get(path)
        if crowd is None or now >= crowd.since + FORGOTTEN_AFTER_S:
            crowd = self._crowds[path] = _Crowd(now)
            self._crowds.move_to_end(path)
            if len(self._crowds) > FILES_MAX:
                self._crowds.popitem(last=False)
        crowd.asked += 1
        crowd.shared += shared
        return crowd.asked < JUDGED_AFTER or crowd.shared * SHARED_PART >= crowd.asked
