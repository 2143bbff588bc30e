"""Preflight: resolves settings for this node, and checks the node before it joins a launch."""

import os
import pwd
from contextlib import suppress
from dataclasses import replace

from copperfs.cli.options import is_first_process
from copperfs.cli.output import print_warning
from copperfs.config.settings import Settings, bytes_text
from copperfs.launch.node_identity import own_name
from copperfs.model.errors import MountError
from copperfs.model.failure_domains import BY_NAME, SLURM


def on_this_node(settings: Settings) -> Settings:
    """Make paths absolute, and insert the names of node and user."""
    name = own_name(settings)

    def own(path: str | None) -> str | None:
        return path and os.path.abspath(path.replace("%h", name))

    def own_file(path: str | None) -> str | None:
        return own(path and path.replace("%u", _user()))

    return replace(
        settings,
        source=os.path.abspath(settings.source),
        log_file=own_file(settings.log_file),
        events=own_file(settings.events),
        tier_dir=own(settings.tier_dir),
        domains=_own_domains(settings.domains),
        metrics=settings.metrics if _is_port(settings.metrics) else own_file(settings.metrics),
    )


def _own_domains(domains: str | None) -> str | None:
    """Absolute if it is a file."""
    if domains is None or domains == SLURM or domains.startswith(BY_NAME):
        return domains
    return os.path.abspath(domains)


def at_mountpoint(settings: Settings, mountpoint: str) -> Settings:
    """Set the mount point, also in names of files."""
    shown = mountpoint.strip("/").replace("/", "-")
    files = {name: getattr(settings, name) for name in ("log_file", "events", "metrics")}
    named = {name: path and path.replace("%m", shown) for name, path in files.items()}
    return replace(settings, mountpoint=mountpoint, **named)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in a container
        return str(os.geteuid())


def _is_port(where: str | None) -> bool:
    return where is not None and where.isdecimal()


def with_tier_size(settings: Settings) -> Settings:
    """The other nodes are told the value, so it is resolved before the launch."""
    if settings.tier_dir is None:
        return settings
    if settings.tier_size_bytes is not None:
        _warn_of_size(settings.tier_dir, settings.tier_size_bytes)
        return settings
    from copperfs.chunkstore.default_budget import default_budget_bytes

    return replace(settings, tier_size_bytes=default_budget_bytes(settings.tier_dir))


def _warn_of_size(tier_dir: str, size_bytes: int) -> None:
    existing = tier_dir
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    with suppress(OSError):
        disk = os.statvfs(existing)
        total_bytes = disk.f_blocks * disk.f_frsize
        if size_bytes > total_bytes and is_first_process():
            print_warning(
                f"--tier-size {bytes_text(size_bytes)} is more than the disk of {existing} has: "
                f"{bytes_text(total_bytes)}"
            )


def prepare(settings: Settings) -> None:
    """Raise a CopperError if this node cannot take part: the others would wait for it."""
    import copperfs.native  # noqa: F401  # says what to do if it was not built

    _refuse_if_mounted(settings.mountpoint)
    if settings.tier_dir is not None:
        _try_tier_dir(settings.tier_dir)


def _try_tier_dir(path: str) -> None:
    from copperfs.chunkstore.chunk_files import open_directory
    from copperfs.chunkstore.disk_ops import RealFiles

    # The node works without its disk.
    with suppress(OSError):
        open_directory(path, RealFiles()).close()


def _refuse_if_mounted(mountpoint: str) -> None:
    from copperfs.fuse.mounting import FSTYPE, absolute, answers, clean_up_stale, mount_at

    mountpoint = absolute(mountpoint)
    clean_up_stale(mountpoint)
    mounted = mount_at(mountpoint)
    if mounted is None or mounted.fstype != FSTYPE:
        return
    if answers(mountpoint):
        raise MountError(
            f"{mountpoint} is mounted already; unmount it with: copperfs umount {mountpoint}"
        )
    raise MountError(
        f"{mountpoint} is mounted and does not answer; "
        f"clean it up with: copperfs umount --lazy {mountpoint}"
    )
