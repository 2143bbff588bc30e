"""Each step of ``make sanitize`` reports a defect that is planted into the C that it is built from.

Review and the sanitizers have found such defects before.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.front.steps import PROJECT, STEPS, Step

WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Defect:
    file: str
    sound: str
    planted: str
    reported: str
    """A pattern."""


COUNT = (
    "\t\tfront_count(req->front, req->in,\n"
    "\t\t\t    req->retried ? req->retried->served_by : SERVED_HIT, req->started_ns);\n"
)
FREE = "\t\tif (req->retried)\n\t\t\tpending_free(req->front, req->retried);\n"
FREED_REQUEST = Defect(
    "copperfs/native/front/requests.c",
    COUNT + FREE,
    FREE + COUNT + "\t\tif (req->retried)\n\t\t\treturn;\n",
    "heap-use-after-free",
)
UNCHECKED_LENGTH = Defect(
    "copperfs/native/front/tables.c",
    "\tif (length > room || length % 8)\n",
    "\tif (length % 8)\n",
    "heap-buffer-overflow",
)
DEFECTS = {
    "front-threads": Defect(
        "copperfs/native/front/requests.c",
        "\ttables_lock(&f->tables);\n\tforget_locked(f, req);\n",
        "\tforget_locked(f, req);\n\ttables_lock(&f->tables);\n",
        "ThreadSanitizer",
    ),
    "source-threads": Defect(
        "copperfs/native/source/pool.c",
        "\t\tpthread_mutex_lock(&pool->lock);\n\t\twatch_skip(pool, job);\n"
        "\t\tpthread_mutex_unlock(&pool->lock);\n",
        "\t\twatch_skip(pool, job);\n",
        "ThreadSanitizer: data race",
    ),
    "erasure-threads": Defect(
        "copperfs/native/erasure.c",
        "\tunsigned char rows[PARITY_MAX * DATA_MAX];\n",
        "\tstatic unsigned char rows[PARITY_MAX * DATA_MAX];\n",
        "ThreadSanitizer: data race",
    ),
    "front-memory": FREED_REQUEST,
    "source-memory": Defect(
        "copperfs/native/source/pool.c",
        "\t\tstruct job *next = job->next;\n\n\t\tjob_free(job);\n\t\tjob = next;\n",
        "\t\tjob_free(job);\n\t\tjob = job->next;\n",
        "heap-use-after-free",
    ),
    "erasure-memory": Defect(
        "copperfs/native/erasure.c",
        "\t\tif (shards[i].length < *end)\n\t\t\t*end = shards[i].length;\n",
        "\t\tif (!*end)\n\t\t\t*end = shards[i].length;\n",
        "SEGV on unknown address|stress_erasure.c:[0-9]+: not so",
    ),
    "fuzz-requests": FREED_REQUEST,
    "fuzz-replies": Defect(
        "copperfs/native/front/misses.c",
        "\tpending_free(f, pending);\n}\n\nstatic bool drain_socket(",
        "\tpending_free(f, pending);\n\tpending->tries++;\n}\n\nstatic bool drain_socket(",
        "heap-use-after-free",
    ),
    "fuzz-listing": UNCHECKED_LENGTH,
    "fuzz-collisions": UNCHECKED_LENGTH,
}


def tree_with(defect: Defect, root: Path) -> Path:
    for pattern in ("copperfs/**/*.[ch]", "tests/front/*.[ch]"):
        for path in PROJECT.glob(pattern):
            copy = root / path.relative_to(PROJECT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    text = (root / defect.file).read_text()
    assert text.count(defect.sound) == 1, "the code has changed; plant it anew"
    (root / defect.file).write_text(text.replace(defect.sound, defect.planted))
    return root


def test_each_defect_can_still_be_planted() -> None:
    """Else a change of the C is noticed only where the sanitizers run."""
    for defect in DEFECTS.values():
        assert (PROJECT / defect.file).read_text().count(defect.sound) == 1, defect


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_planted_defect_is_reported(step: Step, tmp_path: Path) -> None:
    defect = DEFECTS[step.name]
    program = step.program(tmp_path, tree_with(defect, tmp_path / "tree"))
    with pytest.raises(AssertionError) as failed:
        step.play(program, tmp_path, WITHIN_S)
    assert re.search(defect.reported, str(failed.value)), failed.value
