"""Hot file detector: finds large files that many nodes of a large job read at the same time.

Without it, a library that every process maps would bring a request of each of thousands of nodes to
its owner, if only to be redirected. So in a job of many nodes (``Limits.crowds_above``) a chunk of
a large file is first requested *up* the tree, like a small file. A parent that reads the file has
the chunk or is getting it, and the root asks the owner. That needs no new connection, and a node is
asked by its children only.

A dataset of large files is not hot: each node reads another part, and tree requests would pull it
through all ancestors. A parent detects this, because no other node wants the chunks that one child
requests. It then refuses, and that child asks the owners of this file directly for a while.
Datasets named by ``--ring`` never go up.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from copperfs.model.types import Path
from copperfs.node.requests.path_policy import Policy

# A file is judged after this many chunk requests. One in SHARED_PART of them must be wanted by at
# least two nodes. A parent of 16 nodes that read the same sees 15 of 16.
JUDGED_AFTER = 16
SHARED_PART = 4
FORGOTTEN_AFTER_S = 10.0
ALONE_FOR_S = 60.0
FILES_MAX = 4096


@dataclass(slots=True)
class _Crowd:
    since: float
    requests: int = 0
    shared: int = 0


@dataclass(slots=True)
class HotFileDetector:
    policy: Policy
    is_large: bool
    """Whether the job is large."""
    _alone: OrderedDict[Path, float] = field(default_factory=OrderedDict)
    """Files whose owners this node asks directly, and until when."""
    _crowds: OrderedDict[Path, _Crowd] = field(default_factory=OrderedDict)

    def goes_up(self, now: float, path: Path) -> bool:
        if not self.is_large or self.policy.is_ring(path):
            return False
        return now >= self._alone.get(path, now)

    def goes_alone(self, now: float, path: Path) -> None:
        """The parent refused: no other node reads what this node reads."""
        self._alone[path] = now + ALONE_FOR_S
        self._alone.move_to_end(path)
        if len(self._alone) > FILES_MAX:
            self._alone.popitem(last=False)

    def count_request(self, now: float, path: Path, *, shared: bool) -> bool:
        """Count a request, here or by a child, for a chunk of this file. *shared*: another node
        wanted it, too. Returns whether the file looks hot so far."""
        crowd = self._crowds.get(path)
        if crowd is None or now >= crowd.since + FORGOTTEN_AFTER_S:
            crowd = self._crowds[path] = _Crowd(now)
            self._crowds.move_to_end(path)
            if len(self._crowds) > FILES_MAX:
                self._crowds.popitem(last=False)
        crowd.requests += 1
        crowd.shared += shared
        return crowd.requests < JUDGED_AFTER or crowd.shared * SHARED_PART >= crowd.requests
