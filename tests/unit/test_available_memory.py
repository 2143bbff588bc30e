"""Memory limit: the memory available to a process whose cgroup has a limit."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from copperfs.launch.available_memory import (
    Memory,
    cgroup_limits,
    memory_for_us,
    oom_kills,
    physical_memory,
)

MIB = 1 << 20
V1 = "35 31 0:32 {root} {top} rw,relatime shared:7 - cgroup cgroup rw,memory\n"
V2 = "41 31 0:38 {root} {top} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
OTHER = "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\nmalformed\n"
NO_LIMIT_V1 = 0x7FFFFFFFFFFFF000


def machine(
    at: Path, mounts: str, groups: str, files: dict[str, int | str], top: str = "/sys/fs/cgroup"
) -> str:
    (at / "proc/self").mkdir(parents=True)
    (at / "proc/self/mountinfo").write_text(OTHER + mounts)
    (at / "proc/self/cgroup").write_text("12:cpuset:/wrong\n" + groups)
    for name, content in files.items():
        file = at / top.lstrip("/") / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    return str(at)


STEP = "slurm/uid_1000/job_7/step_0"
V2_MOUNT = V2.format(root="/", top="/sys/fs/cgroup")
V1_MOUNT = V1.format(root="/", top="/sys/fs/cgroup/memory")


@pytest.mark.parametrize(
    ("files", "where", "mib"),
    [
        ({f"{STEP}/memory.max": 64 * MIB}, f"{STEP}/memory.max", 64),
        (
            {f"{STEP}/memory.max": "max", "slurm/uid_1000/job_7/memory.max": 32 * MIB},
            "slurm/uid_1000/job_7/memory.max",
            32,
        ),
        (
            {f"{STEP}/memory.max": 64 * MIB, "slurm/memory.high": 48 * MIB},
            "slurm/memory.high",
            48,
        ),
        ({f"{STEP}/memory.max": "max", f"{STEP}/memory.high": "max"}, None, 0),
        ({"slurm/uid_1000/job_8/memory.max": MIB, "memory.max": "what"}, None, 0),
    ],
    ids=["its own", "of the job", "high, further above", "none", "of another"],
)
def test_version_2(
    tmp_path: Path, files: dict[str, int | str], where: str | None, mib: int
) -> None:
    root = machine(tmp_path, V2_MOUNT, f"0::/{STEP}\n", files)
    expected = Memory(mib * MIB, f"/sys/fs/cgroup/{where}") if where else physical_memory()
    assert memory_for_us(root) == expected


@pytest.mark.parametrize(
    ("files", "where", "mib"),
    [
        ({f"{STEP}/memory.limit_in_bytes": 64 * MIB}, "memory.limit_in_bytes", 64),
        (
            {
                f"{STEP}/memory.limit_in_bytes": NO_LIMIT_V1,
                f"{STEP}/memory.stat": f"cache 1\nhierarchical_memory_limit {16 * MIB}\nx 2",
            },
            "memory.stat",
            16,
        ),
        (
            {
                f"{STEP}/memory.limit_in_bytes": NO_LIMIT_V1,
                f"{STEP}/memory.stat": f"hierarchical_memory_limit {NO_LIMIT_V1}",
                "memory.limit_in_bytes": NO_LIMIT_V1,
            },
            None,
            0,
        ),
    ],
    ids=["its own", "of one above that is not shown", "none"],
)
def test_version_1(
    tmp_path: Path, files: dict[str, int | str], where: str | None, mib: int
) -> None:
    top = "/sys/fs/cgroup/memory"
    root = machine(tmp_path, V1_MOUNT, f"4:memory,hugetlb:/{STEP}\n0::/other\n", files, top)
    expected = Memory(mib * MIB, f"{top}/{STEP}/{where}") if where else physical_memory()
    assert memory_for_us(root) == expected


def test_of_version_1_the_job_above_the_step_counts(tmp_path: Path) -> None:
    files: dict[str, int | str] = {
        f"{STEP}/memory.limit_in_bytes": 64 * MIB,
        "slurm/uid_1000/job_7/memory.limit_in_bytes": 32 * MIB,
    }
    top = "/sys/fs/cgroup/memory"
    root = machine(tmp_path, V1_MOUNT, f"4:memory:/{STEP}\n", files, top)
    assert [each.size_bytes for each in cgroup_limits(root)] == [64 * MIB, 32 * MIB]


@pytest.mark.parametrize(
    ("shown", "own"),
    [("/docker/7", "/docker/7/sub"), ("/", "/sub"), ("/docker/7/sub", "/"), ("/..", "/../../x")],
    ids=["bound", "in a namespace", "its own as the topmost", "of no known place"],
)
def test_in_a_container(tmp_path: Path, shown: str, own: str) -> None:
    below = "sub/" if own.endswith("sub") else ""
    mounts = V2.format(root=shown, top="/sys/fs/c\\040group")
    files: dict[str, int | str] = {f"{below}memory.max": MIB}
    root = machine(tmp_path, mounts, f"0::{own}\n", files, "/sys/fs/c group")
    assert memory_for_us(root) == Memory(MIB, f"/sys/fs/c group/{below}memory.max")


def test_without_cgroups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert memory_for_us(str(tmp_path)) == physical_memory()


# ---- the real kernel -----------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[Path]:
    """With a limit, and another cgroup below it, of the version that limits memory here."""
    tops = [
        (Path("/sys/fs/cgroup"), "memory.max"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    ]
    for top, limit in tops:
        made = top / f"copperfs-test-{os.getpid()}"
        inner = made / "step"
        if not (top / "cgroup.procs").exists():
            continue
        try:
            inner.mkdir(parents=True)
            (made / limit).write_text(str(512 * MIB))
        except OSError:
            for each in (inner, made):
                if each.is_dir():
                    each.rmdir()
            continue
        yield made
        inner.rmdir()
        made.rmdir()
        return
    pytest.skip("no cgroup that limits memory can be made here")


def shown_in(group: Path) -> dict[str, dict[str, object]]:
    script = (
        "import os, sys\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "from copperfs.cli.main import main\n"
        "sys.exit(main(['config', 'show', '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, group], capture_output=True, text=True, check=True
    )
    shown: dict[str, dict[str, object]] = json.loads(done.stdout)
    return shown


def test_a_job_with_a_limit_has_an_eighth_of_that(group: Path) -> None:
    for each in (group, group / "step"):
        shown = shown_in(each)
        assert shown["memory"]["value"] == shown["tier-memory"]["value"] == 64 * MIB
        where = str(shown["memory"]["where"])
        assert where.startswith(f"default, from 512 MiB ({group}/"), where


def test_kills_for_want_of_memory_are_those_of_the_own_group(tmp_path: Path) -> None:
    events = "low 0\noom 9\noom_kill 3\noom_group_kill 1"
    v2 = machine(tmp_path / "2", V2_MOUNT, f"0::/{STEP}\n", {f"{STEP}/memory.events": events})
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 4"
    files: dict[str, int | str] = {f"{STEP}/memory.oom_control": control}
    v1 = machine(tmp_path / "1", V1_MOUNT, f"4:memory:/{STEP}\n", files, "/sys/fs/cgroup/memory")
    assert (oom_kills(v2), oom_kills(v1)) == (3, 4)
    assert oom_kills(machine(tmp_path / "0", "", "", {})) == 0
