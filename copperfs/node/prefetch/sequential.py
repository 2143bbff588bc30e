"""Sequential read-ahead: fetches the chunks that follow those an application reads in order.

After the kernel's read-ahead: a stream that reads one chunk after the other gets the next ones
before it asks. The number doubles with each read up to 8 MiB, then grows by 1 MiB per read, up to
the window (``window_chunks``). A first read that covers the whole first chunk starts a stream;
otherwise most files of a dataset would be over before a stream is detected. Random reads get no
read-ahead, even if one read crosses into the next chunk: the kernel reads around a fault of a
mapping, and hardly ever within one chunk.

A stream is known by the places where its next read may begin: the chunk that comes next, those that
are ahead, and the one behind them. So any number of readers may go through one file at different
places, and a reader that repeats a chunk does not break its stream.

Chunks fetched ahead are published as they come, so they are read without a request. One of them,
the *marker*, is not published. A request for it shows that the reader has come this far and
triggers the next read-ahead. The marker is a chunk that was not ahead before, and so was not
published. At the end of a file there is none.

The window depends on how many readers there are, since they share the memory: what is ahead of
sixteen readers may be evicted before it is read, and is then fetched twice. So the window is halved
when a request finds that a chunk fetched ahead since the last halving is evicted. It grows by one
when a marker is found in memory, at most every tenth of a second, however many readers there are.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from copperfs.model.types import ChunkKey, Path, Version
from copperfs.node.requests.chunk_layout import ChunkLayout

# One reader of 2 GiB from the disk is a fifth faster with 24 MiB ahead than with 8, and slower with
# 32. But an import maps short stretches: with 24 MiB as soon as doubling gets there, `import torch`
# fetched a tenth more.
SOON_BYTES = 8 << 20
READAHEAD_BYTES_MAX = 24 << 20
# A stream has up to 25 places with chunks of 1 MiB, 385 with those of 64 KiB.
PLACES_MAX = 1 << 14

GROWS_EACH_S = 0.1
# A chunk fetched ahead longer ago says nothing about memory now.
RECENT_S = 10.0
NEVER = float("-inf")


@dataclass(slots=True, eq=False)
class ReadStream:
    version: Version
    reads: int
    read_to: int
    ahead_to: int
    marker: int | None = None
    fetched_at: float = NEVER


@dataclass(frozen=True, slots=True)
class Next:
    known: range = range(0)
    """Fetched ahead by the read before."""
    fresh: range = range(0)


@dataclass(slots=True)
class ReadaheadWindows:
    chunk_bytes: int
    window_chunks: int = field(init=False)
    """How many chunks may be ahead of one reader."""
    _places: OrderedDict[tuple[Path, int], ReadStream] = field(default_factory=OrderedDict)
    _halved_at: float = NEVER
    _grown_at: float = NEVER

    def __post_init__(self) -> None:
        self.window_chunks = self._most

    @property
    def _most(self) -> int:
        return max(1, READAHEAD_BYTES_MAX // self.chunk_bytes)

    def is_marker(self, key: ChunkKey) -> bool:
        stream = self._at(key, key.index)
        return stream is not None and stream.marker == key.index

    def next(
        self, now: float, key: ChunkKey, ends_in: int, *, begins: bool = False, is_there: bool
    ) -> Next:
        """A read begins in *key* and ends in chunk *ends_in*. It *begins* a stream if it takes the
        whole first chunk. *is_there*: the chunk need not be fetched."""
        stream = self._continued(now, key, ends_in, is_there=is_there)
        if stream is None:
            stream = ReadStream(key.version, 1 + begins, ends_in, ends_in)
        then = ends_in + 1
        stream.ahead_to = max(stream.ahead_to, ends_in)
        self._put(key.path, stream, range(then, then + 1))
        if stream.reads < 2:
            return Next()
        last_of_file = ChunkLayout(key.version.size, self.chunk_bytes).last
        last = min(ends_in + self._wanted(stream.reads), last_of_file)
        known = range(then, stream.ahead_to + 1)
        fresh = range(stream.ahead_to + 1, last + 1)
        if fresh:
            stream.ahead_to, stream.fetched_at = last, now
            self._put(key.path, stream, range(fresh.start, last + 2))
        if stream.marker is None or stream.marker <= ends_in:
            middle = max((then + last) // 2, fresh.start)
            stream.marker = middle if fresh and last < last_of_file else None
        return Next(known, fresh)

    def found_no_room(self, key: ChunkKey) -> None:
        """*key* and the chunks after it are fetched with a later read."""
        stream = self._at(key, key.index)
        if stream is None:
            return
        for index in range(key.index + 1, stream.ahead_to + 2):
            self._drop(key.path, index, stream)
        stream.ahead_to = key.index - 1
        if stream.marker is not None and stream.marker > stream.ahead_to:
            stream.marker = None

    def forget(self) -> None:
        self._places.clear()

    def _wanted(self, reads: int) -> int:
        soon = max(1, SOON_BYTES // self.chunk_bytes)
        doublings = soon.bit_length()
        if reads <= doublings:
            return min(1 << (reads - 1), soon, self.window_chunks)
        return min(soon + (reads - doublings) * max(1, soon // 8), self.window_chunks)

    def _at(self, key: ChunkKey, index: int) -> ReadStream | None:
        stream = self._places.get((key.path, index))
        return stream if stream is not None and stream.version == key.version else None

    def _continued(
        self, now: float, key: ChunkKey, ends_in: int, *, is_there: bool
    ) -> ReadStream | None:
        stream = self._at(key, key.index)
        if stream is not None:
            if key.index <= stream.ahead_to:
                self._learn(now, stream, key.index, is_there=is_there)
            for index in range(stream.read_to + 1, ends_in + 1):
                self._drop(key.path, index, stream)
            stream.read_to = ends_in
            stream.reads += 1
            return stream
        stream = self._at(key, ends_in + 1)
        # The last read was repeated: the stream has not advanced.
        return stream if stream is not None and stream.read_to == ends_in else None

    def _learn(self, now: float, stream: ReadStream, index: int, *, is_there: bool) -> None:
        if not is_there:
            if max(self._halved_at, now - RECENT_S) < stream.fetched_at:
                self.window_chunks = max(1, self.window_chunks // 2)
                self._halved_at = now
        elif index == stream.marker and now >= self._grown_at + GROWS_EACH_S:
            self.window_chunks = min(self.window_chunks + 1, self._most)
            self._grown_at = now

    def _put(self, path: Path, stream: ReadStream, places: range) -> None:
        for index in places:
            self._places[path, index] = stream
            self._places.move_to_end((path, index))
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    def _drop(self, path: Path, index: int, stream: ReadStream) -> None:
        if self._places.get((path, index)) is stream:
            del self._places[path, index]
