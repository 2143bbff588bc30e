"""Fields: which values are valid on the wire, and how each kind is packed and checked.

``check`` gets any value that msgpack made of a stranger's bytes. ``pack`` raises ``Malformed``
where the origin of a value can exceed its limit (paths, link targets), since every receiver would
drop the message.

Values of msgpack are compared by ``type()``, because for ``isinstance`` True is a number.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from copperfs.model.types import ATTRIBUTES_BYTES, Attributes, Entry, Path, Version
from copperfs.node.peer.messages import PATH_BYTES_MAX

TARGET_BYTES_MAX = 4096
NUMBER_MAX = (1 << 63) - 1
SECONDS_MAX = 1e9
"""A longer validity is unlimited, which is None."""
WITHIN_MAX_S = 3600.0
ERRNO_MAX = 4095
"""The kernel's MAX_ERRNO."""

# Size, seconds and nanoseconds of mtime and ctime, inode.
_VERSION = struct.Struct("<QqIqIQ")
_NS = 1_000_000_000
_NO_NAMES = frozenset((b"", b".", b".."))


class Malformed(ValueError):
    """The sender is at fault; the text says why."""


@dataclass(frozen=True, slots=True)
class Field:
    check: Callable[[Any], Any]
    pack: Callable[[Any], Any] | None = None
    """For msgpack; None: unchanged."""


def _shown(value: Any) -> str:
    """The repr of a nested value may have no end."""
    return f"{value!r:.40}" if type(value) in (int, float, bool) else type(value).__name__


def integer(low: int, high: int) -> Field:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Malformed(f"{_shown(value)} is no number from {low} to {high}")
        return value

    return Field(check)


def number() -> Field:
    return integer(0, NUMBER_MAX)


def enumerated(kind: type[IntEnum], *allowed: IntEnum) -> Field:
    members = {int(member): member for member in allowed or kind}

    def check(value: Any) -> IntEnum:
        member = members.get(value) if type(value) is int else None
        if member is None:
            raise Malformed(f"{_shown(value)} is no {kind.__name__} here")
        return member

    return Field(check, int)


def octets(most: int) -> Field:
    def check(value: Any) -> bytes:
        if type(value) is not bytes or len(value) > most:
            raise Malformed(f"not bytes, or more than {most}")
        return value

    return Field(check)


def text(most: int) -> Field:
    def check(value: Any) -> str:
        if type(value) is not str or len(value) > most or "\0" in value:
            raise Malformed(f"no text of at most {most} characters")
        return value

    return Field(check)


def _check_switch(value: Any) -> bool:
    if type(value) is not bool:
        raise Malformed(f"{_shown(value)} is neither true nor false")
    return value


def _check_seconds(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) is not float or not 0 <= value <= SECONDS_MAX or math.isnan(value):
        raise Malformed(f"{_shown(value)} is no number of seconds")
    return value


def _pack_seconds(value: float | None) -> float | None:
    return None if value is None else min(max(float(value), 0.0), SECONDS_MAX)


def path(most: int) -> Field:
    """Relative, below the source's root."""

    def check(value: Any) -> Path:
        if type(value) is not bytes or len(value) > most:
            raise Malformed(f"no path of at most {most} bytes")
        if b"\0" in value:
            raise Malformed("a path with a NUL")
        if value and not _NO_NAMES.isdisjoint(value.split(b"/")):
            raise Malformed("a path that is absolute, or has an empty, '.' or '..' component")
        return Path(value)

    def pack(path: Path) -> bytes:
        if len(path) > most:
            raise Malformed(f"a path of {len(path)} bytes cannot be sent")
        return path

    return Field(check, pack)


def _pack_version(version: Version | None) -> bytes | None:
    if version is None:
        return None
    mtime, mtime_ns = divmod(version.mtime_ns, _NS)
    ctime, ctime_ns = divmod(version.ctime_ns, _NS)
    return _VERSION.pack(version.size, mtime, mtime_ns, ctime, ctime_ns, version.inode)


def _check_version(value: Any) -> Version | None:
    if value is None:
        return None
    if type(value) is not bytes or len(value) != _VERSION.size:
        raise Malformed("no version")
    size, mtime, mtime_ns, ctime, ctime_ns, inode = _VERSION.unpack(value)
    if size > NUMBER_MAX or mtime_ns >= _NS or ctime_ns >= _NS:
        raise Malformed("a version with an impossible size or time")
    return Version(size, mtime * _NS + mtime_ns, ctime * _NS + ctime_ns, inode)


def _check_known_version(value: Any) -> Version:
    version = _check_version(value)
    if version is None:
        raise Malformed("no version")
    return version


def _pack_entry(entry: Entry | None) -> bytes | None:
    """The attributes, then the target as the rest."""
    if entry is None:
        return None
    if len(entry.target) > TARGET_BYTES_MAX:
        raise Malformed(f"a link target of {len(entry.target)} bytes cannot be sent")
    return entry.attributes.packed + entry.target


def _check_entry(value: Any) -> Entry | None:
    if value is None:
        return None
    least, most = ATTRIBUTES_BYTES, ATTRIBUTES_BYTES + TARGET_BYTES_MAX
    if type(value) is not bytes or not least <= len(value) <= most:
        raise Malformed("no entry")
    entry = Entry(Attributes(value[:ATTRIBUTES_BYTES]), value[ATTRIBUTES_BYTES:])
    if b"\0" in entry.target:
        raise Malformed("a link target with a NUL")
    return entry


def _check_within(value: Any) -> float:
    if type(value) is not float or not 0 < value <= WITHIN_MAX_S:
        raise Malformed(f"{_shown(value)} is no time to wait")
    return value


SWITCH = Field(_check_switch)
WITHIN = Field(_check_within, float)
SECONDS = Field(_check_seconds, _pack_seconds)
PATH = path(PATH_BYTES_MAX)
VERSION = Field(_check_version, _pack_version)
KNOWN_VERSION = Field(_check_known_version, _pack_version)
ENTRY = Field(_check_entry, _pack_entry)


def record(kind: type, fields: Sequence[tuple[str, Field]]) -> Field:
    """A dataclass, as an array of its fields."""

    def check(value: Any) -> Any:
        if type(value) is not list or len(value) != len(fields):
            raise Malformed(f"no {kind.__name__}")
        return kind(*[field.check(each) for (_, field), each in zip(fields, value, strict=True)])

    def pack(value: Any) -> list[Any]:
        return [
            getattr(value, name) if field.pack is None else field.pack(getattr(value, name))
            for name, field in fields
        ]

    return Field(check, pack)


def several(field: Field, most: int) -> Field:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            raise Malformed(f"no array of at most {most}")
        return tuple([field.check(each) for each in value])

    def pack(value: Sequence[Any]) -> list[Any]:
        if len(value) > most:
            raise Malformed(f"{len(value)} items cannot be sent, {most} can")
        return [each if field.pack is None else field.pack(each) for each in value]

    return Field(check, pack)
