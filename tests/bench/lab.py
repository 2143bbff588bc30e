"""Lab: the context of every benchmark, and the one rule of measuring: interleave.

A round takes one sample from every contestant, so that other load on the machine meets all of them.
A contestant that fails is noted and left out from then on.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console

from tests.bench.client import Client
from tests.bench.contestants import Contestant, Mounted
from tests.bench.packages import PackageSet
from tests.bench.processes import CannotMeasureError

FAILURES = (CannotMeasureError, OSError, subprocess.SubprocessError)


class Named(Protocol):
    name: str


N = TypeVar("N", bound=Named)

# measure -> contestant -> samples
Samples = dict[str, dict[str, list[float]]]


@dataclass
class Context:
    console: Console
    repeats: int
    cache: Path
    client: Client
    package_sets: Sequence[PackageSet]
    process_counts: Sequence[int]
    big_mib: int
    files: int
    wanted: frozenset[str]  # names of contestants; empty: all
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """The reader of the numbers has to know it; said once."""
        if text not in self.notes:
            self.notes.append(text)
            self.console.print(f"note: {text}", style="yellow", markup=False)

    def progress(self, text: str) -> None:
        self.console.print(f"{time.strftime('%H:%M:%S')} {text}", style="dim", markup=False)

    def taking_part(self, candidates: Sequence[Contestant]) -> list[Contestant]:
        present = []
        for contestant in candidates:
            if self.wanted and contestant.name.split(",")[0] not in self.wanted:
                continue
            if reason := contestant.missing():
                self.note(f"{contestant.name}: {reason}")
            else:
                present.append(contestant)
        return present

    @contextlib.contextmanager
    def all_mounted(
        self, contestants: Sequence[Contestant], source: Path
    ) -> Iterator[dict[Contestant, Mounted]]:
        """Contestants that cannot mount are left out."""
        with contextlib.ExitStack() as stack:
            places = {}
            for contestant in contestants:
                try:
                    places[contestant] = stack.enter_context(contestant.mounted(source))
                except FAILURES as error:
                    self.note(f"{contestant.name}: {error}")
            yield places

    def interleave(
        self,
        label: str,
        contestants: Sequence[N],
        sample: Callable[[N], Mapping[str, float]],
    ) -> Samples:
        """Ask each contestant in turn, `repeats` times round."""
        taken: Samples = {}
        failed: set[str] = set()
        for turn in range(self.repeats):
            self.progress(f"{label}, round {turn + 1} of {self.repeats}")
            for contestant in contestants:
                if contestant.name in failed:
                    continue
                try:
                    values = sample(contestant)
                except FAILURES as error:
                    failed.add(contestant.name)
                    self.note(f"{label}: {contestant.name} failed: {error}")
                    continue
                for name, value in values.items():
                    taken.setdefault(name, {}).setdefault(contestant.name, []).append(value)
        return taken


def make_file(path: Path, size: int) -> Path:
    if not path.exists() or path.stat().st_size != size:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        with open("/dev/urandom", "rb") as noise, partial.open("wb") as out:
            left = size
            while left > 0:
                left -= out.write(noise.read(min(left, 1 << 22)))
        partial.rename(path)
    return path
