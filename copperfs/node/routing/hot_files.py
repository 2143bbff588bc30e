"""Hot file detector: finds large files that many nodes of a large job read at the same time.

Without it, a library that every process maps would bring a request of each of thousands of nodes to
its owner, if only to be redirected. So in a job of many nodes (``Limits.hot_files_above_nodes``) a
chunk of a large file is first requested *up* the tree, like a small file. A parent that reads the
file has the chunk or is getting it, and the root asks the owner. That needs no new connection, and
a node is asked by its children only.

A dataset of large files is not hot: each node reads another part, and tree requests would pull it
through all ancestors. A parent detects this, because no other node wants the chunks that one child
requests. It then refuses, and that child asks the owners of this file directly for a while.
Datasets named by ``--ring`` never go up.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from copperfs.model.types import Path
from copperfs.node.requests.path_policy import Policy

# A file is judged after this many chunk requests. Two nodes must want one in SHARED_PART of them.
JUDGED_AFTER = 16
SHARED_PART = 4
FORGOTTEN_AFTER_S = 10.0
ALONE_FOR_S = 60.0
FILES_MAX = 4096


@dataclass(slots=True)
class _RequestCount:
    since: float
    requests: int = 0
    shared: int = 0


@dataclass(slots=True)
class HotFileDetector:
    policy: Policy
    is_large: bool
    _owners_asked_until: OrderedDict[Path, float] = field(default_factory=OrderedDict)
    """Files whose owners this node asks directly, and until when."""
    _counts: OrderedDict[Path, _RequestCount] = field(default_factory=OrderedDict)

    def goes_up(self, now: float, path: Path) -> bool:
        if not self.is_large or self.policy.is_ring(path):
            return False
        return now >= self._owners_asked_until.get(path, now)

    def goes_alone(self, now: float, path: Path) -> None:
        """The parent refused: no other node reads what this node reads."""
        self._owners_asked_until[path] = now + ALONE_FOR_S
        self._owners_asked_until.move_to_end(path)
        if len(self._owners_asked_until) > FILES_MAX:
            self._owners_asked_until.popitem(last=False)

    def count_request(self, now: float, path: Path, *, shared: bool) -> bool:
        """Count a request for a chunk of this file. *shared*: another node wanted it, too. Returns
        whether the file looks hot so far."""
        count = self._counts.get(path)
        if count is None or now >= count.since + FORGOTTEN_AFTER_S:
            count = self._counts[path] = _RequestCount(now)
            self._counts.move_to_end(path)
            if len(self._counts) > FILES_MAX:
                self._counts.popitem(last=False)
        count.requests += 1
        count.shared += shared
        return count.requests < JUDGED_AFTER or count.shared * SHARED_PART >= count.requests
