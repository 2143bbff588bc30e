"""Bundles: what the program in C and the build have to agree on, and which modules are found."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

import pytest

from copperfs.daemon.path_policy_from_mounts import LOCAL_FILESYSTEMS
from copperfs.packaging.run_path import without_run_path
from copperfs.startup import bundle
from tests.unit.test_layers import ROOT
from tests.wheels import run

SOURCE = ROOT / "copperfs/startup"


def test_the_program_knows_the_local_filesystems() -> None:
    text = (SOURCE / "interpreter.c").read_text()
    (table,) = re.findall(r"LOCAL_FILESYSTEMS\[\] = \{(.*?)\};", text, re.DOTALL)
    assert set(re.findall(r'"(.*?)"', table)) == LOCAL_FILESYSTEMS


def test_the_program_and_the_bundle_name_their_variables_alike() -> None:
    text = (SOURCE / "interpreter.c").read_text()
    assert f'#define SAVED "{bundle.SAVED}"' in text
    assert f'#define FILES "{bundle.FILES}"' in text
    assert f'"copperfs/startup/{bundle.LIBRARY_FILE}"' in text


def test_the_bundle_imports_only_what_is_in_the_interpreter() -> None:
    """It runs before there is a finder of the standard library."""
    script = (
        "import sys, importlib.machinery as machinery\n"
        "before = set(sys.modules)\n"
        f"exec(compile(open({str(SOURCE / 'bundle.py')!r}).read(), 'bundle', 'exec'), {{}})\n"
        "print(*set(sys.modules) - before)\n"
    )
    names = run(sys.executable, "-I", "-S", "-c", script).split()
    script = "import sys, _imp; print(*[n for n in sys.argv[1:] if not _imp.is_frozen(n)])"
    found = run(sys.executable, "-I", "-S", "-c", script, *names).split()
    assert set(found) <= set(sys.builtin_module_names)


def test_a_library_without_its_run_path_looks_nowhere(tmp_path: Path) -> None:
    source, library = tmp_path / "empty.c", tmp_path / "library.so"
    source.write_text("int nothing;\n")
    run("gcc", "-shared", f"-Wl,-rpath,{tmp_path}", "-o", library, source)
    assert "PATH)" in run("readelf", "-d", library)
    changed = without_run_path(library.read_bytes())
    assert len(changed) == library.stat().st_size
    library.write_bytes(changed)
    assert "PATH)" not in run("readelf", "-d", library)
    assert "not found" not in run("ldd", library)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library"])
def test_what_is_no_library_stays_as_it_is(content: bytes) -> None:
    assert without_run_path(content) == content


def test_another_build_of_python_is_another_python() -> None:
    assert sys.version in bundle.this_python()
    assert str(sysconfig.get_config_var("MULTIARCH")) in bundle.this_python()
