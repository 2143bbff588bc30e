"""Golden scenarios: what the core does, told in ``tests/scenarios/*.txt``, one story each.

A scenario opens with a sentence of intent (``# ...``). Then come lines in any number of

    given SETTING VALUE     memory, tree-max, revalidate, shared, local, refused; before all else
    ask look|list PATH      questions are numbered q1, q2, ... as they come; / is the root
    ask read PATH SIZE@T    the version of *SIZE* bytes, changed at time T
    scanned 1: a b          outcomes of fetch 1; "scanned 1 bare: a b", "scanned 1: a b?" where b
                            could not be looked at, "looked 1 file|directory|nothing", "have read 1
                            as blob 7", "opened 1 as handle 7", "failed 1 EACCES"
    clear                   a new epoch
    used listing PATH       used without the node being asked; "used object PATH SIZE@T"
    after SECONDS           time passes, and the node is woken

and after each of them ``> ...`` for every action that the node then wants, in order. To write a new
one, leave those out and copy what the failing test shows.
"""

import errno
import re
from collections.abc import Callable
from pathlib import Path as FilePath

import pytest

from copperfs.core.actions import (
    Action,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    Evict,
    ListingKey,
    LookAgain,
    LookSource,
    NewEpoch,
    ObjectKey,
    OpenSource,
    ReadSource,
    ReleaseBlob,
    ReleaseHandle,
    ScanSource,
)
from copperfs.core.listing import Listing
from copperfs.core.policy import Policy
from copperfs.types import Entry, Path, Version
from tests.unit.core_lab import Actions, Lab, directory, file, files, version, with_unknown

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


# --- the actions that follow ----------------------------------------------------------------------


def told(action: Action) -> str:
    """An action as a line."""
    match action:
        case ScanSource(fetch, path):
            return f"{fetch} scan {shown(path)}"
        case LookSource(fetch, path):
            return f"{fetch} look {shown(path)}"
        case ReadSource(fetch, path, wanted):
            return f"{fetch} read {shown(path)} {shown_version(wanted)}"
        case OpenSource(fetch, path, wanted):
            return f"{fetch} open {shown(path)} {shown_version(wanted)}"
        case AnswerEntry(request, entry, until):
            return f"q{request} is {shown_entry(entry)}{shown_time(until)}"
        case AnswerListing(request, path, listing, until):
            return f"q{request} is in {shown(path)}: {shown_names(listing)}{shown_time(until)}"
        case AnswerObject(request, _, blob):
            return f"q{request} is blob {blob}"
        case AnswerHandle(request, handle):
            return f"q{request} is handle {handle}"
        case AnswerError(request, error):
            return f"q{request} fails {errno.errorcode[error]}"
        case Evict(ListingKey(path)):
            return f"evict listing {shown(path)}"
        case Evict(ObjectKey(path, wanted)):
            return f"evict object {shown(path)} {shown_version(wanted)}"
        case ReleaseBlob(blob):
            return f"release blob {blob}"
        case ReleaseHandle(handle):
            return f"release handle {handle}"
        case NewEpoch(number):
            return f"new epoch {number}"
        case LookAgain(path):
            return f"look again {shown(path)}"
    raise AssertionError(f"scenarios have no word for {action}")


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


def lab_with(given: dict[str, str]) -> Lab:
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
    return Lab(memory, tree_max, policy=policy)


def replay(text: str) -> str:
    """The scenario as it should read: its own lines, with the actions that really follow."""
    lines = [line for line in text.splitlines() if not line.startswith(">")]
    settings = [
        line.removeprefix("given ").split(maxsplit=1) for line in lines if line.startswith("given ")
    ]
    lab = lab_with(dict(settings))
    told_lines = []
    for line in lines:
        told_lines.append(line)
        if line and not line.startswith(("#", "given ")):
            told_lines += [f"> {told(action)}" for action in happen(lab, line)]
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
