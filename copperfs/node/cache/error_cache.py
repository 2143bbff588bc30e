"""Failed names: remembers for a moment that a lookup or a read failed, and how many nodes saw it.

An error of a peer may be the peer's own, so a node that receives one tries the source itself. If a
name fails for all clients, each node would try it for each request. Two rules bound that.

* The node that tried keeps the error for ``BELIEVED_S``, once all nodes that it asked have failed
  as well, and answers with it.
* An error travels with the number of its *witnesses*: the nodes, one above the other, that have
  tried the source and failed. A node that receives ``WITNESSES_ENOUGH`` does not try. Each owner
  that refuses a chunk is a witness, because owners do not ask each other.

So few nodes of a job try, each once in that time (docs/decisions/0082).
"""

from dataclasses import dataclass, field

from copperfs.node.limits_and_counters import FetchKind, Subject

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
    """The oldest ``note`` first."""

    def note(self, now: float, subject: Subject, error: int, witnesses: int) -> None:
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
