"""The source's work without the GIL; see module.c."""

from copperfs.blob import Blob

SCAN: int
LOOK: int
READ: int
OPEN: int

Result = bytes | tuple[bytes, bytes] | Blob | int | None

class Fetcher:
    def __init__(self, concurrency: int, device: int, listing_max: int, /) -> None: ...
    def submit(
        self,
        job_id: int,
        kind: int,
        path: bytes,
        deadline_s: float,
        version: tuple[int, int, int, int],
        untouchable: tuple[bytes, ...],
        /,
    ) -> None: ...
    def drain(self) -> list[tuple[int, int, Result]]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def counts(self) -> dict[str, int]: ...
    def reset_counts(self) -> None: ...
    def count_stats(self, more: int, /) -> None: ...
    def statistics(self) -> tuple[int, int, int, int]: ...
