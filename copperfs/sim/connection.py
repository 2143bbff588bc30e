"""One connection between two nodes, as each of its ends sees it, and which of several is used.

The rules of ``Links`` are those of ``net/links.py``, where their reasons are; the simulator may not
import the edges. In short: a node sends over the connection that was there first; a message over
another one than before means that the peer has lost the first; of two in one direction the later
one counts; Connected is said for the first, and whenever one of several is gone, Lost when none is
left.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from copperfs.core.messages import Message
from copperfs.sim.pieces import Piece
from copperfs.types import NodeId

if TYPE_CHECKING:
    from copperfs.sim.port import Port


class Greeting:
    """The first frame in each direction."""


Frame = tuple[float, Message | Greeting, tuple[Piece, ...]]
"""When it left its sender's machine, what is said, and the bytes beside it."""


@dataclass(slots=True, eq=False, repr=False)
class End:
    """What one of the two nodes has of a connection."""

    port: "Port"
    peer: NodeId
    serial: int
    """Of two connections that one node began, the later has the larger one."""
    outgoing: bool
    """Begun by this end."""
    is_open: bool = True
    greeted: bool = False
    last: float = 0.0
    """When the last frame that is under way to this end arrives: none overtakes another."""
    held: deque[Frame] = field(default_factory=deque)
    """What has come to where nothing passes; TCP sends it again."""
    held_since: float = 0.0
    _other: "End | None" = None

    @property
    def other(self) -> "End":
        assert self._other is not None
        return self._other

    def join(self, other: "End") -> None:
        self._other, other._other = other, self


@dataclass(slots=True)
class _Reach:
    """How one peer is reached; the first end is the one that is sent over."""

    ends: list[End] = field(default_factory=list)
    heard: End | None = None


@dataclass(slots=True)
class Links:
    connected: Callable[[NodeId], None]
    lost: Callable[[NodeId], None]
    cut: Callable[[End], None]
    """End this connection from here."""
    _reaches: dict[NodeId, _Reach] = field(default_factory=dict)

    def __contains__(self, peer: NodeId) -> bool:
        return peer in self._reaches

    def current(self, peer: NodeId) -> End | None:
        """Over which to send."""
        reach = self._reaches.get(peer)
        return None if reach is None else reach.ends[0]

    def up(self, end: End) -> bool:
        """False if a later one has taken its place already."""
        reach = self._reaches.setdefault(end.peer, _Reach())
        rivals = [each for each in reach.ends if each.outgoing == end.outgoing]
        if any(each.serial > end.serial for each in rivals):
            return False
        first = not reach.ends
        reach.ends.append(end)
        for each in rivals:
            self._remove(reach, each)
            self.cut(each)
        if first or rivals:
            self.connected(end.peer)
        return True

    def down(self, end: End) -> None:
        """May be told more than once."""
        reach = self._reaches.get(end.peer)
        if reach is None or end not in reach.ends:
            return
        self._remove(reach, end)
        if reach.ends:
            self.connected(end.peer)
        else:
            del self._reaches[end.peer]
            self.lost(end.peer)

    def hears(self, end: End) -> bool:
        """A message came over this one; whether it counts."""
        reach = self._reaches.get(end.peer)
        if reach is None or end not in reach.ends:
            return False
        before, reach.heard = reach.heard, end
        if before is not None and before is not end:
            self._remove(reach, before)
            self.cut(before)
            self.connected(end.peer)
        return True

    @staticmethod
    def _remove(reach: _Reach, end: End) -> None:
        reach.ends.remove(end)
        if reach.heard is end:
            reach.heard = None
