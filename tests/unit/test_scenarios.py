"""Golden scenarios: the node's actions, told in ``tests/scenarios/*.txt``, one story each.

After a sentence of intent (``# ...``) a scenario has these lines:

    given SETTING VALUE     memory, tree-max, revalidate, shared, local, refused; before all others
    ask look|list PATH      requests are numbered q1, q2, ... in order; / is the root
    ask read PATH SIZE@T    the version of *SIZE* bytes, changed at time T
    scanned 1: a b          outcomes of fetch 1; "scanned 1 bare: a b", "scanned 1: a b?" where the
                            lookup of b failed, "looked 1 file|directory|nothing", "have read 1 as
                            blob 7", "opened 1 as handle 7", "failed 1 EACCES"
    clear                   a new epoch
    used listing PATH       used without a request to the node; "used object PATH SIZE@T"
    after SECONDS           time passes, and the node wakes

``> ...`` follows for every action that the node then takes. To write a scenario, omit these and
copy what the failing test shows.
"""

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path as FilePath

import pytest

from copperfs.driver.driver import Driver
from copperfs.model.listing import Listing
from copperfs.model.types import BlobId, ChunkKey, Entry, HandleId, Path, RequestId, Version
from copperfs.node.actions import (
    AnswerEntry,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    ListingKey,
    ListSource,
    LookupSource,
    ObjectKey,
    OpenForBypass,
    ReadChunk,
    ReadSource,
    SourceAction,
)
from copperfs.node.events import Event
from copperfs.node.requests.path_policy import Policy
from tests.unit.node_lab import Actions, Lab, directory, file, files, version, with_unknown
from tests.unit.ports_lab import NoPorts

SCENARIOS = sorted((FilePath(__file__).parent.parent / "scenarios").glob("*.txt"))
FOUND = {"file": file(), "directory": directory(), "nothing": None}


def path_of(text: str) -> Path:
    return Path(text.encode().strip(b"/"))


def version_of(text: str) -> Version:
    size, changed_s = text.split("@")
    return version(int(size), int(changed_s))


# --- the lines that happen ------------------------------------------------------------------------


def ask_read(lab: Lab, path: str, size: str, changed_s: str) -> Actions:
    return lab.read(path_of(path), int(size), int(changed_s))


def scanned(lab: Lab, fetch: str, bare: str, names: str) -> Actions:
    listing = files(*names.encode().replace(b"?", b"").split(), bare=bool(bare))
    unknown = [each[:-1] for each in names.encode().split() if each.endswith(b"?")]
    return lab.scanned(int(fetch), with_unknown(listing, *unknown) if unknown else listing)


def used_object(lab: Lab, path: str, wanted: str) -> Actions:
    return lab.used(ObjectKey(path_of(path), version_of(wanted)))


STEPS: dict[str, Callable[..., Actions]] = {
    r"ask look (\S+)": lambda lab, path: lab.look(path_of(path)),
    r"ask list (\S+)": lambda lab, path: lab.list(path_of(path)),
    r"ask read (\S+) (\d+)@(\d+)": ask_read,
    r"scanned (\d+)( bare)?:(.*)": scanned,
    r"looked (\d+) (\w+)": lambda lab, fetch, what: lab.looked(int(fetch), FOUND[what]),
    r"have read (\d+) as blob (\d+)": lambda lab, *ids: lab.have_read(*map(int, ids)),
    r"opened (\d+) as handle (\d+)": lambda lab, *ids: lab.opened(*map(int, ids)),
    r"failed (\d+) (\w+)": lambda lab, fetch, name: lab.failed(int(fetch), getattr(errno, name)),
    r"listed (\S+) in epoch (\d+):(.*)": lambda lab, path, epoch, names: lab.listed(
        path_of(path), files(*names.encode().split()), int(epoch)
    ),
    r"clear": lambda lab: lab.clear(),
    r"used listing (\S+)": lambda lab, path: lab.used(ListingKey(path_of(path))),
    r"used object (\S+) (\S+)": used_object,
    r"after ([\d.]+)": lambda lab, seconds: lab.tick(float(seconds)),
}


def happen(lab: Lab, line: str) -> Actions:
    for pattern, step in STEPS.items():
        if match := re.fullmatch(pattern, line):
            return step(lab, *match.groups())
    raise ValueError(f"not a line of a scenario: {line}")


# --- actions of the node --------------------------------------------------------------------------


class Telling(NoPorts):
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.lines: list[str] = []

    def now(self) -> float:
        return self.lab.now

    def tell(self, line: str) -> None:
        self.lines.append(line)

    def start(self, fetch: SourceAction, names_to_find: tuple[bytes, ...]) -> None:
        match fetch:
            case ListSource(number, path):
                self.tell(f"{number} scan {shown(path)}")
            case LookupSource(number, path):
                self.tell(f"{number} look {shown(path)}")
            case ReadSource(number, path, wanted):
                self.tell(f"{number} read {shown(path)} {shown_version(wanted)}")
            case OpenForBypass(number, path, wanted):
                self.tell(f"{number} open {shown(path)} {shown_version(wanted)}")
            case ReadChunk():
                raise AssertionError(f"scenarios have no word for {fetch}")

    def close_handle(self, handle: HandleId) -> None:
        self.tell(f"release handle {handle}")

    def release(self, blob: BlobId) -> None:
        self.tell(f"release blob {blob}")

    def answer(self, request: RequestId, answer: AnswerEntry | AnswerListing) -> None:
        until = shown_time(answer.fresh_until)
        if isinstance(answer, AnswerEntry):
            self.tell(f"q{request} is {shown_entry(answer.entry)}{until}")
        else:
            names = shown_names(answer.listing)
            self.tell(f"q{request} is in {shown(answer.directory)}: {names}{until}")

    def answer_object(self, answer: AnswerObject, content: object) -> None:
        self.tell(f"q{answer.request} is blob {answer.blob}")

    def answer_handle(self, answer: AnswerHandle) -> None:
        self.tell(f"q{answer.request} is handle {answer.handle}")

    def answer_error(self, request: RequestId, error: int) -> None:
        self.tell(f"q{request} fails {errno.errorcode[error]}")

    def withdraw(self, key: ListingKey | ObjectKey | ChunkKey) -> None:
        if isinstance(key, ListingKey):
            self.tell(f"evict listing {shown(key.path)}")
        else:
            self.tell(f"evict object {shown(key.path)} {shown_version(key.version)}")

    def begin_epoch(self, epoch: int) -> None:
        self.tell(f"new epoch {epoch}")

    def look_again(self, path: Path) -> None:
        self.tell(f"look again {shown(path)}")


@dataclass
class StoryLab(Lab):
    telling: Telling = field(init=False)
    driver: Driver[object, object] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.telling = Telling(self)
        self.driver = self.telling.drive(self.node)

    def step(self, event: Event) -> Actions:
        self.driver.post(event)
        self.node.check_invariants()
        return []

    def take_lines(self) -> list[str]:
        lines, self.telling.lines = self.telling.lines, []
        return lines


def shown(path: Path) -> str:
    return path.decode() or "/"


def shown_version(wanted: Version) -> str:
    return f"{wanted.size}@{wanted.mtime_ns // 10**9}"


def shown_entry(entry: Entry | None) -> str:
    return next(name for name, each in FOUND.items() if each == entry)


def shown_names(listing: Listing) -> str:
    names = [name + b"?" * entry.unknown for name, entry in listing.rows()]
    return b" ".join(names).decode() or "nothing"


def shown_time(until: float | None) -> str:
    return "" if until is None else f" until {until:g}"


# --- running --------------------------------------------------------------------------------------


def lab_with(given: dict[str, str]) -> StoryLab:
    def prefixes(name: str, default: str = "") -> tuple[Path, ...]:
        return tuple(path_of(each) for each in given.get(name, default).split())

    policy = Policy(
        source=b"/src",
        mountpoint=b"/mnt",
        shared=prefixes("shared", "/"),
        local=prefixes("local"),
        refused=frozenset(prefixes("refused")),
        revalidate_s=float(given["revalidate"]) if "revalidate" in given else None,
    )
    memory, tree_max = (int(given.get(name, 1 << 20)) for name in ("memory", "tree-max"))
    return StoryLab(memory, tree_max, policy=policy)


def replay(text: str) -> str:
    """As it should read: its own lines, with the actions that really follow."""
    lines = [line for line in text.splitlines() if not line.startswith(">")]
    settings = [
        line.removeprefix("given ").split(maxsplit=1) for line in lines if line.startswith("given ")
    ]
    lab = lab_with(dict(settings))
    told_lines = []
    for line in lines:
        told_lines.append(line)
        if line and not line.startswith(("#", "given ")):
            happen(lab, line)
            told_lines += [f"> {each}" for each in lab.take_lines()]
    return "\n".join(told_lines) + "\n"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(scenario: FilePath) -> None:
    text = scenario.read_text()
    assert text.startswith("# "), "a scenario opens with a sentence of intent"
    assert text == replay(text)


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 6


def test_an_unknown_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a line of a scenario: ask nicely"):
        replay("# x\nask nicely\n")
