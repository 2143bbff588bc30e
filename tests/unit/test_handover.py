"""What a daemon leaves for its successor."""

import os
import socket

from copperfs.config.settings import Settings
from copperfs.daemon.handover import Handover, launch_file, memory_file
from copperfs.daemon.path_policy_from_mounts import PathClasses
from copperfs.launch.launch_method import Launch
from copperfs.model.roster import Member, Roster
from copperfs.model.types import NodeId, Path

NODES = 8300
CLASSES = PathClasses(
    (Path(b""),), (Path(b"tmp"),), (Path(b"proc"),), (Path(b"\xff"),), ignores_inodes=True
)
WORDS_BYTES_MAX = 10_000


def test_what_never_changes_is_written_once() -> None:
    """A run that comes or goes has it left anew, on trio's thread."""
    members = tuple(
        Member(f"node{each}", f"tcp://10.0.{each >> 8}.{each & 255}:4501", f"{each:040}", 1 << 38)
        for each in range(NODES)
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        launch = Launch(Roster("job", members), NodeId(5), listener, "secret")
        settings = Settings(source="/source", mountpoint="/mnt", memory_bytes=1 << 30)
        fuse_fd, lock_fd = (os.open(os.devnull, os.O_RDONLY) for _ in range(2))
        state = memory_file("state")
        left = Handover(
            settings, launch, b"/source", 5, os.statvfs("/"), "0:5", state, fuse_fd,
            launch_file(launch), exclusives={"tier-lock": lock_fd}, users_fds=(state,),
            changes={"symlinks": "keep", "fanout": settings.fanout}, domains=(0, 0, 2),
            path_classes=CLASSES,
        )  # fmt: skip
        fds = left.to_fds()
        assert os.fstat(fds[1]).st_size < WORDS_BYTES_MAX
        copies = list(map(os.dup, fds))
        os.close(fds[1])
        taken = Handover.from_fds(copies)
        assert taken.launch is not None
        assert (taken.launch.roster, taken.launch.me) == (launch.roster, launch.me)
        assert taken.path_classes == CLASSES
        assert (taken.changes, taken.domains) == ({"symlinks": "keep"}, (0, 0, 2))
        assert taken.launch.secret_key == launch.secret_key
        assert os.path.samestat(os.fstat(taken.exclusives["tier-lock"]), os.fstat(lock_fd))
        assert os.path.samestat(os.fstat(taken.users_fds[0]), os.fstat(state))
        taken.close()
        os.close(lock_fd)
        for each in (state, fuse_fd, left.launch_fd):
            assert each is not None
            os.close(each)
