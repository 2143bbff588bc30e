"""``python -m copperfs.inplace.change_covers MOUNTS_FD USERS_FD``: changes the covers of an
in-place run. The daemon starts this process outside of the namespace; the process enters.

It covers more directories, for a further command with another environment. Or it mounts the overlay
anew: after ``clear`` files may have other node numbers, and overlayfs bears no change below; it
would answer ESTALE for them for good. Processes that have files of the old overlay open keep them.

New covers are looked up before the old ones are removed. In between, for two system calls, a path
leads to the source.
"""

import json
import os
import sys

from copperfs.inplace.namespace import cover, enter, mountpoint_inside, overlay_inside, overlay_of


def main() -> int:
    mounts_fd, users_fd = (int(each) for each in sys.argv[1:3])
    request = json.load(sys.stdin)
    enter(mounts_fd, None if users_fd < 0 else users_fd)
    anew, mountpoint = request["anew"], mountpoint_inside()
    shown = overlay_of(mountpoint, anew=True) if anew else overlay_inside() or mountpoint
    if shown is None:
        return 1
    done = cover(shown, request["source"], request["directories"], request["writable"], anew=anew)
    json.dump(done, sys.stdout)
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    os._exit(main())
