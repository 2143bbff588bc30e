"""Resolver: looks up host names in threads, so that ZeroMQ only gets addresses.

ZeroMQ would resolve a name in the one thread that moves all messages. At most ``THREADS_MAX``
threads look up names, since a hanging thread cannot be stopped.

A name is looked up anew for each connection attempt, since a node may have come back at another
address. The last result serves an attempt after ``PATIENCE_S``. After a failed attempt the name's
next address is tried.
"""

import ipaddress
import logging
import socket
from dataclasses import dataclass, field

import trio

logger = logging.getLogger(__name__)

THREADS_MAX = 8
LOOKS_UP_WITHIN_S = 30.0
"""glibc's resolver gives up after 5 s for each server and attempt, two of each by default."""
PATIENCE_S = 0.25
"""Applies while a good address is known."""


def look_up(host: str) -> list[str]:
    """OSError if there are none. It may hang."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


@dataclass(slots=True)
class _Name:
    addresses: list[str] = field(default_factory=list)
    """The address to try next comes first."""
    looking: trio.Event | None = None
    is_unknown: bool = False
    """The log already has that the resolver does not know it."""


class Resolver:
    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}
        self._threads = trio.CapacityLimiter(THREADS_MAX)

    async def find(self, endpoint: str, nursery: trio.Nursery) -> str | None:
        """*endpoint* with an address to connect to now, if one is known. The lookup continues in
        *nursery*."""
        host, port = split(endpoint)
        if is_address(host):
            return endpoint
        name = self._names.setdefault(host, _Name())
        if name.looking is None:
            name.looking = trio.Event()
            nursery.start_soon(self._look_up, host, name, name.looking)
        with trio.move_on_after(PATIENCE_S if name.addresses else LOOKS_UP_WITHIN_S):
            await name.looking.wait()
        return joined(name.addresses[0], port) if name.addresses else None

    def known(self, endpoint: str) -> list[str]:
        host, port = split(endpoint)
        if is_address(host):
            return [endpoint]
        name = self._names.get(host)
        return [] if name is None else [joined(each, port) for each in name.addresses]

    def failed(self, endpoint: str, at: str) -> None:
        host, port = split(endpoint)
        name = self._names.get(host)
        if name is not None and name.addresses and joined(name.addresses[0], port) == at:
            name.addresses.append(name.addresses.pop(0))

    async def _look_up(self, host: str, name: _Name, ended: trio.Event) -> None:
        found: list[str] | None = None
        why = f"no answer within {LOOKS_UP_WITHIN_S:g} s"
        try:
            with trio.move_on_after(LOOKS_UP_WITHIN_S):
                found = await trio.to_thread.run_sync(
                    look_up, host, abandon_on_cancel=True, limiter=self._threads
                )
        except (OSError, UnicodeError) as error:
            why = str(error)
        finally:
            name.looking = None
            ended.set()
        if found:
            name.is_unknown = False
            if set(found) != set(name.addresses):
                logger.info("%s is at %s", host, ", ".join(found))
                name.addresses = found
        elif not name.is_unknown:
            name.is_unknown = True
            logger.warning(
                "the address of %s cannot be found (%s): %s",
                host,
                why,
                "its last one is used" if name.addresses else "it is tried again",
            )


def split(endpoint: str) -> tuple[str, str]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def joined(address: str, port: str) -> str:
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
