"""Covers: the directories that ``copperfs run --in-place`` covers, in trees as sites and users have
them. ``@`` is the top of such a tree; all below it is shared, but for ``@/local``."""

import os
import pwd
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from copperfs.inplace.covers import Covers, covers, outermost
from copperfs.inplace.interpreters import started_by_env
from copperfs.model.errors import ConfigError

HOME, WORK = "@/home/me", "@/scratch/run"


@dataclass
class Site:
    top: str

    def here(self, text: str) -> str:
        return text.replace("@", self.top)

    def make(self, tree: str) -> None:
        """A line is ``directory/``, ``link -> target``, ``file`` or ``program*``. The last two may
        be followed by ``= text``."""
        for line in filter(None, map(str.strip, tree.splitlines())):
            name, _, text = line.partition(" = ")
            name, arrow, target = name.partition(" -> ")
            path = Path(self.top, name.rstrip("*"))
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if arrow:
                path.symlink_to(self.here(target))
            elif not name.endswith("/"):
                path.write_text(self.here(text).replace("\\n", "\n"))
                path.chmod(0o755 if name.endswith("*") else 0o644)

    def covers(
        self,
        command: Sequence[str] = (),
        *,
        cwd: str = WORK,
        at: Sequence[str] = (),
        ring: Sequence[str] = (),
        writable: Sequence[str] = (),
        source: str = "@",
        **environ: str,
    ) -> Covers:
        environ = {"HOME": HOME, "PATH": "@/local/bin", **environ}
        return covers(
            environ={name: self.here(value) for name, value in environ.items()},
            command=[self.here(word) for word in command],
            cwd=self.here(cwd),
            is_shared=self.is_shared,
            source_root=self.here(source),
            at=[self.here(each) for each in at],
            ring=[self.here(each) for each in ring],
            writable=[self.here(each) for each in writable],
        )

    def is_shared(self, path: str) -> bool:
        below = f"{path}/"
        return below.startswith(f"{self.top}/") and not below.startswith(f"{self.top}/local/")

    def covered(self, found: Covers) -> list[str]:
        return [each.replace(self.top, "@") for each in found.directories]

    def left_out(self, found: Covers) -> dict[str, str]:
        return {
            each.directory.replace(self.top, "@"): each.reason.replace(self.top, "@")
            for each in found.left_out
        }


@pytest.fixture
def site(tmp_path: Path) -> Site:
    top = tmp_path.resolve() / "top"
    top.mkdir()
    site = Site(str(top))
    site.make("""
        home/me/
        scratch/run/
        local/bin/env* = binary
        local/bin/sh* = binary
        local/lib/libc.so
    """)
    return site


# ---- layouts -------------------------------------------------------------------------------------

PYTHON = """
    sw/python/bin/python3.11* = binary
    sw/python/bin/python3 -> python3.11
    sw/python/lib/python3.11/os.py
    sw/python/share/man
"""
VENV = f"""{PYTHON}
    home/me/venv/pyvenv.cfg = version = 3.11\\nHOME = @/sw/python/bin\\n
    home/me/venv/bin/python3 -> @/sw/python/bin/python3
    home/me/venv/bin/tool* = #!@/home/me/venv/bin/python3\\nimport tool
    home/me/venv/lib/python3.11/site-packages/tool.py
    home/me/venv/lib64 -> lib
"""
LOCAL_VENV = f"""{PYTHON}
    local/venv/pyvenv.cfg = home = @/sw/python/bin
    local/venv/bin/python3 -> @/sw/python/bin/python3
    local/venv/bin/tool* = #!@/local/venv/bin/python3
"""
CONDA = """
    sw/conda/conda-meta/history
    sw/conda/condabin/conda* = binary
    sw/conda/bin/python3* = binary
    sw/conda/pkgs/big
    sw/conda/envs/torch/conda-meta/history
    sw/conda/envs/torch/bin/python3* = binary
    sw/conda/envs/torch/lib/libtorch.so
"""
SPACK = """
    sw/opt/gcc-12/python-3.11-aaa/bin/python3* = binary
    sw/opt/gcc-12/python-3.11-aaa/lib/python3.11/os.py
    sw/opt/gcc-12/numpy-1.26-bbb/bin/f2py* = #!@/sw/opt/gcc-12/python-3.11-aaa/bin/python3
    sw/opt/gcc-12/numpy-1.26-bbb/lib/python3.11/site-packages/numpy/core.py
    sw/opt/gcc-12/six-1.16-ccc/lib/python3.11/site-packages/six.py
    sw/opt/gcc-12/cuda-12-ddd/bin/nvcc* = binary
    sw/opt/gcc-12/cuda-12-ddd/lib64/libcudart.so
"""
OF = "@/sw/opt/gcc-12"
USER = """
    home/me/.local/bin/tool* = binary
    home/me/.local/lib/python3.11/site-packages/tool.py
    home/me/.local/share/state
"""
BOTH = ["@/home/me/venv", "@/sw/python"]


@dataclass
class Layout:
    name: str
    tree: str
    covered: Sequence[str]
    environ: dict[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    cwd: str = WORK
    left_out: Sequence[str] = ()


LAYOUTS = [
    # environments with a marker
    Layout("venv by its variable", VENV, BOTH, {"VIRTUAL_ENV": "@/home/me/venv"}),
    Layout("venv by PATH", VENV, BOTH, {"PATH": "@/home/me/venv/bin"}),
    Layout("venv by its link", VENV, BOTH, {"LD_LIBRARY_PATH": "@/home/me/venv/lib64"}),
    Layout("venv by the command", VENV, BOTH, command=["@/home/me/venv/bin/python3"]),
    Layout(
        "venv by a relative command",
        VENV,
        BOTH,
        command=["../../home/me/venv/bin/python3", "-c", "0"],
    ),
    Layout(
        "venv below the working directory",
        VENV,
        BOTH,
        command=["venv/bin/python3"],
        cwd="@/home/me",
    ),
    Layout("venv by a console script", VENV, BOTH, command=["@/home/me/venv/bin/tool"]),
    Layout(
        "venv by env",
        VENV,
        BOTH,
        command=["env", "-u", "HOME", "A=b", "@/home/me/venv/bin/tool", "@/home/me"],
    ),
    Layout(
        "local venv by the command", LOCAL_VENV, ["@/sw/python"], command=["@/local/venv/bin/tool"]
    ),
    Layout(
        "local venv by its variable", LOCAL_VENV, ["@/sw/python"], {"VIRTUAL_ENV": "@/local/venv"}
    ),
    Layout(
        "venv of a venv of itself",
        """
        sw/a/pyvenv.cfg = home = @/sw/b/bin
        sw/a/bin/
        sw/b/pyvenv.cfg = home = @/sw/a/bin
        sw/b/bin/
        """,
        ["@/sw/a", "@/sw/b"],
        {"VIRTUAL_ENV": "@/sw/a"},
    ),
    Layout(
        "venv whose base is gone",
        "sw/a/pyvenv.cfg = home = @/sw/gone/bin\nsw/a/bin/",
        ["@/sw/a"],
        {"VIRTUAL_ENV": "@/sw/a"},
    ),
    Layout(
        "venv with a relative base",
        "sw/a/pyvenv.cfg = home = ../../sw/b/bin\nsw/a/bin/\nsw/b/bin/",
        ["@/sw/a"],
        {"VIRTUAL_ENV": "@/sw/a"},
    ),
    Layout(
        "venv whose base is no path",
        "sw/a/pyvenv.cfg = home = @/sw/\0/bin\nsw/a/bin/\nsw/b/a.py",
        ["@/sw/a", "@/sw/b"],
        {"PATH": "@/sw/a/bin", "PYTHONPATH": "@/sw/b"},
    ),
    Layout(
        "venv of an interpreter among other files",
        "sw/a/pyvenv.cfg = home = @/sw/python\nsw/python/python3* = binary",
        ["@/sw/a"],
        {"VIRTUAL_ENV": "@/sw/a"},
    ),
    Layout(
        "conda by its variable",
        CONDA,
        ["@/sw/conda/envs/torch"],
        {"CONDA_PREFIX": "@/sw/conda/envs/torch"},
    ),
    Layout(
        "nested conda environment",
        CONDA,
        ["@/sw/conda/envs/torch"],
        {"PATH": "@/sw/conda/envs/torch/bin:@/local/bin"},
        ["python3"],
    ),
    Layout(
        "conda and its base",
        CONDA,
        ["@/sw/conda"],
        {"PATH": "@/sw/conda/envs/torch/bin:@/sw/conda/condabin:@/local/bin"},
    ),
    # prefixes
    Layout(
        "Spack by PATH and PYTHONPATH",
        SPACK,
        [f"{OF}/numpy-1.26-bbb", f"{OF}/python-3.11-aaa"],
        {
            "PATH": f"{OF}/python-3.11-aaa/bin:@/local/bin",
            "PYTHONPATH": f"{OF}/numpy-1.26-bbb/lib/python3.11/site-packages",
        },
    ),
    Layout(
        "Spack by a script's interpreter",
        SPACK,
        [f"{OF}/numpy-1.26-bbb", f"{OF}/python-3.11-aaa"],
        command=[f"{OF}/numpy-1.26-bbb/bin/f2py"],
    ),
    Layout(
        "prefix without programs",
        SPACK,
        [f"{OF}/six-1.16-ccc/lib/python3.11/site-packages"],
        {"PYTHONPATH": f"{OF}/six-1.16-ccc/lib/python3.11/site-packages"},
    ),
    Layout(
        "prefix with lib64 only",
        SPACK,
        [f"{OF}/cuda-12-ddd"],
        {"LD_LIBRARY_PATH": f"{OF}/cuda-12-ddd/lib64"},
    ),
    Layout(
        "prefix around a directory of libraries",
        "sw/jdk/bin/\nsw/jdk/lib/server/bin/java* = binary",
        ["@/sw/jdk"],
        {"PATH": "@/sw/jdk/lib/server/bin"},
    ),
    Layout(
        "programs without libraries",
        "sw/tools/bin/a*\nsw/tools/data/",
        ["@/sw/tools/bin"],
        {"PATH": "@/sw/tools/bin"},
    ),
    Layout(
        "pip --user",
        USER,
        ["@/home/me/.local/bin", "@/home/me/.local/lib"],
        {"PATH": "@/home/me/.local/bin"},
    ),
    Layout(
        "other parts of a prefix that programs write to",
        f"{USER}home/me/.local/sbin/\nhome/me/.local/libexec/",
        ["@/home/me/.local/bin", "@/home/me/.local/lib", "@/home/me/.local/sbin"],
        {"PATH": "@/home/me/.local/sbin"},
    ),
    Layout(
        "checkout",
        "home/me/project/.git/HEAD\nhome/me/project/bin/\nhome/me/project/lib/",
        ["@/home/me/project/bin", "@/home/me/project/lib"],
        {"PATH": "@/home/me/project/bin"},
    ),
    Layout(
        "prefix around the working directory",
        "proj/me/bin/\nproj/me/lib/\nproj/me/results/run1/",
        ["@/proj/me/bin", "@/proj/me/lib"],
        {"PATH": "@/proj/me/bin"},
        cwd="@/proj/me/results/run1",
    ),
    Layout(
        "working directory in a directory of libraries",
        "sw/a/bin/\nsw/a/lib/python3.11/site-packages/a.py",
        ["@/sw/a/lib/python3.11/site-packages"],
        {"PYTHONPATH": "@/sw/a/lib/python3.11/site-packages"},
        cwd="@/sw/a/lib",
    ),
    # plain directories
    Layout(
        "editable install beside the working directory",
        "home/me/code/src/package/__init__.py\nhome/me/code/runs/",
        ["@/home/me/code/src"],
        {"PYTHONPATH": "@/home/me/code/src"},
        cwd="@/home/me/code/runs",
    ),
    Layout(
        "working directory in PYTHONPATH",
        "home/me/code/a.py",
        [],
        {"PYTHONPATH": "@/home/me/code"},
        cwd="@/home/me/code",
        left_out=["@/home/me/code"],
    ),
    Layout(
        "relative entries",
        "home/me/code/src/a.py",
        ["@/home/me/code/src"],
        {"PYTHONPATH": "src:.:.."},
        cwd="@/home/me/code",
        left_out=["@/home/me", "@/home/me/code"],
    ),
    Layout("empty entries", VENV, BOTH, {"PYTHONPATH": ":", "PATH": "::@/home/me/venv/bin:"}),
    Layout("entry twice", VENV, BOTH, {"PATH": "@/home/me/venv/bin:@/home/me/venv/bin/"}),
    Layout(
        "archive in a prefix",
        "sw/a/bin/\nsw/a/lib/all.zip",
        [],
        {"PYTHONPATH": "@/sw/a/lib/all.zip"},
    ),
    Layout(
        "archive in PYTHONPATH",
        "home/me/code/all.zip\nhome/me/more/a.py",
        ["@/home/me/more"],
        {"PYTHONPATH": "@/home/me/code/all.zip:@/home/me/code/all.zip/in:@/home/me/more"},
    ),
    Layout(
        "entry below another",
        "home/me/code/src/a.py\nhome/me/code-2/a.py",
        ["@/home/me/code", "@/home/me/code-2"],
        {"PYTHONPATH": "@/home/me/code/src:@/home/me/code-2:@/home/me/code"},
    ),
    Layout("local entries", "local/python/a.py", [], {"PYTHONPATH": "@/local/python"}),
    Layout(
        "shared libraries of a local prefix",
        "local/x/bin/\nsw/x/a.so\nlocal/x/lib -> @/sw/x",
        ["@/sw/x"],
        {"LD_LIBRARY_PATH": "@/local/x/lib"},
    ),
    # links
    Layout(
        "chain of links",
        """
        sw/3.11/bin/python3* = binary
        sw/3.11/lib/
        sw/current -> 3.11
        home/me/venv/bin/python3 -> ../../link
        home/me/venv/pyvenv.cfg
        home/me/link -> @/sw/current/bin/python3
        """,
        ["@/home/me/venv", "@/sw/3.11"],
        command=["@/home/me/venv/bin/python3"],
    ),
    Layout(
        "environment behind a link",
        VENV + "home/me/default -> venv",
        BOTH,
        {"VIRTUAL_ENV": "@/home/me/default"},
        ["@/home/me/default/bin/python3"],
    ),
    Layout(
        "prefix whose programs are a link",
        "sw/view/bin -> ../store/bin\nsw/view/lib/\nsw/store/bin/a* = binary",
        ["@/sw/store/bin", "@/sw/view"],
        command=["@/sw/view/bin/a"],
    ),
    Layout(
        "venv whose programs are a link",
        "sw/venv/pyvenv.cfg\nsw/venv/bin -> ../store/bin\nsw/store/bin/a* = binary",
        ["@/sw/store/bin", "@/sw/venv"],
        {"PATH": "@/sw/venv/bin"},
    ),
    Layout(
        "program behind a link in a directory of programs",
        "sw/view/bin/a -> @/sw/store/a\nsw/store/a* = binary",
        ["@/sw/view/bin"],
        command=["@/sw/view/bin/a"],
        left_out=["@/sw/store"],
    ),
    Layout(
        "link in a directory of results",
        "proj/results/newest -> @/sw/python/lib" + PYTHON,
        ["@/sw/python"],
        {"PYTHONPATH": "@/proj/results/newest"},
    ),
    Layout(
        "part of a prefix that is a link",
        "home/me/.local/bin/\nsw/lib/a.so\nhome/me/.local/lib -> @/sw/lib",
        ["@/home/me/.local/bin", "@/sw/lib"],
        {"PATH": "@/home/me/.local/bin"},
    ),
    Layout(
        "broken links and loops",
        VENV + "home/me/broken -> nowhere\nhome/me/loop -> loop\nhome/me/a -> b\nhome/me/b -> a",
        BOTH,
        {
            "PATH": "@/home/me/broken:@/home/me/loop/bin:@/home/me/a:@/gone:@/home/me/venv/bin",
            "VIRTUAL_ENV": "@/home/me/loop",
            "PYTHONPATH": "@/home/me/venv/pyvenv.cfg/below",
        },
        ["@/home/me/loop"],
    ),
    # the command
    Layout(
        "env in the first line",
        VENV + "scratch/run/job.py* = #!/usr/bin/env tool\\n",
        [],
        command=["./job.py"],
        left_out=[WORK],
    ),
    Layout(
        "env in the first line, and PATH",
        VENV + "scratch/run/job.py* = #! @/local/bin/env python3 \\n",
        BOTH,
        {"PATH": "@/local/venv:@/home/me/venv/bin"},
        ["./job.py"],
        left_out=[WORK],
    ),
    Layout(
        "program that no environment has",
        "home/me/code/a.out* = binary",
        [],
        command=["@/home/me/code/a.out"],
        left_out=["@/home/me/code"],
    ),
    Layout(
        "program whose directory is covered anyway",
        "home/me/code/a.out* = binary",
        ["@/home/me/code"],
        {"PATH": "@/home/me/code"},
        ["a.out"],
    ),
    Layout("program that does not exist", VENV, [], command=["@/home/me/venv/bin/python4"]),
    Layout("command without a program", VENV, [], command=[""]),
    # places that are never covered
    Layout(
        "working directory in a venv",
        VENV,
        ["@/sw/python"],
        {"VIRTUAL_ENV": "@/home/me/venv"},
        ["bin/python3"],
        cwd="@/home/me/venv",
        left_out=["@/home/me/venv"],
    ),
    Layout(
        "working directory deep in a venv",
        VENV,
        ["@/sw/python"],
        {"PATH": "@/home/me/venv/bin"},
        ["tool"],
        cwd="@/home/me/venv/lib/python3.11",
        left_out=["@/home/me/venv"],
    ),
    Layout("home", VENV, [], {"PYTHONPATH": "@/home/me"}, left_out=["@/home/me"]),
    Layout("above home", VENV, [], {"PYTHONPATH": "@/home"}, left_out=["@/home"]),
    Layout(
        "programs and libraries in home",
        "home/me/bin/\nhome/me/lib/\nhome/me/lib64/\nhome/me/data/",
        ["@/home/me/bin", "@/home/me/lib", "@/home/me/lib64"],
        {"PATH": "@/home/me/bin"},
    ),
    Layout(
        "home that is a venv",
        "home/me/pyvenv.cfg\nhome/me/bin/\nhome/me/lib/\nhome/me/code/a.py\nhome/conda-meta/",
        ["@/home/me/bin", "@/home/me/code", "@/home/me/lib"],
        {"PATH": "@/home/me/bin", "PYTHONPATH": "@/home/me/code"},
    ),
    Layout(
        "home below a directory of libraries",
        "proj/bin/\nproj/lib/me/code/a.py",
        ["@/proj/lib/me/code"],
        {"HOME": "@/proj/lib/me", "PYTHONPATH": "@/proj/lib/me/code"},
    ),
    Layout(
        "temporary files",
        "scratch/tmp/code/a.py\nscratch/more/",
        ["@/scratch/tmp/code"],
        {"TMPDIR": "@/scratch/tmp", "PYTHONPATH": "@/scratch/tmp/code:@/scratch/tmp:@/scratch"},
        cwd="@/home/me",
        left_out=["@/scratch", "@/scratch/tmp"],
    ),
    Layout(
        "temporary files in a venv",
        VENV + "home/me/venv/tmp/",
        ["@/sw/python"],
        {"TMPDIR": "@/home/me/venv/tmp", "VIRTUAL_ENV": "@/home/me/venv"},
        left_out=["@/home/me/venv"],
    ),
    Layout(
        "home by a link",
        "h -> @/home\nhome/me/code/",
        ["@/home/me/code"],
        {"HOME": "@/h/me", "PYTHONPATH": "@/home/me:@/home/me/code"},
        left_out=["@/home/me"],
    ),
    Layout(
        "working directory by a link",
        "w -> @/proj/me/code\nproj/me/code/src/",
        ["@/proj/me/code/src"],
        {"PYTHONPATH": "@/proj/me:@/proj/me/code/src"},
        cwd="@/w",
        left_out=["@/proj/me"],
    ),
    Layout(
        "temporary files by a link",
        "t -> @/scratch/tmp\nscratch/tmp/code/",
        ["@/scratch/tmp/code"],
        {"TMPDIR": "@/t", "PYTHONPATH": "@/scratch/tmp:@/scratch/tmp/code"},
        left_out=["@/scratch/tmp"],
    ),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda each: each.name)
def test_environments_are_covered_as_a_whole(site: Site, layout: Layout) -> None:
    site.make(layout.tree)
    found = site.covers(layout.command, cwd=layout.cwd, **layout.environ)
    assert site.covered(found) == list(layout.covered)
    assert list(site.left_out(found)) == list(layout.left_out)
    assert not found.writable
    assert [os.path.realpath(each) for each in found.directories] == [*found.directories]


# ---- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "covered"),
    [
        ("#!@/sw/python/bin/python3\\n", True),
        ("#! \t@/sw/python/bin/python3 -u\\n", True),
        ("#!@/sw/python/bin/python3", True),
        (
            "#!../../sw/python/bin/python3\\n",
            True,
        ),  # from the working directory, as the kernel does
        ("#!@/local/bin/env python3\\n", True),
        ("#!@/local/bin/env -S A=b python3 -u\\n", True),
        ("#!@/local/bin/env -S 'python3\\n", False),
        ("#!@/local/bin/env python3 -u\\n", False),  # one argument, and no program has such a name
        ("#!@/local/bin/env\\n", False),
        ("#!@/local/bin/sh @/sw/python/bin/python3\\n", False),
        ("#!\\n@/sw/python/bin/python3", False),
        ("#!", False),
        ("", False),
        ("@/sw/python/bin/python3\\n", False),
        ("  @/sw/python/bin/python3\\n", False),
        ("#!\0\\n", False),
        ("#!" + " " * 300 + "@/sw/python/bin/python3\\n", False),
    ],
)
def test_the_first_line_of_a_script_leads_to_its_interpreter(
    site: Site, first: str, covered: bool
) -> None:
    # Neither the script nor the link in PATH is in a shared environment: only the interpreter is.
    site.make(PYTHON + "scratch/run/job*\nlocal/bin/python3 -> @/sw/python/bin/python3")
    Path(site.top, "scratch/run/job").write_text(site.here(first).replace("\\n", "\n"))
    assert site.covered(site.covers(["./job"])) == (["@/sw/python"] if covered else [])


def test_a_cut_off_interpreter_is_not_taken_for_another(site: Site) -> None:
    """The kernel refuses a first line whose interpreter does not end within 256 bytes."""
    cut = f"#!{site.top}/sw/a/bin/".ljust(256, "p")
    program = cut[2:]
    site.make(f"sw/a/lib/\nsw/a/bin/{os.path.basename(program)}* = binary")
    site.make(f"scratch/run/job* = {cut}q\\n")
    assert not site.covers(["./job"]).directories
    site.make(
        f"scratch/run/job* = {cut[:-1]}\\n\nsw/a/bin/{os.path.basename(program)[:-1]}* = binary"
    )
    assert site.covered(site.covers(["./job"])) == ["@/sw/a"]


def test_scripts_that_interpret_each_other_end(site: Site) -> None:
    site.make("""
        sw/a/lib/
        sw/a/bin/one* = #!@/sw/b/bin/two\\n
        sw/b/lib/
        sw/b/bin/two* = #!@/sw/a/bin/one\\n
    """)
    assert site.covered(site.covers(["@/sw/a/bin/one"])) == ["@/sw/a", "@/sw/b"]


def test_the_command_is_found_as_execvp_finds_it(site: Site) -> None:
    """The first entries have a directory, a file that cannot be executed, a loop, and nothing."""
    site.make("""
        sw/a/python3/
        sw/b/python3 = text
        sw/c/python3 -> python3
        sw/d/
        local/x/python3 -> @/sw/e/bin/python3
        sw/e/bin/python3* = binary
        local/y/python3 -> @/sw/f/bin/python3
        sw/f/bin/python3* = binary
    """)
    local = {"@/sw/a", "@/sw/b", "@/sw/c", "@/sw/d"}
    path = ":".join(["@/sw/a", "@/sw/b", "@/sw/c", "@/sw/d", "@/local/x", "@/local/y"])
    covered = set(site.covered(site.covers(["python3"], PATH=path)))
    assert covered == local | {"@/sw/e/bin"}


def test_an_empty_entry_of_path_finds_the_command_in_the_working_directory(site: Site) -> None:
    site.make(PYTHON + "scratch/run/python3 -> @/sw/python/bin/python3")
    assert site.covered(site.covers(["python3"], PATH="@/local/none:")) == ["@/sw/python"]
    assert site.covered(site.covers(["python3"], PATH="@/local/none")) == []


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["python3", "-c", "0"], "python3"),
        (["-i", "A=b", "C=", "python3", "more"], "python3"),
        (["-u", "A", "-C", "/tmp", "--", "A=b", "python3"], "python3"),
        (["--unset=A", "python3"], "python3"),
        (["-S", "A='b c' python3 -u", "more"], "python3"),
        (["-ivSpython3 -u"], "python3"),
        (["--split-string=python3 -u"], "python3"),
        (["--split-string", "python3 -u"], "python3"),
        (["A=b"], None),
        (["-S"], None),
        ([], None),
    ],
)
def test_env_starts_the_first_word_that_is_no_option_or_variable(
    arguments: Sequence[str], program: str | None
) -> None:
    assert started_by_env(arguments) == program


# ---- what users name -----------------------------------------------------------------------------


def test_a_prefix_of_in_place_at_is_covered_as_given(site: Site) -> None:
    site.make("sw/a/pyvenv.cfg\nsw/a/lib/models/\nlink -> sw/a/lib\nproj/data/")
    found = site.covers(at=["@/link/models", "../../proj"])
    assert site.covered(found) == ["@/proj", "@/sw/a/lib/models"]


@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        ("@/gone", r"--in-place-at @/gone does not exist; name "),
        ("@/loop", r"--in-place-at @/loop cannot be used: Too many levels"),
        ("@/a.zip", r"--in-place-at @/a.zip is not a directory; name "),
        ("@/a.zip/b", r"--in-place-at @/a.zip/b cannot be used: Not a directory; name "),
        ("@/local/lib", r"--in-place-at @/local/lib is on no shared filesystem; .* --shared"),
        ("/usr/lib", r"--in-place-at /usr/lib is on no shared filesystem; .* --shared"),
        ("@/scratch/run", r"--in-place-at @/scratch/run .* it is the working directory; name "),
        ("@/scratch", r"--in-place-at @/scratch .* working directory @/scratch/run is in it; "),
        ("@/home/me", r"--in-place-at @/home/me .* it is the home directory; name "),
        ("@/home", r"--in-place-at @/home .* the home directory @/home/me is in it; name "),
        ("/tmp", r"--in-place-at /tmp .* it is the directory of temporary files; name "),
        ("/", r"--in-place-at / .* is in it; name "),
    ],
)
def test_an_impossible_prefix_of_in_place_at_is_an_error(
    site: Site, at: str, sentence: str
) -> None:
    site.make("loop -> loop\na.zip")
    with pytest.raises(ConfigError, match=f"^{site.here(sentence)}"):
        site.covers(at=[at])


def test_datasets_are_covered_unless_the_job_may_write_there(site: Site) -> None:
    site.make("data/imagenet/\ndata/a.tar\nlocal/data/")
    ring = ["@/data/imagenet", "@/scratch", "@/data/gone", "@/data/a.tar", "@/local/data"]
    found = site.covers(ring=ring)
    assert site.covered(found) == ["@/data/imagenet"]
    assert site.left_out(found) == {
        "@/data/a.tar": "@/data/a.tar is not shown in place because it is not an existing "
        "directory; correct --ring",
        "@/data/gone": "@/data/gone is not shown in place because it is not an existing "
        "directory; correct --ring",
        "@/local/data": "@/local/data is not shown in place because it is on no shared filesystem; "
        "name its filesystem by --shared",
        "@/scratch": "@/scratch is not shown in place because the working directory "
        "@/scratch/run is in it; start the command from a directory outside of it",
    }


@pytest.mark.parametrize(
    ("writable", "covered", "left_writable", "left_out"),
    [
        (["@/sw/a"], [], [], ["@/sw/a"]),
        (["@/sw"], [], [], ["@/sw/a"]),
        (["@/sw/a/cache"], ["@/sw/a"], ["@/sw/a/cache"], []),
        (["@/sw/a-b"], ["@/sw/a"], [], []),
        (["@/home/me"], ["@/sw/a"], [], []),
        (["@/link"], ["@/sw/a"], ["@/sw/a/cache"], []),
        (["../../sw/a/cache/x", "@/sw/a/cache", "@/link"], ["@/sw/a"], ["@/sw/a/cache"], []),
        (["@/sw/a/lib", "@/sw/a/cache"], ["@/sw/a"], ["@/sw/a/cache", "@/sw/a/lib"], []),
    ],
)
def test_writable_directories_are_left_out(
    site: Site,
    writable: Sequence[str],
    covered: Sequence[str],
    left_writable: Sequence[str],
    left_out: Sequence[str],
) -> None:
    site.make("sw/a/bin/\nsw/a/lib/\nsw/a/cache/x/\nsw/a-b/\nlink -> sw/a/cache")
    for found in (
        site.covers(PATH="@/sw/a/bin", writable=writable),
        site.covers(at=["@/sw/a"], writable=writable),
        site.covers(ring=["@/sw/a"], writable=writable),
    ):
        assert site.covered(found) == covered
        assert [each.replace(site.top, "@") for each in found.writable] == left_writable
        assert list(site.left_out(found)) == left_out
        assert all("--writable" in reason for reason in site.left_out(found).values())


@pytest.mark.parametrize(
    ("writable", "sentence"),
    [
        ("@/gone", "--writable @/gone does not exist; name "),
        ("@/a.zip", "--writable @/a.zip is not a directory; name "),
    ],
)
def test_an_impossible_writable_directory_is_an_error(
    site: Site, writable: str, sentence: str
) -> None:
    site.make("a.zip")
    with pytest.raises(ConfigError, match=f"^{site.here(sentence)}"):
        site.covers(writable=[writable])


# ---- places --------------------------------------------------------------------------------------


def test_the_home_of_the_user_database_is_not_covered(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make("users/me/code/")
    mine = list(pwd.getpwuid(os.getuid()))
    mine[5] = site.here("@/users/me")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(mine))
    found = site.covers(PYTHONPATH="@/users/me:@/users/me/code:@/users:@/home/me")
    assert site.covered(found) == ["@/users/me/code"]
    assert list(site.left_out(found)) == ["@/home/me", "@/users", "@/users/me"]


def test_a_user_without_an_entry_in_the_database_is_served(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", missing)
    site.make(PYTHON)
    found = site.covers(PATH="@/sw/python/bin", PYTHONPATH="@/scratch/run", HOME="", TMPDIR="")
    assert site.covered(found) == ["@/sw/python"]
    assert "it is the working directory" in site.left_out(found)["@/scratch/run"]


def test_only_what_is_below_the_source_is_covered(site: Site) -> None:
    site.make("lus/a/\nlustre/a/")
    found = site.covers(PYTHONPATH="@/lus/a:@/lustre/a", source="@/lus")
    assert site.covered(found) == ["@/lus/a"]
    assert not found.left_out


def test_a_directory_at_the_top_is_not_taken_for_a_prefix(site: Site) -> None:
    found = covers(
        environ={"PATH": "/usr/bin", "HOME": site.here(HOME)},
        command=[],
        cwd=site.here(WORK),
        is_shared=lambda path: True,
        source_root="/",
        at=[],
        ring=[],
        writable=[],
    )
    assert {"/usr/bin", "/usr/lib"} <= {*found.directories}
    assert "/usr" not in found.directories


def test_the_reason_says_what_to_do(site: Site) -> None:
    site.make(VENV + "home/me/code/a.out* = binary")
    found = site.covers(
        ["@/home/me/code/a.out"],
        cwd="@/home/me/venv/lib",
        PYTHONPATH="@/home",
        VIRTUAL_ENV="@/home/me/venv",
    )
    assert site.left_out(found) == {
        "@/home": "@/home is not shown in place because the home directory @/home/me is in it; "
        "name the software in it by --in-place-at DIR",
        "@/home/me/code": "@/home/me/code is not shown in place because a.out in it belongs to no "
        "environment that copperfs recognizes; if the job writes nothing there, name it by "
        "--in-place-at DIR",
        "@/home/me/venv": "@/home/me/venv is not shown in place because the working directory "
        "@/home/me/venv/lib is in it; start the command from a directory outside of it",
    }


def test_the_reason_for_a_program_of_the_working_directory_is_where_it_is(site: Site) -> None:
    site.make("scratch/run/a.out* = binary")
    assert "it is the working directory" in site.left_out(site.covers(["./a.out"]))[WORK]


# ---- the parts -----------------------------------------------------------------------------------


def test_outermost_compares_components() -> None:
    """By characters, ``/a-b`` is between ``/a`` and ``/a/c``."""
    assert outermost(["/a/c", "/a-b", "/a", "/a-b/c/d", "/a"]) == ("/a", "/a-b")
    assert outermost(["/a/c", "/a-b"]) == ("/a-b", "/a/c")


def test_a_long_path_costs_few_operations(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a Spack environment with 50 packages."""
    prefixes = [f"sw/opt/gcc-12/package{number}-abcdef" for number in range(50)]
    site.make("\n".join(f"{each}/bin/\n{each}/lib/python3.11/site-packages/" for each in prefixes))
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., object]:
        original = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            if site.top in str(arguments[0]):
                calls[name] += 1
            return original(*arguments, **options)

        return call

    for name in ("lstat", "stat", "readlink", "open", "access", "scandir", "listdir"):
        monkeypatch.setattr(os, name, counted(name))
    found = site.covers(
        PATH=":".join(f"@/{each}/bin" for each in prefixes),
        LD_LIBRARY_PATH=":".join(f"@/{each}/lib" for each in prefixes),
    )
    monkeypatch.undo()
    assert site.covered(found) == sorted(f"@/{each}" for each in prefixes)
    assert calls.keys() == {"lstat"}
    # For each prefix: itself, bin, lib, .git, and two markers.
    assert 50 * 6 <= calls["lstat"] <= 50 * 6 + 20
