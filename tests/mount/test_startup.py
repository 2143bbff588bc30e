"""How much copperfs asks of a shared filesystem on which it is installed itself.

With 12 ranks on each of 2,000 nodes its own start must not be the storm that it prevents.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from copperfs.lab.sim.start_storm import BUNDLED
from tests.bootstrap.helpers import clean_environment
from tests.mount.helpers import COMMAND_TIMEOUT_S, eventually
from tests.standin.client import StandIn
from tests.wheels import build, install, plain_environment

# Of the issue; the aim is 20.
FOR_A_NODE_MAX = 50
FOR_A_FURTHER_RANK_MAX = 2
RANKS = 12
# The end of files and directories is no question that anything waits for.
ENDINGS = ("release", "releasedir", "forget", "flush")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    _, wheel = build(tmp_path_factory.mktemp("dist"))
    shared = tmp_path_factory.mktemp("shared")
    install(wheel, shared / "env")
    return shared


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


def output_of(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 0, errors
    return output


def test_the_first_run_of_a_node_reads_copperfs_in_a_few_operations(site: Site) -> None:
    output_of(site.start("true"))
    assert site.asked() <= FOR_A_NODE_MAX
    reads = site.standin.counts().total("read")
    assert site.asked() - reads <= BUNDLED.first, "copperfs sim start says so"


def test_further_runs_read_nothing_but_the_program(site: Site, tmp_path: Path) -> None:
    go = tmp_path / "go"
    words = ["sh", "-c", 'echo up; while [ ! -e "$0" ]; do sleep 0.05; done', str(go)]
    first = site.start(*words)
    assert first.stdout is not None
    assert first.stdout.readline() == "up\n"
    site.standin.reset_counts()
    further = [site.start(*words) for _ in range(RANKS - 1)]
    for each in further:
        assert each.stdout is not None
        assert each.stdout.readline() == "up\n"
    asked = site.asked()
    go.touch()
    for each in (first, *further):
        each.communicate(timeout=COMMAND_TIMEOUT_S)
    assert asked <= min(FOR_A_FURTHER_RANK_MAX, BUNDLED.further) * len(further)


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
