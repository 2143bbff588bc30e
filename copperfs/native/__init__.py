"""The C extension: blobs, the front, the source's threads, loading chunks from a disk.

Mounting needs it. Commands that mount nothing do not import this package.
"""

from typing import TYPE_CHECKING

from copperfs.model.errors import NotBuiltError

try:
    from copperfs.native._native import (
        CONNECTION_MAGIC,
        CONNECTION_VERSION,
        RETRY,
        Blob,
        Front,
        SourcePool,
        load,
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
    "RETRY",
    "Blob",
    "Front",
    "FrontStatistics",
    "Latencies",
    "Result",
    "SourcePool",
    "load",
]
