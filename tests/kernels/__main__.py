"""``python -m tests.kernels``: the chosen part of the mount suite under each kernel, and a table.

Each kernel is fetched, booted and judged by itself, one at a time. A test that is skipped under a
kernel is shown as such; one that the guest never reached is no success.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.kernels import archive, image, machine, suite
from tests.kernels.archive import KERNELS, Kernel
from tests.kernels.guest import RESULT, SCRATCH

PROJECT = Path(__file__).resolve().parents[2]
WORK = PROJECT / "build" / "kernels"
DEADLINE_S = 2700.0
CPUS = 2
LOGGED = r"^(tests/\S+\.py)::(.+) (PASSED|FAILED|ERROR|SKIPPED)(?: |$)"
OUTCOMES = {"PASSED": "passed", "FAILED": "failed", "ERROR": "failed", "SKIPPED": "skipped"}
PATIENCE = 15  # the slowdown of the emulation, see tests/patience.py


@dataclass(slots=True)
class Verdict:
    """The features that a kernel offers (probe.py), its tests by feature and outcome, their
    durations."""

    kernel: str
    release: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    offers: dict[str, object] = field(default_factory=dict)
    features: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def is_good(self) -> bool:
        return not self.error and not self.failed


def order(pytest_arguments: list[str]) -> dict[str, object]:
    """pytest with the interpreter that runs this."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        "command": [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
            "-p", "tests.kernels.failures", "-v", "--tb=short",
            f"--basetemp={SCRATCH}/t", f"--junit-xml={RESULT}/junit.xml",
            "-o", "junit_family=xunit1",
            *pytest_arguments,
        ],
        "directory": str(PROJECT),
        "environment": {
            **kept,
            "HOME": "/root",
            "TMPDIR": str(SCRATCH),
            "COPPER_TEST_PATIENCE": str(PATIENCE),
        },
    }  # fmt: skip


def reported(shared: Path) -> Iterator[tuple[str, str, str]]:
    """File, name and outcome of each test: from the report, or from the log as far as it goes."""
    if not (shared / "junit.xml").exists():
        log = (shared / "log").read_text(errors="replace") if (shared / "log").exists() else ""
        for file, name, word in re.findall(LOGGED, log, re.MULTILINE):
            yield file, name, OUTCOMES[word]
        return
    for case in ElementTree.parse(shared / "junit.xml").iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        outcome = "skipped" if "skipped" in kinds else outcome
        yield case.get("classname", "").replace(".", "/") + ".py", case.get("name", ""), outcome


def judge(verdict: Verdict, shared: Path, wanted: list[str]) -> None:
    """A wanted test that did not run is an error."""
    seen = []
    for file, name, outcome in reported(shared):
        feature = suite.feature_of(Path(file).stem, name)
        counts = verdict.features.setdefault(feature.name if feature else "others", {})
        counts[outcome] = counts.get(outcome, 0) + 1
        seen.append(f"{file}::{name}")
        if outcome == "failed":
            verdict.failed.append(f"{file}::{name}")
    missed = [each for each in wanted if not any(one.startswith(each) for one in seen)]
    if missed and not verdict.error:
        verdict.error = f"never run: {', '.join(missed)}"


def try_kernel(
    kernel: Kernel, pytest_arguments: list[str], deadline_s: float, cpus: int
) -> Verdict:
    verdict = Verdict(kernel.name)
    shared = WORK / "results" / kernel.name
    shutil.rmtree(shared, ignore_errors=True)
    try:
        package = archive.get(kernel, WORK)
        outcome = machine.boot(package, order(pytest_arguments), shared, deadline_s, cpus)
    except (archive.Unavailable, image.Broken) as error:
        verdict.error = str(error)
        return verdict
    verdict.seconds, verdict.cpu_seconds = outcome.seconds, outcome.cpu_seconds
    if outcome.timed_out:
        verdict.error = f"not done after {deadline_s:.0f} s; see {shared}/log"
    elif outcome.end is None:
        verdict.error = f"the guest ended without a word; see {shared}/console"
    else:
        verdict.release = outcome.end["kernel"]
        verdict.error = outcome.end.get("error", "")
    if (shared / "offers.json").exists():
        verdict.offers = json.loads((shared / "offers.json").read_text())
    if not (verdict.error or (shared / "junit.xml").exists()):
        verdict.error = f"pytest gave no report; see {shared}/log"
    judge(verdict, shared, [each for each in pytest_arguments if "::" in each])
    if outcome.end and outcome.end["status"] and verdict.is_good:
        # for instance because of processes that the tests left behind
        verdict.error = f"pytest ended with {outcome.end['status']}; see {shared}/log"
    return verdict


def cell(counts: dict[str, int]) -> str:
    if not counts:
        return "-"
    shown = [f"{number} {outcome}" for outcome, number in counts.items() if outcome != "passed"]
    return ", ".join(shown) or f"ok ({counts['passed']})"


def said(offer: object) -> str:
    if isinstance(offer, bool):
        return "yes" if offer else "no"
    return "-" if offer is None else str(offer)


def table(verdicts: list[Verdict]) -> str:
    """Rows: offers, then features. Columns: kernels. As Markdown."""
    offers = {name: None for each in verdicts for name in each.offers if name != "kernel"}
    names = [each.name for each in suite.FEATURES]
    names += [name for each in verdicts for name in each.features if name not in names]
    rows = [["", *(each.release or each.kernel for each in verdicts)]]
    rows += [["---"] * len(rows[0])]
    rows += [[name, *(said(each.offers.get(name)) for each in verdicts)] for name in offers]
    rows += [
        [name, *(cell(each.features.get(name, {})) for each in verdicts)]
        for name in dict.fromkeys(names)
    ]
    rows += [["wall time", *(f"{each.seconds:.0f} s" for each in verdicts)]]
    rows += [["CPU time of QEMU", *(f"{each.cpu_seconds:.0f} s" for each in verdicts)]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    names = [each.name for each in KERNELS]
    parser = argparse.ArgumentParser(prog="python -m tests.kernels", description=__doc__)
    parser.add_argument("--only", action="append", metavar="KERNEL",
                        help=f"one of {', '.join(names)}; may be repeated")  # fmt: skip
    parser.add_argument("--keep-going", action="store_true",
                        help="go on with the next kernel after one that failed")  # fmt: skip
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS",
                        help="for each kernel (default: %(default)g)")  # fmt: skip
    parser.add_argument("--cpus", type=int, default=CPUS, metavar="N",
                        help="of the guest (default: %(default)s); 1 where the machine is busy, "
                        "since emulated CPUs wait for each other")  # fmt: skip
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the verdicts there as well"
    )
    parser.add_argument("tests", nargs="*",
                        help="tests instead of the chosen ones, as pytest takes them")  # fmt: skip
    arguments = parser.parse_args()
    for name in arguments.only or []:
        if name not in names:
            parser.error(f"{name} is none of {', '.join(names)}")
    WORK.mkdir(parents=True, exist_ok=True)
    lock = (WORK / "lock").open("w")  # two runs would share disks and results
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        parser.error(f"another run uses {WORK}")
    verdicts = []
    for kernel in KERNELS:
        if arguments.only and kernel.name not in arguments.only:
            continue
        verdict = try_kernel(
            kernel, arguments.tests or suite.arguments(), arguments.deadline, arguments.cpus
        )
        verdicts.append(verdict)
        said = "good" if verdict.is_good else verdict.error or f"{len(verdict.failed)} failed"
        print(f"{kernel.name} ({verdict.release or 'not booted'}): {said}", flush=True)
        for each in verdict.failed:
            print(f"    {each}: see {WORK / 'results' / kernel.name}/failures", flush=True)
        if not verdict.is_good and not arguments.keep_going:
            break
    print(table(verdicts))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in verdicts], indent=1) + "\n")
    return 0 if all(each.is_good for each in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
