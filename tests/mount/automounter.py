"""Automounter (autofs) for one test: a directory that is mounted when a process enters it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The kernel lets processes of this group through to the bare directory.
AUTOMOUNTER = """if True:
    import fcntl, os, subprocess, struct, sys
    READY, TOKEN_AT = 0x9360, 8
    where = sys.argv[1]
    os.setpgid(0, 0)
    asked, asking = os.pipe()
    options = f"fd={asking},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
    subprocess.run(
        ["mount", "-i", "-t", "autofs", "-o", options, "test", where], check=True, pass_fds=[asking]
    )
    trigger = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    print("ready", flush=True)
    while packet := os.read(asked, 4096):
        [token] = struct.unpack_from("=I", packet, TOKEN_AT)
        subprocess.run(["mount", "-t", "tmpfs", "none", where], check=True)
        with open(where + "/file", "w") as file:
            file.write("mounted")
        fcntl.ioctl(trigger, READY, token)
"""


@contextmanager
def automounted(python: str, directory: Path) -> Iterator[Path]:
    command = [python, "-c", AUTOMOUNTER, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "autofs cannot be mounted"
            yield directory
        finally:
            process.kill()
            process.wait()
            while subprocess.run(["umount", "-lq", directory], check=False).returncode == 0:
                pass
