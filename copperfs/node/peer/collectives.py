"""Collectives: operations that every node performs, with one combined reply.

A collective is flooded from any node over the neighbours in the first tree. Replies go back the
same way, and each node combines its own result with those of the nodes behind it. A collective does
not wait for a node that is gone or misses its deadline. Each hop's timeout is a little shorter than
the one before, so that one missing node does not lose the replies of the others.

While member tables differ, a collective may reach a node twice. The node knows it by its identity
and adds nothing.
"""

from dataclasses import dataclass, field
from random import Random

from copperfs.model.types import CallId, NodeId, PeerRequest
from copperfs.node.actions import Action, DropCall, EndCall, PerformCall, Send
from copperfs.node.events import Requester
from copperfs.node.peer.messages import CollectiveReply, CollectiveRequest
from copperfs.node.routing.route import Routing

# A node over the limit replies with no result.
CALLS_MAX = 64
# Kept to recognise duplicates.
KNOWN_MAX = 1024
# The share of its timeout that a hop keeps for itself.
HOP_SHARE = 0.1


@dataclass(slots=True)
class _Running:
    requester: Requester
    operation: str
    deadline: float
    performed: bool = False
    waiting: dict[NodeId, int] = field(default_factory=dict)
    """Neighbours that have not replied."""
    results: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Collectives:
    routing: Routing
    random: Random
    _known: dict[int, None] = field(default_factory=dict)
    """Oldest first."""
    _running: dict[CallId, _Running] = field(default_factory=dict)
    _next: int = 1

    def start(
        self,
        now: float,
        requester: Requester,
        operation: str,
        argument: bytes,
        within_s: float,
        identity: int | None = None,
    ) -> list[Action]:
        """*identity* is None for a collective that starts here."""
        if identity is None:
            identity = self.random.getrandbits(64)
        if len(self._running) >= CALLS_MAX or identity in self._known:
            return [EndCall(CallId(0), requester, operation, ())]
        self._known[identity] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        number = CallId(self._next)
        self._next += 1
        running = _Running(requester, operation, now + within_s)
        self._running[number] = running
        actions: list[Action] = [PerformCall(number, operation, argument)]
        came_from = requester.peer if isinstance(requester, PeerRequest) else None
        for peer in self.routing.neighbours():
            if peer != came_from:
                running.waiting[peer] = number
                left = within_s * (1 - HOP_SHARE)
                actions.append(
                    Send(peer, CollectiveRequest(number, operation, argument, left, identity))
                )
        return actions

    def performed(self, number: CallId, result: bytes) -> list[Action]:
        running = self._running.get(number)
        if running is None:
            return []
        running.performed = True
        running.results.append(result)
        return self._end_if_complete(number, running)

    def returned(self, peer: NodeId, message: CollectiveReply) -> list[Action]:
        number = CallId(message.number)
        running = self._running.get(number)
        if running is None or running.waiting.pop(peer, None) is None:
            return []
        if message.result:
            running.results.append(message.result)
        return self._end_if_complete(number, running)

    def peer_changed(self, peer: NodeId) -> list[Action]:
        """A lost or renewed connection has lost all requests and replies."""
        actions: list[Action] = []
        for number, running in list(self._running.items()):
            if isinstance(running.requester, PeerRequest) and running.requester.peer == peer:
                del self._running[number]
                actions.append(DropCall(number))
            elif running.waiting.pop(peer, None) is not None:
                actions += self._end_if_complete(number, running)
        return actions

    def deadline(self) -> float | None:
        if not self._running:
            return None
        return min(each.deadline for each in self._running.values())

    def expire(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for number, running in list(self._running.items()):
            if running.deadline <= now:
                actions.append(self._end(number, running))
        return actions

    def _end_if_complete(self, number: CallId, running: _Running) -> list[Action]:
        if running.waiting or not running.performed:
            return []
        return [self._end(number, running)]

    def _end(self, number: CallId, running: _Running) -> Action:
        del self._running[number]
        return EndCall(number, running.requester, running.operation, tuple(running.results))
