"""Build: what an installation of copperfs makes besides modules: the program ``copperfs`` and its
bundle.

setuptools runs these commands (``pyproject.toml``). The bundle has the dependencies of the
environment in which copperfs is built, which is why they are requirements of the build, too. An
editable installation has none: its modules change.
"""

import os
import subprocess
import sys
import sysconfig
import warnings
from contextlib import suppress
from tempfile import TemporaryDirectory

# setuptools comes first: it has its own copy of distutils.
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

# isort: split
from distutils.ccompiler import new_compiler
from distutils.command.build_scripts import build_scripts
from distutils.errors import CompileError
from distutils.sysconfig import customize_compiler

PROGRAM = "copperfs"
"""In ``bin``."""
SCRIPT = "copperfs-start"
"""There as well. Installers write the interpreter's path into its first line."""
SCRIPT_TEXT = """\
#!python
import sys

from copperfs.cli.main import main

sys.exit(main())
"""
BUILT_WITHIN_S = 120.0
NATIVE = "copperfs.native._native"
ISAL_HEADER = "isa-l/erasure_code.h"
WITHOUT_ISAL = (
    "ISA-L is missing, so this copperfs will refuse rs: (erasure coding); if you want it, install "
    "the headers of ISA-L (Debian: libisal-dev) and then copperfs again"
)
# python3.11: the interpreter, and the directory of its modules.
PYTHON = os.path.basename(sysconfig.get_path("stdlib"))


class BuildExtensions(build_ext):  # type: ignore[misc]
    """And the bundles, which need them."""

    def run(self) -> None:
        self._look_for_isal()
        super().run()
        if self.inplace or getattr(self, "editable_mode", False):
            return
        directory = os.path.abspath(os.path.join(self.build_lib, "copperfs/startup"))
        target = os.path.join(directory, "bundle")
        for name in ("bundle", "standard_library"):
            with suppress(FileNotFoundError):
                os.remove(os.path.join(directory, name))  # of an earlier build
        # pip names the requirements of the build by it, too.
        path = [os.path.abspath(self.build_lib), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "copperfs.packaging.write_bundle", target],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILT_WITHIN_S,
        )
        if done.returncode != 0:
            reason = done.stderr.strip().rpartition("\n")[2]
            warnings.warn(
                f"a bundle is missing, so starts of copperfs may read hundreds of files: {reason}",
                stacklevel=2,
            )

    def _look_for_isal(self) -> None:
        """Erasure coding is built where its headers are; the library is loaded when it is used."""
        compiler = new_compiler()
        customize_compiler(compiler)
        with TemporaryDirectory() as made:
            source = os.path.join(made, "isal.c")
            with open(source, "w", encoding="ascii") as file:
                file.write(f"#include <{ISAL_HEADER}>\n")
            try:
                compiler.compile([source], output_dir=made, include_dirs=self.include_dirs)
            except CompileError:
                warnings.warn(WITHOUT_ISAL, stacklevel=2)
                return
        for extension in self.extensions:
            if extension.name == NATIVE:
                extension.define_macros.append(("COPPERFS_ISAL", None))


class BuildProgram(build_scripts):
    """Compiles ``program.c``, and what else is named under ``script-files``, into one program."""

    def run(self) -> None:
        compiler = new_compiler()
        customize_compiler(compiler)
        self.mkpath(self.build_dir)
        # What lies beside the scripts would be installed, too.
        with TemporaryDirectory() as made:
            objects = compiler.compile(
                self.scripts,
                output_dir=made,
                macros=[("PYTHON", f'"{PYTHON}"')],
                extra_preargs=["-std=gnu11", "-O2", "-Wall", "-Wextra"],
            )
            # Without symbols it is read at once.
            options = {"output_dir": self.build_dir, "extra_preargs": ["-s"]}
            compiler.link_executable(objects, PROGRAM, **options)
        with open(os.path.join(self.build_dir, SCRIPT), "w", encoding="ascii") as script:
            script.write(SCRIPT_TEXT)
            os.chmod(script.fileno(), 0o755)

    def get_outputs(self) -> list[str]:
        return [os.path.join(self.build_dir, each) for each in (PROGRAM, SCRIPT)]
