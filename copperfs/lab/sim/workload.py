"""Workload: the files and listings that a process of a job requests, in its order.

The kernel, the front and the node cache each of them, so a want comes once, where it is first
needed. Repeated requests are counted (``requests``) for the models that have no such caches.

A trace is a file of JSON lines in the order of the process, as ``strace`` would have them: ``op``
(stat, open, list), ``path``, ``found``, and for opens ``size``. Recorded imports of torch 2.13 and
mpi4py come with the simulator. A manifest of ``copperfs record`` has paths alone; the sizes are
looked up where it was recorded.
"""

import gzip
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from random import Random

from copperfs.model.errors import SimulationError
from copperfs.model.types import ROOT, Path, split

MIB = 1 << 20
TORCH_COMPUTE_S = 0.92
"""A repeated import of torch on a bind mount, with one process (docs/performance.md)."""
MPI4PY_COMPUTE_S = 0.06
TORCH_TOUCHED = 0.13
"""The share of its large libraries' bytes that is read: 61 MB of pages of 490."""
TORCH_CHUNKS = 0.27
"""The share of their chunks of 1 MiB with such a page: 130 MB of 490 (docs/performance.md)."""
NAME = -1
PROCESSES = 12
"""On each node, as in the paper."""


@dataclass(frozen=True, slots=True)
class Want:
    path: Path
    size: int | None = None
    """None: a directory's listing; ``NAME``: a lookup of this path."""


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    files: Mapping[Path, int]
    wants: Sequence[Want]
    compute_s: float
    """Of one process, on a filesystem that takes no time."""
    processes: int = PROCESSES
    lookups: int = 0
    """Different names that one process looks up, found or not."""
    opens: int = 0
    touched: float = 1.0
    """The share that is read of files that are too large to be held whole."""
    chunks: float = 1.0
    """The share of their chunks that are read from."""
    by_name: Sequence[Want] = ()
    """The wants where directories cannot be listed: names, also missing ones, and files."""
    orders: Callable[[int], Sequence[int]] | None = None
    """By node: its wants, in its order. None: all of them."""

    def small_only(self, most: int) -> "Workload":
        def small(wants: Sequence[Want]) -> list[Want]:
            return [each for each in wants if each.size is None or each.size <= most]

        return replace(
            self,
            name=f"{self.name}, small files",
            files={path: size for path, size in self.files.items() if size <= most},
            wants=small(self.wants),
            by_name=small(self.by_name),
        )

    @property
    def bytes_wanted(self) -> int:
        return sum(each.size or 0 for each in self.wants)


def torch() -> Workload:
    trace = _packaged("import-torch.jsonl.gz")
    found = from_trace("torch", trace, TORCH_COMPUTE_S)
    return replace(found, touched=TORCH_TOUCHED, chunks=TORCH_CHUNKS)


def mpi4py() -> Workload:
    return from_trace("mpi4py", _packaged("import-mpi4py.jsonl.gz"), MPI4PY_COMPUTE_S)


def dataset(
    nodes: int, files: int, size: int, epochs: int, seed: int, compute_s: float
) -> Workload:
    """Files that all nodes together read once in each epoch: node *i* has every *nodes*-th of a
    newly shuffled list."""
    paths = [Path(b"data/%d/%06d" % (number % 64, number)) for number in range(files)]
    directories = [Want(Path(b"data")), *(Want(Path(b"data/%d" % n)) for n in range(64))]
    wants = [Want(ROOT), *directories, *(Want(path, size) for path in paths)]
    first = len(directories) + 1

    def orders(node: int) -> Sequence[int]:
        order = list(range(first))
        for epoch in range(epochs):
            shuffled = list(range(first, len(wants)))
            Random(f"{seed} {epoch}").shuffle(shuffled)
            order += shuffled[node % nodes :: nodes]
        return order

    each = dict.fromkeys(paths, size)
    name = f"dataset of {files:,} files, {epochs} epochs"
    return Workload(name, each, wants, compute_s, 1, files + 66, files * epochs, orders=orders)


def from_trace(name: str, lines: Iterable[str], compute_s: float) -> Workload:
    """SimulationError if a line is malformed."""
    try:
        operations = [_operation(json.loads(line)) for line in lines if line.strip()]
    except (ValueError, KeyError, TypeError) as error:
        raise SimulationError(f"{name} is no trace: {error}") from None
    operations = [each for each in operations if not each[1].startswith(b"..")]
    found = {path: size for what, path, size in operations if what == "open" and size is not None}
    listed = {path for what, path, size in operations if what == "list" and size is not None}
    directories = {ROOT}
    for path in (*listed, *(split(each)[0] for each in found)):
        directories.update(_way(path))
        directories.add(path)
    files = dict(found)
    for what, path, size in operations:
        if what == "stat" and size is not None and path not in directories:
            files.setdefault(path, 0)
    wants: dict[Want, None] = {}
    by_name: dict[Want, None] = {}
    for what, path, size in operations:
        if split(path)[0] in directories:
            by_name[Want(path, NAME)] = None
        if what == "open" and path in found:
            by_name[Want(path, found[path])] = None
        for above in _way(path):
            if above in directories:
                wants[Want(above)] = None
        if what == "list" and size is not None:
            wants[Want(path)] = None
        elif what == "open" and path in found:
            wants[Want(path, found[path])] = None
    names = {path for _, path, _ in operations}
    opens = sum(what == "open" for what, _, _ in operations)
    return Workload(
        *(name, files, list(wants), compute_s, PROCESSES, len(names), opens),
        by_name=list(by_name),
    )


def from_manifest(
    name: str, lines: Iterable[str], size_of: Callable[[Path], int | None], compute_s: float
) -> Workload:
    """*size_of* a path is None if it is gone."""
    rows = []
    try:
        for line in lines:
            row = json.loads(line)
            path = Path(row["path"].encode("utf-8", "surrogateescape"))
            size = size_of(path)
            if size is not None:
                rows.append(_row("list" if row["kind"] == "listing" else "open", path, size))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SimulationError(f"{name} is no manifest: {error}") from None
    return from_trace(name, rows, compute_s)


def _row(operation: str, path: Path, size: int) -> str:
    text = path.decode("utf-8", "surrogateescape") or "."
    return json.dumps({"op": operation, "path": text, "found": True, "size": size})


def _operation(row: Mapping[str, object]) -> tuple[str, Path, int | None]:
    """The size is None if there is no such name."""
    operation, path, found = row["op"], row["path"], row["found"]
    if not isinstance(operation, str) or not isinstance(path, str):
        raise TypeError("an operation and a path are text")
    normal = posixpath.normpath(path)
    size = row.get("size", 0)
    if not isinstance(size, int):
        raise TypeError("a size is a number")
    name = b"" if normal == "." else normal.encode("utf-8", "surrogateescape")
    return operation, Path(name), size if found else None


def _way(path: Path) -> list[Path]:
    way: list[Path] = []
    while path:
        path = split(path)[0]
        way.append(path)
    return way[::-1]


def _packaged(name: str) -> list[str]:
    packed = resources.files("copperfs.lab.sim").joinpath("traces", name).read_bytes()
    return gzip.decompress(packed).decode().splitlines()
