"""Scan of compiled Python files for the names they mention: in C, and in Python for comparison."""

import marshal
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.native import Blob
from tests.unit.compiled import DEPTH_MAX, names_in, walked

Mentioned = Callable[[bytes, tuple[bytes, ...]], tuple[bytes, ...]]


def blob_of(data: bytes) -> Blob:
    blob = Blob(len(data))
    blob.view[:] = data
    blob.seal(len(data))
    return blob


def in_c(data: bytes, names: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return blob_of(data).mentioned(names)


def in_python(data: bytes, names: tuple[bytes, ...]) -> tuple[bytes, ...]:
    there = names_in(data)
    return tuple(name for name in names if name in there)


both = pytest.mark.parametrize("mentioned", [in_python, in_c])

SOURCE = """
'''About this package: it has words.'''
import package.core.low
from . import linalg, _lib
from .sparse.csgraph import dijkstra as path
if path:
    from . import conditional
LATER = {"inset", "insets", "in.sets"}
TEXT = "intext"
NUMBERS = 1, -(1 << 70), 2.5, 1j, None, ..., b"bytes", {1, 2}, "\xe4"

def __getattr__(name):
    from . import lazy, linalg
    def inner():
        import inmost
    return lazy

class Class:
    from . import ofclass

from . import after
"""
NAMES = (b"core", b"low", b"linalg", b"_lib", b"sparse", b"csgraph", b"conditional", b"after")
NOT_THERE = (
    b"lib",
    b"words",
    b"spars",
    b"cores",
    b"lazy",
    b"inmost",
    b"ofclass",
    b"bytes",
    b"inset",
    b"intext",
    b"",
)
VERSIONS = [f"python3.{minor}" for minor in range(8, 15)]


def compiled(source: str) -> bytes:
    return MAGIC_NUMBER + bytes(12) + marshal.dumps(compile(source, "x.py", "exec"))


@both
def test_what_a_module_imports_is_mentioned_and_not_what_its_functions_do(
    mentioned: Mentioned,
) -> None:
    assert mentioned(compiled(SOURCE), NAMES + NOT_THERE) == NAMES


def pythons() -> list[str]:
    found = [path for each in VERSIONS if (path := shutil.which(each))]
    found += map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    return found or [sys.executable]


@both
def test_files_of_other_versions_of_python_are_understood(
    mentioned: Mentioned, tmp_path: Path
) -> None:
    module = tmp_path / "module.py"
    module.write_text(SOURCE)
    understood = 0
    for number, python in enumerate(pythons()):
        file = tmp_path / f"{number}.pyc"
        compile_it = "import py_compile, sys; print(sys.version_info >= (3, 8))"
        compile_it += "; py_compile.compile(sys.argv[1], sys.argv[2])"
        done = subprocess.run(
            [python, "-c", compile_it, module, file], capture_output=True, text=True, check=False
        )
        if done.stdout.strip() != "True":
            continue  # it is no Python, or older
        assert mentioned(file.read_bytes(), NAMES + NOT_THERE) == NAMES, python
        understood += 1
    assert understood


@both
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b")\1z\x03abc", True),
        (b")\1abc", False),
        (b")\1z\x04abc", False),
        (b")\1z\x05x.abc", True),
        (b")\1a\x05\0\0\0abc.x", True),
        (b")\1z\x07x.abc.x", True),
        (b")\1z\x04xabc", False),
        (b")\1z\x05abc x", False),
        (b")\2\xda\x03xyzr\0\0\0\0", False),
        (b")\2zr\1\0\0\0z\x03abc", False),
        (b"(\xff\xff\xff\xffz\x03abc", True),
        (b"<\1\0\0\0z\x03abc", False),
        (b"{z\x01xz\x03abc0", False),
        (b"{", False),
        (b")\2l\xff\xff\xff\xff\0\0z\x03abc", True),
        (b")\1)\1z\x03abc", False),
        (b")\2)\1Nz\x03abc", True),
        (b")\1c" + bytes(20) + b"NN)\1z\x03abc", False),
        (b")\2" + b")\1" * (DEPTH_MAX - 3) + b"Nz\x03abc", True),
        (b")\2" + b")\1" * (DEPTH_MAX - 2) + b"Nz\x03abc", False),
        (b"", False),
    ],
)
def test_a_name_is_a_whole_string_or_a_part_between_dots(
    mentioned: Mentioned, data: bytes, found: bool
) -> None:
    names_of_a_module = MAGIC_NUMBER + bytes(12) + b"c" + bytes(20) + b"NN" + data
    assert bool(mentioned(names_of_a_module, (b"abc",))) is found


@both
def test_a_constant_is_a_mention_only_in_a_tuple(mentioned: Mentioned) -> None:
    constants = MAGIC_NUMBER + bytes(12) + b"c" + bytes(20) + b"N"
    data = constants + b")\3\xda\x03abc)\1\xda\x03xyz<\1\0\0\0z\x03set)\1r\1\0\0\0"
    assert mentioned(data, (b"abc", b"xyz", b"set")) == (b"xyz",)
    data = constants + b")\1\xda\x03abc)\1r\0\0\0\0"
    assert mentioned(data, (b"abc",)) == (b"abc",), "it is used by name, too"


PIECES = st.sampled_from(
    [bytes((each,)) for each in b"\0\1\2\3NirzZuasclfgy)([<{0:.x_b\xda\xe3\xa9\xff"] + [b"\0\0\0"]
)


@given(st.lists(PIECES, max_size=60).map(b"".join), st.booleans())
def test_c_and_python_agree_about_what_is_malformed(data: bytes, recent: bool) -> None:
    whole = (MAGIC_NUMBER if recent else bytes(4)) + bytes(12) + b"c" + bytes(20) + b"N" + data
    names = (b"x", b"_", b"b", b"xb", b"N")
    assert in_c(whole, names) == in_python(whole, names)


@given(st.data())
def test_c_and_python_agree_about_what_was_damaged(data: st.DataObject) -> None:
    whole = bytearray(compiled(SOURCE))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    del whole[data.draw(st.integers(0, len(whole))) :]
    names = NAMES + NOT_THERE
    assert in_c(bytes(whole), names) == in_python(bytes(whole), names)


SIZE = 1 << 20
BEFORE = MAGIC_NUMBER + bytes(12) + b"c" + bytes(20) + b"NN"
MANY = tuple(b"%x" % number for number in range(4096))


def steps_for(mentioned: Mentioned, data: bytes, names: tuple[bytes, ...]) -> int:
    """Bytes of strings that the scan reads; in C also the compared names."""
    if mentioned is in_python:
        return walked(data).steps
    return blob_of(data).steps_for(names)


def sized(kind: bytes, text: bytes) -> bytes:
    return kind + len(text).to_bytes(4, "little") + text


def crafted() -> dict[str, tuple[bytes, tuple[bytes, ...]]]:
    """Files of 1 MiB made to be slow to scan, and the names they mention."""
    long = sized(b"\xe1", b"abc." * (SIZE // 16))
    count = (SIZE - len(long) - 100) // 5
    many = b"(" + (1 + count).to_bytes(4, "little")
    refs = b"r\0\0\0\0" * count
    return {
        "references to one long string": (BEFORE + many + long + refs, (b"abc",)),
        # stored where it is no mention, and referred to where it is one
        "and from names to constants": (BEFORE[:-1] + b")\1" + long + many + refs, (b"abc",)),
        "short parts between dots": (
            BEFORE + b")\1" + sized(b"a", b"7." * (SIZE // 2 - 32)),
            (b"7",),
        ),
        "a long string of one part": (BEFORE + b")\1" + sized(b"a", b"f" * (SIZE - 64)), ()),
    }


@both
@pytest.mark.parametrize("case", list(crafted()))
def test_a_file_that_was_made_to_be_slow_takes_no_more_than_its_bytes(
    mentioned: Mentioned, case: str
) -> None:
    data, found = crafted()[case]
    assert SIZE - 128 < len(data) <= SIZE
    # the scan reads each byte twice at most, and compares each part with log2 of the names
    assert steps_for(mentioned, data, MANY) <= 2 * len(data) + len(data) // 2 * 13
    assert mentioned(data, (*MANY, b"zzz")) == found


@both
def test_a_name_that_is_looked_for_more_than_once_is_found_each_time(mentioned: Mentioned) -> None:
    data = BEFORE + b")\1z\x05b.abc"
    assert mentioned(data, (b"b", b"abc", b"x", b"abc")) == (b"b", b"abc", b"abc")


@both
def test_what_is_mentioned_again_by_reference_is_found_where_it_is_a_mention(
    mentioned: Mentioned,
) -> None:
    # stored as no mention, referred to where it is one, and once more
    data = BEFORE[:-1] + b")\1\xda\x03abc)\2r\0\0\0\0r\0\0\0\0"
    assert mentioned(data, (b"abc",)) == (b"abc",)
