"""Prefetch of the files that a directory or an import needs next, without resources of
applications."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs.model.listing import Listing, ending_of, pack_listing
from copperfs.model.types import BlobId, Entry, FetchId, Path, Version
from copperfs.node.actions import (
    Action,
    AnswerError,
    AnswerListing,
    AnswerObject,
    Evict,
    ListSource,
    LookupSource,
    ObjectKey,
    ReadSource,
    ReleaseBlob,
)
from copperfs.node.events import FrontRead, LookupRequest, SourceRead
from copperfs.node.fetch.fetch import Received
from copperfs.node.prefetch.python_imports import (
    BESIDE_MAX,
    BYTES_MAX,
    FILE_BYTES_MAX,
    FILES_MAX,
    LIBRARY_BYTES_MAX,
    LOOKED_THROUGH_BYTES_MAX,
    NOBODY,
)
from copperfs.node.requests.path_policy import Policy
from tests.unit.node_lab import DEADLINE_S, MIB, Lab, directory, file, files, unknown, version
from tests.unit.simulated_job import SimulatedJob


def lab_of(sizes: dict[bytes, int], **options: object) -> Lab:
    lab = Lab(ahead_max=4, **options)  # type: ignore[arg-type]
    lab.list(b"d")
    lab.scanned(1, pack_listing([(name, file(size)) for name, size in sizes.items()]))
    return lab


def read(actions: list[Action]) -> list[bytes]:
    return [each.path for each in actions if isinstance(each, ReadSource)]


def named(count: int, ending: bytes = b".p") -> dict[bytes, int]:
    return {b"%03d%s" % (number, ending): 10 for number in range(count)}


# --- the rule -------------------------------------------------------------------------------------


def test_the_second_file_of_an_ending_has_the_others_read_a_few_at_a_time() -> None:
    lab = lab_of(named(9) | named(3, b".q"))
    assert read(lab.read(b"d/000.p")) == [b"d/000.p"]
    assert read(lab.read(b"d/000.q")) == [b"d/000.q"]
    assert read(lab.read(b"d/003.p")) == [
        b"d/003.p", b"d/001.p", b"d/002.p", b"d/004.p", b"d/005.p",
    ]  # fmt: skip
    ahead = {b"d/006.p", b"d/007.p", b"d/008.p"}
    for number in (5, 6, 7):  # of the prefetched files
        ahead -= set(read(lab.have_read(number, number)))
    assert not ahead


def test_the_same_file_twice_is_one_file() -> None:
    lab = lab_of(named(9))
    lab.read(b"d/000.p")
    assert read(lab.read(b"d/000.p")) == []
    lab.have_read(2, 1)
    assert read(lab.read(b"d/000.p")) == []


@pytest.mark.parametrize(
    ("name", "ending"),
    [(b"a.pyc", b".pyc"), (b"a.so.0", b".0"), (b"a", b""), (b".a", b""), (b".a.b", b".b")],
)
def test_an_ending_begins_at_the_last_dot_of_a_name(name: bytes, ending: bytes) -> None:
    assert ending_of(name) == ending


@pytest.mark.parametrize(
    "sizes",
    [
        named(FILES_MAX + 1),
        dict.fromkeys(named(BYTES_MAX // FILE_BYTES_MAX + 1), FILE_BYTES_MAX),
        {b"one": 10, b"two": 10, b"three": 10},
        {b"1.p": FILE_BYTES_MAX + 1, b"2.p": FILE_BYTES_MAX + 1, b"3.p": 10},
    ],
    ids=["too many", "too much", "without an ending", "large ones do not count"],
)
def test_where_it_would_be_too_much_nothing_is_read_ahead(sizes: dict[bytes, int]) -> None:
    lab = lab_of(sizes, memory_bytes=64 * MIB)
    first, second = list(sizes)[:2]
    lab.read(b"d/" + first, sizes[first])
    assert read(lab.read(b"d/" + second, sizes[second])) == [b"d/" + second]


def test_it_can_be_turned_off() -> None:
    lab = lab_of(named(9))
    lab.node.limits = lab.node._prefetcher.limits = type(lab.node.limits)(
        MIB, MIB, None, DEADLINE_S
    )
    lab.read(b"d/000.p")
    assert read(lab.read(b"d/001.p")) == [b"d/001.p"]


def test_what_is_local_is_not_read_ahead() -> None:
    policy = Policy(source=b"/src", mountpoint=b"/mnt", local=(Path(b"d"),))
    lab = lab_of(named(9), policy=policy)
    lab.read(b"d/000.p")
    assert read(lab.read(b"d/001.p")) == [b"d/001.p"]


def test_after_a_clear_files_are_counted_anew() -> None:
    lab = lab_of(named(3))
    lab.read(b"d/000.p")
    lab.clear()
    assert read(lab.read(b"d/001.p")) == [b"d/001.p"]


@given(st.permutations(range(12)), st.integers(0, 12), st.integers(1, 6), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_what_is_read_does_not_depend_on_the_order_or_on_the_number_of_nodes(
    order: list[int], wanted: int, nodes: int, seed: int
) -> None:
    names = [b"d%d/%d%s" % (n % 3, n, b".q" if n % 4 == 0 else b".p") for n in range(24)]
    asked = [names[n] for n in order[:wanted]]
    counts = []
    for how_many, paths in ((1, sorted(asked)), (nodes, asked)):
        job = SimulatedJob(how_many, fanout=2, ahead_max=2, seed=seed)
        versions = {name: job.add(name) for name in names}
        for place, path in enumerate(paths):
            for number in range(how_many):
                if number == 0 or job.random.random() < 0.6:
                    at = (place + number) % how_many
                    job.ask(at, LookupRequest, path)
                    for _ in range(job.random.randrange(6)):
                        job.move()
                    job.run()  # the reader has looked the path up
                    job.read(at, path, versions[path])
        job.run()
        job.check_at_rest()
        counts.append({path: n for (kind, path), n in job.source.counts.items() if kind == "read"})
    assert counts[0] == counts[1]
    assert set(counts[0].values()) <= {1}


# --- requests of Python ---------------------------------------------------------------------------


def package_lab(
    beside: dict[bytes, Entry] | None = None,
    compiled: dict[bytes, int] | None = None,
    **options: int,
) -> Lab:
    """The node has listed a package ``p`` by fetch 1, and lists its compiled files by 2."""
    lab = Lab(ahead_max=8, **options)  # type: ignore[arg-type]
    lab.list(b"p")
    names = {b"__pycache__": directory(), b"__init__.py": file(10)} | (beside or {})
    assert scans(lab.scanned(1, pack_listing(names.items()))) == [b"p/__pycache__"]
    if compiled is not None:
        rows = [(name, file(size)) for name, size in compiled.items()]
        lab.scanned(2, pack_listing(rows))
    return lab


def scans(actions: list[Action]) -> list[bytes]:
    return [each.path for each in actions if isinstance(each, ListSource)]


def test_what_is_compiled_of_a_package_is_listed_after_it() -> None:
    lab = package_lab()
    assert scans(lab.list(b"p/__pycache__")) == [], "it waits for what is under way"
    (answer,) = lab.scanned(2, files(b"a.pyc"))
    assert isinstance(answer, AnswerListing)
    assert lab.node.statistics().listed_ahead == 1


def test_what_could_not_be_looked_at_is_neither_listed_nor_read_ahead() -> None:
    sick = {b"sub": unknown(directory()), b"lib.x.so": unknown(file(10)), b"other": directory()}
    lab = package_lab(sick, {b"__init__.x.pyc": 10})
    lab.read(INIT)
    assert set(lab.node.names_to_find(FetchId(3))) == {b"other"}
    lab = Lab(ahead_max=8)
    lab.list(b"p")
    assert scans(lab.scanned(1, pack_listing([(b"__pycache__", unknown(directory()))]))) == []
    lab = Lab(ahead_max=8)
    lab.list(b"d")
    rows = {b"a.p": file(10), b"b.p": file(10), b"c.p": unknown(file(10)), b"d.p": file(10)}
    lab.scanned(1, pack_listing(rows.items()))
    lab.read(b"d/a.p")
    assert read(lab.read(b"d/b.p")) == [b"d/b.p", b"d/d.p"]


def test_of_what_is_compiled_one_file_is_enough() -> None:
    lab = package_lab(compiled={b"a.pyc": 10, b"b.pyc": 10, b"c.pyc": 10, b"d.txt": 10})
    assert read(lab.read(b"p/__pycache__/b.pyc")) == [
        b"p/__pycache__/b.pyc", b"p/__pycache__/a.pyc", b"p/__pycache__/c.pyc",
    ]  # fmt: skip


INIT = b"p/__pycache__/__init__.x.pyc"
BESIDE = {
    b"sub": directory(),
    b"other": directory(),
    b"lib.x.so": file(10),
    b"more.so": file(10),
    b"large.so": file(LIBRARY_BYTES_MAX + 1),
    b"sub.txt": file(10),
}


def test_what_a_package_mentions_is_listed_and_read() -> None:
    lab = package_lab(BESIDE, {b"__init__.x.pyc": 10})
    assert read(lab.read(INIT)) == [INIT]
    assert set(lab.node.names_to_find(FetchId(3))) == {b"sub", b"other", b"lib", b"more"}
    actions = lab.step(SourceRead(FetchId(3), BlobId(3), (b"sub", b"lib")))
    assert (scans(actions), read(actions)) == ([b"p/sub"], [b"p/lib.x.so"])


def test_only_a_package_itself_is_looked_through() -> None:
    lab = package_lab(BESIDE, {b"a.pyc": 10})
    lab.read(b"p/__pycache__/a.pyc")
    assert lab.node.names_to_find(FetchId(3)) == ()


@pytest.mark.parametrize("too_large", [False, True])
def test_a_large_compiled_file_is_not_looked_through(too_large: bool) -> None:
    size = LOOKED_THROUGH_BYTES_MAX + too_large
    room = 64 * LOOKED_THROUGH_BYTES_MAX
    lab = package_lab(BESIDE, {b"__init__.x.pyc": size}, memory_bytes=room, tree_max_bytes=room)
    assert read(lab.read(INIT, size)) == [INIT]
    assert bool(lab.node.names_to_find(FetchId(3))) == (not too_large)


def test_libraries_of_a_package_are_not_read_because_others_are() -> None:
    lab = package_lab(BESIDE, {})
    lab.read(b"p/lib.x.so")
    assert read(lab.read(b"p/more.so")) == [b"p/more.so"]


@pytest.mark.parametrize(
    "policy",
    [
        Policy(source=b"/src", mountpoint=b"/mnt", local=(Path(b"p"),)),
        Policy(source=b"/src", mountpoint=b"/mnt", local=(Path(b"p/sub/deep"),)),
        Policy(source=b"/src", mountpoint=b"/mnt", revalidate_s=5.0),
    ],
    ids=["local", "not uniform below", "revalidated"],
)
def test_where_the_front_would_ask_for_each_directory_none_is_listed_ahead(policy: Policy) -> None:
    lab = Lab(ahead_max=8, policy=policy)
    lab.list(b"p")
    assert scans(lab.scanned(1, pack_listing([(b"__pycache__", directory())]))) == []


def test_a_directory_that_cannot_be_listed_ahead_is_nobodys_error() -> None:
    lab = package_lab()
    assert lab.failed(2, errno.EIO) == []
    assert lab.node.statistics().failures == 0
    assert scans(lab.list(b"p/__pycache__")) == [b"p/__pycache__"]


def test_of_what_cannot_be_read_ahead_the_parts_that_have_come_are_let_go_of() -> None:
    lab = package_lab(BESIDE, {b"__init__.x.pyc": 10})
    lab.read(INIT)
    assert b"lib" in lab.node.names_to_find(FetchId(3))
    assert read(lab.step(SourceRead(FetchId(3), BlobId(3), (b"lib",)))) == [b"p/lib.x.so"]
    fetch = lab.node._fetches.get(FetchId(4))
    assert fetch is not None
    # This part came from a peer that was asked before the source, and is gone.
    fetch.received = Received(BlobId(4), 1)
    assert lab.failed(4, errno.EIO) == [ReleaseBlob(BlobId(4))]


def test_one_that_may_only_be_searched_is_searched_for_who_asks() -> None:
    lab = package_lab()
    lab.look(b"p/__pycache__/a.pyc")
    (action,) = lab.failed(2, errno.EACCES)
    assert action == LookupSource(FetchId(3), Path(b"p/__pycache__/a.pyc"))


def test_after_a_clear_only_what_somebody_asked_for_is_listed_again() -> None:
    lab = package_lab()
    assert scans(lab.clear()) == []
    assert lab.node.statistics().fetching == 0
    assert lab.scanned(2, files(b"a.pyc")) == [], "it is of before"


def test_what_is_listed_ahead_and_takes_too_long_is_given_up_in_silence() -> None:
    lab = package_lab()
    assert lab.tick(DEADLINE_S + 1) == []
    assert lab.node.statistics().fetching == 0


@given(
    st.permutations(range(8)), st.integers(0, 8), st.integers(1, 6), st.integers(1, 3), st.data()
)
@settings(max_examples=40, deadline=None)
def test_what_is_read_of_packages_is_the_same_for_one_node_and_for_many_in_any_order(
    order: list[int], wanted: int, nodes: int, trees: int, data: st.DataObject
) -> None:
    packages = [b"a", b"a/b", b"a/b/c", b"a/d", b"e", b"e/f", b"e/f/g", b"e/h"]
    mentions = {
        each: data.draw(st.sets(st.sampled_from([b"b", b"c", b"d", b"f", b"g", b"lib"])))
        for each in packages
    }
    seed = data.draw(st.integers(0, 1000))
    counts = []
    for how_many, count in ((1, 1), (nodes, min(nodes, trees))):
        job = SimulatedJob(how_many, fanout=2, trees=count, ahead_max=2, seed=seed)
        versions = {}
        for package in packages:
            for name in (b"__init__.py", b"lib.x.so", b"other.so"):
                job.add(package + b"/" + name)
            for name in (b"__init__.x.pyc", b"m.x.pyc"):
                path = package + b"/__pycache__/" + name
                versions[path] = job.add(path)
            compiled = Path(package + b"/__pycache__/__init__.x.pyc")
            job.source.mentions[compiled] = frozenset(mentions[package])
        for place, number in enumerate(order[:wanted]):
            path = packages[number] + b"/__pycache__/__init__.x.pyc"
            for node in range(how_many):
                if node == 0 or job.random.random() < 0.6:
                    at = (place + node) % how_many
                    above = b""
                    for part in path.split(b"/"):
                        job.ask(at, LookupRequest, above + part)
                        above += part + b"/"
                        for _ in range(job.random.randrange(6)):
                            job.move()
                        job.run()  # the reader has looked the path up
                    job.read(at, path, versions[path])
        job.run()
        job.check_at_rest()
        counts.append(dict(job.source.counts))
    assert counts[0] == counts[1]
    assert set(counts[0].values()) <= {1}


# --- requests for prefetched files ----------------------------------------------------------------


def test_who_asks_for_what_is_being_read_ahead_waits_for_that() -> None:
    lab = lab_of(named(3))
    lab.read(b"d/000.p")
    lab.read(b"d/001.p")  # fetches 2, 3, and 4 for the third file
    assert read(lab.read(b"d/002.p")) == []
    answers = [each for each in lab.have_read(4, 7) if isinstance(each, AnswerObject)]
    assert [each.request for each in answers] == [4]
    stats = lab.node.statistics()
    assert (stats.read_ahead, stats.read_ahead_bytes, stats.read_ahead_used) == (1, 10, 1)


def test_what_was_read_ahead_answers_who_asks_later_and_counts_as_used_once() -> None:
    lab = lab_of(named(3))
    lab.read(b"d/000.p")
    lab.read(b"d/001.p")
    assert not [each for each in lab.have_read(4, 7) if isinstance(each, AnswerObject)]
    assert lab.node.statistics().read_ahead_used == 0
    for _ in range(2):
        (answer,) = lab.read(b"d/002.p")
        assert isinstance(answer, AnswerObject)
    stats = lab.node.statistics()
    assert (stats.read_ahead, stats.read_ahead_used) == (1, 1)


def test_an_error_is_for_who_asks_and_for_nobody_else() -> None:
    lab = lab_of(named(4))
    lab.read(b"d/000.p")
    lab.read(b"d/001.p")
    lab.read(b"d/003.p")
    assert lab.failed(4, errno.ESTALE) == [], "nobody asked for the third"
    assert lab.node.statistics().failures == 0
    assert AnswerError(4, errno.EIO) in lab.failed(5, errno.EIO)  # type: ignore[arg-type]
    assert read(lab.read(b"d/002.p")) == [b"d/002.p"]


def test_what_takes_too_long_is_given_up_in_silence() -> None:
    lab = lab_of(named(3))
    lab.read(b"d/000.p")
    lab.read(b"d/001.p")
    errors = [each for each in lab.tick(DEADLINE_S + 1) if isinstance(each, AnswerError)]
    assert [each.request for each in errors] == [2, 3]
    assert NOBODY not in [each.request for each in errors]
    assert lab.node.statistics().fetching == 0


# --- room -----------------------------------------------------------------------------------------


def test_nothing_goes_for_what_is_read_ahead_and_it_goes_first() -> None:
    sizes = dict.fromkeys(named(12), 20_000)
    lab = lab_of(sizes, memory_bytes=100_000)
    running = [*read(lab.read(b"d/000.p", 20_000)), *read(lab.read(b"d/001.p", 20_000))]
    number = 2
    while number < 2 + len(running):  # fetches arrive in their order
        running += read(lab.have_read(number, number))
        number += 1
    asked = {Path(b"d/000.p"), Path(b"d/001.p")}
    held = {key.path for key in lab.held() if isinstance(key, ObjectKey)}
    assert asked < held, "two were asked for, and there was room for another"
    assert lab.node.statistics().evictions == 0
    lab.read(b"e", 20_000)
    lab.have_read(number, number)
    held = {key.path for key in lab.held() if isinstance(key, ObjectKey)}
    assert asked | {Path(b"e")} <= held
    assert lab.node.statistics().evictions == 1


def test_what_the_front_read_ahead_is_dropped_where_there_is_no_room() -> None:
    lab = Lab(memory_bytes=40_000, allowance_bytes=10_000)
    lab.fetched(b"d/asked", 29_000, 1)
    key = ObjectKey(Path(b"d/ahead"), version(2000))
    came = FrontRead(key.path, key.version, BlobId(2), ahead=True, used=False)
    assert lab.step(came) == [Evict(key), ReleaseBlob(BlobId(2))]


def test_what_the_front_read_ahead_counts_as_used_when_it_is() -> None:
    lab = Lab(allowance_bytes=10_000)
    keys = [ObjectKey(Path(b"d/%d" % n), version(2000)) for n in range(3)]
    for number, key in enumerate(keys):
        lab.step(FrontRead(key.path, key.version, BlobId(number), ahead=True, used=number == 0))
    stats = lab.node.statistics()
    assert (stats.fetched_on_credit, stats.read_ahead, stats.read_ahead_used) == (3, 3, 1)
    lab.used(*keys[:2])
    lab.used(*keys[:2])
    assert lab.node.statistics().read_ahead_used == 2


# --- in a job -------------------------------------------------------------------------------------


def test_only_who_reads_the_source_reads_ahead_and_offers_what_came() -> None:
    job = SimulatedJob(3, fanout=16, seed=4, ahead_max=4)
    names = [b"d/%02d.p" % n for n in range(30)]
    versions: dict[bytes, Version] = {name: job.add(name) for name in names}
    job.ask(1, LookupRequest, names[0])
    job.run()
    for path in names[:2]:
        job.read(1, path, versions[path])
        job.run()
    assert [each.node.stats.read_ahead for each in job] == [28, 0, 0]
    came = [key.path for key, _ in job[0].node.held()]
    job.ask(2, LookupRequest, names[0])
    job.run()
    asks = job.sent["Request"]
    in_order = [*names[:2], *reversed(came)]  # prefetched files without a request are the oldest
    for path in [each for each in in_order if each != b"d"]:
        request = job.read(2, path, versions[path])
        job.run()
        assert job.answer(2, request) == job.content(path, versions[path])
    assert job.sent["Request"] - asks <= 4, "the rest was offered"
    assert set(job.source.counts.values()) == {1}
    job.check_at_rest()


# --- cost of the scans ----------------------------------------------------------------------------

MANY = 50_000


@pytest.mark.parametrize(("files", "read_ahead"), [(1, 0), (2, MANY)])
def test_many_endings_in_one_directory_are_gone_through_once(
    files: int, read_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0

    def counting(name: bytes) -> bytes:
        nonlocal looked_at
        looked_at += 1
        return ending_of(name)

    monkeypatch.setattr("copperfs.model.listing.ending_of", counting)
    monkeypatch.setattr("copperfs.node.prefetch.python_imports.ending_of", counting)
    names = [b"%d.%d" % (number % files, number // files) for number in range(MANY)]
    lab = lab_of(dict.fromkeys(names, 10), memory_bytes=256 * MIB)
    for name in names:
        lab.node._prefetcher.requested(ObjectKey(Path(b"d/" + name), version(10)))
    assert len(lab.node._prefetcher._queue) == read_ahead, "each second one has both read"
    # once for each row and request, and a binary search for each ending
    assert looked_at <= MANY * (1 + 1 + 2) + MANY // 2 * 17


def test_libraries_of_a_package_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0

    def counting(listing: Listing) -> bool:
        nonlocal looked_at
        looked_at += 1
        return True

    lab = lab_of(named(50, b".so"))
    monkeypatch.setattr("copperfs.node.prefetch.python_imports._has_compiled", counting)
    for name in named(50, b".so"):
        assert read(lab.read(b"d/" + name)) == [b"d/" + name]
    assert looked_at == 1


@pytest.mark.parametrize(("count", "some"), [(BESIDE_MAX, True), (BESIDE_MAX + 1, False)])
def test_a_directory_of_very_many_directories_is_no_package(count: int, some: bool) -> None:
    beside = {b"d%d" % number: directory() for number in range(count)}
    lab = Lab(ahead_max=8, memory_bytes=64 * MIB)
    lab.list(b"p")
    lab.scanned(1, pack_listing([(b"__pycache__", directory()), *beside.items()]))
    lab.scanned(2, pack_listing([(b"__init__.x.pyc", file(10))]))
    lab.read(INIT)
    assert len(lab.node.names_to_find(FetchId(3))) == (count if some else 0)
