"""Connection choice: which of several connections to a peer is used.

Each of two nodes may have connected to the other. Messages of a peer must arrive in order, and two
connections keep no order between them. So:

- A node sends over one connection to a peer, the one that was there first, until that is lost.
- A message that arrives over another connection than before shows that the peer has lost the first.
  The receiver closes the first as well, with whatever is still in it.
- Of two connections in one direction the later one (by its serial) is a renewal; the other is
  closed.

When a connection is closed or lost and another is left, *connected* is reported again, because
messages may be lost. *lost* is reported when none is left.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from copperfs.model.types import NodeId


class Connection(Protocol):
    @property
    def peer(self) -> NodeId: ...
    @property
    def serial(self) -> int: ...

    @property
    def outgoing(self) -> bool:
        """Started by this node."""
        ...


C = TypeVar("C", bound=Connection)


@dataclass(slots=True)
class _Reach(Generic[C]):
    """The first is used for sending."""

    connections: list[C] = field(default_factory=list)
    heard: C | None = None
    """The connection of the last message."""


@dataclass(slots=True)
class ConnectionChoice(Generic[C]):
    connected: Callable[[NodeId], None]
    lost: Callable[[NodeId], None]
    cut: Callable[[C], None]
    """Closes a connection."""
    _reaches: dict[NodeId, _Reach[C]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(reach.connections) for reach in self._reaches.values())

    def current(self, peer: NodeId) -> C | None:
        reach = self._reaches.get(peer)
        return None if reach is None else reach.connections[0]

    def up(self, connection: C) -> bool:
        """False if a later connection has replaced this one already."""
        reach = self._reaches.setdefault(connection.peer, _Reach())
        rivals = [each for each in reach.connections if each.outgoing == connection.outgoing]
        if any(each.serial > connection.serial for each in rivals):
            return False
        first = not reach.connections
        reach.connections.append(connection)
        for each in rivals:
            self._remove(reach, each)
            self.cut(each)
        if first or rivals:
            self.connected(connection.peer)
        return True

    def down(self, connection: C) -> None:
        reach = self._reaches.get(connection.peer)
        if reach is None or connection not in reach.connections:
            return
        self._remove(reach, connection)
        if reach.connections:
            self.connected(connection.peer)
        else:
            del self._reaches[connection.peer]
            self.lost(connection.peer)

    def hears(self, connection: C) -> bool:
        """Returns whether a message over this connection counts."""
        reach = self._reaches.get(connection.peer)
        if reach is None or connection not in reach.connections:
            return False
        before, reach.heard = reach.heard, connection
        if before is not None and before is not connection:
            self._remove(reach, before)
            self.cut(before)
            self.connected(connection.peer)
        return True

    @staticmethod
    def _remove(reach: _Reach[C], connection: C) -> None:
        reach.connections.remove(connection)
        if reach.heard is connection:
            reach.heard = None
