"""Model of a parallel filesystem: its servers in virtual time, and the rules and counts beside
them."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.lab.pfs_sim.pfs_faults import OperationCounts, Rules
from copperfs.lab.pfs_sim.pfs_settings import PfsSettings, format_duration, parse_duration
from copperfs.lab.pfs_sim.server_model import Pipes, Servers

MIB = 1 << 20


def finished_at(servers: Servers, clients: int, each: int, service_s: float) -> float:
    """When all clients are done, each of which sends the next request at once."""
    asking = [(0.0, client, each) for client in range(clients)]
    last = 0.0
    while asking:
        now, client, left = heapq.heappop(asking)
        last = servers.reserve(now, service_s)
        if left > 1:
            heapq.heappush(asking, (last, client, left - 1))
    return last


# --- servers -------------------------------------------------------------------------------------


def test_one_server_does_one_thing_at_a_time() -> None:
    servers = Servers(1)
    assert [servers.reserve(10.0, 2.0) for _ in range(3)] == [12.0, 14.0, 16.0]


def test_an_idle_server_starts_at_once_and_saves_nothing_up() -> None:
    servers = Servers(1)
    servers.reserve(0.0, 1.0)
    assert servers.reserve(100.0, 1.0) == 101.0
    assert servers.reserve(100.0, 1.0) == 102.0


def test_up_to_as_many_clients_as_servers_pay_the_latency_only() -> None:
    assert finished_at(Servers(4), clients=4, each=100, service_s=0.001) == pytest.approx(0.1)


def test_a_hundred_clients_drown_four_servers() -> None:
    servers = Servers(4)
    assert finished_at(servers, clients=100, each=100, service_s=0.001) == pytest.approx(2.5)
    assert servers.load.operations == 10_000
    assert servers.load.served_s == pytest.approx(10.0)
    # with 100 under way and 4 being served, each waits for about 96 others of 0.25 ms each
    assert servers.load.queued_s / servers.load.operations == pytest.approx(0.024, rel=0.02)
    assert servers.load.queued_max_s == pytest.approx(0.024, rel=0.02)


def test_as_many_servers_as_needed_never_queue() -> None:
    servers = Servers(0)
    assert finished_at(servers, clients=100, each=10, service_s=0.001) == pytest.approx(0.01)
    assert servers.load.queued_s == 0


def test_a_new_server_is_free_and_an_idle_one_goes_first() -> None:
    servers = Servers(1)
    servers.reserve(0.0, 100.0)
    servers.resize(2)
    assert servers.reserve(1.0, 1.0) == 2.0
    servers.resize(1)
    assert servers.reserve(3.0, 1.0) == 101.0
    servers.resize(0)
    assert servers.reserve(3.0, 1.0) == 4.0


@given(
    count=st.integers(1, 5),
    work=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=40),
)
def test_servers_are_never_overbooked_and_never_idle_while_someone_waits(
    count: int, work: list[tuple[int, int]]
) -> None:
    servers = Servers(count)
    served, now = [], 0
    for pause, service in work:
        now += pause
        end = servers.reserve(now, service)
        served.append((now, end - service, end))
    assert [start for _, start, _ in served] == sorted(start for _, start, _ in served)
    for arrived, start, _ in served:
        before_start = sum(begin <= start - 1 < end for _, begin, end in served)
        assert sum(begin <= start < end for _, begin, end in served) <= count
        assert start >= arrived
        assert start == arrived or before_start == count


# --- bandwidth -----------------------------------------------------------------------------------


def test_all_readers_together_get_the_bandwidth() -> None:
    pipes = Pipes(1, 100 * MIB)
    assert [pipes.reserve(0.0, MIB, file) for file in range(100)][-1] == pytest.approx(1.0)
    assert pipes.load.operations == 100
    assert pipes.load.served_s == pytest.approx(1.0)


def test_a_file_gets_the_share_of_the_server_that_it_lies_on() -> None:
    pipes = Pipes(4, 100 * MIB)
    assert [pipes.reserve(0.0, 25 * MIB, 7) for _ in range(2)] == [1.0, 2.0]
    assert pipes.reserve(0.0, 25 * MIB, 8) == 1.0
    assert pipes.reserve(0.0, 25 * MIB, 11) == 3.0, "11 lies where 7 does"


def test_no_bandwidth_is_no_limit() -> None:
    assert Pipes(1, 0).reserve(5.0, 1 << 40, 1) == 5.0


def test_data_servers_can_be_added_and_removed() -> None:
    pipes = Pipes(1, MIB)
    pipes.reserve(0.0, 10 * MIB, 0)
    pipes.resize(2)
    assert pipes.reserve(0.0, MIB, 1) == 2.0, "half the bandwidth, and nobody before it"
    assert pipes.reserve(0.0, MIB, 2) == 12.0
    pipes.resize(1)
    assert pipes.count == 1


# --- rules and counts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("a", "a", True),
        ("a", "a/b", False),
        ("a/**", "a", True),
        ("a/**", "a/b/c", True),
        ("a/**", "ab", False),
        ("**", ".", True),
        (".", ".", True),
        (".", "a", False),
    ],
)
def test_a_rule_names_a_path_a_subtree_or_everything(
    pattern: str, path: str, matches: bool
) -> None:
    rules = Rules()
    rules.add("hang", pattern)
    assert bool(list(rules.matching("hang", "open", path))) is matches


def test_a_rule_is_for_its_kind_its_operations_and_so_many_times() -> None:
    rules = Rules()
    number = rules.add("fail", "**", ["open"], errno=5, times=2)
    assert not list(rules.matching("fail", "read", "a"))
    assert not list(rules.matching("hang", "open", "a"))
    found = [rule.rule for _ in range(3) for rule in rules.matching("fail", "open", "a")]
    assert found == [number, number]


@pytest.mark.parametrize(
    ("details", "sentence"),
    [
        ({"kind": "fail", "errno": 0}, "not an errno"),
        ({"kind": "hang", "ops": ["chew"]}, "unknown operations: chew"),
        ({"kind": "delay"}, "not a time"),
        ({"kind": "delay", "seconds": float("nan")}, "not a time"),
        ({"kind": "hang", "times": 0}, "not a number of times"),
        ({"kind": "eat"}, "no such kind"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(details: dict[str, object], sentence: str) -> None:
    rules = Rules()
    with pytest.raises(ValueError, match=sentence):
        rules.add(path="a", **details)  # type: ignore[arg-type]
    assert not rules


def test_counts_are_by_operation_and_path_and_start_again() -> None:
    counts = OperationCounts()
    for path in ("a", "a", "b"):
        counts.count("open", path)
    counts.missed("c")
    counts.read("a", 10)
    counts.read("a", 1)
    assert counts.operations == {"open": {"a": 2, "b": 1}}
    assert counts.totals() == {"open": 3}
    assert (counts.not_found, counts.read_bytes) == ({"c": 1}, {"a": 11})
    counts.reset()
    assert (counts.operations, counts.not_found, counts.read_bytes) == ({}, {}, {})


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1ms", 0.001), ("500us", 0.0005), ("0.02", 0.02), ("3 s", 3.0), ("0", 0.0)],
)
def test_durations_are_written_with_a_unit_or_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-1", "1h", "ms", "nan", "1e3"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_settings_survive_the_way_to_the_daemon() -> None:
    settings = PfsSettings(directory="/a", mountpoints=("/b", "/c"), latency_s=0.5, tied=True)
    assert PfsSettings.from_json(settings.to_json()) == settings
