"""A source that can be slow, broken or hung on command, for tests.

It is ``copperfs pfs-sim`` with no latency, as many servers as needed, no limit of bandwidth, and
nothing cached. A test adds its own:

    with StandIn(source) as slow:
        slow.set_latency(per_read_s=0.02)
        rule = slow.hang("data/big", ops=["read"])
        ...                                     # start the reader in a thread
        slow.wait_for_hanging(1)
        slow.release(rule)
        assert slow.counts().total("open", "data/big") == 1
"""

from tests.standin.client import StandIn

__all__ = ["StandIn"]
