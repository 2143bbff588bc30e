"""What the parts of a node share: its limits, its counts, and what a fetch is after."""

from dataclasses import dataclass, fields
from enum import IntEnum

from copperfs.types import FANOUT, Path

# What holding something costs beside its bytes: keys, objects, what the allocator rounds up. These
# are measured: tests/mount/test_memory.py compares them with what a daemon takes.
LISTING_OVERHEAD_BYTES = 1536
ROW_OVERHEAD_BYTES = 16
"""The front notes where each row begins, and in which order a walk is given them; it and the core,
which rows have the same ending."""
SLOT_BYTES = 4
"""Of the indexes by name (``listing.index_slots``): the front has one, and so has each listing."""
OBJECT_OVERHEAD_BYTES = 1152
ENTRY_BYTES = 768


class Kind(IntEnum):
    """What a fetch is after. An integer, whose hash is made without Python: subjects are looked up
    with every message."""

    SCAN = 1
    LOOK = 2
    READ = 3
    OPEN = 4
    CHUNK = 5


Subject = tuple[Kind, Path, object]
"""Fetches of one subject are one fetch; the third part is the version, for bytes, and the key, for
a chunk."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the node may use, and how long it waits."""

    memory_bytes: int
    tree_max_bytes: int
    bypass_above_bytes: int | None
    fetch_deadline_s: float
    credit_bytes: int = 0
    """Reserved for files that the front reads without asking. What it has read counts as held from
    when the node hears of it, and is then given back to the credit."""
    ahead_max: int = 0
    """So many files at a time are read ahead; 0: none ever."""
    trees: int = 1
    """Among which the room for what is on its way is divided."""
    ask_deadline_s: float = float("inf")
    """Who was not answered by any peer for so long reads the source."""
    fallbacks_max: int = 4
    """So many reads of the source at once in the place of others; 0 for none at all."""
    fallback_jitter_s: float = 0.0
    """Each begins at a random moment of so long."""

    cut_through: bool = True
    """Large objects are passed on while they arrive. False: when they are whole, for comparison."""
    chunk_bytes: int = 0
    """Of the data tier; 0: there is none, here or anywhere."""
    tier_memory_bytes: int = 0
    """For the chunks that this node owns. What it needs to pass chunks on it has in any case."""
    tier_has_disk: bool = False
    tier_waits: bool = True
    """A chunk is read from the source when the disk has room for it; see ``writeback.py``."""
    tier_backlog_bytes: int = 64 << 20
    """Of chunks that the disk has still to be given. It is memory on top of every other budget."""
    lost_from_source: bool = False
    """What an owner had that is gone is read from the source by each reader, for comparison."""
    crowds_above: int = 256
    """In a job of more nodes large files are asked for up the tree first. An owner that sends so
    many elsewhere is kept busy for some 50 ms."""
    takers_max: int = FANOUT
    """To so many nodes an owner gives a chunk; who comes later is sent to one of them."""

    @property
    def whole_max_bytes(self) -> int:
        """Files up to this size are held whole. At least two must fit into the budget, so that one
        can be read while another is on its way."""
        room = self.memory_bytes // self.trees
        limits = [self.tree_max_bytes, room // 2 - OBJECT_OVERHEAD_BYTES]
        if self.bypass_above_bytes is not None:
            limits.append(self.bypass_above_bytes)
        return max(0, min(limits))


@dataclass(slots=True)
class NodeStats:
    """What a node did and holds, for people and for tests. All parts of the node count in the same
    one."""

    epoch: int = 1
    questions: int = 0
    answered_from_shelf: int = 0
    joined: int = 0
    fetches: int = 0
    fetched_on_credit: int = 0
    listed_on_credit: int = 0
    read_ahead: int = 0
    """Files that were read before somebody asked for them, or while the first one did."""
    read_ahead_bytes: int = 0
    read_ahead_used: int = 0
    """How many of them were asked for."""
    listed_ahead: int = 0
    """Directories that were listed before somebody asked for them, or while the first one did."""
    failures: int = 0
    overdue: int = 0
    version_changes: int = 0
    waited_for_room: int = 0
    asks: int = 0
    """Sent to a parent."""
    answers: int = 0
    """Of parents."""
    peer_questions: int = 0
    """Asks of children."""
    peers_refused: int = 0
    """Asks of peers that asked for more than they may."""
    pushed: int = 0
    """Objects that came with a working set."""
    offers: int = 0
    """Listings and objects that children got before they asked."""
    offered: int = 0
    """The same, that came to this node, and that it had room for."""
    fallbacks: int = 0
    """Fetches from the source that another node should have answered."""
    hedges: int = 0
    """Asks that were also put to another peer, because the first one did not answer."""
    resent: int = 0
    """Asks that were put again, because a connection was lost."""
    deaths: int = 0
    """Nodes that this one found to be gone."""
    max_detection_ms: int = 0
    """The longest time that took, from when it owed an answer or was heard last."""
    returns: int = 0
    """Nodes that were gone and are back."""
    refutations: int = 0
    """Times that others took this node for gone, and it said that it is not."""
    reparentings: int = 0
    """Changes of whom this node asks, in any tree."""
    tier_from_memory: int = 0
    """Chunks that were asked for, here or by a peer, and found in this node's memory,"""
    tier_from_disk: int = 0
    """on its disk,"""
    tier_from_peers: int = 0
    """at another node,"""
    tier_from_source: int = 0
    """and nowhere but there."""
    tier_ahead: int = 0
    """Chunks of them that were fetched because those before them were read in a row."""
    redirects: int = 0
    """Peers that were sent to another one for a chunk."""
    redirected: int = 0
    """Times that this node was sent to another one."""
    tier_timeouts: int = 0
    """Chunks that an owner did not give in time, though it lives."""
    tier_exclusions: int = 0
    """Owners that this node did without for a while, because that went on."""
    tier_waited: int = 0
    """Chunks that were read from the source later, because the disk had to take others first."""
    tier_waiting: int = 0
    tier_owed: int = 0
    """Chunks that the disk was not given, and is to be given yet."""
    tier_owed_bytes: int = 0
    tier_read_again: int = 0
    """Chunks that were read from the source once more, because the disk did not take them,"""
    tier_read_for_disk: int = 0
    """and of these, those that nobody had asked for."""
    tier_forgotten: int = 0
    """Chunks that the disk was to be given, and will not: they were too many."""
    tier_memory_held_bytes: int = 0
    tier_memory_held_count: int = 0
    tier_memory_budget_bytes: int = 0
    tier_evictions: int = 0
    spoiled: int = 0
    """Parts that were not what their digest says."""
    fetching: int = 0
    held_bytes: int = 0
    held_count: int = 0
    reserved_bytes: int = 0
    budget_bytes: int = 0
    evictions: int = 0
    evicted_bytes: int = 0

    def reset(self) -> None:
        """Counts begin anew; the epoch does not."""
        for each in fields(self):
            if each.name != "epoch":
                setattr(self, each.name, each.default)
