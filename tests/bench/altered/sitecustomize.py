"""On the PYTHONPATH of a command of copperfs: its daemons differ as the variable says.

``tests/bench/altered_daemons.py`` tells what there is to choose from. Python imports this module
before anything else, so what copperfs then imports from these modules is the altered thing.
"""

import os
import sys
import threading
from dataclasses import dataclass
from functools import partial


def _compute() -> None:
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def _lose_from_source() -> None:
    from copperfs.node import limits_and_counters

    @dataclass(frozen=True, slots=True)
    class Limits(limits_and_counters.Limits):
        lost_from_source: bool = True

    limits_and_counters.Limits = Limits  # type: ignore[misc]


def _uncached() -> None:
    from copperfs import native

    native.Front = partial(native.Front, kernel_cache=False)  # type: ignore[assignment, misc]


if "mount" in sys.orig_argv or "copperfs.daemon.daemon_main" in sys.orig_argv:
    chosen = os.environ["BENCH_DAEMONS"].split()
    if "lost-from-source" in chosen:
        _lose_from_source()
    if "uncached" in chosen:
        _uncached()
    if "busy" in chosen:
        threading.Thread(target=_compute, daemon=True).start()
