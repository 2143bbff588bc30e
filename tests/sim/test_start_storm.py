"""``copperfs sim start``: a model of queues, held against what can be worked out by hand."""

from __future__ import annotations

import json

import pytest

from copperfs.cli.main import main
from copperfs.lab.sim.sim_source import SourceCosts
from copperfs.lab.sim.start_storm import BUNDLED, StartOperations, start_all

COSTS = SourceCosts(
    servers=2, operation_s=0.01, latency_s=0.1, bytes_per_s=1000.0, client_bytes_per_s=500.0
)


def test_one_process_waits_for_each_of_its_operations_and_then_for_its_bytes() -> None:
    start = StartOperations(first=3, first_bytes=100, further=1)
    result = start_all(start, 1, 1, COSTS, skew_s=0.0, seed=1)
    assert result.operations == 3
    assert result.last_s == pytest.approx(3 * 0.11 + 100 / 500)


def test_many_nodes_wait_for_the_servers_or_for_the_bandwidth() -> None:
    busy = start_all(StartOperations(10, 0, 1), 100, 4, COSTS, skew_s=0.0, seed=1)
    assert busy.operations == 100 * 13
    assert busy.last_s >= 1300 * 0.01 / 2
    assert busy.last_s < 1300 * 0.01 / 2 + 10 * 0.11
    much = start_all(StartOperations(1, 1000, 1), 100, 1, COSTS, skew_s=0.0, seed=1)
    assert much.last_s == pytest.approx(100 * 1000 / 1000.0, rel=0.05)


def test_the_command_prints_both_ways_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "start", "--nodes", "20", "--ranks", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    bundled, modules = found["starts"]
    assert bundled["operations"] == 20 * (BUNDLED.first + 2 * BUNDLED.further)
    assert bundled["last_s"] < modules["last_s"]
    assert main(["sim", "start", "--nodes", "2", "--ranks", "3"]) == 0
    assert "module by module" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--nodes", "0"], ["--nodes", "9999999"], ["--skew", "-1"]])
def test_what_cannot_be_simulated_is_one_sentence(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "start", *flags]) == 1
    assert capsys.readouterr().err.startswith(f"copperfs: {flags[0]}")
