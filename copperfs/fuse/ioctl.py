"""The ioctl protocol: how a client queries a running mount (``docs/ioctl.md``).

The number 0 (hello) never changes its meaning. Numbers 0x10 to 0x21 are version 1.

This module has both sides: the client's messages, and the server's parser of the FUSE request that
the kernel makes of them. Only ``ask_mount`` waits.
"""

import errno
import fcntl
import json
import os
import struct
from dataclasses import dataclass
from enum import Enum, IntEnum

from copperfs.model.errors import ControlError

IOCTL_TYPE = 0xC7
BUFFER_BYTES = 8192
VERSION = 1

# version, status, length, reserved, token, offset, total
HEADER = struct.Struct("<IIIIQQQ")
DATA_BYTES = BUFFER_BYTES - HEADER.size


class IoctlRequest(IntEnum):
    HELLO = 0x00
    STATISTICS = 0x10
    RESET = 0x11
    CLEAR = 0x12
    CONFIGURATION = 0x13
    OBJECTS = 0x14
    CLEAR_LOCAL = 0x15
    ALL_STATISTICS = 0x16
    TREE = 0x17
    WARM_UP = 0x18
    WARM_UP_STATE = 0x19
    RESET_ALL = 0x1A
    SCRUB = 0x1B
    SCRUB_STATE = 0x1C
    RING = 0x1D
    PROFILE_BEGIN = 0x1E
    PROFILE_END = 0x1F
    UPGRADE = 0x20
    UPGRADE_STATE = 0x21


class Who(Enum):
    ANYBODY = "anybody"
    OWNER = "owner"
    """The daemon's user; and root, which may read its memory anyway."""


WHO_MAY: dict[IoctlRequest, Who] = {
    IoctlRequest.HELLO: Who.ANYBODY,
    # counts of this node, and no paths
    IoctlRequest.STATISTICS: Who.ANYBODY,
    # names, sizes or places that other users may not see
    IoctlRequest.CONFIGURATION: Who.OWNER,
    IoctlRequest.OBJECTS: Who.OWNER,
    IoctlRequest.RING: Who.OWNER,
    IoctlRequest.PROFILE_BEGIN: Who.OWNER,
    IoctlRequest.PROFILE_END: Who.OWNER,
    # work for all nodes
    IoctlRequest.ALL_STATISTICS: Who.OWNER,
    IoctlRequest.TREE: Who.OWNER,
    IoctlRequest.SCRUB_STATE: Who.OWNER,
    IoctlRequest.WARM_UP_STATE: Who.OWNER,
    IoctlRequest.UPGRADE_STATE: Who.OWNER,
    # changes
    IoctlRequest.RESET: Who.OWNER,
    IoctlRequest.RESET_ALL: Who.OWNER,
    IoctlRequest.CLEAR: Who.OWNER,
    IoctlRequest.CLEAR_LOCAL: Who.OWNER,
    IoctlRequest.WARM_UP: Who.OWNER,
    IoctlRequest.SCRUB: Who.OWNER,
    IoctlRequest.UPGRADE: Who.OWNER,
}
"""Only the owner may ask any other."""


def is_owner(uid: int, owner: int) -> bool:
    return uid in (owner, 0)


def may_ask(request: IoctlRequest, uid: int, owner: int) -> bool:
    return WHO_MAY.get(request) is Who.ANYBODY or is_owner(uid, owner)


def number(request: int, size: int = BUFFER_BYTES) -> int:
    """Read and write, size, type, request, as in <linux/ioctl.h>."""
    return 3 << 30 | size << 16 | IOCTL_TYPE << 8 | request


# --- the client ----------------------------------------------------------------------------------


def ask_mount(path: str, request: IoctlRequest, data: bytes = b"") -> object:
    """The reply of the mount that *path* is on. Blocks; ControlError if it refuses."""
    assert len(data) <= DATA_BYTES
    try:
        fd = _open(path)
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise ControlError(
                f"the daemon of {path} is gone; clean up with: copperfs umount {path}"
            ) from None
        raise ControlError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        return json.loads(_fetch(fd, path, request, data))
    finally:
        os.close(fd)


def _open(path: str) -> int:
    # O_NONBLOCK, so that a fifo does not wait for a writer
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        from copperfs.fuse.inside_mounts import inside_mount

        inside = inside_mount(path)
        if inside is None:
            raise
        return os.open(inside.path, flags)


def _fetch(fd: int, path: str, request: IoctlRequest, data: bytes, *, again: bool = False) -> bytes:
    received, token, total = b"", 0, 1
    while len(received) < total:
        buffer = bytearray(BUFFER_BYTES)
        HEADER.pack_into(buffer, 0, VERSION, 0, len(data), 0, token, len(received), 0)
        buffer[HEADER.size : HEADER.size + len(data)] = data
        try:
            fcntl.ioctl(fd, number(request), buffer)
        except OSError as error:
            if error.errno == errno.EINVAL and token and not again:
                # Another daemon has taken over, which does not know the reply.
                return _fetch(fd, path, request, data, again=True)
            raise ControlError(_refusal(error, path)) from None
        _, _, length, _, token, _, total = HEADER.unpack_from(buffer)
        received += buffer[HEADER.size : HEADER.size + length]
        if not length and total:
            raise ControlError(f"the daemon of {path} broke off its answer; ask again")
    return received


def _refusal(error: OSError, path: str) -> str:
    match error.errno:
        case errno.ENOTTY:
            return (
                f"{path} is not on a mount of copperfs, or on one that runs without its C front, "
                "which cannot be asked"
            )
        case errno.EPERM:
            return f"only the owner of the mount {path} is on, and root, may ask for this"
        case errno.EPROTO:
            return f"the daemon of {path} is of another version than this command; mount it again"
        case errno.EFBIG:
            return (
                f"the answer of the daemon of {path} would be too long: it holds too much to list "
                "(see docs/ioctl.md)"
            )
        case errno.ETIMEDOUT:
            return f"the daemon of {path} did not answer in time; try again"
        case errno.ENOTCONN | errno.ECONNABORTED:
            return f"the daemon of {path} is gone; clean up with: copperfs umount {path}"
        case _:
            return f"the daemon of {path} cannot be asked: {error.strerror}"


# --- the server's side of the message ------------------------------------------------------------

# struct fuse_in_header, struct fuse_ioctl_in, struct fuse_out_header, struct fuse_ioctl_out
_IN = struct.Struct("<IIQQIIIHH")
_IOCTL_IN = struct.Struct("<QIIQII")
_OUT = struct.Struct("<IiQ")
_IOCTL_OUT = struct.Struct("<iIII")


class TooLong(Exception):
    """No client wants such a reply whole."""


class MalformedIoctl(Exception):
    """*errno* is the error, *unique* the request to answer (None: none)."""

    def __init__(self, error: int, unique: int | None) -> None:
        super().__init__(error)
        self.errno = error
        self.unique = unique


@dataclass(frozen=True, slots=True)
class Asked:
    unique: int
    uid: int
    request: IoctlRequest
    token: int
    offset: int
    room: int
    data: bytes = b""
    pid: int = 0
    """Of the thread that asks, as the kernel tells it; 0: it is in another namespace."""


def parse(message: bytes) -> Asked:
    """MalformedIoctl if it is not one of ours."""
    if len(message) < _IN.size + _IOCTL_IN.size:
        raise MalformedIoctl(errno.EINVAL, None)
    _, _, unique, _, uid, _, pid, _, _ = _IN.unpack_from(message)
    _, _, command, _, in_size, out_size = _IOCTL_IN.unpack_from(message, _IN.size)
    data = message[_IN.size + _IOCTL_IN.size :]
    if len(data) != in_size or in_size < HEADER.size or out_size < HEADER.size:
        raise MalformedIoctl(errno.EINVAL, unique)
    try:
        request = IoctlRequest(command & 0xFF)
    except ValueError:
        raise MalformedIoctl(errno.ENOTTY, unique) from None
    version, _, length, _, token, offset, _ = HEADER.unpack_from(data)
    if length > len(data) - HEADER.size:
        raise MalformedIoctl(errno.EINVAL, unique)
    if version != VERSION and request is not IoctlRequest.HELLO:
        raise MalformedIoctl(errno.EPROTO, unique)
    given = bytes(data[HEADER.size : HEADER.size + length])
    return Asked(unique, uid, request, token, offset, out_size - HEADER.size, given, pid)


def reply(asked: Asked, token: int, whole: bytes) -> bytes:
    part = whole[asked.offset : asked.offset + asked.room]
    header = HEADER.pack(VERSION, 0, len(part), 0, token, asked.offset, len(whole))
    body = _IOCTL_OUT.pack(0, 0, 0, 0) + header + part
    return _OUT.pack(_OUT.size + len(body), 0, asked.unique) + body


def refusal(unique: int, error: int) -> bytes:
    return _OUT.pack(_OUT.size, -error, unique)
