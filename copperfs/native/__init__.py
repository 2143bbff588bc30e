"""The C extension: blobs, the front, the source's threads, chunks of a disk, erasure coding.

Mounting needs it. Commands that mount nothing do not import this package.
"""

from typing import TYPE_CHECKING

from copperfs.model.errors import NotBuiltError

try:
    from copperfs.native._native import (
        CONNECTION_MAGIC,
        CONNECTION_VERSION,
        ERASURE_DATA_MAX,
        ERASURE_PARITY_MAX,
        NO_TAKEOVER,
        RETRY,
        TAKEOVER_BY_MEMORY,
        TAKEOVER_BY_RESEND,
        TAKEOVER_UNDECIDED,
        Blob,
        Front,
        SourcePool,
        erasure_missing,
        load,
        rebuild_chunks,
    )
except ImportError as error:
    raise NotBuiltError(
        f"the C extension of copperfs cannot be loaded ({error}); build it with a C compiler and "
        "the headers of Python: install copperfs again, or in a checkout run: tests/setup.sh check"
    ) from error

if TYPE_CHECKING:
    from copperfs.native._native import FrontStatistics, Latencies, Result

__all__ = [
    "CONNECTION_MAGIC",
    "CONNECTION_VERSION",
    "ERASURE_DATA_MAX",
    "ERASURE_PARITY_MAX",
    "NO_TAKEOVER",
    "RETRY",
    "TAKEOVER_BY_MEMORY",
    "TAKEOVER_BY_RESEND",
    "TAKEOVER_UNDECIDED",
    "Blob",
    "Front",
    "FrontStatistics",
    "Latencies",
    "Result",
    "SourcePool",
    "erasure_missing",
    "load",
    "rebuild_chunks",
]
