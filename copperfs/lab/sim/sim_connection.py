"""Simulated connection: one connection between two nodes, as each of its ends sees it."""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from copperfs.lab.sim.payload_pieces import Piece
from copperfs.model.types import NodeId
from copperfs.node.peer.messages import Message

if TYPE_CHECKING:
    from copperfs.lab.sim.sim_transport import Port


class SimulatedGreeting:
    """The first frame in each direction."""


Frame = tuple[float, Message | SimulatedGreeting, tuple[Piece, ...]]
"""When it left its sender's machine, its message, and the bytes beside it."""


@dataclass(slots=True, eq=False, repr=False)
class End:
    """One node's end of a connection."""

    port: "Port"
    peer: NodeId
    serial: int
    """Of two connections that one node began, the later has the larger one."""
    outgoing: bool
    """This end began it."""
    is_open: bool = True
    greeted: bool = False
    since: float = 0.0
    last: float = 0.0
    """When the last frame on its way here arrives: none overtakes another."""
    held: deque[Frame] = field(default_factory=deque)
    """Frames that a cut or a stopped process holds back; TCP sends them again."""
    held_since: float = 0.0
    _other: "End | None" = None

    @property
    def other(self) -> "End":
        assert self._other is not None
        return self._other

    def join(self, other: "End") -> None:
        self._other, other._other = other, self
