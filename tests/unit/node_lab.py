"""Node laboratory: entries, listings, and a node that checks its invariants.

``Lab`` numbers requests from 1, as the node numbers its fetches, so a test can write both down.
"""

import stat
import struct
from dataclasses import dataclass, field

from copperfs.model.listing import Listing, pack_listing
from copperfs.model.types import (
    Attributes,
    BlobId,
    Entry,
    FetchId,
    HandleId,
    Path,
    RequestId,
    Version,
)
from copperfs.node.actions import Action
from copperfs.node.events import (
    Clear,
    Event,
    Failed,
    FrontListed,
    FrontRead,
    ListRequest,
    LookupRequest,
    ReadRequest,
    SourceListed,
    SourceLookedUp,
    SourceOpened,
    SourceRead,
    Tick,
    Used,
)
from copperfs.node.limits_and_counters import Limits
from copperfs.node.node import Node
from copperfs.node.requests.path_policy import Policy

# Lab has a method named list.
Actions = list[Action]
Held = list[object]

DEADLINE_S = 10.0
MIB = 1 << 20


def entry(mode: int, size: int = 0, inode: int = 1, changed_s: int = 0) -> Entry:
    """*changed_s* makes versions differ."""
    return Entry(
        Attributes(
            struct.pack(
                "<6Q10I",
                *(inode, size, 0, 0, changed_s, changed_s),
                *(0, 0, 0, mode, 1, 0, 0, 0, 4096, 0),
            )
        )
    )


def file(size: int = 0, inode: int = 1, changed_s: int = 0) -> Entry:
    return entry(stat.S_IFREG | 0o644, size, inode, changed_s)


def directory(inode: int = 1) -> Entry:
    return entry(stat.S_IFDIR | 0o755, 4096, inode)


def link(target: bytes, inode: int = 1) -> Entry:
    return Entry(entry(stat.S_IFLNK | 0o777, len(target), inode).attributes, target)


def files(*names: bytes, bare: bool = False) -> Listing:
    return pack_listing([(name, file()) for name in names], bare=bare)


def with_unknown(listing: Listing, *names: bytes) -> Listing:
    return pack_listing(
        (name, unknown(entry) if name in names else entry) for name, entry in listing.rows()
    )


def unknown(entry: Entry) -> Entry:
    attributes = entry.attributes
    return Entry(Attributes.bare(attributes.inode, stat.S_IFMT(attributes.mode)), unknown=True)


def version(size: int, changed_s: int = 0) -> Version:
    return file(size, changed_s=changed_s).attributes.version


@dataclass
class Lab:
    memory_bytes: int = MIB
    tree_max_bytes: int = MIB
    bypass_above_bytes: int | None = None
    allowance_bytes: int = 0
    ahead_max: int = 0
    policy: Policy = field(default_factory=lambda: Policy(source=b"/src", mountpoint=b"/mnt"))
    now: float = 0.0
    node: Node = field(init=False)
    requests: int = 0

    def __post_init__(self) -> None:
        limits = Limits(
            self.memory_bytes,
            self.tree_max_bytes,
            self.bypass_above_bytes,
            DEADLINE_S,
            self.allowance_bytes,
            self.ahead_max,
        )
        self.node = Node(self.policy, limits)

    def step(self, event: Event) -> Actions:
        actions = self.node.step(self.now, event)
        self.node.check_invariants()
        return actions

    def _number(self) -> RequestId:
        self.requests += 1
        return RequestId(self.requests)

    # --- questions -------------------------------------------------------------------------------

    def look(self, path: bytes) -> Actions:
        return self.step(LookupRequest(self._number(), Path(path)))

    def list(self, path: bytes) -> Actions:
        return self.step(ListRequest(self._number(), Path(path)))

    def read(self, path: bytes, size: int = 10, changed_s: int = 0) -> Actions:
        return self.step(ReadRequest(self._number(), Path(path), version(size, changed_s)))

    # --- outcomes --------------------------------------------------------------------------------

    def scanned(self, fetch: int, listing: Listing) -> Actions:
        return self.step(SourceListed(FetchId(fetch), listing))

    def looked(self, fetch: int, found: Entry | None) -> Actions:
        return self.step(SourceLookedUp(FetchId(fetch), found))

    def have_read(self, fetch: int, blob: int) -> Actions:
        return self.step(SourceRead(FetchId(fetch), BlobId(blob)))

    def opened(self, fetch: int, handle: int) -> Actions:
        return self.step(SourceOpened(FetchId(fetch), HandleId(handle)))

    def failed(self, fetch: int, error: int) -> Actions:
        return self.step(Failed(FetchId(fetch), error))

    def fetched(self, path: bytes, size: int, blob: int) -> Actions:
        return self.step(FrontRead(Path(path), version(size), BlobId(blob)))

    def listed(self, path: bytes, listing: Listing, epoch: int = 1) -> Actions:
        return self.step(FrontListed(Path(path), listing, epoch))

    # --- the rest --------------------------------------------------------------------------------

    def clear(self) -> Actions:
        return self.step(Clear())

    def used(self, *keys: object) -> Actions:
        return self.step(Used(keys))

    def tick(self, after_s: float) -> Actions:
        self.now += after_s
        return self.step(Tick())

    def held(self) -> Held:
        return [key for key, _ in self.node.held()]
