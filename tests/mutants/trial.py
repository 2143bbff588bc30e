"""Trials: tests and seeds, on one mutant, each in a process that has just been forked.

The forking process has pytest and the libraries imported, and nothing of copperfs. A trial changes
the module, imports what its tests import, and runs them in the given order, to the first failure.

A test fails if it runs for a few times as long as on a healthy tree. The limits are signals, which
end an endless loop in C code, too: one on CPU time, since the machine may be busy, and one on the
clock for a test that waits without end.
"""

import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import hypothesis
import pytest

from tests.mutants.loading import ROOT, Probes, install_mutant, install_probes, modules
from tests.mutants.operators import Mutation

MEMORY_BYTES_MAX = 3 << 30
TIMES_MAX, GRACE_CPU_S, GRACE_S = 4.0, 5.0, 60.0
SESSION_GRACE_S = 120.0
Report = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Limit:
    cpu_s: float
    wall_s: float

    def begin(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, GRACE_CPU_S + TIMES_MAX * self.cpu_s)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S + 2 * TIMES_MAX * self.wall_s)


UNKNOWN = Limit(60.0, 120.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """*by*: the test or seed that noticed; None where all passed."""

    by: str | None
    how: str
    """"failed", "timeout" or "passed"."""
    detail: str
    cpu_s: float


def apart(work: Callable[[Report], None], scratch: Path) -> tuple[list[dict[str, object]], int]:
    """The reports of *work* from a process of its own, by a file, since forks of a trial would keep
    a pipe open; and that process's exit status."""
    told, output = scratch / "told", scratch / "output"
    told.write_bytes(b"")
    child = os.fork()
    if child == 0:
        status = 70
        try:
            _settle(output)
            with told.open("a", buffering=1, encoding="utf-8") as file:
                work(lambda **what: print(json.dumps(what), file=file))
            status = 0
        except BaseException:  # noqa: BLE001 - nothing of the forking process may go on here
            traceback.print_exc()
        finally:
            os._exit(status)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes that it started and did not end
    _, status = os.waitpid(child, 0)
    return [json.loads(line) for line in told.read_text().splitlines()], status


def _settle(output: Path) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, SESSION_GRACE_S)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((file, 1), (file, 2), (nothing, 0)):
        os.dup2(ours, theirs)


# --- tests ----------------------------------------------------------------------------------------


class _Watch:
    """Plugin of pytest: which tests to run, in which order, for how long, and their outcomes."""

    def __init__(
        self,
        report: Report,
        wanted: Sequence[str] | None,
        limits: Mapping[str, Limit],
        probes: Probes | None,
    ) -> None:
        self._report, self._limits, self._probes = report, limits, probes
        self._rank = None if wanted is None else {name: at for at, name in enumerate(wanted)}

    def pytest_sessionstart(self) -> None:
        # Hypothesis's examples follow from the test alone, and none is kept.
        hypothesis.settings.register_profile(
            "mutants", deadline=None, derandomize=True, database=None
        )
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._rank is not None:
            rank = self._rank
            items[:] = sorted(
                (each for each in items if each.nodeid in rank), key=lambda each: rank[each.nodeid]
            )
        if self._probes is not None:
            self._report(imported=self._probes.hit(), modules=sorted(sys.modules))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._report(begun=item.nodeid)
        if self._probes is not None:
            self._probes.clear()
        self._limits.get(item.nodeid, UNKNOWN).begin()
        cpu, wall = time.process_time(), time.monotonic()
        result = yield
        took = time.process_time() - cpu, time.monotonic() - wall
        UNKNOWN.begin()
        hit = self._probes.hit() if self._probes is not None else None
        self._report(ended=item.nodeid, cpu_s=took[0], wall_s=took[1], hit=hit)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            detail = str(getattr(report.longrepr, "reprcrash", report.longrepr))
            self._report(**{report.outcome: report.nodeid, "detail": detail[-300:]})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report(failed=report.nodeid, detail=str(report.longrepr)[-300:])


def run_tests(
    report: Report,
    scratch: Path,
    files: Sequence[str],
    wanted: Sequence[str] | None = None,
    limits: Mapping[str, Limit] = MappingProxyType({}),
    probes: Probes | None = None,
    *,
    to_first_failure: bool = True,
) -> None:
    os.chdir(ROOT)
    options = ["-q", "-p", "no:cacheprovider", "-m", "not long"]
    # It was imported before the plugins were looked for.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", f"--basetemp={scratch}/tmp"]
    if to_first_failure:
        options.append("-x")
    ended = pytest.main([*options, *files], plugins=[_Watch(report, wanted, limits, probes)])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        report(unusable=str(ended))  # a session that ran no test is no verdict


def try_tests(
    mutation: Mutation | None,
    wanted: Sequence[str],
    limits: Mapping[str, Limit],
    scratch: Path,
) -> Outcome:
    def work(report: Report) -> None:
        if mutation is not None:
            install_mutant(mutation)
        files = dict.fromkeys(name.partition("::")[0] for name in wanted)
        run_tests(report, scratch, list(files), wanted, limits)
        report(over=True)

    return _judged(work, scratch)


# --- seeds of the simulator -----------------------------------------------------------------------


def run_seeds(
    report: Report,
    seeds: Sequence[int],
    limits: Mapping[str, Limit],
    probes: Probes | None = None,
) -> None:
    """To the first seed that breaks a promise, with the judge of ``make sim``."""
    from copperfs.lab.sim.seed_sweep import judge  # the mutant is loaded only now

    for seed in seeds:
        name = f"seed {seed}"
        report(begun=name)
        if probes is not None:
            probes.clear()
        limits.get(name, UNKNOWN).begin()
        wall = time.monotonic()
        verdict = judge(seed)
        UNKNOWN.begin()
        hit = probes.hit() if probes is not None else None
        took = time.monotonic() - wall
        report(ended=name, cpu_s=verdict.cpu_s, wall_s=took, hit=hit)
        if verdict.fault is not None:
            report(failed=name, detail=verdict.fault[-300:])
            return


def try_seeds(
    mutation: Mutation | None, seeds: Sequence[int], limits: Mapping[str, Limit], scratch: Path
) -> Outcome:
    def work(report: Report) -> None:
        if mutation is not None:
            install_mutant(mutation)
        run_seeds(report, seeds, limits)
        report(over=True)

    return _judged(work, scratch)


def _judged(work: Callable[[Report], None], scratch: Path) -> Outcome:
    told, status = apart(work, scratch)
    cpu_s = sum(float(str(each.get("cpu_s", 0))) for each in told)
    _check_usable(told, scratch)
    for each in told:
        if "failed" in each:
            return Outcome(str(each["failed"]), "failed", str(each["detail"]), cpu_s)
    if told and "over" in told[-1]:
        return Outcome(None, "passed", "", cpu_s)
    last = next((str(each["begun"]) for each in reversed(told) if "begun" in each), "import")
    by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if by in (signal.SIGPROF, signal.SIGALRM):
        return Outcome(last, "timeout", signal.Signals(by).name, cpu_s)
    output = (scratch / "output").read_text(errors="replace")[-300:]
    return Outcome(last, "failed", f"the process ended with {status}: {output}", cpu_s)


def _check_usable(told: Sequence[Mapping[str, object]], scratch: Path) -> None:
    for each in told:
        if "unusable" in each:
            output = (scratch / "output").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"pytest carried out nothing, {each['unusable']}:\n{output}")


# --- a healthy tree -------------------------------------------------------------------------------


def observe(
    files: Sequence[str], seeds: Sequence[int], scratch: Path, *, with_probes: bool
) -> list[dict[str, object]]:
    def work(report: Report) -> None:
        probes = install_probes(modules()) if with_probes else None
        if files:
            run_tests(report, scratch, files, probes=probes, to_first_failure=False)
        else:
            run_seeds(report, seeds, {}, probes)
        report(over=True)

    told, status = apart(work, scratch)
    _check_usable(told, scratch)
    if not (told and "over" in told[-1]):
        output = (scratch / "output").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the healthy tree ended with {status}: {told[-3:]}\n{output}")
    return told
