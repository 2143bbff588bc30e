"""Connection choice: which of several connections to a peer carries messages, and the events when
connections come and go.
"""

from dataclasses import dataclass

from copperfs.model.types import NodeId
from copperfs.node.peer.connection_choice import ConnectionChoice

PEER = NodeId(7)


@dataclass(eq=False)
class FakeLink:
    serial: int
    outgoing: bool
    peer: NodeId = PEER
    was_cut: bool = False

    def cut(self) -> None:
        self.was_cut = True


def made() -> tuple[ConnectionChoice[FakeLink], list[tuple[str, NodeId]]]:
    said: list[tuple[str, NodeId]] = []
    choice = ConnectionChoice[FakeLink](
        lambda peer: said.append(("connected", peer)),
        lambda peer: said.append(("lost", peer)),
        FakeLink.cut,
    )
    return choice, said


def test_the_first_link_is_used_until_it_is_lost() -> None:
    links, said = made()
    first, second = FakeLink(1, outgoing=True), FakeLink(9, outgoing=False)
    assert links.up(first)
    assert links.up(second)
    assert links.current(PEER) is first
    assert said == [("connected", PEER)]
    links.down(first)
    assert links.current(PEER) is second
    assert said == [("connected", PEER)] * 2
    links.down(second)
    links.down(second)
    assert links.current(PEER) is None
    assert said[2:] == [("lost", PEER)]
    assert len(links) == 0


def test_a_later_link_of_the_same_direction_is_a_renewal() -> None:
    links, said = made()
    old, new = FakeLink(1, outgoing=False), FakeLink(2, outgoing=False)
    links.up(old)
    links.up(new)
    assert old.was_cut
    assert links.current(PEER) is new
    assert said == [("connected", PEER)] * 2
    assert not links.hears(old)
    links.down(old)
    assert said == [("connected", PEER)] * 2


def test_a_link_that_was_replaced_before_it_was_noticed_is_refused() -> None:
    links, said = made()
    old, new = FakeLink(1, outgoing=False), FakeLink(2, outgoing=False)
    links.up(new)
    assert not links.up(old)
    assert links.current(PEER) is new
    assert said == [("connected", PEER)]


def test_a_peer_that_speaks_over_another_link_has_lost_the_first() -> None:
    links, said = made()
    first, second = FakeLink(1, outgoing=True), FakeLink(1, outgoing=False)
    links.up(first)
    links.up(second)
    assert links.hears(first)
    assert links.hears(first)
    assert links.hears(second)
    assert first.was_cut
    assert links.current(PEER) is second
    assert not links.hears(first), "or its messages would come behind later ones"
    assert said == [("connected", PEER)] * 2


def test_two_peers_do_not_mix() -> None:
    links, said = made()
    one, other = FakeLink(1, True), FakeLink(1, True, NodeId(8))
    links.up(one)
    links.up(other)
    links.down(one)
    assert links.current(NodeId(8)) is other
    assert said == [("connected", PEER), ("connected", NodeId(8)), ("lost", PEER)]
