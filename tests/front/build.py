"""Builds the front, the source's pool and the erasure code without Python, with this directory's
harnesses."""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "copperfs" / "native"
FRONT = NATIVE / "front"
CORPUS = HERE / "corpus"

SHARED = [NATIVE / "blob.c", NATIVE / "bytecode_names.c"]
SOURCES = [*SHARED, *sorted(FRONT.glob("*.c"))]
SOURCE_POOL = [*SHARED, *sorted((NATIVE / "source").glob("*.c"))]
TABLES = [
    NATIVE / "blob.c",
    *(
        FRONT / f"{each}.c"
        for each in (
            "tables",
            "chunks",
            "readdir_cookies",
            "connection_state",
            "requests_in_hand",
        )
    ),
]

WARNINGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
# The head of the list of idle nodes within the tables is an extension of GNU C.
CLANG_WARNINGS = [*WARNINGS, "-Wno-gnu-variable-sized-type-not-at-end"]

# world.c replaces these, so that one input always does the same.
_WORLD_CALLS = ["writev", "send", "pthread_create", "pthread_cond_wait"]
_FEW_BUCKETS = "-DCHUNK_BUCKETS=8"
WORLD = [_FEW_BUCKETS, *(f"-D{call}=world_{call}" for call in _WORLD_CALLS)]

FUZZERS: dict[str, list[str | Path]] = {
    "requests": [*WORLD, *SOURCES, HERE / "world.c", HERE / "fuzz_requests.c"],
    "replies": [*WORLD, *SOURCES, HERE / "world.c", HERE / "fuzz_replies.c"],
    "listing": [*TABLES, HERE / "fuzz_listing.c"],
    # so few bits that most names share their cookie
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
HANDED_OVER: list[str | Path] = [*TABLES, HERE / "handed_over.c"]
LEFT_OUT: list[str | Path] = [*TABLES, HERE / "left_out.c"]
LATE_DENIAL: list[str | Path] = ["-Dwritev=late_writev", *SOURCES, HERE / "late_denial.c"]
CROWDED: list[str | Path] = ["-Dread=crowding_read", *SOURCES, HERE / "crowded.c"]
STRESS_SOURCE: list[str | Path] = [
    *(f"-D{call}=stressed_{call}" for call in ("fstatat", "close", "realloc")),
    *SOURCE_POOL,
    HERE / "stress_source.c",
]
ERASURE: list[str | Path] = ["-DCOPPERFS_ISAL", NATIVE / "erasure.c"]
STRESS_ERASURE: list[str | Path] = [*ERASURE, HERE / "stress_erasure.c"]


def build(compiler: str, sanitizers: str, parts: list[str | Path], program: Path) -> Path:
    """A program with these sanitizers in it."""
    warnings = CLANG_WARNINGS if compiler == "clang" else WARNINGS
    command = [compiler, *warnings, "-g", "-O1", "-pthread", f"-fsanitize={sanitizers}"]
    if "thread" not in sanitizers:
        command.append("-fno-sanitize-recover=all")
    done = subprocess.run(
        [*command, *parts, "-ldl", "-o", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return program


def run(command: list[str | Path], *, timeout_s: float) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        # A program with a race may hang after it.
        env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def failed_before(fuzzer: str) -> list[Path]:
    return sorted(CORPUS.glob(f"{fuzzer}-*"))
