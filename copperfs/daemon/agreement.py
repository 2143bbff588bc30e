"""Agreement: the settings that must be the same on all nodes, and the digest that nodes compare.

With other settings nodes would give each other wrong replies, so a node refuses to talk to a peer
whose digest differs (``node/peer/hello_exchange.py``). Nodes also exchange the paths that they
classified as shared, local and in the ring (``path_policy_from_mounts.py``): where a filesystem is
missing, or one node has a disk of its own, the same settings give another classification.
"""

import hashlib
import json
import os
from collections.abc import Iterable

from copperfs.config.settings import OPTIONS, Settings
from copperfs.model.types import Path
from copperfs.node.peer.hello_exchange import KINDS, Agreement
from copperfs.node.requests.path_policy import Policy
from copperfs.wire.codec import PLACES_BYTES_MAX

AGREED = (
    "source",
    "revalidate_s",
    "trees",
    "fanout",
    "push_fanout",
    "tree_max_bytes",
    "chunk_size_bytes",
    "vnodes",
    "ring",
    "protect",
    "inodes",
)


def agreement_of(
    job: str, settings: Settings, policy: Policy, domains: tuple[int, ...] = ()
) -> Agreement:
    places = shown_places(policy, settings.source)
    return Agreement(job, digest_of(settings, domains), agreed_flags(), places)


def digest_of(settings: Settings, domains: tuple[int, ...] = ()) -> bytes:
    """*domains* are what ``--domains`` says of each node; its file may have another name on each
    node."""
    agreed = [*(getattr(settings, name) for name in AGREED), domains]
    return hashlib.blake2b(json.dumps(agreed).encode(), digest_size=16).digest()


def agreed_flags() -> str:
    """The flags as part of a sentence: ``--source, --revalidate ... and --domains``."""
    flags = {each.name: each.flag for each in OPTIONS}
    *most, last = (flags[name] for name in (*AGREED, "domains"))
    return f"{', '.join(most)} and {last}"


def shown_places(policy: Policy, source: str) -> bytes:

    def named(paths: Iterable[Path]) -> list[str]:
        return sorted(os.path.join(source, os.fsdecode(each)).rstrip("/") or "/" for each in paths)

    found = {kind: named(getattr(policy, kind)) for kind in KINDS}
    text = json.dumps(found).encode()
    if len(text) <= PLACES_BYTES_MAX:
        return text  # a longer text is sent as its digest only
    return json.dumps({"digest": hashlib.blake2b(text, digest_size=16).hexdigest()}).encode()
