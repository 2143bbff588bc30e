"""SIGTERM handling: ends a command cleanly while it is starting daemons."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM, which schedulers send, ends this process with its cleanup."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
