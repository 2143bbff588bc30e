"""Rendezvous launch: builds the roster through files in a directory that all nodes share (decision
31).

The directory may hold files of an earlier start, of nodes of another job, or of a second process on
the same node. A network filesystem shows a new file late. Hence:

- **Every process draws a nonce**, which is in the name of its file. No file ever changes, and only
  the listing of a newly opened directory has to be fresh.
- **The first in the listing leads**: the lowest rank, else the lowest name. When there are as many
  files as nodes it writes a roster, which names the nonces.
- **Each node acknowledges the roster that has its own nonce**, and only when all have does the
  leader write *go*. So a roster with a stale file is never used. The node of that file removes it
  when it starts again, and the leader writes another roster.
- A file that is older than any process that may still wait is removed.
- **Nothing stays**: each node removes what it wrote when it has read *go*, or fails; the leader
  removes the rest.

    DIRECTORY/JOB/members/RANK~NAME~NONCE   one for each process
                  acks/NAME~NONCE~ROSTER
                  roster~SERIAL~ROSTER, go~ROSTER, failed~ROSTER

A poll lists ``JOB``. Processes that may have to lead also list ``members``, but not each time while
the leader is there: without ranks (``copperfs run``) all of them would. The pause between polls
grows to half a second, for thousands of nodes to more, to spare the filesystem.
"""

import json
import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from copperfs.launch.node_identity import check, other_version, own_version
from copperfs.launch.node_sets import fold
from copperfs.model.errors import LaunchError
from copperfs.model.roster import BadRoster, Member, Roster
from copperfs.model.types import NodeId

POLL_MIN_S, POLL_MAX_S = 0.01, 0.5
# This number of nodes polls once in POLL_MAX_S; more nodes poll less often.
POLLS_AT_ONCE = 1000
TELL_EVERY_S = 10.0
TELL_FIRST_S = 2.0
# Between nodes and file servers.
CLOCK_SKEW_S = 60.0
# One poll in this many lists the members, while another process leads.
LISTS_ONE_IN = 8
# For the others to read what the leader wrote at the end.
LEAVE_WITHIN_S = 5.0
_NO_RANK = "-"


@dataclass(frozen=True, slots=True)
class Meeting:
    """The same on every node."""

    directory: str
    job: str
    nodes: int
    names: tuple[str, ...] = ()
    """Named by a scheduler, for the message about missing ones."""
    timeout_s: float = 300.0


class Card(NamedTuple):
    """A parsed file name; cards sort in the order of the roster."""

    rank: int
    name: str
    nonce: str

    @classmethod
    def parse(cls, text: str) -> "Card | None":
        parts = text.split("~")
        if len(parts) != 3 or not (parts[0] == _NO_RANK or parts[0].isdecimal()):
            return None
        return cls(_unranked if parts[0] == _NO_RANK else int(parts[0]), parts[1], parts[2])

    def __str__(self) -> str:
        rank = _NO_RANK if self.rank == _unranked else f"{self.rank}"
        return f"{rank}~{self.name}~{self.nonce}"


_unranked = 1 << 62


def meet(
    meeting: Meeting, member: Member, rank: int | None, tell: Callable[[str], None]
) -> tuple[Roster, NodeId]:
    card = Card(_unranked if rank is None else rank, member.name, secrets.token_hex(8))
    party = _Party(meeting, card, member, tell)
    try:
        return party.run()
    finally:
        party.leave()


class _Party:
    def __init__(
        self, meeting: Meeting, card: Card, member: Member, tell: Callable[[str], None]
    ) -> None:
        self.meeting = meeting
        self.card = card
        self.member = member
        self.tell = tell
        self.top = Path(meeting.directory) / meeting.job
        self.members, self.acks = self.top / "members", self.top / "acks"
        self.places = {name: place for place, name in enumerate(meeting.names)}
        self.mine: list[Path] = []
        """Written by this process; no other process removes them."""
        self.fresh: set[Card] = set()
        """Known not to be too old."""
        self.read: dict[Card, Member] = {}
        """The leader's: the members' files."""
        self.roster_id = ""
        """The leader's latest, for these cards:"""
        self.proposed: tuple[Card, ...] = ()
        self.serial = 0
        self.acknowledged = ""
        self.proposal: dict[str, Any] | None = None
        """The acknowledged roster."""
        self.leader: Card | None = None
        """First when the members were listed, and not this process."""
        self.polls_led = 0
        self.pause_max_s = POLL_MAX_S * max(1.0, meeting.nodes / POLLS_AT_ONCE)

    # --- the poll loop ---------------------------------------------------------------------------

    def run(self) -> tuple[Roster, NodeId]:
        self._enter()
        started = time.monotonic()
        told = started - TELL_EVERY_S + TELL_FIRST_S
        pause = POLL_MIN_S
        while True:
            try:
                found = self._poll()
            except OSError as error:
                raise LaunchError(
                    f"the rendezvous directory {self.top} cannot be used: {error.strerror}"
                ) from None
            if found is not None:
                return found
            now = time.monotonic()
            if now > started + self.meeting.timeout_s:
                self._give_up(now - started - self.meeting.timeout_s)
            if now > told + TELL_EVERY_S and self._may_lead():
                told = now
                if self._cards()[:1] == [self.card]:
                    self.tell(self._progress())
            time.sleep(pause)
            pause = min(pause * 1.5, self.pause_max_s)

    def _poll(self) -> tuple[Roster, NodeId] | None:
        """The roster if all may go; LaunchError if it failed for all."""
        names = _listed(self.top)
        if self.acknowledged and f"go~{self.acknowledged}" in names:
            return self._go(self.acknowledged)
        for name in names:
            if name.startswith("failed~"):
                self._heed_failure(self.top / name)
        if self._may_lead() and not self._follows(names) and not self._is_led():
            if self._lead():
                return self._go(self.roster_id)
        elif not (self.members / str(self.card)).exists():
            self._check_own(self._cards())
        self._acknowledge(names)
        return None

    def _enter(self) -> None:
        check_directory(self.meeting.directory)
        runs = own_version()
        about = {"member": asdict(self.member), "nodes": self.meeting.nodes, "runs": runs}
        for tries_left in (2, 1, 0):
            try:
                for each in (self.top, self.members, self.acks):
                    with suppress(FileExistsError):
                        each.mkdir(mode=0o700)
                for card in self._cards():
                    if card.name == self.card.name:
                        self._remove(self.members / str(card))
                self._write(self.members / str(self.card), about)
                return
            except OSError as error:
                # Another process may just remove the empty directories.
                if tries_left and isinstance(error, FileNotFoundError):
                    continue
                raise LaunchError(
                    f"the rendezvous directory {self.top} cannot be used: {error.strerror}"
                ) from None

    def leave(self) -> None:
        for path in self.mine:
            self._remove(path)
        for each in (self.members, self.acks, self.top):
            with suppress(OSError):
                each.rmdir()

    def _follows(self, names: list[str]) -> bool:
        """Whether another process leads."""
        other = self.acknowledged != self.roster_id
        return other and any(name.endswith(f"~{self.acknowledged}") for name in names)

    def _is_led(self) -> bool:
        """Judged by the last known leader's file alone."""
        self.polls_led += 1
        if self.leader is None or self.polls_led % LISTS_ONE_IN == 0:
            return False
        return (self.members / str(self.leader)).exists()

    # --- each process's part ---------------------------------------------------------------------

    def _acknowledge(self, names: list[str]) -> None:
        newest = sorted(name for name in names if name.startswith("roster~"))
        for name in reversed(newest):
            roster_id = name.split("~")[-1]
            if roster_id == self.acknowledged:
                return
            proposal = self._load(self.top / name)
            if proposal is not None and self.card.nonce in proposal["nonces"]:
                self.acknowledged, self.proposal = roster_id, proposal
                self._write(self.acks / f"{self.card.name}~{self.card.nonce}~{roster_id}", {})
                return

    def _go(self, roster_id: str) -> tuple[Roster, NodeId]:
        # For thousands of nodes it has megabytes, and all read it.
        proposal = self.proposal if roster_id == self.acknowledged else None
        if proposal is None:
            for name in _listed(self.top):
                if name.startswith("roster~") and name.endswith(f"~{roster_id}"):
                    proposal = self._load(self.top / name)
        if proposal is None:
            raise LaunchError(f"the roster in {self.top} was removed; start all nodes again")
        roster = Roster.from_json(str(proposal["roster"]))
        place = list(proposal["nonces"]).index(self.card.nonce)
        if roster_id == self.roster_id:
            self._see_the_others_leave(set(self.proposed))
            self._clear()
        return roster, NodeId(place)

    def _heed_failure(self, path: Path) -> None:
        failure = self._load(path)
        if failure is None or self.card.nonce not in failure["nonces"]:
            return
        if failure.get("concerned") == self.card.nonce:
            raise LaunchError(str(failure["why"]))
        raise LaunchError("")  # the leader tells why

    def _check_own(self, cards: list[Card]) -> None:
        """A starting process removes the cards that have its name."""
        if self.card in cards:
            return
        # On a busy filesystem that process writes its own card much later. A failure that did not
        # name the card would leave it waiting.
        deadline, pause = time.monotonic() + self._leave_within_s(), POLL_MIN_S
        while all(each.name != self.card.name for each in cards) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 1.5, self.pause_max_s)
            cards = self._cards()
        raise self._fail(
            cards,
            f"a second process came to {self.top} as {self.card.name}: two nodes have one name, "
            "or two processes were started on one node; start one on each, "
            "or give each its own --node-name",
        )

    # --- the leader's part -----------------------------------------------------------------------

    def _may_lead(self) -> bool:
        return self.card.rank in (0, _unranked)

    def _lead(self) -> bool:
        """Return whether all have acknowledged a roster."""
        cards = self._current_cards()
        self._check_own(cards)
        self.leader = None if cards[0] == self.card else cards[0]
        if self.leader is not None:
            return False
        if len(cards) > self.meeting.nodes:
            raise self._fail(
                cards,
                f"{self.meeting.nodes} nodes are expected at {self.top} and {len(cards)} came: "
                f"{fold(each.name for each in cards)}; give the right --nodes, or start again "
                "if a crash left some of these",
            )
        if len(cards) < self.meeting.nodes:
            return False
        if tuple(cards) != self.proposed:
            self._propose(cards)
        acks = set(_listed(self.acks))
        if not all(f"{each.name}~{each.nonce}~{self.roster_id}" in acks for each in cards[1:]):
            return False
        self._write(self.top / f"go~{self.roster_id}", {})
        return True

    def _propose(self, cards: list[Card]) -> None:
        for card in cards:
            if card not in self.read:
                about = self._load(self.members / str(card))
                if about is None:
                    return  # removed since it was listed
                other = other_version(card.name, about.get("runs"), self.card.name)
                if other is not None:
                    raise self._fail(cards, other, concerned=card)
                self.read[card] = Member(**about["member"])
                if about["nodes"] != self.meeting.nodes:
                    raise self._fail(
                        cards,
                        f"{card.name} expects {about['nodes']} nodes and {self.card.name} "
                        f"{self.meeting.nodes}; give all nodes the same --nodes",
                    )
        self.roster_id = secrets.token_hex(8)
        self.serial += 1
        members = tuple(self.read[card] for card in cards)
        roster = Roster(self.roster_id, members)
        try:
            check(roster)
        except BadRoster as error:
            raise self._fail(cards, str(error)) from None
        proposal = {
            "roster": roster.to_json(),
            "nonces": [card.nonce for card in cards],
        }
        self._write(self.top / f"roster~{self.serial:06}~{self.roster_id}", proposal)
        self.proposed = tuple(cards)

    def _fail(self, cards: list[Card], sentence: str, concerned: Card | None = None) -> LaunchError:
        """Give all time to read of the failure, and remove their cards. The *concerned* node
        reports the message as well."""
        path = self.top / f"failed~{secrets.token_hex(8)}"
        failure: dict[str, object] = {"nonces": [each.nonce for each in cards]}
        if concerned is not None:
            failure |= {"concerned": concerned.nonce, "why": sentence}
        self._write(path, failure)
        self._see_the_others_leave(set(cards))
        for each in cards:
            self._remove(self.members / str(each))
        return LaunchError(sentence)

    def _see_the_others_leave(self, cards: set[Card]) -> None:
        """A deadline covers those that died meanwhile."""
        self._remove(self.members / str(self.card))
        deadline = time.monotonic() + self._leave_within_s()
        pause = POLL_MIN_S
        while cards & set(self._cards()) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 1.5, self.pause_max_s)
        for card in cards:
            self._remove(self.members / str(card))

    def _leave_within_s(self) -> float:
        return max(LEAVE_WITHIN_S, 4 * self.pause_max_s)

    def _clear(self) -> None:
        """No other process is here any more."""
        for name in _listed(self.top):
            if name.startswith(("roster~", "go~", "failed~")):
                self._remove(self.top / name)
        for name in _listed(self.acks):
            self._remove(self.acks / name)

    # --- files -----------------------------------------------------------------------------------

    def _cards(self) -> list[Card]:
        """By rank, by the scheduler's order, by name."""
        cards = [card for name in _listed(self.members) if (card := Card.parse(name))]
        last = len(self.places)
        return sorted(
            cards, key=lambda card: (card.rank, self.places.get(card.name, last), card.name)
        )

    def _current_cards(self) -> list[Card]:
        """Removes cards too old to belong to a waiting process."""
        cards = self._cards()
        leading = bool(cards) and cards[0] == self.card
        if leading and len(cards) < self.meeting.nodes:
            return cards
        # Only the leader has to know of all.
        unknown = [each for each in (cards if leading else cards[:1]) if each not in self.fresh]
        with suppress(FileNotFoundError):
            newest = (self.members / str(self.card)).stat().st_mtime
            oldest = newest - self.meeting.timeout_s - CLOCK_SKEW_S
            for card in unknown:
                path = self.members / str(card)
                if path.stat().st_mtime < oldest:
                    self._remove(path)
                    cards.remove(card)
                else:
                    self.fresh.add(card)
        return cards

    def _write(self, path: Path, content: object) -> None:
        """Atomic; removed when this process leaves."""
        temporary = self.top / f".{self.card.nonce}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.mine.append(path)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)

    @staticmethod
    def _load(path: Path) -> dict[str, Any] | None:
        """By the same version: only its owner can write here."""
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        except ValueError:
            raise LaunchError(f"{path} is not what copperfs writes; remove it") from None
        return content

    @staticmethod
    def _remove(path: Path) -> None:
        with suppress(OSError):
            path.unlink()

    # --- messages for the user -------------------------------------------------------------------

    def _progress(self) -> str:
        here = {card.name for card in self._cards()}
        # The scheduler may know a node without its domain.
        known = here | {name.partition(".")[0] for name in here}
        missing = [name for name in self.meeting.names if name not in known]
        count = max(self.meeting.nodes - len(here), 0)
        if count == 0:
            return f"waiting until all {self.meeting.nodes} nodes have read the roster"
        waiting = f"waiting for {count} of {self.meeting.nodes} nodes"
        if len(missing) == count:
            return f"{waiting}: {fold(missing)}"
        return f"{waiting}; here: {fold(here)}"

    def _give_up(self, late_s: float) -> None:
        """The leader reports, for all; without one every process does, a little later."""
        cards = self._cards()
        self._check_own(cards)
        sentence = (
            f"{self._progress()}, after {self.meeting.timeout_s:g} s (--launch-timeout); start "
            f"them, give the right --nodes, or remove {self.top} if another start left it"
        )
        if cards[0] == self.card:
            raise self._fail(cards, sentence)
        if late_s > self._leave_within_s():
            raise LaunchError(sentence)


def check_directory(path: str) -> None:
    """Any process that can write there can join, so it must be ours, and closed to others."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.stat(path)
    except OSError as error:
        raise LaunchError(
            f"the rendezvous directory {path} cannot be made: {error.strerror}"
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise LaunchError(f"{path} is not a directory; give another --rendezvous")
    if found.st_uid != os.geteuid():
        raise LaunchError(f"{path} is not yours; give a --rendezvous directory that is")
    if found.st_mode & 0o077:
        raise LaunchError(
            f"others may enter the rendezvous directory {path}, and could join the job; "
            f"close it with: chmod 700 {path}"
        )


def _listed(directory: Path) -> list[str]:
    """Opened anew each time, so that a network filesystem looks again."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
