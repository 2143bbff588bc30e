"""Access history: a node that follows a known sequence gets the next files before it asks; no other
node does.
"""

import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs.model.types import BlobId, NodeId, Path, Version
from copperfs.node.actions import AnswerError, AnswerListing, ListingKey, ObjectKey, ReleaseBlob
from copperfs.node.events import (
    Clear,
    Failed,
    ListRequest,
    LookupRequest,
    PeerMessage,
    Pushed,
    PushedListing,
)
from copperfs.node.node import Node
from copperfs.node.peer.messages import PATH_BYTES_MAX, Hello
from copperfs.node.prefetch.access_history import (
    FOLLOWS_AFTER,
    LEADS_MAX,
    OFFER_BYTES_MAX,
    SILENT_BYTES_MAX,
    STEP_MAX,
    TRAIL_MAX,
    AccessHistory,
)
from copperfs.node.prefetch.speculative_push import DELAY_S, MESSAGES_MAX
from copperfs.node.requests.path_policy import Policy
from copperfs.node.routing.trees import Trees
from tests.unit.node_lab import MIB, version
from tests.unit.simulated_job import SimulatedJob

CHILD = NodeId(7)


def key(number: int) -> ObjectKey:
    return ObjectKey(Path(b"d/%d" % number), version(10))


def trail_of(count: int) -> AccessHistory:
    trail = AccessHistory()
    for number in range(count):
        trail.note(key(number))
    return trail


# --- followers ------------------------------------------------------------------------------------


def test_a_few_steps_along_the_trail_make_a_follower() -> None:
    trail = trail_of(100)
    for number in range(FOLLOWS_AFTER):
        assert trail.ahead(CHILD, key(number)) == []
    assert trail.ahead(CHILD, key(FOLLOWS_AFTER))[0] == key(FOLLOWS_AFTER + 1)


def test_who_was_offered_something_goes_on_behind_it() -> None:
    trail = trail_of(200)
    for number in range(FOLLOWS_AFTER):
        trail.ahead(CHILD, key(number))
    ahead = trail.ahead(CHILD, key(FOLLOWS_AFTER))
    for each in ahead:
        trail.offered(CHILD, each)
    place = FOLLOWS_AFTER + len(ahead) + 1
    assert trail.ahead(CHILD, key(place))[0] == key(place + 1)


def test_who_leaves_the_trail_has_to_follow_anew() -> None:
    trail = trail_of(500)
    for number in range(FOLLOWS_AFTER + 1):
        trail.ahead(CHILD, key(number))
    assert trail.ahead(CHILD, key(FOLLOWS_AFTER + STEP_MAX + 5)) == []
    assert trail.ahead(CHILD, key(0)) == []


def test_who_leads_is_offered_nothing_and_stays_a_follower() -> None:
    trail = trail_of(10)
    for number in range(10):
        trail.ahead(CHILD, key(number))
    assert trail.ahead(CHILD, key(99)) == []
    trail.note(key(10))
    trail.note(key(11))
    assert trail.ahead(CHILD, key(10)) == [key(11)]


def test_an_ask_that_crosses_an_offer_leaves_its_asker_a_follower() -> None:
    trail = trail_of(200)
    for number in range(FOLLOWS_AFTER):
        trail.ahead(CHILD, key(number))
    for each in trail.ahead(CHILD, key(FOLLOWS_AFTER)):
        trail.offered(CHILD, each)
    assert trail.ahead(CHILD, key(FOLLOWS_AFTER + 5)), "it was offered this a moment ago"


def test_who_begins_anew_elsewhere_is_offered_also_what_it_had_once() -> None:
    trail = trail_of(1000)
    found = [trail.ahead(CHILD, key(number)) for number in (0, 1, 2, 8)][-1]
    assert key(8) not in found
    assert key(9) in found
    found = [trail.ahead(CHILD, key(number)) for number in (900, 0, 1, 2)][-1]
    assert key(8) in found


def test_what_it_led_to_is_not_offered_to_who_asked_for_it() -> None:
    trail = trail_of(10)
    for number in range(10):
        trail.ahead(CHILD, key(number))
    trail.ahead(CHILD, key(10))
    for number in range(10, 13):
        trail.note(key(number))
    assert trail.behind(CHILD) == [key(11), key(12)]


def test_who_only_leads_follows_no_more() -> None:
    trail = trail_of(10)
    for number in range(10):
        trail.ahead(CHILD, key(number))
    for number in range(LEADS_MAX + 1):
        trail.ahead(CHILD, key(1000 + number))
    trail.note(key(10))
    assert not trail.behind(CHILD)
    assert not list(trail.followers())


def test_a_follower_that_was_offered_everything_lacks_nothing() -> None:
    trail = trail_of(10)
    for number in range(FOLLOWS_AFTER + 1):
        trail.ahead(CHILD, key(number))
    assert list(trail.followers()) == [CHILD]
    trail.offered(CHILD, key(9))
    assert list(trail.followers()) == []
    trail.note(key(10))
    assert list(trail.followers()) == [CHILD]


def test_who_says_nothing_is_offered_no_more_until_it_asks() -> None:
    trail = trail_of(10)
    for number in range(10):
        trail.ahead(CHILD, key(number))
    trail.note(key(10))
    trail.offered(CHILD, key(10), SILENT_BYTES_MAX)
    trail.note(key(11))
    assert not trail.behind(CHILD)
    trail.note(key(12))
    assert trail.ahead(CHILD, key(11)) == [key(12)]


def test_what_comes_for_one_is_offered_to_the_others_after_a_moment() -> None:
    job = SimulatedJob(3, fanout=16)
    versions = files(job, 1, 12)
    first, last = dict(list(versions.items())[:8]), dict(list(versions.items())[8:])
    walk(job, 1, first)
    walk(job, 2, first)
    walk(job, 1, last)
    asks, offers = job.sent["Request"], job.sent["Offer"]
    job.pass_time(DELAY_S)
    job.run()
    assert job.sent["Offer"] == offers + 1, "in one message"
    walk(job, 2, last)
    assert job.sent["Request"] == asks


def test_what_is_too_much_for_a_moment_is_offered_in_the_next_ones() -> None:
    job = SimulatedJob(3, fanout=16)
    versions = files(job, 1, 500, 10)
    first, last = dict(list(versions.items())[:8]), dict(list(versions.items())[8:])
    walk(job, 1, first)
    walk(job, 2, first)
    walk(job, 1, last)
    asks, offers = job.sent["Request"], job.sent["Offer"]
    job.pass_time(DELAY_S)
    job.run()
    assert job.sent["Offer"] == offers + MESSAGES_MAX
    job.pass_time(10 * DELAY_S)
    assert job.sent["Offer"] > offers + MESSAGES_MAX
    walk(job, 2, last)
    assert job.sent["Request"] == asks


def test_who_was_started_anew_is_offered_nothing_until_it_follows_again() -> None:
    job = SimulatedJob(3, fanout=16)
    versions = files(job, 1, 12)
    first, last = dict(list(versions.items())[:8]), dict(list(versions.items())[8:])
    walk(job, 1, first)
    walk(job, 2, first)
    job.renew(0, 2)
    walk(job, 1, last)
    offered = job[2].node.stats.offered
    job.pass_time(5 * DELAY_S)
    assert job[2].node.stats.offered == offered


def test_who_reads_its_own_part_of_everything_is_never_offered_much() -> None:
    trail = trail_of(2000)
    draw = random.Random(3)
    offered = sum(len(trail.ahead(CHILD, key(draw.randrange(2000)))) for _ in range(1000))
    assert offered < 1000


def test_the_trail_is_bounded() -> None:
    trail = trail_of(TRAIL_MAX + 5)
    for number in range(10):
        assert trail.ahead(CHILD, key(number)) == [], "of these nothing is known any more"
    for number in range(TRAIL_MAX, TRAIL_MAX + 2):
        trail.ahead(CHILD, key(number))
    assert trail.ahead(CHILD, key(TRAIL_MAX + 2)) == [key(TRAIL_MAX + 3), key(TRAIL_MAX + 4)]


# --- in a job -------------------------------------------------------------------------------------


def walk(job: SimulatedJob, number: int, versions: dict[bytes, Version]) -> None:
    for path, wanted in versions.items():
        looked = job.ask(number, LookupRequest, path)
        job.run()
        assert isinstance(job.answer(number, looked), AnswerListing)
        request = job.read(number, path, wanted)
        job.run()
        assert job.answer(number, request) == job.content(path, wanted)


def files(job: SimulatedJob, directories: int, each: int, size: int = 100) -> dict[bytes, Version]:
    return {
        b"d%d/%d" % (where, number): job.add(b"d%d/%d" % (where, number), size)
        for where in range(directories)
        for number in range(each)
    }


def test_who_comes_later_asks_for_little_of_what_the_first_asked_for() -> None:
    job = SimulatedJob(3, fanout=16)
    versions = files(job, 10, 20)
    walk(job, 1, versions)
    assert job.sent["Request"] == 210
    walk(job, 2, versions)
    assert job.sent["Request"] - 210 < 20
    assert job[0].node.stats.offers == job[2].node.stats.offered > 190
    assert set(job.source.counts.values()) == {1}
    job.check_at_rest()


def test_offers_reach_grandchildren_too() -> None:
    job = SimulatedJob(4, fanout=1)
    versions = files(job, 5, 20)
    walk(job, 1, versions)
    walk(job, 3, versions)
    assert job[3].node.stats.offered > 80


def test_an_offer_takes_nothing_from_what_is_held() -> None:
    job = SimulatedJob(3, fanout=16, memory_bytes=MIB)
    versions = files(job, 1, 60, 30_000)
    walk(job, 1, versions)
    job[0].node.reset_statistics()
    walk(job, 2, versions)
    for host in job:
        stats = host.node.statistics()
        assert stats.held_bytes <= stats.budget_bytes
    job.check_at_rest()


def test_a_listing_that_is_offered_takes_nothing_from_what_is_held() -> None:
    job = SimulatedJob(3, fanout=16, memory_bytes_of={2: 300_000})
    versions = files(job, 12, 1, 60)
    for number in range(12):
        for each in range(200):
            job.add(b"d%d/more%03d" % (number, each))
    for number in (1, 2):
        for path in versions:
            job.ask(number, ListRequest, path.partition(b"/")[0])
            job.run()
    stats = job[2].node.statistics()
    assert job[0].node.stats.offers > stats.offered, "there was no room for all"
    assert stats.held_bytes <= stats.budget_bytes
    job.check_at_rest()


def test_large_objects_are_not_offered() -> None:
    job = SimulatedJob(3, fanout=16)
    versions = files(job, 1, 20, MIB)
    walk(job, 1, versions)
    sent = job.sent["Offer"]
    walk(job, 2, versions)
    assert job[0].node.stats.offers == 0
    assert job.sent["Offer"] == sent == 0, "nor is an empty offer sent"


def test_one_offer_is_bounded() -> None:
    job = SimulatedJob(3, fanout=16)
    versions = files(job, 1, 40, 100_000)
    walk(job, 1, versions)
    walk(job, 2, versions)
    items = job[0].node.stats.offers
    assert items > 30
    assert job.sent["Offer"] >= items * 100_000 / OFFER_BYTES_MAX


@pytest.mark.parametrize("count", [1, 3])
def test_after_a_clear_nothing_old_is_offered(count: int) -> None:
    job = SimulatedJob(3, fanout=16, trees=count)
    versions = files(job, 4, 10)
    walk(job, 1, versions)
    walk(job, 2, versions)
    new = {path: job.add(path, 120, changed_s=5) for path in versions}
    job.post(0, Clear())
    walk(job, 2, new)
    walk(job, 1, new)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_nodes_that_walk_at_the_same_time_all_get_what_the_source_has(seed: int) -> None:
    job = SimulatedJob(6, fanout=2, seed=seed)
    versions = list(files(job, 6, 8, 2000).items())
    places = dict.fromkeys(range(6), 0)
    asked = []
    while any(place < len(versions) for place in places.values()):
        number = job.random.choice([n for n, place in places.items() if place < len(versions)])
        path, wanted = versions[places[number]]
        places[number] += 1
        asked.append((number, path, wanted, job.read(number, path, wanted)))
        if job.random.randrange(40) == 0:
            job.renew(3, 1)
        for _ in range(job.random.randrange(12)):
            job.move()
    job.run()
    for number, path, wanted, request in asked:
        answer = job.answer(number, request)
        assert not isinstance(answer, AnswerError)
        assert answer == job.content(path, wanted)
    assert set(job.source.counts.values()) == {1}
    job.check_at_rest()


def test_listings_are_part_of_the_trail() -> None:
    trail = AccessHistory()
    trail.note(ListingKey(Path(b"d")))
    trail.note(key(1))
    trail.note(ListingKey(Path(b"e")))
    trail.note(key(2))
    for each in (ListingKey(Path(b"d")), key(1)):
        trail.ahead(CHILD, each)
    assert trail.ahead(CHILD, ListingKey(Path(b"e"))) == [key(2)]


def test_a_path_that_no_message_can_carry_is_not_offered() -> None:
    job = SimulatedJob(3, fanout=16)
    versions = files(job, 1, 10)
    deep = b"d0/" + b"x" * 200 + b"/" + b"/".join([b"y" * 200] * 24)
    versions[deep] = job.add(deep, 10)
    assert len(deep) > PATH_BYTES_MAX
    for path, wanted in versions.items():
        job.read(0, path, wanted)
    job.run()
    walk(job, 1, dict(list(versions.items())[:10]))
    assert all(key.path != deep for key in job[0].node._offers.history._keys)


def test_what_is_local_to_this_node_is_not_taken_from_an_offer() -> None:
    job = SimulatedJob(2)
    policy = Policy(b"/src", b"/mnt", local=(Path(b"d/here"),))
    node = Node(policy, job[1].node.limits, Trees(2, NodeId(1)))
    listing = job.source.listing(Path(b""))
    assert node.step(0, PushedListing(Path(b"d/here"), listing, 1, None, offered=True)) == []
    pushed = Pushed(Path(b"d/here/f"), version(3), BlobId(5), offered=True)
    assert node.step(0, pushed) == [ReleaseBlob(BlobId(5))]
    assert node.held() == []


def test_nobody_leaps_to_the_last_epoch() -> None:
    job = SimulatedJob(2)
    far = PeerMessage(NodeId(0), Hello(NodeId(0), "j", b"", (1 << 63) - 1))
    assert job[1].node.step(0, far) == []
    assert job[1].node.stats.epoch == 1


@pytest.mark.parametrize("error", [errno.EIO, errno.ETIMEDOUT, errno.ENOMEM])
def test_a_parent_whose_own_client_is_sick_is_passed_over(error: int) -> None:
    job = SimulatedJob(2)
    wanted = job.add(b"d/f")
    job.hold_source(0)
    request = job.read(1, b"d/f", wanted)
    job.run()
    ((fetch, end),) = job[0].hands.held
    end(Failed(fetch.fetch, error))
    job.run()
    assert job.answer(1, request) == job.content(b"d/f", wanted)
    assert job[1].node.stats.fallbacks == 1
