"""Calls: something that every node does, with one answer for all.

A call goes to all neighbours in the first tree but the one from which it came, so it can begin at
any node and reaches each of them once. An answer goes back the same way: a node's own result and
those of the nodes behind it are made into one by whoever knows the operation. Nothing waits for a
node that is gone, or that does not answer in time: each hop waits a little less than the one
before, so that the answer of those who did answer is not lost with one that did not.

While nodes believe different things of each other the neighbours need not make a tree, and a call
may reach a node twice. It knows it by its identity then, and has nothing to add."""

from dataclasses import dataclass, field
from random import Random

from copperfs.core.actions import Action, DropCall, EndCall, PerformCall, Send
from copperfs.core.events import Asker
from copperfs.core.messages import Call, Return
from copperfs.core.routing import Routing
from copperfs.types import CallId, NodeId, PeerRequest

# Under way at one node; nobody needs as many, and whoever sends more is answered with nothing.
CALLS_MAX = 64
# So many of the last ones are known again.
KNOWN_MAX = 1024
# What a hop keeps for itself of the time that it was given.
HOP_SHARE = 0.1


@dataclass(slots=True)
class _Running:
    asker: Asker
    operation: str
    deadline: float
    performed: bool = False
    waiting: dict[NodeId, int] = field(default_factory=dict)
    """Neighbours that have not answered, with the number of the call there."""
    results: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Calls:
    routing: Routing
    random: Random
    _known: dict[int, None] = field(default_factory=dict)
    """Identities, the oldest first."""
    _running: dict[CallId, _Running] = field(default_factory=dict)
    _next: int = 1

    def start(
        self,
        now: float,
        asker: Asker,
        operation: str,
        argument: bytes,
        within_s: float,
        identity: int | None = None,
    ) -> list[Action]:
        """*identity* is that of a peer's; one that begins here gets its own."""
        if identity is None:
            identity = self.random.getrandbits(64)
        if len(self._running) >= CALLS_MAX or identity in self._known:
            return [EndCall(CallId(0), asker, operation, ())]
        self._known[identity] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        number = CallId(self._next)
        self._next += 1
        running = _Running(asker, operation, now + within_s)
        self._running[number] = running
        actions: list[Action] = [PerformCall(number, operation, argument)]
        came_from = asker.peer if isinstance(asker, PeerRequest) else None
        for peer in self.routing.neighbours():
            if peer != came_from:
                running.waiting[peer] = number
                left = within_s * (1 - HOP_SHARE)
                actions.append(Send(peer, Call(number, operation, argument, left, identity)))
        return actions

    def performed(self, number: CallId, result: bytes) -> list[Action]:
        """This node's own part is done."""
        running = self._running.get(number)
        if running is None:
            return []
        running.performed = True
        running.results.append(result)
        return self._end_if_complete(number, running)

    def returned(self, peer: NodeId, message: Return) -> list[Action]:
        number = CallId(message.number)
        running = self._running.get(number)
        if running is None or running.waiting.pop(peer, None) is None:
            return []
        if message.result:
            running.results.append(message.result)
        return self._end_if_complete(number, running)

    def peer_changed(self, peer: NodeId) -> list[Action]:
        """What passed between us is lost."""
        actions: list[Action] = []
        for number, running in list(self._running.items()):
            if isinstance(running.asker, PeerRequest) and running.asker.peer == peer:
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
        return EndCall(number, running.asker, running.operation, tuple(running.results))
