"""``copperfs pfs-sim``: shows a directory as a loaded parallel filesystem would."""

import argparse
import os
import subprocess
from collections.abc import Callable
from dataclasses import fields

from copperfs.cli.options import argument_type
from copperfs.cli.output import console
from copperfs.config.settings import parse_size, whole_number
from copperfs.lab.pfs_sim.pfs_settings import PfsSettings, format_duration, parse_duration

NAME = "pfs-sim"
HELP = "show a directory as slowly as a loaded parallel filesystem would"

START_TIMEOUT_S = 30.0
SERVERS_MAX = 100_000
SPEED = ("latency", "servers", "read_latency", "bandwidth", "data_servers")
DEFAULTS = {field.name: field.default for field in fields(PfsSettings)}


_duration: Callable[[str], float] = argument_type(parse_duration)
_size: Callable[[str], float] = argument_type(parse_size)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIRECTORY", help="a local directory")
    parser.add_argument(
        "mountpoints",
        metavar="MOUNTPOINT",
        nargs="+",
        help="directories to mount over, each a client with its own caches; all share the servers",
    )
    add_speed(parser)
    caches = parser.add_argument_group("clients")
    _add(
        caches, "cache", "DURATION", _duration,
        "how long a client keeps names, attributes and listings; with 0 every process asks for "
        "everything",
    )  # fmt: skip
    caches.add_argument(
        "--page-cache",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether a client keeps the contents of files. Default: yes, no with --cache 0.",
    )
    caches.add_argument(
        "--permissions",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let the kernel check modes and owners; with --cache 0 each directory of a path "
        "costs a getattr. Default: yes.",
    )
    caches.add_argument(
        "--own-inodes",
        action="store_true",
        help="each client numbers files by itself, as sshfs does",
    )
    caches.add_argument("--allow-other", action="store_true", help="let other users in")
    process = parser.add_argument_group("process")
    process.add_argument(
        "--foreground", action="store_true", help="stay in the foreground until unmounted"
    )
    process.add_argument(
        "--control",
        metavar="SOCKET",
        help="the control socket. Default: in $XDG_RUNTIME_DIR/copperfs, else /tmp/copperfs-UID.",
    )


def add_speed(parser: argparse.ArgumentParser, *, with_defaults: bool = True) -> None:
    """Also for ``pfs-ask set``, where flags not given are None."""
    speed = parser.add_argument_group("servers")
    _add(
        speed, "latency", "DURATION", _duration,
        "time of a metadata operation at a server: 1ms, 500us",
    )  # fmt: skip
    _add(
        speed, "servers", "N", argument_type(whole_number(0, SERVERS_MAX)),
        "metadata servers, each busy with one operation at a time; 0: unlimited",
    )  # fmt: skip
    _add(
        speed, "read_latency", "DURATION", _duration,
        "time of a read besides moving its bytes; it keeps no server busy",
    )  # fmt: skip
    _add(
        speed, "bandwidth", "SIZE", _size,
        "bytes a second of all data servers together, 1GB; 0: no limit",
    )  # fmt: skip
    _add(
        speed, "data_servers", "N", argument_type(whole_number(1, SERVERS_MAX)),
        "data servers, which share the bandwidth; each file lies on one",
    )  # fmt: skip
    if not with_defaults:
        parser.set_defaults(**dict.fromkeys(SPEED))


def run(arguments: argparse.Namespace) -> int:
    settings = PfsSettings(
        directory=os.path.abspath(arguments.directory),
        mountpoints=tuple(os.path.abspath(each) for each in arguments.mountpoints),
        latency_s=arguments.latency,
        servers=arguments.servers,
        read_latency_s=arguments.read_latency,
        bandwidth_bytes=arguments.bandwidth,
        data_servers=arguments.data_servers,
        cache_s=arguments.cache,
        page_cache=arguments.cache > 0 if arguments.page_cache is None else arguments.page_cache,
        own_inodes=arguments.own_inodes,
        permissions=arguments.permissions,
        allow_other=arguments.allow_other,
        control=arguments.control and os.path.abspath(arguments.control),
    )
    if arguments.foreground:
        from copperfs.lab.pfs_sim.pfs_daemon import PfsDaemon

        PfsDaemon(settings).run(lambda _: console().print("ready"))
        return 0
    from copperfs.fuse.daemon_start import let_live, started

    with started(
        "copperfs.lab.pfs_sim.pfs_daemon",
        [settings.to_json()],
        shown=" and ".join(settings.mountpoints),
        stderr=subprocess.DEVNULL,
        timeout_s=START_TIMEOUT_S,
    ) as daemon:
        let_live(daemon)
    return 0


def _add(
    group: argparse._ArgumentGroup,
    name: str,
    metavar: str,
    kind: Callable[[str], float],
    text: str,
) -> None:
    default = next(DEFAULTS[key] for key in (name, f"{name}_s", f"{name}_bytes") if key in DEFAULTS)
    assert isinstance(default, int | float)
    group.add_argument(
        f"--{name.replace('_', '-')}",
        metavar=metavar,
        type=kind,
        default=default,
        help=f"{text}. Default: {_shown(default, kind)}.",
    )


def _shown(default: float, kind: Callable[[str], float]) -> str:
    if kind is _duration:
        return format_duration(default)
    return "1 GB" if kind is _size else str(default)
