"""State shared by the parts of a node: its limits, its counters, and the kinds of fetches."""

from dataclasses import dataclass, fields
from enum import IntEnum

from copperfs.model.types import FANOUT, Path
from copperfs.node.requests.chunk_layout import ChunkLayout

# The memory that an entry costs beside its bytes: keys, objects, rounding by the allocator. These
# numbers are measured: tests/mount/test_memory.py compares them with the use of a daemon.
LISTING_OVERHEAD_BYTES = 1536
ROW_OVERHEAD_BYTES = 16
"""The front notes where each row begins, and the order of rows in a walk. The front and the node
also note which rows have the same ending."""
SLOT_BYTES = 4
"""The front has an index by name, and so has each listing (``listing.index_slots``)."""
OBJECT_OVERHEAD_BYTES = 1152
ENTRY_BYTES = 768


class FetchKind(IntEnum):
    """What a fetch obtains. It is an integer, because Python hashes an integer without calling
    Python code, and each message looks subjects up."""

    LISTING = 1
    ENTRY = 2
    OBJECT = 3
    HANDLE = 4
    CHUNK = 5


Subject = tuple[FetchKind, Path, object]
"""One subject has one fetch. The third part is the version of an object or a handle, the key of a
chunk, and None for a listing or an entry."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int
    tree_max_bytes: int
    bypass_above_bytes: int | None
    fetch_deadline_s: float
    allowance_bytes: int = 0
    """For files that the front reads without asking. The bytes of a file return to the allowance
    when the node learns of it."""
    ahead_max: int = 0
    """The most files that are read ahead at the same time; 0 switches read-ahead off."""
    trees: int = 1
    """They divide the room for fetches in flight."""
    ask_deadline_s: float = float("inf")
    """A fetch without a reply falls back to the source after this time."""
    fallbacks_max: int = 4
    """The most fallbacks that read the source at the same time; 0 for none at all."""
    fallback_jitter_s: float = 0.0
    """Each begins at a random moment of this time."""

    chunk_bytes: int = 0
    """0: there is no data tier, here or anywhere."""
    tier_memory_bytes: int = 0
    """For the chunks that this node owns. The memory to pass chunks on is separate, and always
    there."""
    tier_has_disk: bool = False
    tier_waits: bool = True
    """See ``write_back.py``."""
    tier_backlog_bytes: int = 64 << 20
    """For chunks that the disk has still to take, beside all other budgets."""
    hot_files_above_nodes: int = 256
    """In a larger job a large file is asked for up the tree first. To redirect this number of nodes
    keeps an owner busy for some 50 ms."""
    takers_max: int = FANOUT
    """An owner gives a chunk to this many nodes."""

    # For comparison. Only the lab and the benchmarks change these.
    cut_through: bool = True
    """Large objects are forwarded while they arrive. False: when they are whole."""
    lost_from_source: bool = False
    """Each reader reads the chunks of a dead owner from the source."""

    def chunk_layout(self, file_bytes: int) -> ChunkLayout:
        return ChunkLayout(file_bytes, self.chunk_bytes)

    @property
    def whole_max_bytes(self) -> int:
        """At least two files of this size must fit into the budget, so that one can be read while
        another is in flight."""
        room = self.memory_bytes // self.trees
        limits = [self.tree_max_bytes, room // 2 - OBJECT_OVERHEAD_BYTES]
        if self.bypass_above_bytes is not None:
            limits.append(self.bypass_above_bytes)
        return max(0, min(limits))


@dataclass(slots=True)
class NodeStats:
    """Counters and sizes of a node. docs/statistics.md explains them."""

    epoch: int = 1
    questions: int = 0
    answered_from_cache: int = 0
    joined: int = 0
    fetches: int = 0
    fetched_on_credit: int = 0
    listed_on_credit: int = 0
    read_ahead: int = 0
    """Files that were read before an application asked for them, or while the first one did."""
    read_ahead_bytes: int = 0
    read_ahead_used: int = 0
    listed_ahead: int = 0
    failures: int = 0
    overdue: int = 0
    version_changes: int = 0
    waited_for_room: int = 0
    asks: int = 0
    """Requests sent to peers: parents, and owners of chunks."""
    answers: int = 0
    """Replies of peers to them."""
    peer_questions: int = 0
    """Requests of peers."""
    peers_refused: int = 0
    pushed: int = 0
    offers: int = 0
    offered: int = 0
    fallbacks: int = 0
    took_over: int = 0
    hedges: int = 0
    detours: int = 0
    resent: int = 0
    deaths: int = 0
    max_detection_ms: int = 0
    """The longest detection time, from when a reply of the dead node was awaited or it was last
    heard."""
    returns: int = 0
    refutations: int = 0
    reparentings: int = 0
    tier_from_memory: int = 0
    """Requested chunks, here or by a peer, that were in this node's memory."""
    tier_from_disk: int = 0
    tier_from_peers: int = 0
    tier_from_source: int = 0
    tier_ahead: int = 0
    redirects: int = 0
    """Peers that this node redirected to another one for a chunk."""
    redirected: int = 0
    """Times that an owner redirected this node."""
    tier_timeouts: int = 0
    """Chunks that a live owner did not give in time."""
    tier_exclusions: int = 0
    tier_waited: int = 0
    tier_waiting: int = 0
    tier_owed: int = 0
    """Chunks that the disk has not been given yet, and should be."""
    tier_owed_bytes: int = 0
    tier_read_again: int = 0
    tier_read_for_disk: int = 0
    tier_forgotten: int = 0
    """Chunks that the list of debts had no room for."""
    tier_memory_held_bytes: int = 0
    tier_memory_held_count: int = 0
    tier_memory_budget_bytes: int = 0
    tier_evictions: int = 0
    copies_made: int = 0
    """Chunks that this node got as a copy, for their owner or from a holder that is left."""
    copied_bytes: int = 0
    copies_read: int = 0
    """Chunks that this node got from a copy and not from the source."""
    copies_served: int = 0
    """Chunks that this node gave to nodes that asked for its copy."""
    copies_due: int = 0
    """Chunks of this node, or with an owner that lacks them, that fewer nodes keep than their class
    says."""
    copies_untracked: int = 0
    """Chunks of a class with copies beyond the number that a node can keep account of."""
    spoiled: int = 0
    """Parts whose digest did not match."""
    fetching: int = 0
    held_bytes: int = 0
    held_count: int = 0
    reserved_bytes: int = 0
    budget_bytes: int = 0
    evictions: int = 0
    evicted_bytes: int = 0

    def reset(self) -> None:
        """The epoch stays."""
        for each in fields(self):
            if each.name != "epoch":
                setattr(self, each.name, each.default)
