"""Descriptor exhaustion in a store: disk operations wait a moment for a free descriptor."""

import os
import threading
from pathlib import Path

from copperfs.chunkstore.disk_ops import DIRECTORY, READ, RealFiles
from tests.descriptors import no_descriptor_left

LONG_ENOUGH_S = 0.1
"""Seconds that suffice for a failure to show."""
WITHIN_S = 20.0


def test_what_needs_a_descriptor_waits_for_one(tmp_path: Path) -> None:
    (tmp_path / "chunk").write_bytes(b"head" + b"rest")
    found: list[object] = []
    files, rest = RealFiles(), bytearray(4)
    directory = files.open(str(tmp_path), DIRECTORY)

    def work() -> None:
        found.append(files.load("chunk", directory, 8, 4, memoryview(rest)))
        found.append(files.names(directory))
        os.close(files.open("chunk", READ, directory))
        found.append("opened")

    thread = threading.Thread(target=work)
    with no_descriptor_left():
        thread.start()
        thread.join(LONG_ENOUGH_S)
        assert thread.is_alive()
    thread.join(WITHIN_S)
    os.close(directory)
    assert found == [b"head", ["chunk"], "opened"]
    assert rest == b"rest"
