"""A source that can be slow, broken or hung on command.

The real source of a job is a parallel filesystem, which has two habits that a local disk has not:
every operation costs milliseconds, and any of them may fail or never return. The stand-in is a
FUSE mount that passes a local directory through and adds those habits at run time:

- a latency per operation and per read, paid concurrently, as many clients of one server pay it;
- rules: for these paths and these operations fail with an errno, wait longer, or hang;
- counts of every operation by kind and path, so that "one source read per object" can be asserted.

It runs as its own process (a filesystem that hangs must not hang the test that told it to), is
steered over a Unix socket, and is used as a context manager:

    with StandIn(source) as slow:
        slow.set_latency(per_read_s=0.02)
        rule = slow.hang("data/big", ops=["read"])
        ...                                     # start the reader in a thread
        slow.wait_for_hanging(1)
        slow.release(rule)
        assert slow.counts().total("open", "data/big") == 1

`faults.py` holds the rules and counts, `filesystem.py` the pass-through, `handshake.py` the mount,
`control.py` the socket, `client.py` the class above. Nothing here imports copperfs: what judges a
filesystem must not share its mistakes.
"""

from tests.standin.client import Counts, StandIn, StandInError

__all__ = ["Counts", "StandIn", "StandInError"]
