"""Workloads, programs and whole experiments."""

import json
from dataclasses import replace
from statistics import fmean

import pytest

from copperfs.lab.sim import baselines, workload
from copperfs.lab.sim import parameter_sweeps as effects
from copperfs.lab.sim.costs import PRESETS, Costs, costs_of
from copperfs.lab.sim.experiment import Experiment, run, weights_of
from copperfs.lab.sim.workload import MIB, Want
from copperfs.lab.sim.world import Job
from copperfs.model.errors import SimulationError
from copperfs.model.types import Path

SLINGSHOT = PRESETS["slingshot"]


def row(op: str, path: str, size: int | None = 0, *, found: bool = True) -> str:
    return json.dumps({"op": op, "path": path, "found": found, "size": size or 0})


def test_a_trace_is_what_has_to_be_there_in_its_order() -> None:
    lines = [
        row("stat", "a/b/missing", found=False),
        row("open", "a/b/f", 10),
        row("stat", "a/g"),
        row("open", "a/b/f", 10),
        row("list", "c"),
        row("open", "gone/x", found=False),
    ]
    found = workload.from_trace("t", lines, 1.0)
    top, a, b, c = (Want(Path(each)) for each in (b"", b"a", b"a/b", b"c"))
    assert found.wants == [top, a, b, Want(Path(b"a/b/f"), 10), c]
    assert found.files == {b"a/b/f": 10, b"a/g": 0}
    assert (found.lookups, found.opens) == (5, 3)
    assert Want(Path(b"a/b/missing"), workload.NAME) in found.by_name


def test_a_record_has_its_sizes_from_where_it_was_made() -> None:
    lines = ['{"path": "", "kind": "listing"}', '{"path": "d/f", "kind": "object"}']
    lines.append('{"path": "d/gone", "kind": "object"}')
    sizes = {Path(b""): 0, Path(b"d/f"): 7}
    found = workload.from_manifest("r", lines, sizes.get, 1.0)
    assert found.files == {b"d/f": 7}
    assert Want(Path(b"d/f"), 7) in found.wants


@pytest.mark.parametrize("line", ["{", "[]", '{"op": "stat"}', '{"op": 1, "path": "", "found": 1}'])
def test_what_is_no_trace_says_so(line: str) -> None:
    with pytest.raises(SimulationError, match="t is no trace"):
        workload.from_trace("t", [line], 1.0)


def test_the_recorded_imports_are_those_of_the_documents() -> None:
    torch = workload.torch()
    large = [w.size for w in torch.wants if w.size is not None and w.size > 10 * MIB]
    assert len(large) == 3
    assert torch.opens == 888
    assert len(torch.small_only(10 * MIB).wants) == len(torch.wants) - 3
    assert len(workload.mpi4py().files) > 30


def test_the_nodes_share_a_dataset_in_another_order_in_each_epoch() -> None:
    data = workload.dataset(4, files=100, size=1000, epochs=2, seed=1, compute_s=0.1)
    assert data.orders is not None
    firsts = [each for node in range(4) for each in data.orders(node)[66:91]]
    seconds = [each for node in range(4) for each in data.orders(node)[91:]]
    assert sorted(firsts) == sorted(seconds) == list(range(66, 166))
    assert firsts != seconds


def test_each_object_is_read_once_however_many_nodes_import() -> None:
    small = workload.mpi4py()
    results = [
        run(Experiment(small, effects.job_of(n), SLINGSHOT, skew_s=0.0)) for n in (2, 40, 160)
    ]
    for result in results:
        assert result.source_most == 1
        assert result.source == results[0].source
        assert result.cold_s > result.warm_s > 0
    assert results[2].cold_s < 1.5 * results[1].cold_s


def test_one_seed_is_one_result() -> None:
    experiment = Experiment(workload.mpi4py(), effects.job_of(12), SLINGSHOT)
    one, again, other = run(experiment), run(experiment), run(replace(experiment, seed=2))
    assert (one.cold_s, one.messages) == (again.cold_s, again.messages)
    assert one.cold_s != other.cold_s


def test_large_files_are_read_by_each_node_or_through_the_data_tier() -> None:
    files = {Path(b"d/large"): 32 * MIB}
    one = workload.Workload("large", files, [Want(Path(b"d")), Want(Path(b"d/large"), 32 * MIB)], 0)
    bypassed = run(Experiment(one, effects.job_of(8, chunk_bytes=0), SLINGSHOT))
    assert bypassed.source["open"] == 8
    assert bypassed.streamed_bytes == 8 * 32 * MIB
    tiered = run(Experiment(one, effects.job_of(8), SLINGSHOT))
    assert tiered.source["chunk"] == 32
    assert tiered.streamed_bytes == 0
    some = run(Experiment(replace(one, chunks=0.25), effects.job_of(8), SLINGSHOT))
    assert some.source["chunk"] == 8


def test_chunks_are_read_once_also_where_nodes_stand_for_others() -> None:
    size = 8 * MIB + MIB // 2
    files = {Path(b"d/large"): size}
    one = workload.Workload(
        "large", files, [Want(Path(b"d")), Want(Path(b"d/large"), size)], 0, chunks=0.3
    )
    result = run(Experiment(one, effects.job_of(2048, tree_max_bytes=MIB), SLINGSHOT, stand_for=8))
    assert result.simulated < 600
    assert result.source["chunk"] == 3


def test_a_pushed_set_is_there_before_it_is_wanted() -> None:
    result = run(Experiment(workload.mpi4py(), effects.job_of(20), SLINGSHOT, push=True))
    assert result.pushed_s is not None
    assert result.messages["Batch"] > 0
    assert result.source["read"] == len(workload.mpi4py().files)


@pytest.mark.parametrize("nodes", [1, 2, 17, 300, 2048, 8300, 100_000])
@pytest.mark.parametrize("stand_for", [1, 4, 8])
def test_those_who_stand_for_others_are_as_many_as_all(nodes: int, stand_for: int) -> None:
    weights = weights_of(Job(nodes), stand_for)
    assert sum(weights.values()) == nodes
    assert weights[0] == 1
    assert len(weights) == nodes or stand_for > 1


def test_a_job_in_which_some_stand_for_others_is_like_the_whole() -> None:
    """Over five seeds; docs/simulator.md has the figures for the large jobs."""
    whole = Experiment(workload.mpi4py(), effects.job_of(400), SLINGSHOT)
    times: dict[int, list[float]] = {1: [], 4: []}
    messages: dict[int, list[int]] = {1: [], 4: []}
    for seed in range(5):
        for stand_for in times:
            result = run(replace(whole, seed=seed, stand_for=stand_for))
            times[stand_for].append(result.cold_s)
            messages[stand_for].append(result.messages_total)
    assert fmean(times[4]) == pytest.approx(fmean(times[1]), rel=0.1)
    assert fmean(messages[4]) == pytest.approx(fmean(messages[1]), rel=0.2)


# --- costs and models -----------------------------------------------------------------------------


def test_costs_are_read_as_they_are_written(tmp_path: "object") -> None:
    from pathlib import Path as File

    file = File(str(tmp_path)) / "costs.json"
    file.write_text(SLINGSHOT.to_json())
    assert costs_of(str(file)) == SLINGSHOT
    file.write_text('{"network": {"latency_s": 1e-3}}')
    assert costs_of(str(file)).network.latency_s == 1e-3
    for text in ("[", "[]", '{"network": 1}', '{"nonsense": 1}', '{"source": {"servers": -1}}'):
        file.write_text(text)
        with pytest.raises(SimulationError):
            costs_of(str(file))
    with pytest.raises(SimulationError, match="10gbe or slingshot"):
        costs_of("nowhere")


def test_lustre_alone_comes_to_what_was_published() -> None:
    """120 s at 2,048 nodes: from the rate of 400,000 operations a second, without a fit."""
    modelled = baselines.lustre(workload.torch(), 2048, SLINGSHOT)
    assert modelled.cold_s == pytest.approx(120, rel=0.1)


def test_lustre_grows_with_the_nodes_and_copper_hardly() -> None:
    torch = workload.torch()
    for model, growth in ((baselines.lustre, 100), (baselines.copper, 1.2)):
        few, many = (model(torch, nodes, SLINGSHOT).cold_s for nodes in (32, 8300))
        assert many > growth * few


def test_costs_have_a_default() -> None:
    assert Costs().network.bytes_per_s == 1.25e9
