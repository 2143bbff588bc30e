"""The front under clang's sanitizers, at length: all its threads at once, and fuzzed.

Fuzzing starts from made-up seeds and from what failed before. ``COPPERFS_FUZZ_S`` makes it longer
than a minute for each fuzzer. A failing input is to be added to ``corpus/``, named after its
fuzzer: ``test_front_quick.py`` then runs it for ever.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.front.build import FUZZERS, STRESS, STRESS_SOURCE, build, failed_before, run
from tests.front.seeds import write_seeds

pytestmark = pytest.mark.long

FUZZ_S = int(os.environ.get("COPPERFS_FUZZ_S", "60"))
FUZZ_RUNS = 200_000 if FUZZ_S <= 60 else -1  # -1: for as long as there is time
STRESS_REQUESTS = 50_000
STRESS_TIMEOUT_S = 600.0
SOURCE_ROUNDS = 300


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_stress(sanitizers: str, tmp_path: Path) -> None:
    stress = build("clang", sanitizers, STRESS, tmp_path / "stress")
    output = run([stress, str(STRESS_REQUESTS)], timeout_s=STRESS_TIMEOUT_S)
    assert output.startswith(f"{STRESS_REQUESTS} requests")
    assert "WARNING" not in output  # so begins what ThreadSanitizer has to say


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_stress_of_the_source(sanitizers: str, tmp_path: Path) -> None:
    stress = build("clang", sanitizers, STRESS_SOURCE, tmp_path / "stress")
    (tmp_path / "source").mkdir()
    output = run([stress, tmp_path / "source", str(SOURCE_ROUNDS)], timeout_s=STRESS_TIMEOUT_S)
    assert output == f"{SOURCE_ROUNDS} rounds\n"


@pytest.mark.parametrize("fuzzer", sorted(FUZZERS))
def test_fuzz(fuzzer: str, tmp_path: Path) -> None:
    program = build("clang", "fuzzer,address,undefined", FUZZERS[fuzzer], tmp_path / fuzzer)
    seeds = tmp_path / "seeds"
    write_seeds(fuzzer, seeds)
    for path in failed_before(fuzzer):
        shutil.copy(path, seeds)
    limits = [f"-runs={FUZZ_RUNS}", f"-max_total_time={FUZZ_S}", "-max_len=1500", "-timeout=20"]
    artifacts = f"-artifact_prefix={tmp_path}/"
    output = run([program, *limits, artifacts, seeds], timeout_s=FUZZ_S + 120.0)
    assert "Done " in output
