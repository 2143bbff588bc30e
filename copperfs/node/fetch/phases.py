"""Phases of a fetch: what a fetch waits for, as a table of states and transitions.

A *trigger* is what ``FetchMachine`` has just decided or been told, and ``TRANSITIONS`` says which
phase is next. As in h11, this file alone defines the order of phases, and the diagram in
``docs/fetch-phases.md`` is drawn from the table.

Three groups of phases:

- The fetch waits for other nodes.
- It reads the source although others should, or will (``FALLBACK``). It still asks others
  meanwhile, and the first reply counts.
- It reads as the root or the owner (``OWN_READ``), and waits for no other node.

The source and the disk always answer, so the third group has no timer. The others have one, because
other nodes may never answer.
"""

from enum import IntEnum, auto


class Phase(IntEnum):
    """Integers, because Python hashes them without calling Python code."""

    NEW = auto()
    ASKING = auto()
    CONNECTING = auto()
    DOUBTING = auto()
    WAITING = auto()
    ASKING_COPIES = auto()
    FALLBACK_DELAYED = auto()
    FALLBACK_QUEUED = auto()
    FALLBACK_READING_DISK = auto()
    FALLBACK_READING_SOURCE = auto()
    READING_DISK = auto()
    WAITING_FOR_DISK = auto()
    READING_SOURCE = auto()
    DONE = auto()

    @property
    def is_fallback(self) -> bool:
        return self in FALLBACK

    @property
    def is_own_read(self) -> bool:
        return self in OWN_READ

    @property
    def is_reading(self) -> bool:
        """The source or the disk has still to report an outcome."""
        return self in READING


class Trigger(IntEnum):
    ASK_PEER = auto()
    CONNECT = auto()
    DOUBT = auto()
    BE_PATIENT = auto()
    ASK_COPIES = auto()
    DELAY_FALLBACK = auto()
    QUEUE_FALLBACK = auto()
    PEERS_RETURN = auto()
    READ_DISK = auto()
    DISK_LACKS_IT = auto()
    DISK_IS_BEHIND = auto()
    READ_SOURCE = auto()
    SOURCE_FAILED = auto()
    END = auto()


MEANINGS: dict[Phase, str] = {
    Phase.NEW: "It has just begun. No step ends in this phase.",
    Phase.ASKING: "A peer that is likely to answer is asked.",
    Phase.CONNECTING: "A connection to the peer that it would ask is being made.",
    Phase.DOUBTING: "Those that it would ask are silent or lost, and may yet answer.",
    Phase.WAITING: "No other peer is left to ask, and it is not for this node to read the source.",
    Phase.ASKING_COPIES: "Nodes that should keep a copy are asked, before the source is read.",
    Phase.FALLBACK_DELAYED: "It will read the source as a fallback, from a random moment on.",
    Phase.FALLBACK_QUEUED: "It will read it as soon as fewer than `fallbacks_max` fallbacks do.",
    Phase.FALLBACK_READING_DISK: "A fallback that looks on this node's disk first.",
    Phase.FALLBACK_READING_SOURCE: "It reads the source as a fallback.",
    Phase.READING_DISK: "This node owns the chunk or should keep a copy, and looks on its disk.",
    Phase.WAITING_FOR_DISK: "The disk has too much to write before the source may be read.",
    Phase.READING_SOURCE: "It reads the source as the root or the owner.",
    Phase.DONE: "It has its outcome, or was given up.",
}
OCCASIONS: dict[Trigger, str] = {
    Trigger.ASK_PEER: "A peer can be asked: the fetch asks it now, or did before.",
    Trigger.CONNECT: "The peer to ask is being connected to.",
    Trigger.DOUBT: "The peers to ask are silent or lost, and may yet answer for some time.",
    Trigger.BE_PATIENT: "All peers were skipped, or fallbacks are switched off.",
    Trigger.ASK_COPIES: "This node would read the source for a chunk of which there are copies.",
    Trigger.DELAY_FALLBACK: "No peer gave it, and other nodes may fall back at the same time.",
    Trigger.QUEUE_FALLBACK: "The random moment has come, or none is needed.",
    Trigger.PEERS_RETURN: "Its turn has come, and a peer that it asks is good again.",
    Trigger.READ_DISK: "The source is to be read for a chunk, and this node has a disk.",
    Trigger.DISK_LACKS_IT: "The disk does not have a chunk of which there are copies.",
    Trigger.DISK_IS_BEHIND: "The disk does not have it, and could not take it now.",
    Trigger.READ_SOURCE: "The source is read.",
    Trigger.SOURCE_FAILED: "The source cannot be read, and another node can be asked.",
    Trigger.END: "An outcome came, the deadline passed, or a clear ended it.",
}

_FROM_THE_BEGINNING = {
    Trigger.ASK_PEER: Phase.ASKING,
    Trigger.CONNECT: Phase.CONNECTING,
    Trigger.DOUBT: Phase.DOUBTING,
    Trigger.BE_PATIENT: Phase.WAITING,
    Trigger.ASK_COPIES: Phase.ASKING_COPIES,
    Trigger.DELAY_FALLBACK: Phase.FALLBACK_DELAYED,
    Trigger.QUEUE_FALLBACK: Phase.FALLBACK_QUEUED,
    Trigger.READ_DISK: Phase.READING_DISK,
    Trigger.READ_SOURCE: Phase.READING_SOURCE,
}
_FOR_OTHERS = {**_FROM_THE_BEGINNING, Trigger.END: Phase.DONE}


def _also_asks(phase: Phase, then: dict[Trigger, Phase]) -> dict[Trigger, Phase]:
    """A fallback still asks others, which does not change the phase."""
    return {Trigger.ASK_PEER: phase, Trigger.CONNECT: phase, **then, Trigger.END: Phase.DONE}


TRANSITIONS: dict[Phase, dict[Trigger, Phase]] = {
    Phase.NEW: _FROM_THE_BEGINNING,
    Phase.ASKING: _FOR_OTHERS,
    Phase.CONNECTING: _FOR_OTHERS,
    Phase.DOUBTING: _FOR_OTHERS,
    Phase.WAITING: _FOR_OTHERS,
    Phase.ASKING_COPIES: {
        **_FOR_OTHERS,
        Trigger.DISK_IS_BEHIND: Phase.WAITING_FOR_DISK,
    },
    Phase.FALLBACK_DELAYED: _also_asks(
        Phase.FALLBACK_DELAYED, {Trigger.QUEUE_FALLBACK: Phase.FALLBACK_QUEUED}
    ),
    Phase.FALLBACK_QUEUED: _also_asks(
        Phase.FALLBACK_QUEUED,
        {
            Trigger.PEERS_RETURN: Phase.ASKING,
            Trigger.READ_DISK: Phase.FALLBACK_READING_DISK,
            Trigger.READ_SOURCE: Phase.FALLBACK_READING_SOURCE,
        },
    ),
    Phase.FALLBACK_READING_DISK: _also_asks(
        Phase.FALLBACK_READING_DISK,
        {
            Trigger.READ_SOURCE: Phase.FALLBACK_READING_SOURCE,
            Trigger.SOURCE_FAILED: Phase.ASKING,
        },
    ),
    Phase.FALLBACK_READING_SOURCE: _also_asks(
        Phase.FALLBACK_READING_SOURCE, {Trigger.SOURCE_FAILED: Phase.ASKING}
    ),
    Phase.READING_DISK: {
        Trigger.DISK_LACKS_IT: Phase.ASKING_COPIES,
        Trigger.DISK_IS_BEHIND: Phase.WAITING_FOR_DISK,
        Trigger.READ_SOURCE: Phase.READING_SOURCE,
        Trigger.END: Phase.DONE,
    },
    Phase.WAITING_FOR_DISK: {
        Trigger.READ_SOURCE: Phase.READING_SOURCE,
        Trigger.END: Phase.DONE,
    },
    Phase.READING_SOURCE: {Trigger.END: Phase.DONE},
    Phase.DONE: {},
}

FALLBACK = frozenset(
    {
        Phase.FALLBACK_DELAYED,
        Phase.FALLBACK_QUEUED,
        Phase.FALLBACK_READING_DISK,
        Phase.FALLBACK_READING_SOURCE,
    }
)
OWN_READ = frozenset({Phase.READING_DISK, Phase.WAITING_FOR_DISK, Phase.READING_SOURCE})
READING = OWN_READ | {Phase.FALLBACK_READING_DISK, Phase.FALLBACK_READING_SOURCE}


class ImpossibleTransition(AssertionError):
    """A programmer's error."""


def after(phase: Phase, trigger: Trigger) -> Phase:
    following = TRANSITIONS[phase].get(trigger)
    if following is None:
        raise ImpossibleTransition(f"{trigger.name} in {phase.name}")
    return following
