"""Failed names: remembers for a moment that a lookup or a read failed, and how many nodes saw it.

An error of a peer may be the peer's own, so a node that receives one tries the source itself. If a
name fails for all clients, each node would try it for each request: all processes of a job ask
again and again for a file whose server is down. Two rules bound that.

* The node that tried keeps the error for ``BELIEVED_S``, once all nodes that it asked have failed
  as well. It answers its own applications and its peers with that error.
* An error travels with the number of its *witnesses*: the nodes, one above the other, that have
  tried the source and failed. A node that receives ``WITNESSES_ENOUGH`` does not try.

The same holds for the bytes of a version, and for a chunk. For a chunk each owner that refuses it
is a witness, because its owners do not ask each other.

With a fan-out of 8, at most 73 nodes of a job try, each once in that time. A node still tries if
only the clients of its parent, and of the parent above that one, fail. That spares its applications
the error.

A job of one node remembers nothing, because no other node asks the source.
"""

from dataclasses import dataclass, field

from copperfs.node.state import FetchKind, Subject

BELIEVED_S = 2.0
WITNESSES_ENOUGH = 3
SICK_MAX = 4096
WITNESSED = (FetchKind.ENTRY, FetchKind.OBJECT, FetchKind.CHUNK)


@dataclass(frozen=True, slots=True)
class Sick:
    error: int
    witnesses: int
    believed_until: float


@dataclass(slots=True)
class FailedNames:
    remembers: bool
    _sick: dict[Subject, Sick] = field(default_factory=dict)
    """In the order of ``note``, the oldest first; the node forgets the oldest first."""

    def note(self, now: float, subject: Subject, error: int, witnesses: int) -> None:
        """A lookup or a read of this node ended with this error."""
        if not self.remembers:
            return
        self._sick.pop(subject, None)
        self._sick[subject] = Sick(error, witnesses, now + BELIEVED_S)
        if len(self._sick) > SICK_MAX:
            del self._sick[next(iter(self._sick))]

    def get(self, now: float, subject: Subject) -> Sick | None:
        sick = self._sick.get(subject)
        if sick is None or now < sick.believed_until:
            return sick
        del self._sick[subject]
        return None

    def clear(self) -> None:
        self._sick.clear()
