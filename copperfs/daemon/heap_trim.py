"""Heap trimming: gives pages of freed memory back to the system.

glibc gives back only the end of a heap: after 50,000 small files a daemon with a budget of 64 MiB
had 20 MiB of unused resident memory. ``malloc_trim`` walks through all free chunks with the heap's
lock held, so a worker thread calls it after the caches have freed a quarter of their budget. Blobs
above 64 KiB have mappings of their own (``blob.c``).
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress

import trio

TRIM_EVERY_S = 2.0
TRIM_MIN_BYTES = 8 << 20


def trim_above(budget_bytes: int) -> int:
    return max(TRIM_MIN_BYTES, budget_bytes // 4)


async def trim_heap(left_bytes: Callable[[], int], budget_bytes: int, kept_bytes: int = 0) -> None:
    """*left_bytes* is the total that ever left the caches; the end of the main heap keeps
    *kept_bytes* free."""
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
