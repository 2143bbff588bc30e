"""Failure domains of a job: reads what ``--domains`` names (``model/failure_domains.py``)."""

import subprocess
from collections.abc import Sequence

from copperfs.config.settings import Settings
from copperfs.launch.launch_method import Launch
from copperfs.launch.node_sets import expand
from copperfs.model.errors import ConfigError, MountError
from copperfs.model.failure_domains import (
    BY_NAME,
    SLURM,
    domains_by_name,
    domains_of_lines,
    domains_of_slurm,
)

TOPOLOGY = ("scontrol", "show", "topology")
TOPOLOGY_WITHIN_S = 20.0


def domains_of(settings: Settings, launch: Launch | None) -> tuple[int, ...]:
    """Empty if each node is a domain by itself. MountError says what is wrong."""
    if launch is None or settings.domains is None:
        return ()
    names = [each.name for each in launch.roster.members]
    try:
        return _domains_of(settings.domains, names)
    except ConfigError as error:
        raise MountError(str(error)) from None


def _domains_of(domains: str, names: Sequence[str]) -> tuple[int, ...]:
    if domains.startswith(BY_NAME):
        return domains_by_name(domains.removeprefix(BY_NAME), names)
    if domains == SLURM:
        return domains_of_slurm(
            _topology(), names, lambda text: expand(text, "scontrol show topology")
        )
    try:
        with open(domains, encoding="utf-8") as lines:
            return domains_of_lines(lines, names, domains, lambda text: expand(text, domains))
    except (OSError, UnicodeDecodeError) as error:
        raise MountError(f"--domains {domains} cannot be read: {error}") from None


def _topology() -> str:
    try:
        done = subprocess.run(
            TOPOLOGY, capture_output=True, text=True, timeout=TOPOLOGY_WITHIN_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MountError(
            f"--domains slurm: '{' '.join(TOPOLOGY)}' failed ({error}): give a file instead"
        ) from None
    return done.stdout


def too_few(settings: Settings, domains: tuple[int, ...], nodes: int, copies: int) -> str | None:
    """A sentence if copies have to share a domain, or there are fewer nodes than copies."""
    if copies > nodes:
        return f"--protect copies:{copies} in a job of {nodes} nodes: each chunk has {nodes} copies"
    count = len(set(domains)) if domains else nodes
    if copies > count:
        return (
            f"--protect copies:{copies} with {count} failure domains (--domains "
            f"{settings.domains}): some copies of a chunk are in one domain"
        )
    return None
