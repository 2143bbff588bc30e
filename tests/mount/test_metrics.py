"""``--metrics``: the metrics for Prometheus, over HTTP and in a file, read by Prometheus's own
parser."""

from __future__ import annotations

import http.client
import json
import re
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from copperfs.daemon.prometheus import flat
from tests.bootstrap.slurm import free_ports
from tests.mount.conftest import Mounter
from tests.mount.helpers import Mount, copperfs, eventually
from tests.unit.test_layers import ROOT

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
NO_LABELS: frozenset[tuple[str, str]] = frozenset()


def parsed(text: str) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            assert family.type == ("counter" if sample.name.endswith("_total") else "gauge")
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, "told once"
            samples[key] = sample.value
    return samples


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    finally:
        connection.close()


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def mount(mounted: Mounter, source: Path, port: int) -> Mount:
    (source / "file").write_bytes(b"x" * 5000)
    mount = mounted("--metrics", str(port), "--node-name", "here")
    (mount / "file").read_bytes()
    return mount


def test_it_says_what_the_statistics_say(mount: Mount, port: int) -> None:
    # reads by C threads enter the statistics a moment later
    eventually(lambda: mount.stats()["cache"]["object_bytes"] == 5000, "it is entered")
    status, text, kind = get(port)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    samples = parsed(text)
    document = mount.stats()
    assert samples["copperfs_source_read_bytes_total", NO_LABELS] == 5000
    assert samples["copperfs_process_resident_bytes", NO_LABELS] > 1 << 20
    assert samples["copperfs_cache_held_bytes", NO_LABELS] == document["cache"]["held_bytes"]
    reads = frozenset({"operation": "read", "answer": "miss"}.items())
    found = document["operations"]["read"]["miss"]["count"]
    assert samples["copperfs_requests_total", reads] == found
    info = next(dict(labels) for name, labels in samples if name == "copperfs_info")
    assert info["node"] == "here"
    assert info["mountpoint"] == str(mount.mountpoint)


def test_every_number_of_the_statistics_is_there(mount: Mount, port: int) -> None:
    text, document = get(port)[1], mount.stats()
    for group, values in document.items():
        if group in ("operations", "handlers", "job", "takeovers") or not isinstance(values, dict):
            continue  # some have labels
        for key, _ in flat(values):
            assert re.search(rf"^copperfs_{group}_{key}(_total)? ", text, re.MULTILINE), key


def test_the_dashboard_asks_for_nothing_that_is_not_there(mount: Mount, port: int) -> None:
    there = {name for name, _ in parsed(get(port)[1])}
    dashboard = json.loads((ROOT / "examples/grafana/copperfs.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"copperfs_\w+", target["expr"])
    }
    assert len(asked) > 15
    assert asked <= there


def test_what_is_no_scrape_is_refused_and_hurts_nobody(mount: Mount, port: int) -> None:
    assert get(port, "/")[0] == 404
    assert get(port, method="POST")[0] == 405
    with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
        silent.sendall(b"GET /metrics")
        for junk in (b"\0" * 10000, b"\r\n\r\n", b""):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as other:
                other.sendall(junk)
        assert get(port)[0] == 200
    mount.check_log()


def test_only_this_node_is_listened_to(mount: Mount, port: int) -> None:
    table = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    listening = [line.split()[1] for line in table.splitlines() if line.split()[3:4] == ["0A"]]
    here = [each for each in listening if each.endswith(f":{port:04X}")]
    assert here == [f"0100007F:{port:04X}"]


def test_a_port_that_is_taken_fails_the_mount(source: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = copperfs("mount", tmp_path / "m", "--source", source, "--metrics", str(port))
    assert done.returncode == 4
    assert done.stderr == (
        f"copperfs: metrics cannot be given at port {port} of 127.0.0.1: Address already in use; "
        "give another --metrics\n"
    )


def test_into_a_file_that_goes_with_the_mount(mounted: Mounter, tmp_path: Path) -> None:
    mount = mounted("--metrics", str(tmp_path / "%h.prom"), "--node-name", "n7")
    file = tmp_path / "n7.prom"
    eventually(file.exists, "it is written")
    assert parsed(file.read_text())
    assert mount.umount().returncode == 0
    eventually(lambda: not file.exists(), "it is removed")
    assert list(tmp_path.glob("*.prom*")) == []


def test_no_port_is_wrong_usage(tmp_path: Path) -> None:
    done = copperfs("mount", tmp_path, "--metrics", "70000")
    assert done.returncode == 2
    assert "'70000' is no port; write a number from 1 to 65535, or a file" in done.stderr
