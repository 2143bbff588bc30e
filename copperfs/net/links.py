"""Which connections lead to a peer, and which of them is used.

A *link* is one connection that both ends have greeted on. Two nodes may have two: each may have
connected to the other, since the trees differ. Order per peer is a promise, and no two links keep
it between them, so:

- A node sends over one link to a peer, the one that was there first, until that is lost.
- A node that receives from a peer over another link than before knows thereby that the peer has
  lost the first; it gives that up as well, with whatever is still in it.
- Of two links in one direction the later one (by its serial) is a renewal; the other is given up.

Whenever a link of a peer is given up or lost and another is left, Connected is said again: what was
under way may be lost. Lost is said when none is left.

No I/O here: what happens is told by ``zeromq.py``, what follows is said through ``say``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from copperfs.net.transport import Connected, Lost, Payload
from copperfs.types import NodeId


class Link(Protocol):
    @property
    def peer(self) -> NodeId: ...
    @property
    def serial(self) -> int:
        """Of two links of one direction the larger one is later."""
        ...

    @property
    def outgoing(self) -> bool:
        """Begun by this node."""
        ...

    def transmit(self, header: bytes, payload: Payload | None) -> bool:
        """Send, without waiting; False if it cannot be."""
        ...

    def cut(self) -> None:
        """End the connection; nothing comes or goes over it any more."""
        ...


@dataclass(slots=True)
class _Reach:
    """How one peer is reached; the first link is the one that is sent over."""

    links: list[Link] = field(default_factory=list)
    heard: Link | None = None
    """The link of the last message."""


class Links:
    def __init__(self, say: Callable[[Connected | Lost], None]) -> None:
        self._say = say
        self._reaches: dict[NodeId, _Reach] = {}

    def __len__(self) -> int:
        return sum(len(reach.links) for reach in self._reaches.values())

    def current(self, peer: NodeId) -> Link | None:
        """The link to send over."""
        reach = self._reaches.get(peer)
        return reach.links[0] if reach is not None else None

    def up(self, link: Link) -> bool:
        """Messages pass over this link now. False if a later one has taken its place already."""
        reach = self._reaches.setdefault(link.peer, _Reach())
        rivals = [each for each in reach.links if each.outgoing == link.outgoing]
        if any(each.serial > link.serial for each in rivals):
            return False
        first = not reach.links
        reach.links.append(link)
        for each in rivals:
            self._remove(reach, each)
            each.cut()
        if first or rivals:
            self._say(Connected(link.peer))
        return True

    def down(self, link: Link) -> None:
        """Nothing passes over this link any more. May be told more than once."""
        reach = self._reaches.get(link.peer)
        if reach is None or link not in reach.links:
            return
        self._remove(reach, link)
        if reach.links:
            self._say(Connected(link.peer))
        else:
            del self._reaches[link.peer]
            self._say(Lost(link.peer))

    def hears(self, link: Link) -> bool:
        """A message came over this link; whether it counts."""
        reach = self._reaches.get(link.peer)
        if reach is None or link not in reach.links:
            return False
        before, reach.heard = reach.heard, link
        if before is not None and before is not link:
            self._remove(reach, before)
            before.cut()
            self._say(Connected(link.peer))
        return True

    @staticmethod
    def _remove(reach: _Reach, link: Link) -> None:
        reach.links.remove(link)
        if reach.heard is link:
            reach.heard = None
