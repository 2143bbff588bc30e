"""Warmup progress: what ``copperfs warmup`` shows; the field names are keys of JSON."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from copperfs.model.roster import Roster
from copperfs.model.types import NodeId

NAMES_SHOWN_MAX = 16


@dataclass(slots=True)
class WarmupState:
    number: int = 0
    """A client must not mistake the end of another warm-up for its own."""
    phase: str = "idle"
    """idle, planning, checking, pushing, filling, done or failed"""
    total_bytes: int = 0
    done_bytes: int = 0
    unreadable: int = 0
    unlisted: int = 0
    failed: int = 0
    roster: int = 1
    nodes: int = 0
    """How many reported what they hold."""
    nodes_complete: int = 0
    lacking: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(slots=True)
class PushState(WarmupState):
    """``done_bytes`` passed this node. Nodes that did not report are among the lacking ones."""

    objects: int = 0
    too_large: int = 0
    missing: int = 0
    """Files of a manifest that no longer exist."""
    least_objects: int = 0
    """Each node that reported holds at least this many."""
    unread: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RingState(WarmupState):
    """``done_bytes`` are held by their owners; chunks that could not be read are ``failed``."""

    ring: bool = True
    files: int = 0
    files_done: int = 0
    chunks: int = 0
    held_chunks: int = 0
    left_bytes: int = 0
    gone: list[str] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    """Nodes that have not reported, and are alive as far as this node knows."""


@dataclass(frozen=True, slots=True)
class Members:
    """A node alone has no roster."""

    roster: Roster | None = None

    def __len__(self) -> int:
        return 1 if self.roster is None else len(self.roster)

    @property
    def numbers(self) -> set[int]:
        return set(range(len(self)))

    def names(self, numbers: Iterable[int]) -> list[str]:
        return [self.name(NodeId(each)) for each in sorted(numbers)[:NAMES_SHOWN_MAX]]

    def name(self, number: NodeId) -> str:
        return "this node" if self.roster is None else self.roster.member(number).name
