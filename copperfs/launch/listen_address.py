"""Listen address: chooses the address that the other nodes get, and opens the socket.

The socket listens before any node is told of it, so no announced port is taken by then.

``--listen`` names an address, an interface (``hsn0``) or a network (``10.1.0.0/16``). Without it,
the first of these:

- what the machine's own name resolves to, unless that is the loopback address (as in Debian's
  ``/etc/hosts``)
- the interface of the default route
- any interface
- loopback, on which all nodes then have to be
"""

import errno
import fcntl
import ipaddress
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

from copperfs.model.errors import LaunchError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# The kernel takes the smaller of this and net.core.somaxconn.
BACKLOG = 4096
RESOLVES_WITHIN_S = 10.0
_SIOCGIFADDR = 0x8915


def open_listener(address: Address, port: int) -> socket.socket:
    """Port 0 takes any that is free."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A socket that an earlier daemon left in TIME_WAIT does not matter.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise LaunchError(_why_not(address, port, error)) from None
    return listener


def endpoint_of(listener: socket.socket) -> str:
    """As ZeroMQ writes it."""
    host, port = listener.getsockname()[:2]
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"


def choose_address(listen: str | None) -> Address:
    if listen is None:
        return _default_address()
    with suppress(ValueError):
        return ipaddress.ip_address(listen)
    addresses = interface_addresses()
    if listen in addresses:
        return addresses[listen][0]
    try:
        network = ipaddress.ip_network(listen, strict=False)
    except ValueError:
        raise LaunchError(
            f"--listen {listen} is neither an address nor a network nor an interface of this "
            f"machine; it has {_shown(addresses)}"
        ) from None
    for each in addresses.values():
        for address in each:
            if address in network:
                return address
    raise LaunchError(
        f"no interface of this machine is in the network {listen}; it has {_shown(addresses)}"
    )


def interface_addresses() -> dict[str, list[Address]]:
    """IPv4 first, without link-local ones."""
    found: dict[str, list[Address]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # it has none
                reply = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                found.setdefault(name, []).append(ipaddress.IPv4Address(reply[20:24]))
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            if not address.is_link_local:
                found.setdefault(name, []).append(address)
    return found


def resolve(name: str, within_s: float = RESOLVES_WITHIN_S) -> list[Address]:
    """No address after *within_s*. A thread that hangs ends with the process."""
    found: list[Address] = []

    def look_up() -> None:
        with suppress(OSError, UnicodeError):
            for *_, where in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
                found.append(ipaddress.ip_address(str(where[0]).partition("%")[0]))

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(within_s)
    return list(found)


def _default_address() -> Address:
    addresses = interface_addresses()
    own = {address for each in addresses.values() for address in each if not address.is_loopback}
    for address in resolve(socket.gethostname()):
        if address in own:
            return address
    for interface in [_default_route(), *addresses]:
        for address in addresses.get(interface or "", []):
            if not address.is_loopback:
                return address
    return ipaddress.IPv4Address("127.0.0.1")


def _default_route() -> str | None:
    with suppress(OSError):
        for line in Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]:
            interface, destination, *_ = line.split()
            if destination == "00000000":
                return interface
    return None


def _why_not(address: Address, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {address} is taken; end what uses it (an earlier copperfs?) "
            "or give another --port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address} is no address of this machine; it has {_shown(interface_addresses())}"
    return f"nothing can listen at {address}, port {port}: {error.strerror}"


def _shown(addresses: dict[str, list[Address]]) -> str:
    return ", ".join(
        f"{name} ({', '.join(str(each) for each in found)})" for name, found in addresses.items()
    )
