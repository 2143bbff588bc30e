"""Descriptor exhaustion: leaves the process without a free descriptor for as long as a test
wants.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def no_descriptor_left(but: int = 0) -> Iterator[None]:
    taken = [os.open(os.devnull, os.O_RDONLY)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 50, hard))
        with suppress(OSError):
            while True:
                taken.append(os.dup(taken[0]))
        for _ in range(but):
            os.close(taken.pop())
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
