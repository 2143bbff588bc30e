"""How much copperfs asks of a shared filesystem on which it is installed itself.

With 12 ranks on each of 2,000 nodes its own start must not be the storm that it prevents.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from copperfs.lab.sim.start_storm import BUNDLED
from copperfs.startup.bundle import FILES, SAVED, StandardLibrary
from tests.bootstrap.helpers import clean_environment
from tests.mount.helpers import COMMAND_TIMEOUT_S, eventually
from tests.mount.keepers import children_of, name_of
from tests.standin.client import StandIn
from tests.wheels import build, copy_python, install, plain_environment

# Of the issue; the aim is 20.
FOR_A_NODE_MAX = 50
FOR_A_FURTHER_RANK_MAX = 2
RANKS = 12
# The end of files and directories is no question that anything waits for.
ENDINGS = ("release", "releasedir", "forget", "flush")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    _, wheel = build(tmp_path_factory.mktemp("dist"))
    return wheel


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shared = tmp_path_factory.mktemp("shared")
    install(wheel, shared / "env")
    return shared


@pytest.fixture(scope="module")
def with_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An installation beside the Python of its environment, and where it is mounted."""
    if Path(sys.base_prefix) == Path("/usr"):
        pytest.skip("the system's Python cannot be copied")
    shared, mountpoint = tmp_path_factory.mktemp("shared"), tmp_path_factory.mktemp("pfs")
    python = copy_python(shared / "base")
    environment = shared / "env"
    install(wheel, environment, python)
    config = environment / "pyvenv.cfg"
    config.write_text(config.read_text().replace(str(shared), str(mountpoint)))
    for each in (environment / "bin").glob("python*"):
        if each.readlink().is_absolute():
            each.unlink()
            each.symlink_to(mountpoint / python.relative_to(shared))
    return shared, mountpoint


def environment() -> dict[str, str]:
    return plain_environment(clean_environment())


class Site:
    """A shared filesystem with nothing but an installation of copperfs."""

    def __init__(self, standin: StandIn) -> None:
        self.standin = standin
        self.env = standin.mountpoint / "env"

    def start(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        run = [self.env / "bin/copperfs", "run", "--in-place", "always"]
        options = ["--in-place-at", self.env, "--shared", self.standin.mountpoint]
        return subprocess.Popen(
            [str(each) for each in (*run, *options, "--", *words)],
            env=environment() | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def asked(self) -> int:
        """Operations since the last ``reset_counts``."""
        counts = self.standin.counts()
        return counts.total() - sum(map(counts.total, ENDINGS))


@pytest.fixture
def site(installation: Path) -> Iterator[Site]:
    with StandIn(installation, timeout_s=3900.0, page_cache=True) as standin:
        yield Site(standin)


@pytest.fixture
def whole_site(with_python: tuple[Path, Path]) -> Iterator[Site]:
    """Python is on it, too."""
    with StandIn(*with_python, timeout_s=3900.0, page_cache=True) as standin:
        yield Site(standin)


def output_of(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 0, errors
    return output


def has_standby(site: Site) -> bool:
    """Whether all processes of a run are there, so that none of them asks for more."""
    for stat in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            keeper = int(stat.parent.name)
            if name_of(keeper) == "copperfs-keeper" and str(site.env) in stat.read_text():
                return any(name_of(each) == "copperfs-spare" for each in children_of(keeper))
    return False


def test_the_first_run_of_a_node_reads_copperfs_in_a_few_operations(site: Site) -> None:
    output_of(site.start("true"))
    assert site.asked() <= FOR_A_NODE_MAX


def test_the_keeper_and_the_standby_of_a_run_ask_for_little_more(site: Site) -> None:
    process = site.start("sleep", "600")
    eventually(lambda: has_standby(site), "a standby is ready")
    asked = site.asked()
    process.terminate()
    process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert asked <= FOR_A_NODE_MAX
    reads = site.standin.counts().total("read")
    assert site.asked() - reads <= BUNDLED.first, "copperfs sim start says so"


def test_further_runs_read_nothing_but_the_program(site: Site, tmp_path: Path) -> None:
    asked = asked_by_further_runs(site, tmp_path / "go")
    assert asked <= min(FOR_A_FURTHER_RANK_MAX, BUNDLED.further) * (RANKS - 1)


def asked_by_further_runs(site: Site, go: Path) -> int:
    words = ["sh", "-c", 'echo up; while [ ! -e "$0" ]; do sleep 0.05; done', str(go)]
    first = site.start(*words)
    assert first.stdout is not None
    assert first.stdout.readline() == "up\n"
    eventually(lambda: has_standby(site), "a standby is ready")
    site.standin.reset_counts()
    further = [site.start(*words) for _ in range(RANKS - 1)]
    for each in further:
        assert each.stdout is not None
        assert each.stdout.readline() == "up\n"
    asked = site.asked()
    go.touch()
    for each in (first, *further):
        each.communicate(timeout=COMMAND_TIMEOUT_S)
    return asked


def test_ranks_that_start_at_once_start_one_python(site: Site) -> None:
    """And the command's own files come from the source once, whatever it is."""
    env = {"PMI_SIZE": str(RANKS), "MPI_LOCALNRANKS": str(RANKS)}
    ranks = [
        site.start("sh", "-c", "true", env=env | {"PMI_RANK": str(rank)}) for rank in range(RANKS)
    ]
    for each in ranks:
        output_of(each)
    assert site.asked() <= FOR_A_NODE_MAX + (RANKS - 1) * FOR_A_FURTHER_RANK_MAX


def test_a_command_finds_its_environment_and_not_the_bundle(site: Site) -> None:
    script = "import sys, trio; print(sys.prefix, trio.__file__, len(sys.meta_path))"
    output = output_of(site.start(str(site.env / "bin/python3"), "-c", script))
    packages = site.env / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert output.split()[0] == str(site.env)
    assert output.split()[1] == str(packages / "site-packages/trio/__init__.py")


def how_started(site: Site) -> str:
    """The name of what Python executes for a run."""
    words = output_of(site.start("sh", "-c", "tr '\\0' '\\n' < /proc/$PPID/cmdline")).split()
    return Path(next(each for each in words[1:] if not each.startswith("-"))).name


def test_a_bundle_is_used(site: Site) -> None:
    assert how_started(site).isdecimal(), "the descriptor of a memory file"


def test_a_bundle_whose_dependencies_were_replaced_is_not_used(site: Site) -> None:
    packages = next((site.standin.source / "env/lib").glob("python*/site-packages"))
    (found,) = packages.glob("xxhash-*.dist-info")
    other = found.with_name("xxhash-0.0.1.dist-info")
    found.rename(other)
    try:
        assert how_started(site) == "copperfs-start"
    finally:
        other.rename(found)


def test_without_its_bundle_it_starts_as_any_python_program(site: Site) -> None:
    packages = next((site.standin.source / "env/lib").glob("python*/site-packages"))
    bundle = packages / "copperfs/startup/bundle"
    moved = bundle.rename(bundle.with_name("elsewhere"))
    try:
        assert how_started(site) == "copperfs-start"
    finally:
        moved.rename(bundle)


@pytest.mark.parametrize("kept", [0, 7, 100_000, -1], ids=["empty", "tiny", "half", "cut"])
def test_a_bundle_of_which_a_part_is_missing_is_not_used(site: Site, kept: int) -> None:
    bundle = next((site.standin.source / "env/lib").glob("python*/site-packages/*/startup/bundle"))
    content = bundle.read_bytes()
    bundle.write_bytes(content[:kept])
    try:
        assert output_of(site.start("echo", "ran")) == "ran\n"
    finally:
        bundle.write_bytes(content)


def test_a_limit_of_file_sizes_leaves_out_the_bundle(site: Site) -> None:
    command = [str(site.env / "bin/copperfs"), "run", "--in-place", "never", "--", "echo", "ran"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh", *command], env=environment(),
        capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S, cwd="/",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


def startup_check(site: Site) -> str:
    done = subprocess.run(
        [str(site.env / "bin/copperfs"), "doctor", "--json"], env=environment(),
        capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S, cwd="/",
    )  # fmt: skip
    verdicts = {each["name"]: each["verdict"] for each in json.loads(done.stdout)["checks"]}
    return str(verdicts["startup"])


def test_the_doctor_finds_a_bundle(site: Site) -> None:
    assert startup_check(site) == "ok"


def test_the_doctor_misses_a_bundle(site: Site) -> None:
    bundle = next((site.standin.source / "env/lib").glob("python*/site-packages/*/startup/bundle"))
    moved = bundle.rename(bundle.with_name("elsewhere"))
    try:
        assert startup_check(site) == "warning"
    finally:
        moved.rename(bundle)


def test_the_run_that_is_first_may_be_killed(site: Site) -> None:
    """The others wait at its join socket, and one of them becomes the first."""
    first = site.start("true")
    others = [site.start("true") for _ in range(2)]
    first.kill()
    first.communicate()
    for each in others:
        output_of(each)
    eventually(lambda: not site.standin.counts().hanging, "nothing hangs")


# ---- with Python on the shared filesystem --------------------------------------------------------


def program_of_a_run(site: Site) -> str:
    """Of the process that runs Python."""
    return output_of(site.start("sh", "-c", "readlink /proc/$PPID/exe")).strip()


def library_of(site: Site) -> Path:
    return next(
        site.standin.source.glob("env/lib/*/site-packages/copperfs/startup/standard_library")
    )


@contextmanager
def of_another_python(site: Site) -> Iterator[None]:
    library = library_of(site)
    content = library.read_bytes()
    version = sys.version.encode()
    assert version in content
    library.write_bytes(content.replace(version, version.replace(b"(", b"[", 1)))
    try:
        yield
    finally:
        library.write_bytes(content)


def test_the_first_run_reads_python_in_a_few_operations(whole_site: Site) -> None:
    output_of(whole_site.start("true"))
    assert whole_site.asked() <= FOR_A_NODE_MAX


def test_further_runs_do_not_read_python(whole_site: Site, tmp_path: Path) -> None:
    assert asked_by_further_runs(whole_site, tmp_path / "go") <= RANKS - 1


def test_python_on_a_shared_filesystem_is_started_from_memory(whole_site: Site) -> None:
    assert program_of_a_run(whole_site).startswith("/memfd:python")
    assert startup_check(whole_site) == "ok"


def test_python_on_the_node_is_started_from_its_file(site: Site) -> None:
    assert program_of_a_run(site) == os.path.realpath(sys.executable)


def test_a_standard_library_of_another_python_is_not_used(whole_site: Site) -> None:
    with of_another_python(whole_site):
        assert program_of_a_run(whole_site).startswith(str(whole_site.standin.mountpoint))
        assert startup_check(whole_site) == "warning"


def test_a_standard_library_of_another_python_is_no_harm_on_the_node(site: Site) -> None:
    with of_another_python(site):
        assert startup_check(site) == "ok"


def test_a_standard_library_of_which_a_part_is_missing_is_not_used(whole_site: Site) -> None:
    library = library_of(whole_site)
    content = library.read_bytes()
    library.write_bytes(content[: len(content) // 2])
    try:
        assert program_of_a_run(whole_site).startswith(str(whole_site.standin.mountpoint))
        assert startup_check(whole_site) == "warning"
    finally:
        library.write_bytes(content)


def test_the_command_gets_the_variables_of_the_user(whole_site: Site) -> None:
    own = {"PYTHONPATH": "/nowhere", "PYTHONHASHSEED": "7", "LD_PRELOAD": "libm.so.6"}
    lines = output_of(whole_site.start("env", env=own)).splitlines()
    given = dict(line.split("=", 1) for line in lines)
    assert {name: given.get(name) for name in own} == own
    assert not [name for name in given if name.startswith(SAVED)]


def test_the_command_gets_no_variables_of_the_program(whole_site: Site) -> None:
    given = {line.partition("=")[0] for line in output_of(whole_site.start("env")).splitlines()}
    assert not {"PYTHONHOME", "PYTHONPATH", "LD_PRELOAD", FILES} & given


def test_modules_of_the_standard_library_have_their_installed_files(whole_site: Site) -> None:
    """For tracebacks and inspect."""
    with library_of(whole_site).open("rb") as file:
        library = StandardLibrary([os.dup(file.fileno()), -1, -1], sys.executable)
    try:
        assert library.is_current()
        for name in ("json.decoder", "json", "logging", "socket"):
            spec = library.find_spec(name)
            assert spec is not None
            assert spec.origin == importlib.import_module(name).__file__
            assert library.get_code(name).co_filename == spec.origin
    finally:
        os.close(library.fd)


def test_nodes_of_a_job_start_from_memory(whole_site: Site, tmp_path: Path) -> None:
    program = str(whole_site.env / "bin/copperfs")
    source, meet = tmp_path / "source", tmp_path / "meet"
    source.mkdir()
    (source / "file").write_text("content")
    meet.mkdir(0o700)
    mountpoints = [tmp_path / name for name in ("n0", "n1")]
    options = ["--source", source, "--rendezvous", meet, "--nodes", 2, "--listen", "127.0.0.1"]
    for each in mountpoints:
        each.mkdir()
    begun = [
        subprocess.Popen(
            [program, "mount", each, *map(str, options), "--wait-all", "--node-name", each.name],
            env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, cwd="/",
        )
        for each in mountpoints
    ]  # fmt: skip
    try:
        for process in begun:
            output_of(process)
        assert [(each / "file").read_text() for each in mountpoints] == ["content"] * 2
        stats = output_of_command(program, "stats", "--all", "--json", str(mountpoints[0]))
        assert json.loads(stats)["nodes"] == 2
    finally:
        for each in mountpoints:
            subprocess.run([program, "umount", each], env=environment(), check=False, timeout=60)


def output_of_command(*words: str) -> str:
    done = subprocess.run(
        words, env=environment(), capture_output=True, text=True, check=False,
        timeout=COMMAND_TIMEOUT_S, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
