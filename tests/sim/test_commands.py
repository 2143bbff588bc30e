"""The commands of ``copperfs sim``, as a user types them."""

import json
from pathlib import Path

import pytest

from copperfs.cli.main import main
from copperfs.lab.sim.process_pool import Broken, run_all


def test_run_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", "--nodes", "5", "--workload", "mpi4py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"] == found["simulated"] == 5
    assert found["source_most"] == 1


def test_a_sweep_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "cold.svg"
    arguments = ["sim", "sweep", "cold", "--workload", "mpi4py", "--nodes", "2", "4"]
    assert main([*arguments, "--svg", str(picture), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [point["x"] for point in found["points"]] == [2, 4]
    assert "copperfs (simulated)" in picture.read_text()


def test_seeds_are_swept_and_those_that_failed_once_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "failed"
    kept.write_text("14 # a word\n\n")
    arguments = ["sim", "sweep", "seeds", "--first", "1", "--count", "2", "--failed", str(kept)]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == 3
    assert found["failed"] == []
    assert found["environments"]["clocks off"] in range(1, 4)


def test_a_seed_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "replay", "--seed", "2", "--last", "5"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 5
    environment, fault = err.splitlines()
    assert environment.startswith("environment: ")
    assert "a sick name: EIO" in environment
    assert fault == "well"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--nodes", "0"], "--nodes is 0"),
        (["run", "--workload", "nothing"], "cannot be read"),
        (["run", "--workload", "dataset:x"], "give dataset:FILES:BYTES:EPOCHS"),
        (["run", "--costs", "nothing"], "--costs nothing"),
        (["run", "--stand-for", "4", "--trees", "2"], "--stand-for"),
        (["sweep", "cold", "--nodes", "0"], "at least 1"),
        (["replay", "/nowhere"], "cannot be read"),
        (["calibrate", "--files", "1"], "at least 100"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *arguments]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_record_is_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"x" * 70)
    record = tmp_path / "record"
    record.write_text('{"path": "d", "kind": "listing"}\n{"path": "d/f", "kind": "object"}\n')
    arguments = ["sim", "run", "--nodes", "3", "--workload", str(record)]
    assert main(arguments) == 1
    assert "--source" in capsys.readouterr().err
    assert main([*arguments, "--source", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"]["read"] == 1


def test_a_crew_gives_back_what_each_has_done_and_what_broke() -> None:
    tasks = [lambda n=n: n * n for n in range(5)]
    assert sorted(run_all(tasks, 2)) == [(n, n * n) for n in range(5)]

    def breaks() -> int:
        raise ValueError("one of them")

    with pytest.raises(Broken, match="ValueError: one of them"):
        list(run_all([breaks], 1))
