"""``--events``, which each node of a cluster has: retells a failure from the nodes' event logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.conftest import Starter
from tests.cluster.helpers import Cluster, digests, digests_at_once, fill
from tests.mount.helpers import copperfs, eventually

Line = dict[str, Any]


def written(directory: Path) -> list[Line]:
    lines = [
        json.loads(line)
        for file in sorted(directory.glob("node*/events"))
        for line in file.read_text().splitlines()
    ]
    return sorted(lines, key=lambda line: float(line["time"]))


def members(cluster: Cluster, node: int) -> dict[str, int]:
    found: dict[str, int] = cluster.stats(node)["members"]
    return found


def test_a_root_that_is_killed_and_comes_back_can_be_retold(started: Starter, source: Path) -> None:
    """With fan-out 2, nodes 1 and 2 ask 0, and 3 asks 1."""
    fill(source, "set")
    cluster = started(4, "--fanout", "2")
    told = cluster.directory
    digests_at_once([each / "set" for each in cluster.mountpoints])
    cluster.kill(0)
    others = [1, 2, 3]
    eventually(lambda: [members(cluster, each)["gone"] for each in others] == [1] * 3, "all know")
    assert (
        digests_at_once([cluster.mnt(node) / "set" for node in others])
        == [digests(source / "set")] * 3
    )
    assert copperfs("cluster", "start", "0", "--dir", cluster.directory).returncode == 0
    eventually(lambda: [members(cluster, each)["gone"] for each in others] == [0] * 3, "it is back")
    eventually(lambda: bool(find(told, node=0, what="refutes its end")), "all is written")

    lines = written(told)
    assert {line["name"] for line in lines} <= {"node0", "node1", "node2", "node3", None}

    def first(node: int, what: str, matches: Callable[[Line], bool] = bool) -> int:
        return next(
            place
            for place, line in enumerate(lines)
            if (line["node"], line["what"]) == (node, what) and matches(line)
        )

    for node in (1, 2):
        lost = first(node, "lost", lambda line: line["name"] == "node0")
        gone = first(node, "gone", lambda line: line["peer"] == 0)
        turned = first(node, "has another parent")
        back = first(node, "is back", lambda line: line["peer"] == 0)
        assert lost < gone < back
        assert turned < back
        assert lines[turned]["peer"] == (None if node == 1 else 1), "1 is the root, 2 asks it"
    assert find(told, node=3, what="gone", peer=0)
    noticed = [line for line in find(told, what="gone", peer=0) if line["took_ms"] is not None]
    assert noticed, "somebody found it out"
    for node in (1, 2):
        assert find(told, node=node, what="has another parent")[-1]["peer"] == 0
        assert members(cluster, node)["reparentings"] == 2
        assert members(cluster, node)["returns"] == 1
    assert sum(members(cluster, node)["deaths"] for node in others) == len(noticed)
    slowest = max(members(cluster, node)["max_detection_ms"] for node in others)
    assert slowest == max(line["took_ms"] for line in noticed)


def find(directory: Path, **values: object) -> list[Line]:
    return [
        line
        for line in written(directory)
        if all(line[key] == value for key, value in values.items())
    ]
