"""Interpreters: which program a script, ``env`` or a venv names."""

import os
import re
import shlex
from collections.abc import Sequence

FIRST_LINE_BYTES = 256  # the kernel reads no more of a script
PYVENV_BYTES = 4096
ENV_OPTIONS_WITH_VALUE = ("-u", "--unset", "-C", "--chdir", "-a", "--argv0")


def interpreter_of(script: str) -> list[str]:
    """The words after ``#!``, or none. They are at most two: the kernel passes on all words after
    the first as one argument."""
    head = _head(script, FIRST_LINE_BYTES)
    first, newline, _ = head.partition(b"\n")
    if not first.startswith(b"#!"):
        return []
    words = first[2:].split(None, 1)
    if len(words) < 2 and not newline and len(head) >= FIRST_LINE_BYTES:
        return []  # its path is cut off, and the kernel refuses it
    return [os.fsdecode(each.strip()) for each in words]


def started_by_env(arguments: Sequence[str]) -> str | None:
    """The program that ``env`` with these arguments starts. ValueError: a quote is not closed."""
    pending = list(arguments)
    while pending:
        word = pending.pop(0)
        if split := re.fullmatch(r"(?:-[iv0]*S|--split-string(?:=|$))(.*)", word, re.DOTALL):
            text = split[1] or (pending.pop(0) if pending else "")
            pending[:0] = shlex.split(text)
        elif word in ENV_OPTIONS_WITH_VALUE:
            del pending[:1]
        elif not word.startswith("-") and "=" not in word:
            return word
    return None


def base_of(venv: str) -> str | None:
    """The directory of the interpreter that this venv was made from."""
    for line in _head(os.path.join(venv, "pyvenv.cfg"), PYVENV_BYTES).splitlines():
        key, _, value = line.partition(b"=")
        if key.strip().lower() == b"home":
            return os.fsdecode(value.strip())
    return None


def _head(path: str, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, length)
    finally:
        os.close(descriptor)
