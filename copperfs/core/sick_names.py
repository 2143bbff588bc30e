"""Sick names: remembers for a moment that a look at a name failed, and how many nodes have seen it.

An error of a peer may be the peer's own, so a node that hears of one looks at the source by itself.
If a name is sick for all clients, each node would look at it for each request: all processes of a
job ask again and again for a file whose server is gone. Two rules bound that.

* The node that looked believes the error for ``BELIEVED_S``. It answers its own applications and
  its peers from that.
* An error travels with the number of its *witnesses*: the nodes, one above the other, that have
  looked at the source and failed. A node that hears of ``WITNESSES_ENOUGH`` does not look.

With a fan-out of 8, at most 73 nodes of a job look, each once in that time. A node still looks if
the clients of its parent, and of the parent above that one, are the only sick ones, and spares its
applications the error.

A node that is a job by itself remembers nothing, because no other node asks the source.
"""

from dataclasses import dataclass, field

from copperfs.types import Path

BELIEVED_S = 2.0
WITNESSES_ENOUGH = 3
SICK_MAX = 4096


@dataclass(frozen=True, slots=True)
class Sick:
    error: int
    witnesses: int
    believed_until: float


@dataclass(slots=True)
class SickNames:
    remembers: bool
    _names: dict[Path, Sick] = field(default_factory=dict)
    """In the order in which they were noted, the oldest forgotten first."""

    def note(self, now: float, path: Path, error: int, witnesses: int) -> None:
        """A look of this node came to that."""
        if not self.remembers:
            return
        self._names.pop(path, None)
        self._names[path] = Sick(error, witnesses, now + BELIEVED_S)
        if len(self._names) > SICK_MAX:
            del self._names[next(iter(self._names))]

    def get(self, now: float, path: Path) -> Sick | None:
        sick = self._names.get(path)
        if sick is None or now < sick.believed_until:
            return sick
        del self._names[path]
        return None

    def clear(self) -> None:
        self._names.clear()
