"""Settings of a daemon, and the origin of each.

``Settings`` is the one table. Each of its fields carries an ``Option`` with the spelling and the
meaning of the setting. The flags, the ``COPPERFS_*`` variables, the keys of the TOML file,
``copperfs config show`` and ``docs/options.md`` are all made from that. A setting has one name
everywhere: ``--tree-max``, ``COPPERFS_TREE_MAX`` and ``tree-max = ...``.

For each setting ``resolve`` takes the last origin that gives it: default, TOML file, variable,
flag. It does no I/O: the command line passes the text of the file, the environment and the memory
available to this process. The result goes to the daemon, a fresh process, as JSON.

A value is first parsed from text, whatever its origin, so that there is one set of rules and of
error messages. ``"none"`` stands for the absence of a value, because neither a variable nor TOML
has another way to say so.

This module is longer than most, because the table and its readers belong together.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from enum import Enum
from typing import Literal

from copperfs.model.errors import ConfigError
from copperfs.model.types import FANOUT

Value = str | int | float | bool | tuple[str, ...] | None

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
AGE_MIN_S = 0.1
TIER_MEMORY_BYTES = 512 * MIB
# A chunk travels in one message, which has room for 1 MiB.
CHUNK_UNIT_BYTES, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 4 * KIB, 64 * KIB, MIB
# On disk a chunk has up to two pages more, for its header (``chunkstore/disk_format.py``).
CHUNK_HEADER_BYTES_MAX = 8 * KIB

# ---- sizes and durations as text -------------------------------------------------------------

# As in coreutils: K and KiB are 1024, KB is 1000; case does not matter.
_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_SECONDS = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*s?", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes from ``"0"``, ``"512k"``, ``"10 MiB"``, ``"1.5G"``; ValueError otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write 0, 512k, 10MiB or 1.5G")
    number, unit = match[1], _UNITS[match[2].lower()]
    # An integer stays out of floating point, which is exact only up to 2**53.
    return int(number) * unit if number.isdigit() else round(float(number) * unit)


def format_size(size_bytes: int) -> str:
    """The shortest exact text: the largest unit that divides the size. ``parse_size`` reads it."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B" if size_bytes else "0"


def parse_seconds(text: str) -> float:
    """Seconds from ``"60"``, ``"0.5"`` or ``"5 s"``; ValueError otherwise."""
    match = _SECONDS.fullmatch(text.strip())
    seconds = float(match[1]) if match is not None else math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is not a number of seconds; write 60 or 0.5")
    return seconds


def whole_number(at_least: int, at_most: int) -> Callable[[str], int]:
    """A parser of whole numbers in these bounds; ValueError otherwise."""

    def parse(text: str) -> int:
        # ASCII digits only, and few: int() takes other scripts, and refuses 5,000 digits.
        if not re.fullmatch(r"\d{1,12}", text, re.ASCII) or not at_least <= int(text) <= at_most:
            raise ValueError(f"{text!r} is not a whole number from {at_least} to {at_most}")
        return int(text)

    return parse


def format_seconds(seconds: float) -> str:
    """``"60 s"``; exact, so that ``parse_seconds`` gives the same number back."""
    return f"{seconds!r}".removesuffix(".0") + " s"


# ---- kinds of values -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OptionKind:
    """How the values of an option are written, as text and natively in TOML."""

    metavar: str
    parse: Callable[[str], Value]
    format: Callable[..., str] = str
    toml_types: tuple[type, ...] = (str,)


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError("the value is empty; give one or leave the setting out")
    return text


def _parse_absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path; write one that begins with /")
    return text.rstrip("/") or "/"


def _parse_switch(text: str) -> bool:
    if text.lower() in ("yes", "true", "on", "1"):
        return True
    if text.lower() in ("no", "false", "off", "0"):
        return False
    raise ValueError(f"{text!r} is neither yes nor no; write one of them")


def _format_switch(value: bool) -> str:
    return "yes" if value else "no"


def _parse_deadline(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds == 0:
        raise ValueError("0 seconds would let nothing succeed; write more, for instance 60")
    return seconds


def _parse_age(text: str) -> float:
    seconds = parse_seconds(text)
    # A reply must stay fresh for long enough to be sent.
    if seconds < AGE_MIN_S:
        raise ValueError(f"{text!r} is too short; it has to be at least {AGE_MIN_S} seconds")
    return seconds


def _parse_chunk(text: str) -> int:
    size_bytes = parse_size(text)
    if size_bytes % CHUNK_UNIT_BYTES or not CHUNK_BYTES_MIN <= size_bytes <= CHUNK_BYTES_MAX:
        raise ValueError(
            f"{text!r} is no size of a chunk; write 64KiB, 1MiB or whole pages between"
        )
    return size_bytes


def _count(at_least: int, at_most: int) -> OptionKind:
    return OptionKind("N", whole_number(at_least, at_most), toml_types=(str, int))


def _choice(*choices: str) -> OptionKind:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return OptionKind("|".join(choices), parse)


def _parse_metrics(text: str) -> str:
    if text.isdecimal() and not 1 <= int(text) <= 65535:
        raise ValueError(f"{text!r} is no port; write a number from 1 to 65535, or a file")
    return _parse_text(text)


def _parse_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", text):
        raise ValueError(f"{text!r} is no name for a node; write letters, digits, dots and dashes")
    return text


PATH = OptionKind("PATH", _parse_text)
NAME = OptionKind("NAME", _parse_name)
PREFIX = OptionKind("PREFIX", _parse_absolute)
SIZE = OptionKind("SIZE", parse_size, format_size, (str, int))
CHUNK = OptionKind("SIZE", _parse_chunk, format_size, (str, int))
AGE = OptionKind("SECONDS", _parse_age, format_seconds, (str, int, float))
DEADLINE = OptionKind("SECONDS", _parse_deadline, format_seconds, (str, int, float))
SWITCH = OptionKind("yes|no", _parse_switch, _format_switch, (bool,))


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as its users see it; its name and default are those of the Settings field."""

    name: str
    group: str
    kind: OptionKind
    help: str
    default: Value
    default_text: str | None = None  # where the default is a rule, not a value
    multi: bool = False
    optional: bool = False

    @property
    def key(self) -> str:
        """The name as users write it. Values carry their unit, so the name drops it."""
        return self.name.removesuffix("_bytes").removesuffix("_s").replace("_", "-")

    @property
    def flag(self) -> str:
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        return "COPPERFS_" + self.key.upper().replace("-", "_")

    def parse(self, text: str) -> Value:
        """The value that the text means; ValueError says what is wrong with it."""
        if self.optional and text.lower() == "none":
            return None
        return self.kind.parse(text)

    def parse_variable(self, text: str) -> Value:
        """Like ``parse``; a list is separated by colons, as in PATH."""
        if self.multi:
            return tuple(str(self.parse(part)) for part in text.split(":") if part)
        return self.parse(text)

    def parse_toml(self, value: object) -> Value:
        if self.multi:
            if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
                raise ValueError('write a list of strings, such as ["/lus", "/home"]')
            return tuple(str(self.parse(part)) for part in value)
        if self.optional and value == "none":
            return None
        # type(), because a bool is an int to isinstance, and "memory = true" is a mistake.
        if type(value) not in self.kind.toml_types:
            names = " or ".join(_TOML_NAMES[kind] for kind in self.kind.toml_types)
            raise ValueError(f"write {names}, not {value!r}")
        return self.parse(str(value))

    def format(self, value: Value) -> str:
        """The value for a reader; ``parse_variable`` gives it back."""
        if value is None:
            return "none"
        return ":".join(value) if isinstance(value, tuple) else self.kind.format(value)


_TOML_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}

# ---- the table -------------------------------------------------------------------------------

VIEW, CACHES, SOURCE, DAEMON = "What the mount shows", "Caches", "Source", "Daemon"
OVERLAY = "Between nodes"
TIER = "Data tier"
FAILURE = "When nodes fail"
LAUNCH = "Launch on several nodes"

SymlinkMode = Literal["rewrite", "keep"]
InodeMode = Literal["auto", "compare", "ignore"]


def _option(
    group: str,
    kind: OptionKind,
    help: str,  # noqa: A002 - the name that argparse uses
    *,
    default_text: str | None = None,
    multi: bool = False,
    optional: bool = False,
) -> dict[str, object]:
    return {
        "group": group,
        "kind": kind,
        "help": help,
        "default_text": default_text,
        "multi": multi,
        "optional": optional,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a daemon. Each field but the mount point is an option."""

    mountpoint: str

    source: str = field(
        default="/",
        metadata=_option(VIEW, PATH, "The directory that the mount shows."),
    )
    shared: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            VIEW,
            PREFIX,
            "Absolute paths on shared filesystems: what is below one of them is kept as one "
            "snapshot, or for --revalidate seconds; all else is local to this node and is believed "
            "for one second. Give several after one flag, or separated by colons in the variable. "
            "Put the mount point before this flag.",
            default_text="with --source /, the network filesystems of this node; if there are "
            "none, or with another source, everything but /proc, /sys, /dev and /run. On several "
            "machines never a disk of one of them: a job that shares nothing else is refused",
            multi=True,
        ),
    )
    symlinks: SymlinkMode = field(
        default="rewrite",
        metadata=_option(
            VIEW,
            _choice("rewrite", "keep"),
            "An absolute symlink into a shared path is shown so that following it does not leave "
            "the mount (rewrite): the source's own path is replaced by the mount point. With keep "
            "it is shown as it is.",
        ),
    )
    inodes: InodeMode = field(
        default="auto",
        metadata=_option(
            VIEW,
            _choice("auto", "compare", "ignore"),
            "Whether a file's inode number is part of its version, on all nodes. With auto it is, "
            "unless the clients of the source (sshfs) have inode numbers of their own, which nodes "
            "find out when they meet, by comparing a few names. With compare it is in any case, "
            "with ignore it is not: then a file that is replaced by one of the same size and times "
            "is not noticed.",
        ),
    )
    allow_other: bool = field(
        default=False,
        metadata=_option(
            VIEW,
            SWITCH,
            "Let other users use the mount; the kernel checks their rights against the modes and "
            "owners that it shows. Needs user_allow_other in /etc/fuse.conf, or root.",
        ),
    )
    memory_bytes: int = field(
        metadata=_option(
            CACHES,
            SIZE,
            "The budget of all that this daemon holds of listings, entries and files. Once it is "
            "full, what was used longest ago is evicted and read again when asked for. The front's "
            "table of names comes on top, about a sixteenth of it; so does what the kernel caches.",
            default_text="an eighth of the memory, at most 8 GiB; where the cgroup of the job has "
            "a limit, an eighth of that",
        ),
    )
    tree_max_bytes: int = field(
        default=10 * MIB,
        metadata=_option(
            CACHES,
            SIZE,
            "Files up to this size, and up to half of --memory, are fetched and cached whole at "
            "the first read of any byte. Larger ones go through the data tier, in chunks, as they "
            "are asked for; without a tier (a node alone, or --tier-memory 0) they are read from "
            "the source, and only the kernel caches them. Larger values make a first read of a few "
            "bytes dearer and later ones free.",
        ),
    )
    bypass_above_bytes: int | None = field(
        default=None,
        metadata=_option(
            CACHES,
            SIZE,
            "Files above this size never enter a cache of the daemon or the data tier, even if "
            "--tree-max is larger; every read that the kernel has not cached goes to the source. "
            "With none, there is no such size.",
            optional=True,
        ),
    )
    revalidate_s: float | None = field(
        default=None,
        metadata=_option(
            CACHES,
            AGE,
            "Ask the source again about what was looked at longer ago than this; whoever opens a "
            "file by name sees a change after at most this time. With none, the job sees one "
            "snapshot until 'copperfs clear'.",
            optional=True,
        ),
    )
    listing_max: int = field(
        default=4096,
        metadata=_option(
            CACHES,
            _count(0, 10_000_000),
            "A directory with up to this many entries is fetched whole, with all attributes, and "
            "then answers every lookup, found or not. Of a larger one only the names are fetched: "
            "they still answer for what is missing, and each name that is there is looked up by "
            "itself.",
        ),
    )
    source_concurrency: int = field(
        default=32,
        metadata=_option(
            SOURCE,
            _count(1, 1024),
            "At most this many operations on the source at a time (listing a directory, looking at "
            "a name, opening, reading a whole file), each in a thread of its own; a thread that "
            "hangs beyond --source-deadline is replaced. Reads of files that are too large to be "
            "cached come on top, up to 64 at a time.",
        ),
    )
    read_ahead: bool = field(
        default=True,
        metadata=_option(
            SOURCE,
            SWITCH,
            "After the second file of one ending (.pyc) that is read in a directory, read the "
            "others of it before they are asked for: up to 512 files of up to 128 KiB each, 4 MiB "
            "together, a few at a time. Of Python packages the compiled files after the first one, "
            "and the directories and libraries that the compiled __init__ mentions. What is read "
            "is the same whatever the order and the number of nodes, and nothing that was asked "
            "for goes for it.",
        ),
    )
    source_deadline_s: float = field(
        default=60.0,
        metadata=_option(
            SOURCE,
            DEADLINE,
            "An operation on the source that takes longer than this fails with ETIMEDOUT for "
            "whoever waits for it, so that a hung disk cannot hang a reader for good. No request "
            "of the kernel waits more than about 6 seconds longer than this.",
        ),
    )
    bootstrap: Literal["auto", "mpi", "none"] = field(
        default="auto",
        metadata=_option(
            LAUNCH,
            _choice("auto", "mpi", "none"),
            "How the nodes of a job find each other. With auto: by --hostfile or --rendezvous if "
            "given, else by MPI if mpiexec or srun started more than one process, else this node "
            "is alone. With none it is alone whatever else is said, for instance in a process "
            "that itself belongs to an MPI job.",
        ),
    )
    rendezvous: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            PATH,
            "A directory that all nodes share, through which they find each other without MPI. "
            "It has to be yours with mode 0700, and is made so if it is missing; a start leaves "
            "nothing in it. Two mounts that start at the same time need two directories.",
            optional=True,
        ),
    )
    nodes: int | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            _count(1, 200_000),
            "How many nodes --rendezvous waits for. Given with another way to launch, it has to "
            "be what that finds.",
            default_text="what Slurm, PBS, PALS or Flux say",
            optional=True,
        ),
    )
    launch_timeout_s: float = field(
        default=300.0,
        metadata=_option(
            LAUNCH,
            DEADLINE,
            "How long to wait for all nodes; --rendezvous then says who is missing. The same on "
            "all nodes: a file in its directory that is a minute older than this is taken for "
            "that of a start that crashed.",
        ),
    )
    hostfile: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            PATH,
            "A file that names all nodes, the same on each of them: HOST, HOST:PORT or a set such "
            "as node[001-128] on each line. Needs --key-file, unless --security is none.",
            optional=True,
        ),
    )
    key_file: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            PATH,
            "The secret by which nodes of a hostfile know each other, made by 'copperfs keygen'. "
            "Whoever can read it can join the job, so it has to be yours with mode 0600. The "
            "other ways to launch draw new keys each time.",
            optional=True,
        ),
    )
    node_name: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            NAME,
            "What this node is called; no two may have one name.",
            default_text="its host name",
            optional=True,
        ),
    )
    listen: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            OptionKind("WHERE", _parse_text),
            "Where the other nodes reach this one: an address, an interface (hsn0) or a network "
            "(10.1.0.0/16, whichever interface is in it). Nothing listens on other interfaces.",
            default_text="the address that the host name has; if that is loopback, the interface "
            "of the default route",
            optional=True,
        ),
    )
    port: int | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            _count(0, 65535),
            "The TCP port on which the other nodes reach this one; 0 is any that is free.",
            default_text="any that is free; with --hostfile 4711",
            optional=True,
        ),
    )
    security: Literal["curve", "none"] = field(
        default="curve",
        metadata=_option(
            LAUNCH,
            _choice("curve", "none"),
            "With curve, nodes encrypt what they say to each other and let nobody in who is not in "
            "the roster; it takes CPU time for each byte. With none, whoever reaches the port can "
            "read what the job reads and answer in its place: only for isolated networks. The "
            "same on all nodes.",
        ),
    )
    front_threads: int = field(
        default=2,
        metadata=_option(
            DAEMON,
            _count(1, 64),
            "C threads that answer the kernel from what is cached, without the GIL.",
        ),
    )
    fanout: int = field(
        default=FANOUT,
        metadata=_option(
            OVERLAY,
            _count(1, 1024),
            "How many nodes ask one node. Each hop costs a round trip, so a high one is faster for "
            "single files; whom all ask serves one after the other, so a low one is faster when a "
            "job starts. The same on all nodes.",
        ),
    )
    push_fanout: int = field(
        default=2,
        metadata=_option(
            OVERLAY,
            _count(1, 64),
            "To how many nodes each node passes on what 'copperfs warmup' spreads. Its link "
            "carries the data so many times, so a low one is faster. The same on all nodes.",
        ),
    )
    trees: int = field(
        default=1,
        metadata=_option(
            OVERLAY,
            _count(1, 64),
            "How many nodes share the reading of the source: there are so many trees, each with "
            "another root, and a directory's path picks its tree. The same on all nodes.",
        ),
    )
    wait_all: bool = field(
        default=False,
        metadata=_option(
            OVERLAY,
            SWITCH,
            "Return only when the mounts of all nodes answer, instead of when this node's own "
            "parents do. Node 0 asks all others, so give it to all nodes.",
        ),
    )
    tier_memory_bytes: int = field(
        default=TIER_MEMORY_BYTES,
        metadata=_option(
            TIER,
            SIZE,
            "The memory of this node in which chunks of large files and datasets lie: its own "
            "part of them, and for a moment those that it has read. It comes on top of --memory. "
            "With 0 and no --tier-dir this node keeps none, and with that on all nodes, large "
            "files are read from the source by every node. A node that is a job by itself has "
            "none without --tier-dir.",
            default_text="512 MiB, at most an eighth of the memory, or of the limit of the job's "
            "cgroup",
        ),
    )
    tier_dir: str | None = field(
        default=None,
        metadata=_option(
            TIER,
            PATH,
            "A directory on a disk of this node (NVMe) where its part of the chunks is kept as "
            "well, also for the next job. It is made if it is missing; %h in it stands for the "
            "node's name. Two daemons cannot use one directory.",
            optional=True,
        ),
    )
    tier_size_bytes: int | None = field(
        default=None,
        metadata=_option(
            TIER,
            SIZE,
            "How much of the disk --tier-dir may take. At least 1 GiB of it is left free for "
            "others, whatever this says. A node's part of all chunks is in proportion to this and "
            "--tier-memory together.",
            default_text="half of what is free on that disk when the node starts",
            optional=True,
        ),
    )
    ring: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            TIER,
            PREFIX,
            "Absolute paths of datasets: all files below one of them go through the data tier, "
            "not only those above --tree-max. The same on all nodes.",
            default_text="no path",
            multi=True,
        ),
    )
    chunk_size_bytes: int = field(
        default=MIB,
        metadata=_option(
            TIER,
            CHUNK,
            "The size of the pieces in which files go through the data tier: whole pages, from 64 "
            "KiB to 1 MiB. Smaller ones spare bytes where little of a file is read, and cost CPU "
            "time for each. The same on all nodes.",
        ),
    )
    vnodes: int | None = field(
        default=None,
        metadata=_option(
            TIER,
            _count(1, 10_000),
            "How many points each node has on the ring. More share the chunks out more evenly, and "
            "take longer to place. The same on all nodes.",
            default_text="100, and up to 500 in jobs of less than 10,000 nodes: a million together",
            optional=True,
        ),
    )
    mover_rate_bytes: int = field(
        default=0,
        metadata=_option(
            TIER,
            SIZE,
            "How many bytes a second are written to --tier-dir at most; 0 is as fast as the disk "
            "takes them. With --tier-write wait no more than that is read from the source for the "
            "disk, either.",
        ),
    )
    tier_write: Literal["wait", "later"] = field(
        default="wait",
        metadata=_option(
            TIER,
            _choice("wait", "later"),
            "What happens when the source gives chunks faster than the disk of --tier-dir takes "
            "them. wait: the node reads the source as fast as its disk writes, so the source gives "
            "each chunk once, and the first pass is as slow as the disk. later: nobody waits, and "
            "what neither the disk nor --tier-memory could keep is read from the source again, in "
            "the background or by who wants it first. A disk that is full or broken holds up "
            "nobody in either case.",
        ),
    )
    fetch_deadline_s: float = field(
        default=30.0,
        metadata=_option(
            FAILURE,
            DEADLINE,
            "A node that no other one has answered for so long reads the source itself. Each ten "
            "seconds until then it asks another one, too.",
        ),
    )
    fallback: bool = field(
        default=True,
        metadata=_option(
            FAILURE,
            SWITCH,
            "Whether a node that no other one can answer reads the source itself. Without, its "
            "reader gets an error when --source-deadline is over.",
        ),
    )
    fallback_concurrency: int = field(
        default=4,
        metadata=_option(
            FAILURE,
            _count(1, 1024),
            "How many of such reads of the source a node has under way at once, so that a "
            "failure that many nodes see does not become a storm.",
        ),
    )
    hedge_after_s: float = field(
        default=0.25,
        metadata=_option(
            FAILURE,
            DEADLINE,
            "A peer that owes an answer is asked for a sign of life after 0.1 s; if it gives none "
            "for so long, another one is asked as well. Shorter ones ask more often in vain when "
            "nodes are loaded.",
        ),
    )
    heartbeat_s: float = field(
        default=0.5,
        metadata=_option(
            FAILURE,
            DEADLINE,
            "A parent that said nothing for so long is asked for a sign of life.",
        ),
    )
    dead_after_s: float = field(
        default=3.0,
        metadata=_option(
            FAILURE,
            DEADLINE,
            "A node that gave no sign of life for so long counts as gone, until it is heard of "
            "again. Nothing waits for this: it only says when others are told.",
        ),
    )
    events: str | None = field(
        default=None,
        metadata=_option(
            DAEMON,
            PATH,
            "What happens to the nodes is appended to this file, a line of JSON each: who was "
            "lost, silent, gone or back, and who turned to another parent. Its name may have %h, "
            "%u and %m as that of --log-file. A node by itself has nothing to tell, and makes no "
            "file.",
            optional=True,
        ),
    )
    metrics: str | None = field(
        default=None,
        metadata=_option(
            DAEMON,
            OptionKind("PORT|FILE", _parse_metrics),
            "Give the statistics to Prometheus: at http://127.0.0.1:PORT/metrics, for processes of "
            "this node only, or in a file that is written each 15 seconds (for the textfile "
            "collector of its node_exporter). Its name may have %h, %u and %m as that of "
            "--log-file; a file of another user, or a link, is not replaced.",
            optional=True,
        ),
    )
    foreground: bool = field(
        default=False,
        metadata=_option(
            DAEMON, SWITCH, "Stay in the foreground until unmounted, instead of daemonising."
        ),
    )
    log_level: str = field(
        default="info",
        metadata=_option(
            DAEMON,
            _choice("debug", "info", "warning", "error"),
            "The least severe messages that are logged.",
        ),
    )
    log_file: str | None = field(
        default=None,
        metadata=_option(
            DAEMON,
            PATH,
            "Messages are appended to this file, in which %h stands for the node's name, %u for "
            "the user's, and %m for the mount point with - for each /; also in the foreground. "
            "What libfuse and Python write to standard error goes there, too, when daemonised. "
            "It has to be the user's own, and no link. Once it is renamed, as by logrotate, a new "
            "one is begun within some seconds, or at SIGHUP. With none, messages go to "
            "standard error in the foreground, and nowhere otherwise.",
            optional=True,
        ),
    )

    @property
    def has_tier(self) -> bool:
        """Whether this node keeps chunks, in memory or on a disk."""
        return self.tier_memory_bytes > 0 or self.tier_dir is not None

    @property
    def tier_bytes(self) -> int:
        """The weight of this node in the placement of chunks; valid once --tier-size is known."""
        disk_bytes = 0 if self.tier_dir is None else self.tier_size_bytes or 0
        return self.tier_memory_bytes + disk_bytes

    def to_json(self) -> str:
        # ASCII, with names that are not UTF-8 as escaped surrogates: it survives any pipe.
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        """What ``to_json`` wrote. Both ends are of one version, so a mismatch is a bug."""
        values = json.loads(text)
        tuples = {name: tuple(values[name]) for name in ("shared", "ring")}
        return cls(**values | tuples)


OPTIONS: tuple[Option, ...] = tuple(
    Option(
        name=entry.name,
        default=None if entry.default is MISSING else entry.default,
        **entry.metadata,
    )
    for entry in fields(Settings)
    if entry.metadata
)


def check_tier(settings: Settings) -> None:
    """Raise ConfigError if the settings of the data tier contradict each other."""
    if settings.tier_dir is None:
        for given, flag, what in (
            (settings.tier_size_bytes is not None, "--tier-size", "how much of its disk is used"),
            (settings.mover_rate_bytes > 0, "--mover-rate", "how fast is written to it"),
            (settings.tier_write != "wait", "--tier-write", "when is written to it"),
        ):
            if given:
                raise ConfigError(
                    f"{flag} says {what}, and there is no --tier-dir: give one, or leave {flag} out"
                )
        return
    least = settings.chunk_size_bytes + CHUNK_HEADER_BYTES_MAX
    size = settings.tier_size_bytes
    if size is not None and size < least:
        raise ConfigError(
            f"--tier-size {format_size(size)} has no room for one chunk: give at least "
            f"{format_size(least)}, or leave --tier-dir out"
        )
    # A cluster has its own mount points, which are not known here.
    if settings.mountpoint and f"{settings.tier_dir}/".startswith(f"{settings.mountpoint}/"):
        raise ConfigError(
            f"--tier-dir {settings.tier_dir} lies in the mount point: give a directory outside "
            f"{settings.mountpoint}"
        )


def _eighth(memory_bytes: int) -> int:
    """In whole MiB, so that it prints well."""
    return max(memory_bytes // 8 // MIB, 1) * MIB


def default_memory_bytes(memory_bytes: int) -> int:
    """An eighth of the memory available to this process, at most 8 GiB."""
    return min(_eighth(memory_bytes), 8 * GIB)


def default_tier_memory_bytes(memory_bytes: int) -> int:
    return min(_eighth(memory_bytes), TIER_MEMORY_BYTES)


_DEFAULTS_OF_MEMORY: dict[str, Callable[[int], int]] = {
    "memory_bytes": default_memory_bytes,
    "tier_memory_bytes": default_tier_memory_bytes,
}


# ---- origins ---------------------------------------------------------------------------------


class Origin(Enum):
    """Where a value can come from; a later one wins over an earlier one."""

    DEFAULT = "default"
    FILE = "file"
    VARIABLE = "variable"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The TOML file as the command line read it."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A setting's value, and the origin that won; ``where`` is the file, variable or flag."""

    option: Option
    value: Value
    origin: Origin
    where: str

    @property
    def text(self) -> str:
        return self.option.format(self.value)


def resolve(
    *,
    flags: Mapping[str, Value],
    environ: Mapping[str, str],
    file: ConfigFile | None,
    memory_bytes: int,
    memory_where: str = "physical memory",
) -> tuple[Resolved, ...]:
    """Every option's value and origin, in the order of the table.

    ``flags`` has the parsed values of the given flags, by field name. ``memory_where`` names the
    source of ``memory_bytes``: physical memory, or the file that limits it.
    """
    keys = _toml_keys(file)
    return tuple(
        _resolve_one(option, flags, environ, file, keys, memory_bytes, memory_where)
        for option in OPTIONS
    )


def _resolve_one(
    option: Option,
    flags: Mapping[str, Value],
    environ: Mapping[str, str],
    file: ConfigFile | None,
    keys: Mapping[str, object],
    memory_bytes: int,
    memory_where: str,
) -> Resolved:
    if option.name in flags:
        return Resolved(option, flags[option.name], Origin.FLAG, option.flag)
    if option.variable in environ:
        try:
            value = option.parse_variable(environ[option.variable])
        except ValueError as error:
            raise ConfigError(f"{option.variable}: {error}") from None
        return Resolved(option, value, Origin.VARIABLE, option.variable)
    if file is not None and option.key in keys:
        try:
            value = option.parse_toml(keys[option.key])
        except ValueError as error:
            raise ConfigError(f"{file.path}: {option.key}: {error}") from None
        return Resolved(option, value, Origin.FILE, file.path)
    if option.name in _DEFAULTS_OF_MEMORY:
        value = _DEFAULTS_OF_MEMORY[option.name](memory_bytes)
        where = f"default, from {memory_bytes // MIB} MiB ({memory_where})"
        return Resolved(option, value, Origin.DEFAULT, where)
    return Resolved(option, option.default, Origin.DEFAULT, "default")


def following_memory(resolved: tuple[Resolved, ...]) -> frozenset[str]:
    """The names of options that were not given and that follow from the available memory: two
    processes of one node may have different limits."""
    defaults = {each.option.name for each in resolved if each.origin is Origin.DEFAULT}
    return frozenset(defaults & _DEFAULTS_OF_MEMORY.keys())


def _toml_keys(file: ConfigFile | None) -> Mapping[str, object]:
    if file is None:
        return {}
    import tomllib  # here, since few have a file, and each command would pay for it

    try:
        keys = tomllib.loads(file.text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file.path} is not valid TOML: {error}") from None
    known = [option.key for option in OPTIONS]
    for key in keys:
        if key not in known:
            import difflib

            close = difflib.get_close_matches(key, known, n=1)
            advice = f"did you mean {close[0]}" if close else "'copperfs config show' lists them"
            raise ConfigError(f"{file.path}: there is no setting {key!r}; {advice}")
    return keys


def settings_of(mountpoint: str, resolved: tuple[Resolved, ...]) -> Settings:
    values: dict[str, object] = {entry.option.name: entry.value for entry in resolved}
    # The one place where the table's values meet the types of the fields; a test checks the table
    # against them.
    return Settings(mountpoint=mountpoint, **values)  # type: ignore[arg-type]
