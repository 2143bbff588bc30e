"""Engine: performs the node's actions in order, and every application gets its answer."""

import errno
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from copperfs.daemon.engine import (
    CLEARS_AT_ONCE,
    EIO_EVERY_S,
    HOUSEKEEPING_S,
    KERNEL_TOLD_S,
    Alarm,
    Engine,
)
from copperfs.daemon.kernel_notifications import THREADS_MAX
from copperfs.fuse.node_port import Answered, Content, SourceError
from copperfs.model.listing import Listing
from copperfs.model.types import ChunkKey, HandleId, Path, RequestId
from copperfs.native.blob import Blob, FileBlob, new_blob
from copperfs.node.actions import (
    Action,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    CacheKey,
    ListingKey,
    ListSource,
    LookupSource,
    ObjectKey,
    OpenForBypass,
    ReadSource,
    SourceAction,
)
from copperfs.node.events import (
    Clear,
    Event,
    Failed,
    ListRequest,
    LookupRequest,
    ReadRequest,
    SourceListed,
    SourceLookedUp,
    SourceOpened,
    SourceRead,
)
from copperfs.node.limits_and_counters import OBJECT_OVERHEAD_BYTES, Limits
from copperfs.node.node import Node
from copperfs.node.requests.path_policy import Policy
from copperfs.source.source_interface import Arrive, BlobRead, PoolStats
from tests.conftest import LogWatch
from tests.unit.node_lab import file, files, version

ABC = files(b"a", b"b", b"c")
Remaining = Callable[[float | None], float | None]


class FakeFetcher:
    def __init__(self) -> None:
        self.started: list[SourceAction] = []
        self.closed: list[HandleId] = []
        self.arrive: Arrive | None = None
        self.names_to_find: tuple[bytes, ...] = ()

    def start(self, fetch: SourceAction, names_to_find: tuple[bytes, ...] = ()) -> None:
        self.started.append(fetch)
        self.names_to_find = names_to_find

    async def run(self, arrive: Arrive) -> None:
        self.arrive = arrive
        await trio.sleep_forever()

    def close_unused(self, for_s: float = 0.0) -> None:
        """Nothing is kept open."""

    def replace_stuck(self) -> None:
        """Nothing hangs here."""

    def close_handle(self, handle: HandleId) -> None:
        self.closed.append(handle)

    def reader(self, own_device: int) -> object | None:
        return None

    def watch_mounts(self) -> bool:
        return False

    def trust_mounts(self) -> None: ...

    def ignore_inodes(self) -> None: ...

    def counts(self) -> dict[str, int]:
        return {}

    def reset_counts(self) -> None: ...

    def statistics(self) -> PoolStats:
        return PoolStats()

    def close(self) -> None: ...


@dataclass
class FakePublications:
    told: list[tuple[str, object]] = field(default_factory=list)
    in_use: list[CacheKey] = field(default_factory=list)
    tell: Callable[[], object] | None = None
    tell_last: Callable[[], int] | None = None

    def publish_object(self, key: ObjectKey, blob: Blob) -> None:
        self.told.append(("publish", key))

    def publish_chunk(self, key: ChunkKey, chunk_bytes: int, blob: Blob) -> None:
        pass

    def publish_listing(self, path: Path, listing: Listing) -> None:
        self.told.append(("publish", ListingKey(path)))

    def withdraw(self, key: CacheKey | ChunkKey) -> None:
        self.told.append(("withdraw", key))

    def withdraw_all(self, epoch: int) -> None:
        self.told.append(("withdraw all", None))

    def used(self) -> list[CacheKey]:
        found, self.in_use = self.in_use, []
        return found

    def look_again(self, path: Path) -> Callable[[], object] | None:
        self.told.append(("look again", path))
        return self.tell

    def invalidate_all(self) -> tuple[int, Callable[[], int] | None]:
        self.told.append(("invalidate all", None))
        return 3, self.tell_last


@dataclass
class Scene:
    engine: Engine
    fetcher: FakeFetcher
    publications: FakePublications
    nursery: trio.Nursery
    answers: dict[str, object] = field(default_factory=dict)

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()

    async def asking(
        self,
        who: str,
        make_request: Callable[[RequestId], LookupRequest | ListRequest | ReadRequest],
        scope: trio.CancelScope | None = None,
    ) -> None:
        def publish(answer: Answered, content: Content, _: Remaining) -> object:
            self.publications.told.append((f"publish to {who}", answer))
            return content if isinstance(answer, AnswerObject | AnswerHandle) else answer

        async def ask() -> None:
            with scope or trio.CancelScope():
                try:
                    self.answers[who] = await self.engine.ask(make_request, publish)
                except SourceError as error:
                    self.answers[who] = errno.errorcode[error.errno]

        self.nursery.start_soon(ask)
        await self.settle()

    def arrive(self, outcome: object) -> None:
        assert self.fetcher.arrive is not None
        self.fetcher.arrive(outcome)  # type: ignore[arg-type]  # each test knows what it hands over

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.publications.told]


@asynccontextmanager
async def running(memory_bytes: int = 1 << 20, tree_max_bytes: int = 1000) -> AsyncIterator[Scene]:
    policy = Policy(source=b"/src", mountpoint=b"/mnt")
    node = Node(policy, Limits(memory_bytes, tree_max_bytes, None, 3600.0))
    fetcher, publications = FakeFetcher(), FakePublications()
    engine = Engine(node, fetcher, publications)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        await trio.testing.wait_all_tasks_blocked()
        yield Scene(engine, fetcher, publications, nursery)
        nursery.cancel_scope.cancel()


def run(play: Callable[[Scene], object], **limits: int) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with running(**limits) as scene:
                await play(scene)  # type: ignore[misc]  # all plays are async

    trio.run(main)


def looking(path: bytes) -> Callable[[RequestId], LookupRequest]:
    return lambda request: LookupRequest(request, Path(path))


def listing(path: bytes) -> Callable[[RequestId], ListRequest]:
    return lambda request: ListRequest(request, Path(path))


def reading(path: bytes, size: int = 5) -> Callable[[RequestId], ReadRequest]:
    return lambda request: ReadRequest(request, Path(path), version(size))


def blob_of(content: bytes) -> FileBlob:
    blob = new_blob(len(content))
    blob.view[:] = content
    blob.seal(len(content))
    return blob


# ---- answers -------------------------------------------------------------------------------------


def test_a_question_is_fetched_and_answered() -> None:
    async def play(scene: Scene) -> None:
        await scene.asking("me", listing(b"d"))
        (fetch,) = scene.fetcher.started
        assert isinstance(fetch, ListSource)
        scene.arrive(SourceListed(fetch.fetch, ABC))
        await scene.settle()
        answer = scene.answers["me"]
        assert isinstance(answer, AnswerListing)
        assert (answer.directory, answer.listing) == (b"d", ABC)

    run(play)


def test_what_is_held_is_answered_without_the_source() -> None:
    async def play(scene: Scene) -> None:
        await scene.asking("me", listing(b"d"))
        scene.arrive(SourceListed(scene.fetcher.started[0].fetch, ABC))
        await scene.asking("you", looking(b"d/a"))
        assert isinstance(scene.answers["you"], AnswerListing)
        assert len(scene.fetcher.started) == 1

    run(play)


def test_the_bytes_of_an_object_come_with_its_answer() -> None:
    async def play(scene: Scene) -> None:
        await scene.asking("me", reading(b"f"))
        await scene.asking("you", reading(b"f"))
        (fetch,) = scene.fetcher.started
        assert isinstance(fetch, ReadSource)
        blob = blob_of(b"hello")
        scene.arrive(BlobRead(fetch.fetch, blob))
        await scene.settle()
        assert scene.answers["me"] is scene.answers["you"] is blob
        assert scene.engine.blob_bytes() == 5

    run(play)


class LookedThrough:
    """Scanned where it was read, and not where it is answered."""

    view = memoryview(b"bytes")

    def seal(self, size: int, /) -> None:
        raise AssertionError("it is sealed")

    def __len__(self) -> int:
        return len(self.view)

    def mentioned(self, names: tuple[bytes, ...], /) -> tuple[bytes, ...]:
        raise AssertionError(f"{names} are looked for on trio's thread")


def test_a_file_is_looked_through_by_the_thread_that_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[SourceRead] = []
    step = Node.step

    def hear(node: Node, now: float, event: Event) -> list[Action]:
        heard.extend([event] if isinstance(event, SourceRead) else [])
        return step(node, now, event)

    async def play(scene: Scene) -> None:
        await scene.asking("me", reading(b"f"))
        assert scene.fetcher.names_to_find == (b"sub", b"lib")
        blob = LookedThrough()
        scene.arrive(BlobRead(scene.fetcher.started[0].fetch, blob, (b"lib",)))
        await scene.settle()
        assert scene.answers["me"] is blob
        assert [each.mentions for each in heard] == [(b"lib",)]

    monkeypatch.setattr(Node, "names_to_find", lambda _, fetch: (b"sub", b"lib"))
    monkeypatch.setattr(Node, "step", hear)
    run(play)


def test_an_error_is_raised_where_it_was_asked_and_logged(
    expected_warnings: Callable[[str], None],
) -> None:
    expected_warnings("the source gave EIO, .* for 1 names, the last of them b''")

    async def play(scene: Scene) -> None:
        await scene.asking("me", looking(b""))
        (fetch,) = scene.fetcher.started
        assert isinstance(fetch, LookupSource)
        scene.arrive(Failed(fetch.fetch, errno.EIO))
        await scene.settle()
        assert scene.answers == {"me": "EIO"}

    run(play)


def test_errors_of_a_source_that_fails_are_logged_now_and_then(
    monkeypatch: pytest.MonkeyPatch, log_watch: LogWatch
) -> None:
    now = 100.0
    monkeypatch.setattr(Alarm, "now", staticmethod(lambda: now))
    log_watch.expected.append("the source gave EIO")

    async def play(scene: Scene) -> None:
        nonlocal now
        for count in range(4):
            await scene.asking(f"{count}", looking(b""))
            scene.arrive(Failed(scene.fetcher.started[-1].fetch, errno.EIO))
            await scene.settle()
            now += EIO_EVERY_S / 2
        said = "".join(log_watch.messages)
        assert re.findall(r"for (\d) names", said) == ["1", "2"]

    run(play)


def test_times_are_turned_into_seconds_from_now() -> None:
    async def play(scene: Scene) -> None:
        found: list[float | None] = []

        def deliver(answer: Answered, _: Content, remaining: Remaining) -> None:
            assert isinstance(answer, AnswerListing)
            found.extend([remaining(None), remaining(scene.engine.alarm.now() + 100.0)])

        async def ask() -> None:
            await scene.engine.ask(listing(b"d"), deliver)

        scene.nursery.start_soon(ask)
        await scene.settle()
        scene.arrive(SourceListed(scene.fetcher.started[0].fetch, ABC))
        await scene.settle()
        assert found[0] is None
        assert found[1] == pytest.approx(100.0, abs=30.0)

    run(play)


def test_a_bug_in_publishing_is_an_error_for_one_and_not_for_others(
    expected_warnings: Callable[[str], None],
) -> None:
    expected_warnings("a bug: an answer could not be delivered")

    async def play(scene: Scene) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("broken")

        async def ask() -> None:
            with pytest.raises(SourceError) as raised:
                await scene.engine.ask(listing(b"d"), fail)
            scene.answers["me"] = raised.value.errno

        scene.nursery.start_soon(ask)
        await scene.asking("you", listing(b"d"))
        scene.arrive(SourceListed(scene.fetcher.started[0].fetch, ABC))
        await scene.settle()
        assert scene.answers["me"] == errno.EIO
        assert isinstance(scene.answers["you"], AnswerListing)

    run(play)


# ---- order ---------------------------------------------------------------------------------------


def test_what_is_evicted_was_published_before() -> None:
    """Memory holds one listing: the engine publishes an answer before it withdraws it."""

    async def play(scene: Scene) -> None:
        await scene.asking("me", listing(b"d"))
        await scene.asking("you", listing(b"e"))
        first, second = scene.fetcher.started
        scene.arrive(SourceListed(first.fetch, ABC))
        scene.arrive(SourceListed(second.fetch, ABC))
        assert scene.verbs == ["publish to me", "publish to you", "withdraw"]
        assert scene.publications.told[-1][1] == ListingKey(Path(b"d"))

    run(play, memory_bytes=1)


def test_bytes_are_let_go_when_they_are_evicted() -> None:
    async def play(scene: Scene) -> None:
        for number, name in enumerate([b"f", b"g", b"h"]):
            await scene.asking(name.decode(), reading(name, 100))
            scene.arrive(BlobRead(scene.fetcher.started[number].fetch, blob_of(bytes(100))))
        assert scene.engine.blob_bytes() == 200
        assert ("withdraw", ObjectKey(Path(b"f"), version(100))) in scene.publications.told

    run(play, memory_bytes=2 * (100 + OBJECT_OVERHEAD_BYTES))


def test_clear_withdraws_before_the_kernel_is_told() -> None:
    async def play(scene: Scene) -> None:
        await scene.asking("me", reading(b"f"))
        scene.arrive(BlobRead(scene.fetcher.started[0].fetch, blob_of(b"hello")))
        assert await scene.engine.clear() == 3
        assert scene.verbs == ["publish to me", "withdraw", "withdraw all", "invalidate all"]
        assert scene.engine.blob_bytes() == 0

    run(play)


def test_the_kernel_hears_of_a_new_epoch_however_much_else_it_is_told() -> None:
    async def play(scene: Scene) -> None:
        reading_end, writing_end = os.pipe()
        told = scene.publications.told
        for number in range(THREADS_MAX):  # each in its directory, until the test lets it
            scene.engine.notifications.add(
                Path(b"%d/name" % number), lambda: os.read(reading_end, 1)
            )
        await scene.settle()
        scene.engine.post(Clear(7))  # as received from a peer
        await scene.settle()
        assert told == [("withdraw all", None)]
        os.write(writing_end, b"x" * THREADS_MAX)
        while scene.engine.notifications.waiting:
            await trio.lowlevel.checkpoint()
        assert scene.verbs == ["withdraw all", "invalidate all"]
        os.close(reading_end)
        os.close(writing_end)

    run(play)


def test_a_new_epoch_is_told_though_the_last_names_of_the_one_before_still_wait() -> None:
    async def play(scene: Scene) -> None:
        reading_end, writing_end = os.pipe()
        told: list[bytes] = []

        def tell_last() -> int:
            told.append(os.read(reading_end, 1))
            return 1

        scene.publications.tell_last = tell_last
        for count in range(1, 5):
            scene.engine.post(Clear(6 + count))
            while scene.verbs != ["withdraw all", "invalidate all"] * count:
                await trio.lowlevel.checkpoint()
        # one is under way, and one more stands for all requests since
        while scene.engine.notifications.waiting != 2:
            await trio.lowlevel.checkpoint()
        assert not told
        os.write(writing_end, b"xx")
        while scene.engine.notifications.waiting:
            await trio.lowlevel.checkpoint()
        assert told == [b"x", b"x"]
        os.write(writing_end, b"x")
        assert await scene.engine.clear() == 4
        os.close(reading_end)
        os.close(writing_end)

    run(play)


def test_clears_that_hang_leave_the_threads_to_others() -> None:
    async def play(scene: Scene) -> None:
        reading_end, writing_end = os.pipe()
        scene.publications.tell_last = lambda: len(os.read(reading_end, 1))
        limiter = trio.to_thread.current_default_thread_limiter()
        for _ in range(2 * CLEARS_AT_ONCE):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    told = len(scene.verbs)
                    nursery.start_soon(scene.engine.clear)
                    while len(scene.verbs) < told + 2:
                        await trio.lowlevel.checkpoint()
                    await scene.settle()
                    assert limiter.borrowed_tokens == 0
                    scope.cancel()
        os.write(writing_end, b"x" * (CLEARS_AT_ONCE + 1))
        assert await scene.engine.clear() >= 3, "threads that no longer hang are used again"
        os.close(writing_end)

    run(play)


def test_what_the_engine_does_not_know_is_a_bug() -> None:
    async def play(scene: Scene) -> None:
        with pytest.raises(AssertionError):
            scene.engine.driver.perform("no action at all")  # type: ignore[arg-type]  # that is the point

    run(play)


# ---- readers that do not wait --------------------------------------------------------------------


def test_an_answer_for_one_who_went_away_is_still_kept_for_others() -> None:
    async def play(scene: Scene) -> None:
        scope = trio.CancelScope()
        await scene.asking("me", reading(b"f"), scope)
        scope.cancel()
        await scene.settle()
        blob = blob_of(b"hello")
        scene.arrive(BlobRead(scene.fetcher.started[0].fetch, blob))
        await scene.asking("you", reading(b"f"))
        assert scene.answers == {"you": blob}
        assert scene.verbs == ["publish to you"]

    run(play)


def test_a_handle_belongs_to_who_asked() -> None:
    async def play(scene: Scene) -> None:
        await scene.asking("me", reading(b"f", 5000))
        (fetch,) = scene.fetcher.started
        assert isinstance(fetch, OpenForBypass)
        scene.arrive(SourceOpened(fetch.fetch, HandleId(42)))
        await scene.settle()
        assert scene.answers == {"me": 42}
        assert scene.fetcher.closed == []

    run(play)


def test_a_handle_that_nobody_waits_for_is_closed() -> None:
    async def play(scene: Scene) -> None:
        scope = trio.CancelScope()
        await scene.asking("me", reading(b"f", 5000), scope)
        scope.cancel()
        await scene.settle()
        scene.arrive(SourceOpened(scene.fetcher.started[0].fetch, HandleId(42)))
        assert scene.fetcher.closed == [42]

    run(play)


def test_an_outcome_that_nobody_knows_is_let_go(expected_warnings: Callable[[str], None]) -> None:
    expected_warnings("the source gave EIO")

    async def play(scene: Scene) -> None:
        await scene.asking("me", looking(b""))
        number = scene.fetcher.started[0].fetch
        scene.arrive(Failed(number, errno.EIO))
        scene.arrive(SourceLookedUp(number, file()))
        scene.arrive(SourceOpened(number, HandleId(42)))
        scene.arrive(BlobRead(number, blob_of(b"hello")))
        await scene.settle()
        assert scene.answers == {"me": "EIO"}
        assert scene.fetcher.closed == [42]
        assert scene.engine.blob_bytes() == 0

    run(play)


# ---- background ----------------------------------------------------------------------------------


def test_use_reports_keep_what_is_in_use() -> None:
    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        async with running() as scene:
            for number, name in enumerate([b"d", b"e"]):
                await scene.asking(name.decode(), listing(name))
                scene.arrive(SourceListed(scene.fetcher.started[number].fetch, ABC))
            held = [key for key, _ in scene.engine.node.held()]
            scene.publications.in_use = [ListingKey(Path(b"d"))]
            clock.jump(HOUSEKEEPING_S)
            await scene.settle()
            assert [key for key, _ in scene.engine.node.held()] == held[::-1]

    trio.run(main, clock=trio.testing.MockClock())


def test_the_kernel_is_told_before_who_waits_for_that_goes_on() -> None:
    async def play(scene: Scene) -> None:
        reading_end, writing_end = os.pipe()
        told: list[str] = []

        def tell() -> None:
            os.read(reading_end, 1)  # until the test lets it
            told.append("the kernel")

        scene.publications.tell = tell
        await scene.asking("me", reading(b"f"))
        scene.arrive(Failed(scene.fetcher.started[0].fetch, errno.ESTALE))
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                await scene.engine.wait_kernel_told(Path(b"f"))
                told.append("who waited")

            nursery.start_soon(wait)
            await scene.settle()
            assert told == []
            os.write(writing_end, b"x")
        assert told == ["the kernel", "who waited"]
        assert scene.answers == {"me": "ESTALE"}
        os.close(reading_end)
        os.close(writing_end)

    run(play)


def test_nobody_waits_long_for_the_kernel() -> None:
    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        reading_end, writing_end = os.pipe()
        async with running() as scene:
            scene.publications.tell = lambda: os.read(reading_end, 1)
            await scene.asking("me", reading(b"f"))
            scene.arrive(Failed(scene.fetcher.started[0].fetch, errno.ESTALE))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scene.engine.wait_kernel_told, Path(b"f"))
                await scene.settle()
                clock.jump(KERNEL_TOLD_S)
            assert scene.engine.notifications.late == 1
            os.write(writing_end, b"x")
        os.close(writing_end)

    trio.run(main, clock=trio.testing.MockClock())
