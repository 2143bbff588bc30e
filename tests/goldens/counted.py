"""Goldens of a real cluster: what its nodes request, send and read for one fixed program.

Four nodes, one after the other, read two packages and two large files, cold and then warm. Counts
are summed over all nodes, since the owners of chunks differ from job to job. They are the smallest
of some jobs: an offered payload may cross a request, and is then sent twice.
"""

import tempfile
from collections import Counter
from pathlib import Path

from tests.cluster.helpers import PATIENT, Cluster, digests, fill

NODES = 4
JOBS = 4
COUNTED = (
    ("source", ("read", "read_bytes", "scandir")),
    ("bytes", ("from_parents", "to_children")),
    ("node", ("asks", "answers", "peer_questions", "fallbacks", "failures")),
)


def counts() -> str:
    with tempfile.TemporaryDirectory(prefix="copperfs-goldens-") as directory:
        source = Path(directory, "source")
        source.mkdir()
        fill(source, "package")
        fill(source, "more", files=5)
        for name, size in (("large", 5 << 20), ("larger", 12 << 20)):
            (source / name).write_bytes(bytes(range(256)) * (size // 256))
        jobs = [_job(Path(directory, f"cluster{number}"), source) for number in range(JOBS)]
    rows = [f"{key} {min(job[key] for job in jobs)}\n" for key in sorted(jobs[0])]
    return "".join(rows)


def _job(directory: Path, source: Path) -> Counter[str]:
    counted: Counter[str] = Counter()
    with Cluster(directory, NODES, source, *PATIENT, "--fanout", "2") as cluster:
        for state in ("cold", "warm"):
            cluster.reset()
            for mountpoint in cluster.mountpoints:
                digests(mountpoint)
            for node in range(NODES):
                statistics = cluster.stats(node)
                for group, keys in COUNTED:
                    for key in keys:
                        counted[f"{state} {group}.{key}"] += statistics[group][key]
    return counted
