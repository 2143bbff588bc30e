"""Compiles the front, and the source's pool, without Python, with this directory's harnesses."""

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
FRONT = HERE.parents[1] / "copperfs" / "fuse" / "front"
CORPUS = HERE / "corpus"

# All but module.c, the Python face.
SOURCES = sorted(path for path in FRONT.glob("*.c") if path.name != "module.c")
SOURCE_POOL = [
    HERE.parents[1] / "copperfs" / "source" / f"{name}.c"
    for name in ("pool", "files", "filesystems", "below", "read", "scan", "watch")
]
TABLES = [FRONT / "tables.c", FRONT / "chunks.c", FRONT / "walks.c"]

WARNINGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
# The list of idle nodes has its head within the tables, which is an extension of GNU C.
CLANG_WARNINGS = [*WARNINGS, "-Wno-gnu-variable-sized-type-not-at-end"]

# What world.c does in their stead, so that one input always does the same.
_WORLD_CALLS = ["writev", "send", "pthread_create", "pthread_cond_wait"]
_FEW_BUCKETS = "-DCHUNK_BUCKETS=8"
WORLD = [_FEW_BUCKETS, *(f"-D{call}=world_{call}" for call in _WORLD_CALLS)]

# Each fuzzer, with what it is made of.
FUZZERS: dict[str, list[str | Path]] = {
    "requests": [*WORLD, *SOURCES, HERE / "world.c", HERE / "fuzz_requests.c"],
    "replies": [*WORLD, *SOURCES, HERE / "world.c", HERE / "fuzz_replies.c"],
    "listing": [*TABLES, HERE / "fuzz_listing.c"],
    # so few bits that hardly a name has its cookie alone
    "collisions": ["-DCOOKIE_BITS=3", *TABLES, HERE / "fuzz_listing.c"],
}
FREED_AFTER_LOCK: list[str | Path] = [
    *(f"-D{call}=checked_{call}" for call in ("free", "munmap")),
    *TABLES,
    HERE / "freed_after_lock.c",
]
STRESS: list[str | Path] = [_FEW_BUCKETS, *SOURCES, HERE / "stress.c"]
MANY_ENDINGS: list[str | Path] = ["-DAHEAD_STEPS", *SOURCES, HERE / "many_endings.c"]
KEPT_EXTENTS: list[str | Path] = [
    "-Dpthread_mutex_unlock=clearing_unlock",
    "-Dwritev=noted_writev",
    *SOURCES,
    HERE / "kept_extents.c",
]
LATE_DENIAL: list[str | Path] = ["-Dwritev=late_writev", *SOURCES, HERE / "late_denial.c"]
STRESS_SOURCE: list[str | Path] = [
    "-Dfstatat=stressed_fstatat",
    *SOURCE_POOL,
    HERE / "stress_source.c",
]


def build(compiler: str, sanitizers: str, parts: list[str | Path], program: Path) -> Path:
    """A program with these sanitizers in it."""
    warnings = CLANG_WARNINGS if compiler == "clang" else WARNINGS
    command = [compiler, *warnings, "-g", "-O1", "-pthread", f"-fsanitize={sanitizers}"]
    if "thread" not in sanitizers:
        command.append("-fno-sanitize-recover=all")
    done = subprocess.run(
        [*command, *parts, "-o", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return program


def run(command: list[str | Path], *, timeout_s: float) -> str:
    """The output of a program that has nothing to complain about."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def failed_before(fuzzer: str) -> list[Path]:
    """Inputs that once made this fuzzer fail."""
    return sorted(CORPUS.glob(f"{fuzzer}-*"))
