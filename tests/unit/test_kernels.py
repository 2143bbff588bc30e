"""``make test-kernels``, as far as it runs without a guest: its tests exist, and it can fail."""

from __future__ import annotations

import gzip
import lzma
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels import image, suite
from tests.kernels.__main__ import Verdict, judge, table

PROJECT = Path(__file__).resolve().parents[2]


def test_every_chosen_test_exists() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
         *suite.arguments()],
        cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_the_table_in_the_documents_has_every_feature() -> None:
    text = (PROJECT / "docs" / "kernels.md").read_text()
    shown = set(re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE))
    assert {each.name for each in suite.FEATURES} <= shown


def module(directory: Path, name: str, *, needs: str = "", soft: str = "", way: str = "") -> None:
    data = b"\x7fELF\0" + f"depends={needs}\0softdep=pre: {soft}\0name={name}\0".encode()
    packed = {"": data, ".xz": lzma.compress(data), ".gz": gzip.compress(data)}[way]
    (directory / f"{name}.ko{way}").write_bytes(packed)


def test_modules_come_after_those_that_they_need(tmp_path: Path) -> None:
    module(tmp_path, "virtio_blk", needs="virtio,virtio-ring")
    module(tmp_path, "virtio-ring", way=".xz")
    module(tmp_path, "9pnet_virtio", needs="9pnet", way=".gz")
    module(tmp_path, "9pnet")
    module(tmp_path, "9p", needs="9pnet")
    module(tmp_path, "ext4", soft="crypto-crc32c")
    module(tmp_path, "overlay")
    (tmp_path / "modules.builtin").write_text(
        "kernel/drivers/virtio/virtio.ko\nkernel/fs/fuse/fuse.ko\n"
    )
    order = list(image.modules_in_order(tmp_path))
    assert set(order) == {
        "virtio_ring", "virtio_blk", "9pnet", "9pnet_virtio", "9p", "ext4", "overlay"
    }  # fmt: skip
    assert order.index("virtio_ring") < order.index("virtio_blk")
    assert order.index("9pnet") < order.index("9pnet_virtio")


def test_a_kernel_without_what_a_guest_needs_is_refused(tmp_path: Path) -> None:
    module(tmp_path, "virtio_blk", needs="virtio_ring")
    with pytest.raises(image.Broken, match="no module virtio_ring, which virtio_blk needs"):
        image.modules_in_order(tmp_path)


REPORT = """<testsuites><testsuite>
<testcase classname="tests.mount.test_semantics" name="test_statfs_counts[front]"/>
<testcase classname="tests.mount.test_lifecycle" name="test_a_signal_unmounts">
    <failure message="no"/></testcase>
<testcase classname="tests.mount.test_automount"
    name="test_who_lists_and_looks_mounts_nothing[front]"><skipped/></testcase>
</testsuite></testsuites>"""


LOG = """collecting ... collected 3 items

tests/mount/test_semantics.py::test_statfs_counts[front] PASSED  [ 33%]
tests/mount/test_lifecycle.py::test_a_signal_unmounts[a b] FAILED [ 66%]
tests/mount/test_semantics.py::test_another """


def test_what_failed_or_never_ran_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(REPORT)
    statfs = "tests/mount/test_semantics.py::test_statfs_counts"
    verdict = Verdict("x")
    judge(verdict, tmp_path, [statfs])
    assert verdict.failed == ["tests/mount/test_lifecycle.py::test_a_signal_unmounts"]
    assert verdict.error == ""
    assert not verdict.is_good
    shown = table([verdict])
    assert "| attributes, kinds of files, statfs | ok (1) |" in shown
    assert "| mounts inside the source, automounts | 1 skipped |" in shown
    assert "| others | 1 failed |" in shown
    short = Verdict("y")
    judge(short, tmp_path, [statfs, "tests/mount/test_semantics.py::test_another"])
    assert short.error == "never run: tests/mount/test_semantics.py::test_another"


def test_what_ran_before_a_guest_was_ended_is_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    verdict = Verdict("x", error="not done after 9 s")
    judge(verdict, tmp_path, ["tests/mount/test_semantics.py::test_another"])
    assert verdict.features == {
        "attributes, kinds of files, statfs": {"passed": 1},
        "others": {"failed": 1},
    }
    assert verdict.failed == ["tests/mount/test_lifecycle.py::test_a_signal_unmounts[a b]"]
    assert verdict.error == "not done after 9 s"
