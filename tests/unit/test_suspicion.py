"""Failure detector: the state of a peer as a function of the observations of it."""

import pytest

from copperfs.node.membership.failure_detector import (
    PeerObservations,
    PeerState,
    Timeouts,
    doubted_until,
    is_ping_due,
    next_check,
    peer_state,
)

TIMEOUTS = Timeouts()
BEAT_S = TIMEOUTS.heartbeat_s


def up(**seen: float | None) -> PeerObservations:
    return PeerObservations(0.0, up=True, was_up=True, **seen)  # type: ignore[arg-type]


def test_who_owes_nothing_is_asked_for_a_sign_of_life_each_heartbeat() -> None:
    assert not is_ping_due(0.49, up(), TIMEOUTS, BEAT_S, 0.0)
    assert is_ping_due(0.5, up(), TIMEOUTS, BEAT_S, 0.0)
    assert next_check(0.0, up(), TIMEOUTS, BEAT_S, 0.0) == 0.5


def test_who_owes_an_answer_is_asked_sooner_and_only_once() -> None:
    awaited = up(heard_at=1.0, awaited_since=1.2)
    assert not is_ping_due(1.29, awaited, TIMEOUTS, BEAT_S, 0.0)
    assert is_ping_due(1.31, awaited, TIMEOUTS, BEAT_S, 0.0)
    awaited.ping_sent_at = 1.31
    assert not is_ping_due(9.0, awaited, TIMEOUTS, BEAT_S, 0.0)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (5.0, PeerState.GOOD),
        (5.24, PeerState.GOOD),
        (5.26, PeerState.SILENT),
        (7.49, PeerState.SILENT),
        (7.51, PeerState.GONE),
    ],
)
def test_who_gives_no_sign_of_life_is_silent_and_then_gone(now: float, expected: PeerState) -> None:
    seen = up(heard_at=4.5, ping_sent_at=5.0)
    assert peer_state(now, seen, TIMEOUTS, 0.0) is expected


def test_a_source_that_takes_half_a_minute_makes_nobody_suspect() -> None:
    """Its reader sends signs of life, each of which restarts the wait."""
    for second in range(30):
        seen = up(heard_at=float(second), awaited_since=float(second), ping_sent_at=None)
        assert peer_state(second + 0.2, seen, TIMEOUTS, 0.0) is PeerState.GOOD


def test_a_heartbeat_that_is_one_and_a_half_seconds_late_is_silence_and_no_death() -> None:
    seen = up(heard_at=0.0, ping_sent_at=0.5)
    assert peer_state(2.0, seen, TIMEOUTS, 0.0) is PeerState.SILENT


def test_ones_own_lateness_is_no_reason_to_suspect_others() -> None:
    seen = up(heard_at=0.0, ping_sent_at=0.5)
    assert peer_state(1.2, seen, TIMEOUTS, 0.0) is PeerState.SILENT
    assert peer_state(1.2, seen, TIMEOUTS, 0.8) is PeerState.GOOD


def test_who_refuses_after_it_was_connected_is_gone_at_once() -> None:
    assert peer_state(0.0, PeerObservations(0.0, was_up=True), TIMEOUTS, 0.0) is PeerState.LOST
    assert (
        peer_state(0.0, PeerObservations(0.0, was_up=True, refused=True), TIMEOUTS, 0.0)
        is PeerState.GONE
    )


def test_who_was_lost_is_gone_after_a_while_and_who_was_never_there_much_later() -> None:
    assert peer_state(2.9, PeerObservations(0.0, was_up=True), TIMEOUTS, 0.0) is PeerState.LOST
    assert peer_state(3.0, PeerObservations(0.0, was_up=True), TIMEOUTS, 0.0) is PeerState.GONE
    assert peer_state(100.0, PeerObservations(0.0), TIMEOUTS, 0.0) is PeerState.LOST
    assert peer_state(120.0, PeerObservations(0.0), TIMEOUTS, 0.0) is PeerState.GONE


def test_the_source_is_not_read_in_the_place_of_one_that_may_yet_answer() -> None:
    assert doubted_until(up(awaited_since=1.0), TIMEOUTS, 0.0) == pytest.approx(1.6)
    assert doubted_until(PeerObservations(1.0, was_up=True), TIMEOUTS, 0.5) == pytest.approx(2.1)
    assert doubted_until(PeerObservations(1.0), TIMEOUTS, 0.0) == pytest.approx(1.35)


def test_a_request_that_went_out_after_an_unanswered_ping_does_not_prolong_the_wait() -> None:
    pinged = up(heard_at=1.0, ping_sent_at=2.0)
    until = 2.0 + 2 * TIMEOUTS.silent_s + 0.5
    assert doubted_until(pinged, TIMEOUTS, 0.5) == pytest.approx(until)
    pinged.awaited_since = 2.2
    assert doubted_until(pinged, TIMEOUTS, 0.5) == pytest.approx(until)


def test_of_one_that_owes_nothing_and_was_not_asked_counts_when_it_was_heard() -> None:
    assert doubted_until(up(heard_at=3.0), TIMEOUTS, 0.5) == 3.0 + TIMEOUTS.doubt_s + 0.5


def test_an_application_waits_less_than_a_second_for_a_peer_that_is_stuck() -> None:
    assert TIMEOUTS.ping_after_s + TIMEOUTS.silent_s < TIMEOUTS.doubt_s < 1.0
    assert TIMEOUTS.doubt_s < TIMEOUTS.dead_s - TIMEOUTS.heartbeat_s


@pytest.mark.parametrize(
    "seen",
    [
        up(),
        up(awaited_since=0.3),
        up(ping_sent_at=0.2),
        PeerObservations(0.0),
        PeerObservations(0.0, was_up=True),
    ],
)
def test_nothing_changes_before_the_next_look(seen: PeerObservations) -> None:
    """A node that checks again only then misses nothing."""
    now = 0.31
    at = next_check(now, seen, TIMEOUTS, BEAT_S, 0.0)
    assert at is not None
    assert at > now
    before = (peer_state(now, seen, TIMEOUTS, 0.0), is_ping_due(now, seen, TIMEOUTS, BEAT_S, 0.0))
    step = now
    while (step := step + 0.01) < at:
        assert before == (
            peer_state(step, seen, TIMEOUTS, 0.0),
            is_ping_due(step, seen, TIMEOUTS, BEAT_S, 0.0),
        )
