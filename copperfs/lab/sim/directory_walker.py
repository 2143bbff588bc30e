"""Directory walker: an application that lists a directory in pieces, while names are removed.

As in the kernel, each piece begins behind the last name's cookie, in the listing that the node then
has. Cookies belong to names (``model/listing.py``), so removing a name does not hide another, and
another daemon can go on.
"""

import errno
from dataclasses import dataclass, field
from itertools import islice

from copperfs.lab.sim.host import Answered, Host
from copperfs.model.listing import Listing
from copperfs.model.types import Path
from copperfs.node.actions import AnswerError, AnswerListing
from copperfs.node.events import ListRequest


@dataclass(slots=True, eq=False)
class Walk:
    host: Host
    directory: Path
    names_at_once: int
    pause_s: float
    """Between two pieces."""
    names: list[bytes] = field(default_factory=list)
    error: int = 0
    is_over: bool = False
    _cookie: int = 0
    _tries: int = 0
    _has_begun: bool = False

    @classmethod
    def start(cls, host: Host, directory: Path, names_at_once: int, pause_s: float) -> "Walk":
        walk = cls(host, directory, names_at_once, pause_s)
        host.when_ready(walk._go_on)
        return walk

    def move(self, host: Host) -> None:
        """Another daemon is to answer from now on."""
        self.host = host

    def go_on(self) -> None:
        """That daemon has begun."""
        if self._has_begun:
            self._go_on()
        else:
            self.host.when_ready(self._go_on)

    @property
    def has_ended(self) -> bool:
        return self.is_over or self.host.is_gone

    def __str__(self) -> str:
        how = "goes on"
        if self.is_over:
            how = errno.errorcode[self.error] if self.error else f"had {len(self.names)} names"
        return f"the walk through {self.directory.decode()} on node {self.host.me} {how}"

    def _go_on(self) -> None:
        self._has_begun = True
        self.host.ask(lambda request: ListRequest(request, self.directory), self._answered)

    def _answered(self, answer: Answered) -> None:
        """Take an answer, in the middle of the node's step; the walk continues after it."""
        match answer:
            case AnswerListing():
                self._take(answer.listing)
            case AnswerError(_, errno.ESTALE) if not self._tries:
                self._tries += 1
                self.host.process.after(0.0, self._go_on)
            case AnswerError():
                self._end(answer.error)
            case _:
                raise AssertionError(f"a walk was answered with {answer}")

    def _take(self, listing: Listing) -> None:
        given = list(islice(self.rest(listing), self.names_at_once))
        for cookie, name in given:
            self._cookie = cookie
            self.names.append(name)
        if given:
            self.host.process.after(self.pause_s, self._go_on)
        else:
            self._end(0)

    def rest(self, listing: Listing) -> list[tuple[int, bytes]]:
        return [(cookie, name) for cookie, name, _ in listing.after(self._cookie)]

    def _end(self, error: int) -> None:
        self.error, self.is_over = error, True
        self.host.trace.fault(self.host.clock.now, str(self))
