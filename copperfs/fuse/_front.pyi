"""The C front; see front/front.h for the arrangement and front/module.c for the methods."""

from collections.abc import Iterable
from typing import TypedDict

from copperfs.blob import Blob

RETRY: int
IOCTL_TYPE: int

Latencies = dict[int, int]

class FrontStatistics(TypedDict):
    kinds: dict[str, dict[str, tuple[int, Latencies]]]
    negative: int
    hit_bytes: int
    miss_bytes: int
    bypass_bytes: int
    forgets: int
    interrupts: int
    killed: int
    overdue: int
    overflows: int
    protocol_errors: int
    full_replies: int
    notifications: int
    handler_requests: int
    nodes: int
    idle_nodes: int
    nodes_max: int
    pending: int
    max_pages: int
    bypass_threads: int

class Front:
    def __init__(
        self,
        fuse_fd: int,
        miss_fd: int,
        control_fd: int,
        threads: int,
        nodes_max: int,
        deadline_s: float,
        kernel_cache: bool,
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def node(self, node_id: int, /) -> tuple[bytes, bytes] | None: ...
    def is_untouched(self, node_id: int, /) -> bool: ...
    def is_attached(self, node_id: int, /) -> bool: ...
    def find(self, path: bytes, /) -> int | None: ...
    def touched(self, node_ids: Iterable[int], /) -> list[int]: ...
    def publish_listing(
        self,
        node_id: int,
        packed: bytes,
        fresh_s: float,
        granted: bool,
        granted_below: bool,
        read_ahead: bool,
        /,
    ) -> bool: ...
    def publish_entry(
        self,
        parent_id: int,
        name: bytes,
        attributes: bytes | None,
        target: bytes,
        fresh_s: float,
        /,
    ) -> bool: ...
    def publish_attributes(self, node_id: int, attributes: bytes, fresh_s: float, /) -> bool: ...
    def publish_object(self, node_id: int, blob: Blob, /) -> bool: ...
    def publish_chunk(self, node_id: int, index: int, chunk_bytes: int, blob: Blob, /) -> bool: ...
    def withdraw_chunk(self, node_id: int, index: int, /) -> int: ...
    def missing_chunks(self, node_id: int, offset: int, size: int, /) -> list[int]: ...
    def touched_chunks(self) -> list[tuple[int, int]]: ...
    def publish_handle(self, node_id: int, fd: int, /) -> bool: ...
    def publish_statfs(
        self,
        blocks: int,
        bfree: int,
        bavail: int,
        files: int,
        ffree: int,
        bsize: int,
        namelen: int,
        frsize: int,
        /,
    ) -> None: ...
    def withdraw_statfs(self) -> None: ...
    def publish_file(
        self, path: bytes, version: tuple[int, int, int, int], blob: Blob, /
    ) -> int | None: ...
    def publish_directory(self, path: bytes, packed: bytes, /) -> int | None: ...
    def set_reader(
        self,
        capsule: object,
        whole_max: int,
        credit: int,
        ahead_max: int,
        finds_holes: bool,
        /,
    ) -> None: ...
    def add_credit(self, size: int, /) -> None: ...
    def fetched_fileno(self) -> int: ...
    def fetched(self) -> list[tuple[int, bytes, bytes, Blob | bytes, int, int, bool, bool]]: ...
    def trace(self, on: bool, /) -> None: ...
    def traced(self) -> tuple[bytes, int]: ...
    def revoke_below(self) -> None: ...
    def withdraw(self, node_id: int, /) -> bool: ...
    def clear(self) -> None: ...
    def invalidate_all(self) -> int: ...
    def invalidate_node(self, node_id: int, /) -> bool: ...
    def shed(self, count: int, /) -> int: ...
    def statistics(self) -> FrontStatistics: ...
    def reset_statistics(self) -> None: ...
