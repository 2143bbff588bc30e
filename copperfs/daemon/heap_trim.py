"""Heap trimming: gives pages of freed memory back to the system.

glibc gives back only what is free at the end of a heap. The caches free memory between objects that
are still held, and glibc keeps it: a daemon with a budget of 64 MiB, after 50,000 small files, had
20 MiB of unused resident memory. ``malloc_trim`` gives such pages back. It walks through all free
chunks with the heap's lock held. So a worker thread calls it after the caches have freed a quarter
of their budget, which keeps its cost in proportion to what was freed. Blobs above 64 KiB have
mappings of their own (``blob.c``) and do not need it.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress

import trio

TRIM_EVERY_S = 2.0
TRIM_MIN_BYTES = 8 << 20


def trim_above(budget_bytes: int) -> int:
    """How many bytes the caches must free before the heap is trimmed again."""
    return max(TRIM_MIN_BYTES, budget_bytes // 4)


async def trim_heap(left_bytes: Callable[[], int], budget_bytes: int, kept_bytes: int = 0) -> None:
    """Trim whenever enough was freed. *left_bytes* is the total that ever left the caches; the end
    of the main heap keeps *kept_bytes* free."""
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # another C library
        trim = libc.malloc_trim
        trim.argtypes = [ctypes.c_size_t]
        trimmed_at = 0
        while True:
            await trio.sleep(TRIM_EVERY_S)
            left = left_bytes()
            if left - trimmed_at >= trim_above(budget_bytes):
                trimmed_at = left
                await trio.to_thread.run_sync(trim, kept_bytes)
