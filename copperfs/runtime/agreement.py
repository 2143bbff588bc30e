"""What has to be the same on all nodes, or they would answer each other wrongly.

Nodes tell each other a digest of these settings before anything else (``peers.py``), and one that
was started with others is not talked to. What a node may do differently is not among them: how much
memory it has, how it finds the others, how long it waits for them.
"""

import hashlib
import json

from copperfs.config import OPTIONS, Settings

AGREED = (
    "source",
    "revalidate_s",
    "trees",
    "fanout",
    "push_fanout",
    "tree_max_bytes",
    "chunk_size_bytes",
    "placement",
    "vnodes",
    "ring",
    "on_failure",
)


def agreement_of(settings: Settings) -> bytes:
    agreed = [getattr(settings, name) for name in AGREED]
    return hashlib.blake2b(json.dumps(agreed).encode(), digest_size=16).digest()


def agreed_flags() -> str:
    """For a sentence: ``--source, --revalidate ... and --on-failure``."""
    flags = {each.name: each.flag for each in OPTIONS}
    *most, last = (flags[name] for name in AGREED)
    return f"{', '.join(most)} and {last}"
