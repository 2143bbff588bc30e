"""CURVE keys: the key pairs by which nodes authenticate each other, in z85 as ZeroMQ writes them.

A launch in which nodes exchange their public keys draws each pair at random. With a hostfile all
pairs are derived from the node's name and one secret in a file. A process that has that file can be
any node, so only its owner may read it.
"""

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass, field

from copperfs.model.errors import LaunchError

SECRET_BYTES = 32
_FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class KeyPair:
    public: str
    secret: str = field(repr=False)


NO_KEYS = KeyPair("", "")


def draw_pair() -> KeyPair:
    import zmq

    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def derive_pair(secret: bytes, name: str) -> KeyPair:
    """The same on every node."""
    import zmq
    from zmq.utils import z85

    digest = hashlib.blake2b(
        name.encode("utf-8", "surrogateescape"),
        digest_size=32,
        key=hashlib.blake2b(secret).digest(),
        person=b"copperfs node",
    ).digest()
    own = z85.encode(digest)
    return KeyPair(zmq.curve_public(own).decode(), own.decode())


def write_key_file(path: str) -> None:
    """Never overwrites a file."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise LaunchError(
            f"{path} exists already; remove it, or give another name for the key file"
        ) from None
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error.strerror}") from None
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(SECRET_BYTES) + "\n")


def read_key_file(path: str) -> bytes:
    make = f"make one with: copperfs keygen {path}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise LaunchError(f"the key file {path} does not exist; {make}") from None
    except OSError as error:
        raise LaunchError(f"the key file {path} cannot be read: {error.strerror}") from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise LaunchError(f"the key file {path} is not a file; {make}")
    with os.fdopen(fd, "rb") as file:
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise LaunchError(
                f"the key file {path} is not yours alone; make another with copperfs keygen, "
                "since others may have read this one"
            )
        secret = file.read(_FILE_BYTES_MAX).strip()
    if len(secret) < SECRET_BYTES:
        raise LaunchError(f"the key file {path} is too short to be a secret; {make}")
    return secret
