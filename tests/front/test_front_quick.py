"""The front under gcc's AddressSanitizer for some seconds, with the inputs that failed before.

``test_sanitizers.py`` runs the same at length, with clang's ThreadSanitizer and fuzzer.
"""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.front.build import (
    CROWDED,
    FREED_AFTER_LOCK,
    FUZZERS,
    HANDED_OVER,
    HERE,
    KEPT_EXTENTS,
    LATE_DENIAL,
    LEFT_OUT,
    MANY_ENDINGS,
    STRESS,
    STRESS_ERASURE,
    STRESS_SOURCE,
    build,
    failed_before,
    run,
)
from tests.front.seeds import write_seeds
from tests.front.steps import NOT_ALL

PROJECT = HERE.parents[1]
QUICK_RUNS = "4000"
QUICK_REQUESTS = "5000"
TIMEOUT_S = 60.0

PROJECT_C = sorted(PROJECT.glob("copperfs/**/*.c"))
HARNESS_C = sorted(HERE.glob("*.c"))


def test_all_c_compiles_without_a_warning() -> None:
    include = sysconfig.get_path("include")
    for path in [*PROJECT_C, *HARNESS_C]:
        # one at a time: gcc finds more with -O2 than from the syntax alone
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
        command += ["-I", include, "-c", "-o", "/dev/null"]
        done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{path.name}: {done.stderr}"


@pytest.mark.parametrize("fuzzer", sorted(FUZZERS))
def test_what_failed_before_and_some_random_inputs_do_no_harm(fuzzer: str, tmp_path: Path) -> None:
    parts = [*FUZZERS[fuzzer], HERE / "replay.c"]
    replay = build("gcc", "address,undefined", parts, tmp_path / fuzzer)
    write_seeds(fuzzer, tmp_path / "seeds")
    inputs = [*failed_before(fuzzer), *sorted((tmp_path / "seeds").iterdir())]
    output = run([replay, QUICK_RUNS, *inputs], timeout_s=TIMEOUT_S)
    assert output.endswith(f"{len(inputs)} files, {QUICK_RUNS} runs\n")


@pytest.mark.parametrize("way", [[], ["memory"]], ids=["private", "memory"])
def test_every_request_gets_one_sound_reply_while_the_tables_change(
    tmp_path: Path, way: list[str | Path]
) -> None:
    stress = build("gcc", "address,undefined", STRESS, tmp_path / "stress")
    output = ""
    for _ in range(3):  # the order of the threads may leave out a kind of work
        output = run([stress, QUICK_REQUESTS, *way], timeout_s=TIMEOUT_S)
        if NOT_ALL not in output:
            break
    assert NOT_ALL not in output
    assert int(output.split(" requests", 1)[0]) >= int(QUICK_REQUESTS)


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_ranges_are_rebuilt_in_all_threads_and_nothing_beside_a_buffer_is_touched(
    tmp_path: Path, sanitizers: str
) -> None:
    program = build("gcc", sanitizers, STRESS_ERASURE, tmp_path / "stress_erasure")
    assert run([program, "100"], timeout_s=TIMEOUT_S) == "100 rounds\n"


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_a_denial_of_before_a_clear_is_written_before_the_kernel_is_told(
    tmp_path: Path, sanitizers: str
) -> None:
    program = build("gcc", sanitizers, LATE_DENIAL, tmp_path / "late_denial")
    assert run([program], timeout_s=TIMEOUT_S) == ""


def test_a_signal_of_too_many_names_is_never_lost(tmp_path: Path) -> None:
    program = build("gcc", "address,undefined", CROWDED, tmp_path / "crowded")
    assert run([program], timeout_s=TIMEOUT_S) == ""


def test_a_killed_process_leaves_all_that_the_kernel_knows(tmp_path: Path) -> None:
    program = build("gcc", "address,undefined", HANDED_OVER, tmp_path / "handed_over")
    assert run([program, "60", "1"], timeout_s=TIMEOUT_S).startswith("60 processes")


def test_a_name_that_was_left_out_costs_a_successor_no_other_one(tmp_path: Path) -> None:
    program = build("gcc", "address,undefined", LEFT_OUT, tmp_path / "left_out")
    assert run([program], timeout_s=TIMEOUT_S) == ""


def test_what_was_found_of_holes_is_kept_and_answered_with(tmp_path: Path) -> None:
    program = build("gcc", "address,undefined", KEPT_EXTENTS, tmp_path / "kept_extents")
    assert run([program], timeout_s=TIMEOUT_S) == ""


def test_many_endings_in_one_directory_are_gone_through_once(tmp_path: Path) -> None:
    program = build("gcc", "address,undefined", MANY_ENDINGS, tmp_path / "many_endings")
    names = 50_000
    for files, expected in ((1, 0), (2, names)):  # each second one has both read
        output = run([program, str(names), str(files)], timeout_s=TIMEOUT_S)
        read, steps = map(int, output.split())
        assert read == expected
        # the pass over the listing, the requester, the queue, and a hash table's comparisons
        assert steps < 12 * names


def test_what_the_tables_let_go_of_is_freed_when_their_lock_is_not_held(tmp_path: Path) -> None:
    program = build("gcc", "address,undefined", FREED_AFTER_LOCK, tmp_path / "freed_after_lock")
    assert run([program], timeout_s=TIMEOUT_S) == "12 freed\n"


def test_shared_scans_find_what_one_thread_finds(tmp_path: Path) -> None:
    stress = build("gcc", "address,undefined", STRESS_SOURCE, tmp_path / "stress")
    (tmp_path / "source").mkdir()
    output = run([stress, tmp_path / "source", "10"], timeout_s=TIMEOUT_S)
    assert output == "10 rounds\n"
