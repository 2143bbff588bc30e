"""Settings of a daemon, and the origin of each.

``Settings`` is the one table. Flags, ``COPPERFS_*`` variables, keys of the TOML file, ``copperfs
config show`` and ``docs/options.md`` are made from it, with one name for each setting:
``--tree-max``, ``COPPERFS_TREE_MAX``, ``tree-max = ...``.

``resolve`` takes the last origin that gives a setting: default, TOML file, variable, flag. It does
no I/O; the command line passes the file's text, the environment and the available memory. The
daemon, a fresh process, gets the result as JSON.

Values of every origin are parsed from text, by one set of rules. ``"none"`` stands for no value,
for which neither variables nor TOML have another way.

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
from copperfs.model.failure_domains import parse_domains
from copperfs.model.protection import split_class
from copperfs.model.types import FANOUT

Value = str | int | float | bool | tuple[str, ...] | None

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
AGE_MIN_S = 0.1
TIER_MEMORY_BYTES = 512 * MIB
# A message has room for 1 MiB.
CHUNK_UNIT_BYTES, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 4 * KIB, 64 * KIB, MIB
# Up to two pages on disk (``chunkstore/disk_format.py``).
CHUNK_HEADER_BYTES_MAX = 8 * KIB

# ---- sizes and durations as text --------------------------------------------------------------

# As in coreutils: K and KiB are 1024, KB is 1000; case does not matter.
_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_SECONDS = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*s?", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """``"0"``, ``"512k"``, ``"10 MiB"``, ``"1.5G"``; ValueError otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write 0, 512k, 10MiB or 1.5G")
    number, unit = match[1], _UNITS[match[2].lower()]
    # Floats are exact only up to 2**53.
    return int(number) * unit if number.isdigit() else round(float(number) * unit)


def format_size(size_bytes: int) -> str:
    """The shortest exact text, which ``parse_size`` reads back."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B" if size_bytes else "0"


def bytes_text(count: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < KIB or unit == "GiB":
            return f"{count:.3g} {unit}" if unit != "B" else format_size(count)
        count /= KIB  # type: ignore[assignment]  # a share of the unit from here on
    raise AssertionError("unreachable")


def parse_seconds(text: str) -> float:
    """``"60"``, ``"0.5"`` or ``"5 s"``; ValueError otherwise."""
    match = _SECONDS.fullmatch(text.strip())
    seconds = float(match[1]) if match is not None else math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is not a number of seconds; write 60 or 0.5")
    return seconds


def whole_number(at_least: int, at_most: int) -> Callable[[str], int]:

    def parse(text: str) -> int:
        # int() takes other scripts, and refuses 5,000 digits.
        if not re.fullmatch(r"\d{1,12}", text, re.ASCII) or not at_least <= int(text) <= at_most:
            raise ValueError(f"{text!r} is not a whole number from {at_least} to {at_most}")
        return int(text)

    return parse


def format_seconds(seconds: float) -> str:
    """Exact, so that ``parse_seconds`` gives the same number back."""
    return f"{seconds!r}".removesuffix(".0") + " s"


# ---- kinds of values --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OptionKind:
    """How values are written, as text and natively in TOML."""

    metavar: str
    parse: Callable[[str], Value]
    format: Callable[..., str] = str
    toml_types: tuple[type, ...] = (str,)
    between: str = ":"
    """The regular expression that separates the values of a list in a variable."""


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError("the value is empty; give one or leave the setting out")
    return text


def _parse_absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path; write one that begins with /")
    return text.rstrip("/") or "/"


def _parse_protect(text: str) -> str:
    prefix = split_class(text)[0]
    return f"{prefix}={text.rpartition('=')[2]}"


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
        raise ValueError(f"{text!r} is no chunk size; write 64KiB, 1MiB or whole pages between")
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
# A class has a colon in it, and a path begins with a slash.
PROTECT = OptionKind("PREFIX=none|copies:K", _parse_protect, between=":(?=/)")
DOMAINS = OptionKind("FILE|slurm|name:PATTERN", parse_domains)
SIZE = OptionKind("SIZE", parse_size, format_size, (str, int))
CHUNK = OptionKind("SIZE", _parse_chunk, format_size, (str, int))
AGE = OptionKind("SECONDS", _parse_age, format_seconds, (str, int, float))
DEADLINE = OptionKind("SECONDS", _parse_deadline, format_seconds, (str, int, float))
SWITCH = OptionKind("yes|no", _parse_switch, _format_switch, (bool,))


@dataclass(frozen=True, slots=True)
class Option:
    """One setting; its name and default are those of the Settings field."""

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
        """The name as users write it, without the unit."""
        return self.name.removesuffix("_bytes").removesuffix("_s").replace("_", "-")

    @property
    def flag(self) -> str:
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        return "COPPERFS_" + self.key.upper().replace("-", "_")

    def parse(self, text: str) -> Value:
        """ValueError says what is wrong with the text."""
        if self.optional and text.lower() == "none":
            return None
        return self.kind.parse(text)

    def parse_variable(self, text: str) -> Value:
        """Like ``parse``; colons separate a list, as in PATH."""
        if self.multi:
            parts = re.split(self.kind.between, text)
            return tuple(str(self.parse(part)) for part in parts if part)
        return self.parse(text)

    def parse_toml(self, value: object) -> Value:
        if self.multi:
            if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
                raise ValueError('write a list of strings, such as ["/lus", "/home"]')
            return tuple(str(self.parse(part)) for part in value)
        if self.optional and value == "none":
            return None
        # A bool is an int to isinstance.
        if type(value) not in self.kind.toml_types:
            names = " or ".join(_TOML_NAMES[kind] for kind in self.kind.toml_types)
            raise ValueError(f"write {names}, not {value!r}")
        return self.parse(str(value))

    def format(self, value: Value) -> str:
        """``parse_variable`` reads it back."""
        if value is None:
            return "none"
        return ":".join(value) if isinstance(value, tuple) else self.kind.format(value)


_TOML_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}

# ---- the table --------------------------------------------------------------------------------

VIEW, CACHES, SOURCE, DAEMON = "What the mount shows", "Caches", "Source", "Daemon"
OVERLAY = "Between nodes"
TIER = "Data tier"
FAILURE = "When nodes fail"
LAUNCH = "Launch on several nodes"
RUN = "In place: of copperfs run alone"

SymlinkMode = Literal["rewrite", "keep"]
InodeMode = Literal["auto", "compare", "ignore"]
InPlaceMode = Literal["auto", "always", "never"]
TakeoverBy = Literal["auto", "resend", "memory"]
RUN_ONLY = ("in_place", "in_place_at", "writable")
"""The settings of the group ``RUN``."""


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
    """Each field but the mount point is an option."""

    mountpoint: str

    source: str = field(
        default="/",
        metadata=_option(VIEW, PATH, "The directory to show."),
    )
    shared: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            VIEW,
            PREFIX,
            "Absolute paths on shared filesystems: all below them is kept as one snapshot, or "
            "for --revalidate seconds; all else is local to the node and kept for one second. "
            "Repeat the flag for each; colons separate paths in the variable.",
            default_text="with --source /, the network filesystems of this node; if there are "
            "none, or with another source, all but /proc, /sys, /dev and /run. A "
            "job of several machines takes no disk of one of them, and is refused "
            "if it shares nothing else",
            multi=True,
        ),
    )
    symlinks: SymlinkMode = field(
        default="rewrite",
        metadata=_option(
            VIEW,
            _choice("rewrite", "keep"),
            "rewrite: show an absolute symlink into a shared path with the mount point in place "
            "of the source's path, so that it stays in the mount. keep: show it as it is.",
        ),
    )
    inodes: InodeMode = field(
        default="auto",
        metadata=_option(
            VIEW,
            _choice("auto", "compare", "ignore"),
            "Whether inode numbers are part of a file's version, on all nodes. auto: unless "
            "nodes find that clients of the source (sshfs) number files by themselves. compare: "
            "always. ignore: never, so a file replaced by one of the same size and times goes "
            "unnoticed.",
        ),
    )
    allow_other: bool = field(
        default=False,
        metadata=_option(
            VIEW,
            SWITCH,
            "Let other users in; the kernel checks the modes and owners shown. Needs "
            "user_allow_other in /etc/fuse.conf, or root.",
        ),
    )
    memory_bytes: int = field(
        metadata=_option(
            CACHES,
            SIZE,
            "Budget of the listings, entries and files that this daemon holds; the least "
            "recently used are evicted. The front's table of names, about a sixteenth of it, and "
            "the kernel's caches come on top.",
            default_text="an eighth of the memory, or of the limit of the job's cgroup, at most "
            "8 GiB",
        ),
    )
    tree_max_bytes: int = field(
        default=10 * MIB,
        metadata=_option(
            CACHES,
            SIZE,
            "Files up to this size, and up to half of --memory, are fetched and cached whole at "
            "their first read. Larger ones go through the data tier in chunks; without a tier (a "
            "node alone, or --tier-memory 0) they are read from the source and cached only by "
            "the kernel. Larger values make first reads dearer and later ones free.",
        ),
    )
    bypass_above_bytes: int | None = field(
        default=None,
        metadata=_option(
            CACHES,
            SIZE,
            "Files above this size enter no cache of the daemon and no data tier, whatever "
            "--tree-max: reads that the kernel has not cached go to the source.",
            optional=True,
        ),
    )
    revalidate_s: float | None = field(
        default=None,
        metadata=_option(
            CACHES,
            AGE,
            "Ask the source again after this time: a file opened by name shows changes at most "
            "this late. With none, the job sees one snapshot until 'copperfs clear'.",
            optional=True,
        ),
    )
    listing_max: int = field(
        default=4096,
        metadata=_option(
            CACHES,
            _count(0, 10_000_000),
            "Directories of up to this many entries are fetched whole, with attributes, and "
            "answer every lookup. The names of larger ones answer only for what is missing; each "
            "existing name is looked up by itself.",
        ),
    )
    source_concurrency: int = field(
        default=32,
        metadata=_option(
            SOURCE,
            _count(1, 1024),
            "Operations on the source at a time (list, look up, open, read a whole file), each "
            "in a thread; one that hangs beyond --source-deadline is replaced. Up to 64 reads of "
            "files too large to cache come on top.",
        ),
    )
    read_ahead: bool = field(
        default=True,
        metadata=_option(
            SOURCE,
            SWITCH,
            "After the second file of one ending (.pyc) read in a directory, read up to 512 "
            "others ahead, of up to 128 KiB each and 4 MiB together. Of Python packages, read "
            "the compiled files after the first one, and the directories and libraries that the "
            "compiled __init__ mentions. The set is the same for every order and number of "
            "nodes, and displaces nothing that was asked for.",
        ),
    )
    source_deadline_s: float = field(
        default=60.0,
        metadata=_option(
            SOURCE,
            DEADLINE,
            "An operation on the source that takes longer fails with ETIMEDOUT, so that a hung "
            "disk cannot hang a reader. No kernel request waits more than about 6 seconds "
            "longer.",
        ),
    )
    bootstrap: Literal["auto", "mpi", "none"] = field(
        default="auto",
        metadata=_option(
            LAUNCH,
            _choice("auto", "mpi", "none"),
            "How nodes find each other. auto: by --hostfile or --rendezvous if given, else by "
            "MPI if mpiexec or srun started several processes, else this node is alone. mpi: by "
            "MPI. none: alone, even inside an MPI job.",
        ),
    )
    rendezvous: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            PATH,
            "A directory that all nodes share, to find each other without MPI. It must be yours "
            "with mode 0700; it is made if missing and left empty. Two mounts that start at once "
            "need two.",
            optional=True,
        ),
    )
    nodes: int | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            _count(1, 200_000),
            "How many nodes --rendezvous waits for; another way to launch must find as many.",
            default_text="what Slurm, PBS, PALS or Flux say",
            optional=True,
        ),
    )
    launch_timeout_s: float = field(
        default=300.0,
        metadata=_option(
            LAUNCH,
            DEADLINE,
            "How long to wait for all nodes; --rendezvous then names the missing ones, and takes "
            "a file in its directory that is a minute older as left by a crash. The same on all "
            "nodes.",
        ),
    )
    hostfile: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            PATH,
            "A file that names all nodes, the same on each: HOST, HOST:PORT or a set such as "
            "node[001-128] on each line. Needs --key-file, unless --security is none.",
            optional=True,
        ),
    )
    key_file: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            PATH,
            "The secret of a hostfile's nodes, made by 'copperfs keygen'. It must be yours with "
            "mode 0600, since its readers can join the job. Other ways to launch draw new keys "
            "each time.",
            optional=True,
        ),
    )
    node_name: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            NAME,
            "The name of this node; no two may share one.",
            default_text="its host name",
            optional=True,
        ),
    )
    listen: str | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            OptionKind("WHERE", _parse_text),
            "Where other nodes reach this one: an address, an interface (hsn0) or a network "
            "(10.1.0.0/16). Nothing listens elsewhere.",
            default_text="the address of the host name; if that is loopback, the interface of "
            "the default route",
            optional=True,
        ),
    )
    port: int | None = field(
        default=None,
        metadata=_option(
            LAUNCH,
            _count(0, 65535),
            "The TCP port where other nodes reach this one; 0 is any free one.",
            default_text="any free one; with --hostfile 4711",
            optional=True,
        ),
    )
    security: Literal["curve", "none"] = field(
        default="curve",
        metadata=_option(
            LAUNCH,
            _choice("curve", "none"),
            "curve: nodes encrypt their messages and admit only nodes of the roster, for CPU "
            "time per byte. none: any process that reaches the port can read the job's data and "
            "forge answers; only for isolated networks. The same on all nodes.",
        ),
    )
    front_threads: int = field(
        default=2,
        metadata=_option(
            DAEMON,
            _count(1, 64),
            "C threads that answer the kernel from the cache, without the GIL.",
        ),
    )
    fanout: int = field(
        default=FANOUT,
        metadata=_option(
            OVERLAY,
            _count(1, 1024),
            "How many nodes ask one node. Each hop costs a round trip, so a high number is "
            "faster for single files; a node serves those that ask it one after the other, so a "
            "low number is faster when a job starts. The same on all nodes.",
        ),
    )
    push_fanout: int = field(
        default=2,
        metadata=_option(
            OVERLAY,
            _count(1, 64),
            "How many nodes each node passes a 'copperfs warmup' on to. Its link carries the "
            "data as often, so a low number is faster. The same on all nodes.",
        ),
    )
    trees: int = field(
        default=1,
        metadata=_option(
            OVERLAY,
            _count(1, 64),
            "How many nodes share the reading of the source: each tree has another root, and a "
            "directory's path picks its tree. The same on all nodes.",
        ),
    )
    wait_all: bool = field(
        default=False,
        metadata=_option(
            OVERLAY,
            SWITCH,
            "Return when the mounts of all nodes answer, not only this node's parents. Node 0 "
            "asks all others, so give it to all nodes.",
        ),
    )
    tier_memory_bytes: int = field(
        default=TIER_MEMORY_BYTES,
        metadata=_option(
            TIER,
            SIZE,
            "Memory for this node's part of the chunks of large files and datasets, and briefly "
            "for chunks that it has read; on top of --memory. With 0 on all nodes and no "
            "--tier-dir, every node reads large files from the source. A node alone has none "
            "without --tier-dir.",
            default_text="512 MiB, at most an eighth of the memory or of the limit of the job's "
            "cgroup",
        ),
    )
    tier_dir: str | None = field(
        default=None,
        metadata=_option(
            TIER,
            PATH,
            "A directory on a disk of this node (NVMe) that also keeps its part of the chunks, "
            "for later jobs, too. It is made if missing; %h stands for the node's name. Two "
            "daemons cannot share one.",
            optional=True,
        ),
    )
    tier_size_bytes: int | None = field(
        default=None,
        metadata=_option(
            TIER,
            SIZE,
            "How much of its disk --tier-dir may take; at least 1 GiB always stays free. A "
            "node's part of the chunks is in proportion to this and --tier-memory together.",
            default_text="half of what is free on that disk at the start",
            optional=True,
        ),
    )
    ring: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            TIER,
            PREFIX,
            "Absolute paths of datasets: all files below them go through the data tier, not only "
            "those above --tree-max. The same on all nodes.",
            default_text="no path",
            multi=True,
        ),
    )
    protect: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            TIER,
            PROTECT,
            "How many nodes keep each chunk of the files below an absolute path, so that a lost "
            "node costs no read of the source: copies:2 survives one lost node, copies:K "
            "K-1. The longest path wins; none, the default, is for paths below a protected one. "
            "A tier holds half as much with copies:2. The same on all nodes.",
            default_text="no path",
            multi=True,
        ),
    )
    domains: str | None = field(
        default=None,
        metadata=_option(
            TIER,
            DOMAINS,
            "Which nodes are lost together, so that no two copies of --protect are in one such "
            "failure domain, as long as there are enough. A file has lines of a node (a set, or a "
            "pattern with *) and its domain; slurm takes the switches of its topology; name: is "
            "followed by a regular expression, which finds the domain in a node's name. The "
            "same on all nodes.",
            default_text="each node is a domain",
            optional=True,
        ),
    )
    chunk_size_bytes: int = field(
        default=MIB,
        metadata=_option(
            TIER,
            CHUNK,
            "Size of the data tier's chunks: whole pages, 64 KiB to 1 MiB. Small ones save bytes "
            "where little of a file is read, and cost CPU time. The same on all nodes.",
        ),
    )
    vnodes: int | None = field(
        default=None,
        metadata=_option(
            TIER,
            _count(1, 10_000),
            "How many points each node has on the ring. More share the chunks out more evenly "
            "and take longer to place. The same on all nodes.",
            default_text="100; in jobs of less than 10,000 nodes up to 500, a million together",
            optional=True,
        ),
    )
    mover_rate_bytes: int = field(
        default=0,
        metadata=_option(
            TIER,
            SIZE,
            "Bytes a second written to --tier-dir at most; 0 is no limit. With --tier-write wait "
            "it also limits what is read from the source for the disk.",
        ),
    )
    tier_write: Literal["wait", "later"] = field(
        default="wait",
        metadata=_option(
            TIER,
            _choice("wait", "later"),
            "What to do if the source is faster than the disk of --tier-dir. wait: read each "
            "chunk once, at the disk's pace. later: do not wait; chunks that neither the disk "
            "nor --tier-memory could keep are read from the source again, in the background or "
            "on demand. A full or broken disk never delays a reader.",
        ),
    )
    fetch_deadline_s: float = field(
        default=30.0,
        metadata=_option(
            FAILURE,
            DEADLINE,
            "A node without an answer from its peers for this long reads the source itself. "
            "Until then it asks one more peer each ten seconds.",
        ),
    )
    fallback: bool = field(
        default=True,
        metadata=_option(
            FAILURE,
            SWITCH,
            "A node that no peer can answer reads the source itself. Without it, readers get an "
            "error after --source-deadline.",
        ),
    )
    fallback_concurrency: int = field(
        default=4,
        metadata=_option(
            FAILURE,
            _count(1, 1024),
            "How many such reads of the source a node does at once, so that a failure that many "
            "nodes see does not become a storm.",
        ),
    )
    hedge_after_s: float = field(
        default=0.25,
        metadata=_option(
            FAILURE,
            DEADLINE,
            "A peer that owes an answer is pinged after 0.1 s; after this long another one is "
            "asked, too. Shorter times cause needless requests on loaded nodes.",
        ),
    )
    heartbeat_s: float = field(
        default=0.5,
        metadata=_option(
            FAILURE,
            DEADLINE,
            "A parent that was silent for this long is pinged.",
        ),
    )
    dead_after_s: float = field(
        default=3.0,
        metadata=_option(
            FAILURE,
            DEADLINE,
            "A node that was silent for this long counts as gone until it is heard again. "
            "Nothing waits for it; it only decides when others are told.",
        ),
    )
    takeover: bool = field(
        default=True,
        metadata=_option(
            FAILURE,
            SWITCH,
            "If the daemon dies or hangs, another one that stands by goes on with its mount, and "
            "applications only wait for a moment. It takes 26 MB for one more idle daemon. "
            "With --foreground there is none.",
        ),
    )
    takeover_by: TakeoverBy = field(
        default="auto",
        metadata=_option(
            FAILURE,
            _choice("auto", "resend", "memory"),
            "How the daemon that goes on gets the requests that were not answered. resend: the "
            "kernel gives them back, from Linux 6.9 on. memory: the first daemon reads them into "
            "memory that outlives it. auto: resend where the kernel can.",
        ),
    )
    hang_after_s: float | None = field(
        default=30.0,
        metadata=_option(
            FAILURE,
            DEADLINE,
            "A daemon that shows no sign of life for this long is ended, unless "
            "a debugger has stopped it. none: never. A source that hangs is no such daemon.",
            optional=True,
        ),
    )
    takeovers_max: int = field(
        default=10,
        metadata=_option(
            FAILURE,
            _count(1, 100_000),
            "If daemons die more often than this within a minute, the mount ends.",
        ),
    )
    in_place: InPlaceMode = field(
        default="auto",
        metadata=_option(
            RUN,
            _choice("auto", "always", "never"),
            "Whether the command sees the files of its environment at their own paths, in a "
            "namespace of its own. auto: if the machine allows it, unless --mountpoint is given, "
            "the command starts a container, or Kerberos tickets are in the kernel's keyring. "
            "always: or fail. never: paths in variables are led through the mount.",
        ),
    )
    in_place_at: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            RUN,
            PREFIX,
            "Directories that are covered as well, such as a dataset or an installation that no "
            "variable leads to. They are read-only for the command.",
            default_text="the environments that PATH, PYTHONPATH, LD_LIBRARY_PATH, "
            "CONDA_PREFIX, VIRTUAL_ENV and the command lead to, and the paths of --ring",
            multi=True,
        ),
    )
    writable: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            RUN,
            PREFIX,
            "Directories that are left as they are, although they are in one that is covered.",
            default_text="none",
            multi=True,
        ),
    )
    events: str | None = field(
        default=None,
        metadata=_option(
            DAEMON,
            PATH,
            "Append what happens to nodes (lost, silent, gone, back, another parent, takeover) to "
            "this file, as lines of JSON. It may be named as --log-file. A node alone writes its "
            "takeovers only.",
            optional=True,
        ),
    )
    metrics: str | None = field(
        default=None,
        metadata=_option(
            DAEMON,
            OptionKind("PORT|FILE", _parse_metrics),
            "Statistics for Prometheus: at http://127.0.0.1:PORT/metrics, for processes of this "
            "node only, or in a file written every 15 seconds (for node_exporter's textfile "
            "collector), which may be named as --log-file; a link or another user's file is not "
            "replaced.",
            optional=True,
        ),
    )
    foreground: bool = field(
        default=False,
        metadata=_option(DAEMON, SWITCH, "Stay in the foreground until unmounted."),
    )
    log_level: str = field(
        default="info",
        metadata=_option(
            DAEMON,
            _choice("debug", "info", "warning", "error"),
            "The least severe messages to log.",
        ),
    )
    log_file: str | None = field(
        default=None,
        metadata=_option(
            DAEMON,
            PATH,
            "Append messages to this file, also in the foreground; %h stands for the node's "
            "name, %u for the user's, %m for the mount point with - for each /. When daemonised, "
            "standard error of libfuse and Python goes there, too. It must be the user's own "
            "and no link. After a rename, as by logrotate, or at SIGHUP, a new one begins within "
            "seconds. With none, messages go to standard error in the foreground, else to memory "
            "for copperfs bugreport (with --no-takeover nowhere).",
            optional=True,
        ),
    )

    @property
    def has_tier(self) -> bool:
        return self.tier_memory_bytes > 0 or self.tier_dir is not None

    @property
    def tier_bytes(self) -> int:
        """This node's weight in the placement of chunks; valid once --tier-size is known."""
        disk_bytes = 0 if self.tier_dir is None else self.tier_size_bytes or 0
        return self.tier_memory_bytes + disk_bytes

    def to_json(self) -> str:
        # ASCII, with escaped surrogates: it survives any pipe.
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        """Both ends are of one version, so a mismatch is a bug."""
        values = json.loads(text)
        tuples = {each.name: tuple(values[each.name]) for each in OPTIONS if each.multi}
        return cls(**values | tuples)

    @classmethod
    def of_another_version(cls, values: Mapping[str, object]) -> "Settings":
        """Those that only this version knows have their defaults, the others are left out."""
        defaults = {each.name: each.default for each in fields(cls)}
        found = {name: values.get(name, default) for name, default in defaults.items()}
        missing = [name for name, value in found.items() if value is MISSING]
        if missing:
            raise ConfigError(f"there is no {' and no '.join(missing)} among the settings")
        return cls.from_json(json.dumps(found))


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
    """Raise ConfigError if the data tier's settings contradict each other."""
    _check_protection(settings)
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
    # A cluster's mount points are not known here.
    if settings.mountpoint and f"{settings.tier_dir}/".startswith(f"{settings.mountpoint}/"):
        raise ConfigError(
            f"--tier-dir {settings.tier_dir} lies in the mount point: give a directory outside "
            f"{settings.mountpoint}"
        )


def _check_protection(settings: Settings) -> None:
    classes: dict[str, int] = {}
    for each in settings.protect:
        prefix, copies = split_class(each)
        if classes.setdefault(prefix, copies) != copies:
            raise ConfigError(f"--protect gives {prefix} two classes: leave one of them out")


def _eighth(memory_bytes: int) -> int:
    """In whole MiB, so that it prints well."""
    return max(memory_bytes // 8 // MIB, 1) * MIB


def default_memory_bytes(memory_bytes: int) -> int:
    return min(_eighth(memory_bytes), 8 * GIB)


def default_tier_memory_bytes(memory_bytes: int) -> int:
    return min(_eighth(memory_bytes), TIER_MEMORY_BYTES)


_DEFAULTS_OF_MEMORY: dict[str, Callable[[int], int]] = {
    "memory_bytes": default_memory_bytes,
    "tier_memory_bytes": default_tier_memory_bytes,
}


# ---- origins ----------------------------------------------------------------------------------


class Origin(Enum):
    """A later origin wins over an earlier one."""

    DEFAULT = "default"
    FILE = "file"
    VARIABLE = "variable"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A setting's value; ``where`` is the file, variable or flag that gave it."""

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
    """``flags`` has parsed values by field name; ``memory_where`` names the source of
    ``memory_bytes``."""
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
    """Options that follow from the available memory, which may differ between processes of one
    node."""
    defaults = {each.option.name for each in resolved if each.origin is Origin.DEFAULT}
    return frozenset(defaults & _DEFAULTS_OF_MEMORY.keys())


def _toml_keys(file: ConfigFile | None) -> Mapping[str, object]:
    if file is None:
        return {}
    import tomllib  # few have a file

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
    # A test checks the table against the types of the fields.
    return Settings(mountpoint=mountpoint, **values)  # type: ignore[arg-type]
