"""File reader: an application that reads one file as the kernel would, name by name, then its
bytes.

It requests the bytes of the version that it found. If the file was replaced in between it gets
ESTALE, and looks up again, once, as the kernel does. It compares the bytes with those that the
source has, or had, in that version, so a mix of two versions never passes.

If another daemon takes over its node, it waits, and the kernel asks that one again.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from copperfs.lab.sim.host import Answered, ChunkGiven, Host
from copperfs.lab.sim.payload_pieces import Piece, same
from copperfs.lab.sim.sim_source import SimulatedSource
from copperfs.model.types import Entry, Path, RequestId, Version, split
from copperfs.node.actions import AnswerEntry, AnswerError, AnswerHandle, AnswerListing
from copperfs.node.events import LookupRequest, NodeRequest, ReadRequest
from copperfs.node.requests.chunk_layout import ChunkLayout


@dataclass(slots=True, eq=False)
class Reading:
    host: Host
    source: SimulatedSource
    path: Path
    began: float
    ended: float | None = None
    error: int = 0
    has_bytes: bool = False
    looked: int = 0
    left_numbers_out: bool = False
    """Its node left inode numbers out at the start."""
    stall_s: float = 0.0
    """The longest time of one of its requests."""
    _tried: int = 1
    _version: Version | None = None
    _asked_at: float = 0.0
    _still_s: float = 0.0
    _way: list[Path] = field(default_factory=list)
    _has_begun: bool = False
    _asked: Callable[[RequestId], NodeRequest] | None = None
    """Its present request."""
    _next: Callable[[], None] | None = None
    """What it is about to do."""

    @classmethod
    def start(cls, host: Host, source: SimulatedSource, path: Path) -> "Reading":
        reading = cls(host, source, path, host.clock.now)
        here = path
        while here:
            reading._way.insert(0, here)
            here, _ = split(here)
        host.when_ready(reading._begin)
        return reading

    @property
    def node(self) -> int:
        return self.host.me

    @property
    def version(self) -> Version | None:
        return self._version

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.host.is_gone

    @property
    def is_well(self) -> bool:
        return self.ended is not None and not self.error

    def waits_s(self) -> float:
        """The wait for its present request, without the time in which its node stood still."""
        if self.is_over:
            return 0.0
        still_s = self.host.process.still_s() - self._still_s
        return self.host.clock.now - self._asked_at - still_s

    def __str__(self) -> str:
        how = "waits"
        if self.ended is not None:
            how = errno.errorcode[self.error] if self.error else "is well"
        elif self.is_over:
            how = "died with its node"
        return f"the reading of {self.path.decode()} on node {self.node} {how}"

    def move(self, host: Host) -> None:
        """Another daemon is to answer from now on."""
        self._still_s += host.process.still_s() - self.host.process.still_s()
        self.host = host

    def go_on(self) -> None:
        """That daemon has begun."""
        if not self._has_begun:
            self.host.when_ready(self._begin)
        elif self._asked is not None:
            self.host.ask(self._asked, self._answered)
        elif self._next is not None:
            self._next()

    # --- steps -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._has_begun = True
        self.left_numbers_out = self.host.hands.client.ignores_numbers
        self._lookup()

    def _lookup(self) -> None:
        path = self._way[self.looked]
        self._ask(lambda request: LookupRequest(request, path))

    def _read(self, version: Version, offset: int = 0) -> None:
        self._version = version
        self._ask(lambda request: ReadRequest(request, self.path, version, offset=offset))

    def _ask(self, make_request: Callable[[RequestId], NodeRequest]) -> None:
        self._asked_at, self._still_s = self.host.clock.now, self.host.process.still_s()
        self._asked, self._next = make_request, None
        self.host.ask(make_request, self._answered)

    def _soon(self, do: Callable[[], None]) -> None:
        self._next = do
        self.host.process.after(0.0, do)

    def _answered(self, answer: Answered) -> None:
        """Take an answer, in the middle of the node's step; the reader continues after it."""
        self.stall_s = max(self.stall_s, self.waits_s())
        self._asked = None
        match answer:
            case AnswerEntry():
                self._found(answer.entry)
            case AnswerListing():
                self._found(answer.listing.find(split(self._way[self.looked])[1]))
            case AnswerError():
                self._fail(answer.error)
            case AnswerHandle():
                self._end()
            case ChunkGiven():
                self._compare_chunk(answer)
            case _:
                self._compare(answer)

    def _found(self, entry: Entry | None) -> None:
        if entry is None:
            self._fail(errno.ENOENT)
            return
        self.looked += 1
        if self.looked < len(self._way):
            self._soon(self._lookup)
        else:
            self._soon(partial(self._read, entry.attributes.version))

    def _compare(self, pieces: Sequence[Piece]) -> None:
        assert self._version is not None
        assert same(pieces, self.source.content(self.path, self._version)), "wrong bytes"
        self.has_bytes = True
        self._end()

    def _compare_chunk(self, chunk: ChunkGiven) -> None:
        key = chunk.key
        assert key.version == self._version
        layout = ChunkLayout(key.version.size, chunk.chunk_bytes)
        offset, length = layout.offset_of(key.index), layout.size_of(key.index)
        expected = self.source.chunk(self.path, key.version, offset, length)
        assert same(chunk.pieces, [expected]), "wrong bytes"
        if offset + length < key.version.size:
            self._soon(partial(self._read, key.version, offset + length))
            return
        self.has_bytes = True
        self._end()

    def _fail(self, error: int) -> None:
        if error == errno.ESTALE and self._tried < 2:
            self._tried += 1
            self.looked = 0
            self._soon(self._lookup)
            return
        self.error = error
        self._end()

    def _end(self) -> None:
        self.ended = self.host.clock.now
        self.host.trace.fault(self.ended, str(self))
