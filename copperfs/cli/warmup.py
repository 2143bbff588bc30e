"""``copperfs warmup``: brings files into every node's memory before the job needs them.

This node's daemon plans and watches it; the roots of the trees read and push. The daemon gets the
paths in a file that only this user can read.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import TextColumn

from copperfs.cli.output import print_document, printable, transfer_progress
from copperfs.cli.which_mount import add_mount_argument, mount_and_paths
from copperfs.fuse.ioctl import IoctlRequest, ask_mount
from copperfs.model.errors import ControlError, UsageError

NAME = "warmup"
HELP = "bring files into the memory of every node, or with --ring into the data tier"
POLL_EVERY_S = 0.1
# The kernel's own limit.
LINKS_MAX = 40


EPILOG = """\
exit codes: 0 if every node holds the set; 1 if not; 2 wrong usage; 5 if the mount cannot be asked,
or refuses; 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_mount_argument(parser, "the mount to warm up")
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="files, and directories with all below them: paths in the mount, relative to it, or "
        "in the source",
    )
    parser.add_argument("--manifest", metavar="FILE", help="what 'copperfs record' wrote")
    parser.add_argument(
        "--check", action="store_true", help="only tell which nodes hold it; exit code 1 if not all"
    )
    parser.add_argument(
        "--evict", action="store_true", help="evict older content if there is no room"
    )
    parser.add_argument(
        "--ring",
        action="store_true",
        help="fill the data tier instead: each node reads its own chunks of large files, and of "
        "all below the mount's --ring",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.fuse.mounting import absolute

    if arguments.ring and (arguments.manifest is not None or arguments.evict):
        raise UsageError("--ring takes paths, and neither --manifest nor --evict")
    named, paths = mount_and_paths(arguments.mountpoint, arguments.paths)
    mountpoint = absolute(named)
    hello = ask_mount(mountpoint, IoctlRequest.HELLO)
    assert isinstance(hello, dict)
    if hello["mountpoint"] != mountpoint:
        raise ControlError(
            f"{mountpoint} is in the mount; its mount point is {hello['mountpoint']}"
        )
    wanted = Wanted()
    places = Places(mountpoint, hello["source"], os.path.abspath(named))
    for path in paths:
        wanted.add(followed(places, path))
    if arguments.manifest is not None:
        wanted.add(read_manifest(arguments.manifest))
    if not (wanted.paths or wanted.files or wanted.listings):
        raise UsageError("nothing to warm up; name paths, or a --manifest that is not empty")
    more = {"ring": True} if arguments.ring else {"evict": arguments.evict}
    outcome = _warm_up(mountpoint, asdict(wanted) | more | {"check": arguments.check})
    print_document(outcome, _ring_sentence if arguments.ring else _sentence, as_json=arguments.json)
    return 0 if is_held(outcome) else 1


def is_held(outcome: dict[str, Any]) -> bool:
    """Whether all nodes hold the set, or of a data tier all that live."""
    if "ring" in outcome:
        return outcome["held_chunks"] == outcome["chunks"] and not outcome["unheard"]
    return bool(outcome["nodes_complete"] == outcome["roster"])


def _warm_up(mountpoint: str, request: dict[str, Any]) -> dict[str, Any]:
    """Have it done; returns its last state."""
    state = _begin(mountpoint, request)
    try:
        return _wait(mountpoint, state)
    except KeyboardInterrupt:
        if "ring" in state:
            _begin(mountpoint, {"paths": [], "stop": state["number"]})
        raise


def _wait(mountpoint: str, state: dict[str, Any]) -> dict[str, Any]:
    number, said = state["number"], False
    errors = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with transfer_progress(errors, TextColumn("{task.fields[files]}"), shown=True) as bar:
        task = bar.add_task("planning", total=None, files="")
        while state["phase"] not in ("done", "failed"):
            time.sleep(POLL_EVERY_S)
            state = _state(ask_mount(mountpoint, IoctlRequest.WARM_UP_STATE))
            if state["number"] != number:
                raise ControlError("somebody began another warm-up; --check tells how this went")
            if state["phase"] in ("filling", "done") and state.get("left_bytes") and not said:
                said = True
                errors.print(_no_room(state))
            bar.update(
                task,
                description=state["phase"],
                total=state["total_bytes"] or None,
                completed=state["done_bytes"],
                files=f"{state['files_done']:,}/{state['files']:,} files"
                if "ring" in state
                else "",
            )
    if state["phase"] == "failed":
        raise ControlError(state["error"])
    return state


def _begin(mountpoint: str, request: dict[str, Any]) -> dict[str, Any]:
    """Make the daemon read the request; returns its state."""
    with tempfile.NamedTemporaryFile("w", prefix="copperfs-warmup-", encoding="ascii") as file:
        json.dump(request, file)
        file.flush()
        named = json.dumps({"file": file.name}).encode()
        return _state(ask_mount(mountpoint, IoctlRequest.WARM_UP, named))


def _state(answer: object) -> dict[str, Any]:
    assert isinstance(answer, dict)
    if "phase" not in answer:
        raise ControlError(str(answer.get("error", "the daemon gave no answer")))
    return answer


def _sentence(outcome: dict[str, Any]) -> str:
    nodes, roster, lacking = outcome["nodes_complete"], outcome["roster"], outcome["lacking"]
    said = f"{_files(outcome['objects'])}, {_mib(outcome['total_bytes'])}: "
    said += f"held by {nodes} of {roster} node{'s' * (roster != 1)}"
    if nodes < roster:
        more = roster - nodes - len(lacking)
        said += f", not by {', '.join(lacking)}" + (f" and {more} more" if more else "")
        if outcome["nodes"]:
            said += f"; who answered has at least {outcome['least_objects']:,}"
    for key, what in _LEFT.items():
        if outcome[key]:
            said += f"; {outcome[key]:,} {what}"
    if outcome["unread"]:
        names = ", ".join(outcome["unread"])
        said += (
            f"; not all was pushed, as {names}, who reads it for all, failed or was not heard of"
        )
    return printable(said)


def _files(count: int) -> str:
    return f"{count:,} file{'s' * (count != 1)}"


_LEFT = {
    "too_large": "larger than --tree-max are left to each node",
    "unlisted": "in directories larger than --listing-max are left to each node",
    "unreadable": "must not be read",
    "missing": "of the manifest not there any more",
    "failed": "could not be read",
}


def _no_room(state: dict[str, Any]) -> str:
    return (
        f"the set takes more than the data tier holds: {_mib(state['left_bytes'])} of "
        f"{_mib(state['total_bytes'])} will be read from the source when they are wanted; give the "
        "mount a larger --tier-size, or --tier-memory where there is no disk"
    )


def _ring_sentence(outcome: dict[str, Any]) -> str:
    said = f"{_files(outcome['files'])}, {_mib(outcome['total_bytes'])} in "
    said += f"{outcome['chunks']:,} chunk{'s' * (outcome['chunks'] != 1)}: "
    if is_held(outcome):
        said += "all are held by their owners"
    else:
        said += f"{outcome['held_chunks']:,} are held by their owners"
        said += f", not all of {', '.join(outcome['lacking'])}" if outcome["lacking"] else ""
    if outcome["left_bytes"]:
        said += f"; there is no room for {_mib(outcome['left_bytes'])}"
    for key, what in _RING_LEFT.items():
        if outcome[key]:
            said += f"; {outcome[key]:,} {what}"
    if outcome["gone"]:
        said += f"; gone: {', '.join(outcome['gone'])}"
    if outcome["unheard"]:
        said += f"; not heard of: {', '.join(outcome['unheard'])}"
    return printable(said)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


_RING_LEFT = {
    "failed": "chunks could not be read",
    "unlisted": "files or directories could not be listed",
    "unreadable": "files must not be read",
}


# --- what is wanted ------------------------------------------------------------------------------


@dataclass(slots=True)
class Wanted:
    """Paths below the mount point."""

    paths: list[str] = field(default_factory=list)
    """Files, and directories with all below them; each must exist."""
    files: list[str] = field(default_factory=list)
    listings: list[str] = field(default_factory=list)
    """Directories of which only names are wanted."""

    def add(self, other: "Wanted") -> None:
        self.paths += other.paths
        self.files += other.files
        self.listings += other.listings


@dataclass(frozen=True, slots=True)
class Places:
    """The prefixes that paths may have; all absolute."""

    mountpoint: str
    source: str
    called: str
    """The mount point as the user wrote it, perhaps through a link."""

    def find(self, path: str) -> str:
        """*path* is relative to the current directory or the mount point, or a path of the
        source."""
        full = os.path.abspath(path)
        found = _below(self.mountpoint, full)
        if found is None and not os.path.isabs(path):
            found = _below(self.mountpoint, os.path.join(self.mountpoint, path))
        elif found is None:
            found = _below(self.called, full)
            found = self.link(full) if found is None else found
        if found is None:
            raise ControlError(f"{path} is not below {self.mountpoint}")
        return found

    def link(self, target: str) -> str | None:
        """The target of an absolute link, in the mount."""
        found = _below(self.mountpoint, target)
        return _below(self.source, target) if found is None else found


def _below(top: str, path: str) -> str | None:
    relative = os.path.relpath(path, top)
    if relative == ".." or relative.startswith("../"):
        return None
    return "" if relative == "." else relative


def followed(places: Places, path: str) -> Wanted:
    """*path* without its links, and the directories of the links, which its readers list as
    well."""
    wanted, at, links = Wanted(), "", 0
    rest = places.find(path).split("/")
    while rest:
        below = _below("/", os.path.join("/", at, rest.pop(0)))
        assert below is not None
        try:
            target = os.readlink(os.path.join(places.mountpoint, below))
        except OSError:
            at = below  # no link, or missing, which the daemon reports
            continue
        wanted.listings.append(at)
        links += 1
        if links > LINKS_MAX:
            raise ControlError(f"{path} has too many links on its way")
        if os.path.isabs(target):
            inside = places.link(target)
            if inside is None:
                raise ControlError(f"{path} leads out of {places.mountpoint}, to {target}")
            at, target = "", inside
        rest[:0] = target.split("/")
    wanted.paths.append(at)
    return wanted


def read_manifest(file: str) -> Wanted:
    """One JSON object a line: a path, and as its kind ``object`` or ``listing``."""
    wanted = Wanted()
    by_kind = {"object": wanted.files, "listing": wanted.listings}
    try:
        with open(file, encoding="ascii") as lines:
            for line in filter(str.strip, lines):
                each = json.loads(line)
                path = each["path"]
                if not isinstance(path, str):
                    raise TypeError("a path is a string")
                by_kind[each["kind"]].append(path)
    except OSError as error:
        raise ControlError(f"the manifest {file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ControlError(
            f"{file} is no manifest of 'copperfs record': each line has to be a JSON object with a "
            "path and a kind"
        ) from None
    return wanted
