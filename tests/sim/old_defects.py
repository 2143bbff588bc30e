"""Old defects: faults that a lab of one healthy host could not show, each put back for a test.

A random run that passes without the defect has to fail with it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from copperfs.lab.sim import version_settling
from copperfs.lab.sim.directory_walker import Walk
from copperfs.lab.sim.sim_source import Arrived, Operation, SimulatedSource
from copperfs.lab.sim.source_client import SimulatedClient
from copperfs.model.listing import Listing
from copperfs.model.types import Path, split
from copperfs.node.actions import Action, ListSource
from copperfs.node.cache.error_cache import FailedNames, Sick
from copperfs.node.events import Failed
from copperfs.node.peer.connection_limits import Room
from copperfs.node.peer.inode_agreement import InodeNumbers
from copperfs.node.peer.messages import Hello

Patch = pytest.MonkeyPatch


def device_numbers_in_versions(patch: Patch) -> None:
    """The numbers contain the device on any filesystem but the root's."""

    def number(self: SimulatedClient, inode: int, filesystem: int) -> int:
        return inode ^ self.device << 32 if filesystem else self.raw_number(inode)

    patch.setattr(SimulatedClient, "number", number)


def one_sick_name_takes_its_directory_along(patch: Patch) -> None:
    whole = SimulatedSource._outcome

    def outcome(self: SimulatedSource, operation: Operation) -> Arrived:
        fetch = operation.fetch
        if isinstance(fetch, ListSource):
            for path, error in self.failing.items():
                if split(path)[0] == fetch.path:
                    return Failed(fetch.fetch, error)
        return whole(self, operation)

    patch.setattr(SimulatedSource, "_outcome", outcome)


def positions_as_offsets(patch: Patch) -> None:
    def rest(self: Walk, listing: Listing) -> list[tuple[int, bytes]]:
        names = [name for name, _ in listing.rows()]
        return list(enumerate(names, 1))[self._cookie :]

    patch.setattr(Walk, "rest", rest)


def keyless_connections_without_bound(patch: Patch) -> None:
    patch.setattr(Room, "is_exceeded", lambda _self, _ungreeted, _descriptor: False)


def settling_by_clocks_that_agree(patch: Patch) -> None:
    """Assumes that the source's clock is behind by 0.1 s at most."""
    patch.setattr(version_settling, "BEHIND_NS", 100_000_000)


def inode_numbers_are_not_compared(patch: Patch) -> None:
    def hear(_self: InodeNumbers, _now: float, _hello: Hello) -> list[Action]:
        return []

    patch.setattr(InodeNumbers, "hear", hear)


def errors_are_not_remembered(patch: Patch) -> None:
    def get(_self: FailedNames, _now: float, _path: Path) -> Sick | None:
        return None

    patch.setattr(FailedNames, "get", get)


DEFECTS: tuple[Callable[[Patch], None], ...] = (
    device_numbers_in_versions,
    one_sick_name_takes_its_directory_along,
    positions_as_offsets,
    keyless_connections_without_bound,
    settling_by_clocks_that_agree,
    inode_numbers_are_not_compared,
    errors_are_not_remembered,
)
