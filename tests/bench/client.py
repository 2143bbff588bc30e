"""Builds `client.c` and runs it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from tests.bench.processes import CannotMeasureError

RUN_TIMEOUT_S = 600


class Client:
    def __init__(self, cache: Path) -> None:
        source = Path(__file__).with_name("client.c")
        self._program = cache / f"client-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
        if not self._program.exists():
            cache.mkdir(parents=True, exist_ok=True)
            partial = self._program.with_suffix(".partial")
            flags = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]
            try:
                subprocess.run(["gcc", *flags, "-o", partial, source], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise CannotMeasureError(f"client.c cannot be compiled: {error}") from None
            partial.rename(self._program)

    def run(self, *arguments: object) -> float:
        try:
            done = subprocess.run(
                [str(self._program), *map(str, arguments)],
                capture_output=True,
                text=True,
                check=True,
                timeout=RUN_TIMEOUT_S,
            )
        except subprocess.CalledProcessError as error:
            raise CannotMeasureError(f"client {arguments[0]}: {error.stderr.strip()}") from None
        except subprocess.TimeoutExpired as error:
            raise CannotMeasureError(f"client {arguments[0]}: {error}") from None
        return float(done.stdout)
