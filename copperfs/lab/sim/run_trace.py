"""Run trace: the events of each node and the actions that it returned, as lines.

A line is formatted only when it is read: a run of a hundred nodes has a million of them. Only the
last *most* are kept. The digest of a trace covers the text of all lines, so nothing in a line may
depend on anything but the seed.
"""

import errno
from collections import deque
from dataclasses import dataclass, field, fields
from enum import Enum

import xxhash

from copperfs.model.listing import Listing
from copperfs.model.types import Entry, NodeId, PeerRequest, Version
from copperfs.node.peer.messages import Batch, DataReply, Offer


@dataclass(slots=True, repr=False)
class Trace:
    most: int = 2000
    hashing: bool = False
    _lines: deque[tuple[float, NodeId | None, str, object]] = field(init=False)
    _digest: "xxhash.xxh3_64" = field(default_factory=xxhash.xxh3_64)

    def __post_init__(self) -> None:
        self._lines = deque(maxlen=self.most)

    @property
    def is_on(self) -> bool:
        return self.most > 0 or self.hashing

    def event(self, now: float, node: NodeId, event: object) -> None:
        self._add(now, node, "", event)

    def action(self, now: float, node: NodeId, action: object) -> None:
        self._add(now, node, "  > ", action)

    def fault(self, now: float, text: str) -> None:
        """Add a fault of the job, or an outcome that an application saw."""
        self._add(now, None, "", text)

    def _add(self, now: float, node: NodeId | None, mark: str, what: object) -> None:
        line = (now, node, mark, what)
        if self.most:
            self._lines.append(line)
        if self.hashing:
            self._digest.update(_line(*line).encode() + b"\n")

    def last_node(self) -> NodeId | None:
        return next((line[1] for line in reversed(self._lines) if line[1] is not None), None)

    def keep(self, most: int) -> None:
        self.most = most
        self._lines = deque(self._lines, maxlen=most)

    def lines(self, node: int | None = None) -> list[str]:
        """All lines, or those of one node and of the whole job's faults."""
        return [_line(*each) for each in self._lines if node is None or each[1] in (None, node)]

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _line(now: float, node: NodeId | None, mark: str, what: object) -> str:
    who = "---- " if node is None else f"n{node:<4}"
    return f"{now:12.6f} {who}{mark}{told(what)}"


def told(what: object) -> str:
    """As text for people, without long parts."""
    match what:
        case str():
            return what
        case bytes():
            return what.decode("utf-8", "backslashreplace") if len(what) < 200 else f"{len(what)} B"
        case Listing():
            return f"<{what.count} names>"
        case Entry():
            return f"<{what.attributes.size} bytes>"
        case Version(size, mtime_ns, _, _):
            return f"{size}@{mtime_ns // 1_000_000_000}"
        case PeerRequest(peer, number):
            return f"n{peer}#{number}"
        case DataReply(number, _, index, total):
            return f"GivePart(#{number} part {index} of {total})"
        case Batch(push, _, _, sequence, items):
            return f"Batch({push}.{sequence}: {len(items)} items)"
        case Offer(_, items):
            return f"Offer({', '.join(told(item.path) for item in items[:5])})"
        case tuple() | list():
            return f"[{', '.join(told(each) for each in what[:8])}]"
        case float():
            return f"{what:g}"
        case Enum():
            return what.name.lower()
    if hasattr(what, "__dataclass_fields__"):
        values = ((f.name, getattr(what, f.name)) for f in fields(what))  # type: ignore[arg-type]
        shown = [
            f"{name}={errno.errorcode.get(value, value) if name == 'error' else told(value)}"
            for name, value in values
            if value is not None
        ]
        return f"{type(what).__name__}({', '.join(shown)})"
    if isinstance(what, set | frozenset):
        return f"{{{', '.join(sorted(map(told, what)))}}}"
    if isinstance(what, dict):
        return f"{{{', '.join(f'{told(k)}: {told(v)}' for k, v in sorted(what.items()))}}}"
    return str(what)
