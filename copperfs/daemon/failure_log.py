"""Failure log: records what this node saw happen to the nodes, so that a failure can be
reconstructed.

``--events FILE`` gets a line of JSON for each event. The lines of all nodes, sorted by time, show
which node noticed a failure first, and where each node turned for help. A thread writes them,
because the file may be on the very filesystem that hangs.
"""

import json
import logging
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TextIO

from copperfs.fuse.safe_open import open_to_append
from copperfs.model.errors import MountError
from copperfs.model.roster import Roster
from copperfs.model.types import NodeId
from copperfs.node.actions import LogEvent

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 64 << 20
"""Some 400,000 lines: a failing job must not fill a disk."""
LINES_MAX = 4096
"""Further lines go to the log only."""
WRITTEN_WITHIN_S = 1.0


@dataclass(slots=True)
class FailureLogWriter:
    me: NodeId
    roster: Roster | None
    """None: this node is alone."""
    path: str | None = None
    _lines: "queue.Queue[str | None]" = field(
        default_factory=lambda: queue.Queue(LINES_MAX), init=False
    )
    _writer: threading.Thread | None = field(default=None, init=False)

    def open(self) -> None:
        if self.path is None:
            return
        try:
            file = open(open_to_append(self.path), "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        except OSError as error:
            raise MountError(f"{self.path} cannot be written: {error.strerror}") from None
        self._writer = threading.Thread(target=self._write, args=(file,), daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Write what was noted, unless the filesystem hangs."""
        if self._writer is not None:
            with suppress(queue.Full):
                self._lines.put_nowait(None)
            self._writer.join(WRITTEN_WITHIN_S)
            self._writer = None

    def note(self, happened: LogEvent) -> None:
        name = self._name_of(happened.peer)
        took_ms = _milliseconds(happened.seconds)
        after = "" if took_ms is None else f" after {took_ms} ms"
        about = "this node" if name is None else f"node {happened.peer}, {name}"
        log.info(
            "%s: %s%s%s", about, happened.what, after, happened.detail and f" ({happened.detail})"
        )
        self.record(happened)

    def record(self, happened: LogEvent) -> None:
        """Not in the log, too."""
        if self._writer is None:
            return
        name = self._name_of(happened.peer)
        took_ms = _milliseconds(happened.seconds)
        line = {
            "time": round(time.time(), 4),
            "node": self.me,
            "what": happened.what,
            "peer": happened.peer,
            "name": name,
            "detail": happened.detail,
            "took_ms": took_ms,
        }
        with suppress(queue.Full):
            self._lines.put_nowait(json.dumps(line) + "\n")

    def _name_of(self, peer: NodeId | None) -> str | None:
        if peer is None or self.roster is None:
            return None
        return self.roster.member(peer).name

    def _write(self, file: TextIO) -> None:
        with file:
            while (line := self._lines.get()) is not None:
                try:
                    file.write(line)
                    if file.tell() > FILE_BYTES_MAX:
                        log.warning("%s is full: what happens is only logged now", self.path)
                        return
                except OSError as error:
                    log.warning("%s can no longer be written: %s", self.path, error.strerror)
                    return


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
