"""The chronicle: what happened to the nodes as this one saw it, from which a failure can be retold.

``--events FILE`` has a line of JSON for each: when, on which node, what, to whom, and how long it
took until it was noticed. The same goes to the log. The lines of all nodes put together and sorted
by time tell who noticed what first, and who turned to whom.
"""

import json
import logging
import time
from dataclasses import dataclass, field
from typing import TextIO

from copperfs.core.actions import Happened
from copperfs.errors import MountError
from copperfs.roster import Roster
from copperfs.types import NodeId

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 64 << 20
"""Some 400,000 lines: nobody reads more, and a job that is so unwell must not fill a disk."""


@dataclass(slots=True)
class Chronicle:
    me: NodeId
    roster: Roster
    path: str | None = None
    _file: TextIO | None = field(default=None, init=False)

    def open(self) -> None:
        """MountError if it cannot be written to."""
        if self.path is None:
            return
        try:
            self._file = open(self.path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        except OSError as error:
            raise MountError(f"{self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def note(self, happened: Happened) -> None:
        name = None if happened.peer is None else self.roster.member(happened.peer).name
        took_ms = None if happened.seconds is None else round(happened.seconds * 1000)
        after = "" if took_ms is None else f" after {took_ms} ms"
        about = "this node" if name is None else f"node {happened.peer}, {name}"
        log.info(
            "%s: %s%s%s", about, happened.what, after, happened.detail and f" ({happened.detail})"
        )
        if self._file is None:
            return
        line = {
            "time": round(time.time(), 4),
            "node": self.me,
            "what": happened.what,
            "peer": happened.peer,
            "name": name,
            "detail": happened.detail,
            "took_ms": took_ms,
        }
        try:
            self._file.write(json.dumps(line) + "\n")
            if self._file.tell() > FILE_BYTES_MAX:
                log.warning("%s is full: what happens is only logged from now on", self.path)
                self.close()
        except OSError as error:
            log.warning("%s can no longer be written: %s", self.path, error.strerror)
            self.close()
