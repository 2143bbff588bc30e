"""``python -m copperfs.inplace.renew_overlay MOUNTS_FD USERS_FD``: mounts the overlay of an
in-place run anew.

After ``clear`` files may have other node numbers, and overlayfs bears no change below: it would
answer ESTALE for them for good. The daemon starts this process outside of the namespace. The
process enters and replaces the overlay. Whoever has files of the old overlay open keeps them.

New covers are looked up before the old ones are removed. In between, for two system calls, a path
leads to the source.
"""

import json
import os
import sys

from copperfs.inplace.namespace import cover, enter, mountpoint_inside, overlay_of


def main() -> int:
    mounts_fd, users_fd = (int(each) for each in sys.argv[1:3])
    request = json.load(sys.stdin)
    enter(mounts_fd, None if users_fd < 0 else users_fd)
    shown = overlay_of(mountpoint_inside(), anew=True)
    if shown is None:
        return 1
    done = cover(shown, request["source"], request["directories"], request["writable"], anew=True)
    sys.stderr.writelines(f"{path}: {why}\n" for path, why in done["failed"].items())
    return 0


if __name__ == "__main__":
    os._exit(main())
