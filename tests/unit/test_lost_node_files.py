"""``copperfs sim ring``: the nodes that receive the files of a lost node."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from copperfs.cli import main as cli
from copperfs.lab.sim.lost_node_files import RingExperiment, expected_receivers, run
from copperfs.lab.sim.lost_node_svg import picture

SMALL = RingExperiment(
    nodes=64, files=8192, trials=90, rings=3, vnodes=(5, 50, 500), rendezvous=True
)
FLAGS = ["--nodes=64", "--files=8192", "--trials=90", "--rings=3", "--rendezvous"]
FLAGS += ["--vnodes", "5", "50", "500"]


def test_as_many_receive_as_is_expected_without_simulation() -> None:
    outcomes = run(SMALL)
    assert [each.vnodes for each in outcomes] == [5, 50, 500, None]
    for each in outcomes:
        # 90 trials on 3 rings: five standard errors.
        margin = 5 * each.receivers_deviation / SMALL.trials**0.5
        assert each.receivers == pytest.approx(each.expected, abs=margin)
        assert each.receivers_least <= each.receivers <= each.receivers_most
    assert outcomes[0].expected == pytest.approx(4.63, abs=0.01)
    assert outcomes[-1].expected == pytest.approx(54.74, abs=0.01)


def test_every_lost_file_is_received_and_load_evens_out_with_virtual_nodes() -> None:
    outcomes = run(SMALL)
    for each in outcomes:
        lost = each.files * each.receivers
        assert lost == pytest.approx(SMALL.files / SMALL.nodes, rel=0.15)
        assert each.files <= each.files_most
    assert [each.files_deviation for each in outcomes] == sorted(
        (each.files_deviation for each in outcomes), reverse=True
    )
    assert outcomes[0].imbalance > outcomes[1].imbalance > outcomes[2].imbalance > 1


def test_an_outcome_follows_from_its_seed() -> None:
    one = RingExperiment(nodes=16, files=512, trials=4, rings=2, vnodes=(10,), seed=7)
    other = RingExperiment(nodes=16, files=512, trials=4, rings=2, vnodes=(10,), seed=8)
    assert run(one) == run(one)
    assert run(one) != run(other)


@pytest.mark.parametrize(("trials", "rings"), [(5, 5), (7, 3), (48, 3)])
def test_all_trials_are_made_on_as_many_rings_as_asked(trials: int, rings: int) -> None:
    experiment = RingExperiment(nodes=16, files=64, trials=trials, rings=rings, vnodes=(3, 4))
    steps: list[None] = []
    outcomes = run(experiment, lambda: steps.append(None))
    assert len(steps) == experiment.steps == 2 * rings
    assert [each.trials for each in outcomes] == [trials, trials]


def test_expected_receivers_of_the_paper_s_experiment() -> None:
    """The paper's 3 receivers at 10 virtual nodes do not follow."""
    for vnodes, receivers in ((10, 9.8), (100, 80.3), (1000, 288.3), (2000, 336.2), (None, 402.8)):
        assert expected_receivers(1024, 524_288, vnodes) == pytest.approx(receivers, abs=0.05)


def test_a_job_that_loses_nothing_has_a_picture_too() -> None:
    experiment = RingExperiment(nodes=50, files=1, trials=1, rings=1, vnodes=(1,))
    outcomes = run(experiment)
    assert outcomes[0].receivers == 0, "the node that is lost had nothing"
    ElementTree.fromstring(picture(experiment, outcomes))


# ---- the command --------------------------------------------------------------------------------


def test_the_command_prints_json_and_draws(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    drawn = tmp_path / "ring.svg"
    assert cli.main(["sim", "ring", *FLAGS, "--json", "--svg", str(drawn)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert (document["nodes"], document["trials"]) == (64, 90)
    outcomes = run(SMALL)
    assert [each["receivers"] for each in document["outcomes"]] == [o.receivers for o in outcomes]
    assert drawn.read_text() == picture(SMALL, outcomes)
    shapes = [element.tag.rpartition("}")[2] for element in ElementTree.parse(drawn).iter()]
    assert (shapes.count("rect"), shapes.count("circle")) == (4, 4)


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sim", "ring", *FLAGS]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[:4] == ["virtual", "nodes", "receivers", "expected"]
    assert [row.split()[0] for row in rows] == ["5", "50", "500", "rendezvous"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--nodes 1", "--nodes is 1; give 2 to 200,000"),
        ("--files 0", "--files is 0; give at least 1"),
        ("--trials 3 --rings 4", "3 trials cannot be spread over 4 rings"),
        ("--trials 3 --rings 0", "3 trials cannot be spread over 0 rings"),
        ("--nodes 4 --trials 20 --rings 4", "4 rings of 4 nodes are enough for 16 trials"),
        ("--nodes 200000 --vnodes 100 101", "--vnodes has 101; with 200000 nodes give 1 to 100"),
        ("--vnodes 0", "--vnodes has 0"),
        ("--svg /nowhere/ring.svg", "/nowhere/ring.svg cannot be written: No such file"),
    ],
)
def test_what_cannot_be_simulated_is_told_in_a_sentence(
    flags: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sim", "ring", *flags.split()]) == 1
    assert sentence in capsys.readouterr().err
