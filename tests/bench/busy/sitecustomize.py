"""On the PYTHONPATH of ``copperfs mount --foreground``: gives the daemon a thread that computes."""

import sys
import threading


def _compute() -> None:
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


if "mount" in sys.orig_argv:
    threading.Thread(target=_compute, daemon=True).start()
