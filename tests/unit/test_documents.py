"""Documents: their links lead where they say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from copperfs.chunkstore.disk_store import BACKLOG_BYTES_MAX
from copperfs.config.settings import MIB
from copperfs.daemon.daemon_main import KEPT_FREE_BYTES
from copperfs.node.cache.blob_refs import BlobRefs
from copperfs.node.cache.chunk_cache import ChunkCache
from copperfs.node.limits_and_counters import Limits, NodeStats
from tests.unit.test_layers import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def headings(document: Path) -> set[str]:
    found = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in found}


def links(document: Path) -> Iterator[str]:
    without_code = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"\]\(([^)\s]+)\)", without_code)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    for link in links(document):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def test_the_index_names_every_document() -> None:
    index = ROOT / "docs" / "index.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    here = {path for path in (ROOT / "docs").glob("*.md") if path != index}
    assert here <= named


def test_the_list_of_decisions_names_every_decision() -> None:
    directory = ROOT / "docs" / "decisions"
    named = set(links(directory / "README.md"))
    assert {path.name for path in directory.glob("0*.md")} <= named


def test_the_promise_of_resident_memory_is_the_sum_of_what_the_tier_may_take() -> None:
    """A node alone has both LRUs as well, also with ``--tier-memory 0``."""
    promise = (ROOT / "docs" / "promises.md").read_text().partition("**Resident memory**")[2]
    promise = " ".join(promise.partition("\n- **")[0].split())
    for tier_memory in (0, 40 * MIB, 64 * MIB, 100 * MIB, 512 * MIB):
        limits = Limits(MIB, MIB, None, 1.0, chunk_bytes=MIB, tier_memory_bytes=tier_memory)
        stats = NodeStats()
        tier = ChunkCache(limits, stats, BlobRefs())
        tier.count()
        assert stats.tier_memory_budget_bytes == max(tier_memory, 64 * MIB)
    assert (
        "With a data tier, in a job or alone, it takes `--tier-memory` more, or 64 MiB" in promise
    )
    assert f"`--tier-dir` it takes {BACKLOG_BYTES_MAX // MIB} MiB more" in promise
    assert f"in a job {KEPT_FREE_BYTES // MIB} MiB more" in promise
