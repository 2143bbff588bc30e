"""What has to be the same on all nodes, or they would answer each other wrongly.

Nodes tell each other a digest of these settings before anything else (``peers.py``), and one that
was started with others is not talked to. What a node may do differently is not among them: how much
memory it has, how it finds the others, how long it waits for them.

They also tell each other which places they came to by these settings and the mounts of their
machine (``places.py``): where a filesystem is missing, or one node has a disk of its own, the same
settings mean something else.
"""

import hashlib
import json
import os
from collections.abc import Iterable

from copperfs.config import OPTIONS, Settings
from copperfs.core.policy import Policy
from copperfs.types import Path
from copperfs.wire.codec import PLACES_BYTES_MAX

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
    "inodes",
)


def agreement_of(settings: Settings) -> bytes:
    agreed = [getattr(settings, name) for name in AGREED]
    return hashlib.blake2b(json.dumps(agreed).encode(), digest_size=16).digest()


def agreed_flags() -> str:
    """For a sentence: ``--source, --revalidate ... and --on-failure``."""
    flags = {each.name: each.flag for each in OPTIONS}
    *most, last = (flags[name] for name in AGREED)
    return f"{', '.join(most)} and {last}"


# ---- places --------------------------------------------------------------------------------------

_KINDS = ("shared", "local", "ring")
_NAMED_MAX = 3


def shown_places(policy: Policy, source: str) -> bytes:
    """What is shared, local and in the ring here, in words that other nodes compare."""

    def named(paths: Iterable[Path]) -> list[str]:
        return sorted(os.path.join(source, os.fsdecode(each)).rstrip("/") or "/" for each in paths)

    found = {kind: named(getattr(policy, kind)) for kind in _KINDS}
    text = json.dumps(found).encode()
    if len(text) <= PLACES_BYTES_MAX:
        return text  # beyond, only a digest
    return json.dumps({"digest": hashlib.blake2b(text, digest_size=16).hexdigest()}).encode()


def difference(me: int, mine: bytes, peer: int, theirs: bytes) -> str | None:
    """One sentence if another node has other places than this one."""
    if mine == theirs:
        return None
    ours, others = _parsed(mine), _parsed(theirs)
    found = []
    for kind in _KINDS:
        for node, here, there in ((peer, others, ours), (me, ours, others)):
            if only := sorted(set(here.get(kind, ())) - set(there.get(kind, ()))):
                more = ", ..." if len(only) > _NAMED_MAX else ""
                found.append(f"{kind} on node {node} alone: {', '.join(only[:_NAMED_MAX])}{more}")
    return (
        f"node {peer} does not show the same places as this node, {me} "
        f"({'; '.join(found) or 'too many to name'}): mount the same filesystems on all nodes, or "
        "name with --shared what all of them see alike"
    )


def _parsed(places: bytes) -> dict[str, list[str]]:
    """It comes from another node; what is no list of names says nothing."""
    try:
        found = json.loads(places)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        kind: [each for each in found[kind] if isinstance(each, str)]
        for kind in _KINDS
        if isinstance(found.get(kind), list)
    }
