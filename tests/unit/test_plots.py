"""Plots: pictures show what was measured. Those of the documents are made from the JSON beside
them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench.plots import PLOTS, pictures, write
from tests.bench.results import Measure
from tests.unit.test_layers import ROOT

KEPT = ROOT / "docs" / "plots"
SVG = "{http://www.w3.org/2000/svg}"


def report(*measures: Measure) -> dict[str, Any]:
    return {
        "started": "2026-11-19T02:00:00Z",
        "machine": {"cores": 2, "kernel": "6.18"},
        "repeats": 5,
        "measures": [each.as_json() for each in measures],
    }


def texts(picture: str) -> set[str]:
    return {each.text or "" for each in ElementTree.fromstring(picture).iter(f"{SVG}text")}


def test_ratios_are_medians_to_the_yardstick_of_the_same_run() -> None:
    measure = Measure(
        "import", "torch x12, cold: wall", "s",
        {"bind": [1.0, 2.0, 9.0], "bindfs": [4.0], "copperfs": [2.2, 2.5, 2.1]},
    )  # fmt: skip
    cpu = Measure("import", "torch x12, cold: CPU", "s", {"bind": [1.0], "copperfs": [7.77]})
    ((bench, picture),) = pictures(report(measure, cpu))
    assert bench == "import"
    assert {"torch, first, 12 proc.", "copperfs", "bindfs", "1.1", "2"} <= texts(picture)
    assert "bind" not in texts(picture), "which is the line at 1"
    assert "7.77" not in texts(picture)
    assert "2026-11-19, 2 cores, Linux 6.18; medians of 5" in texts(picture)


def test_the_tree_is_drawn_by_size() -> None:
    measures = [
        Measure("tree", f"there and back, {size}", "s", {"zeromq": [1e-3], "copperfs": [2e-3]})
        for size in ("128 B", "4 KiB, curve", "4 KiB")
    ]
    ((bench, picture),) = pictures(report(*measures))
    assert bench == "tree"
    assert {"128", "4,096", "copperfs, CURVE", "zeromq"} <= texts(picture)


def test_what_was_not_measured_has_no_picture(tmp_path: Path) -> None:
    assert write(report(Measure("store", "x", "s", {"copperfs": [1.0]})), tmp_path / "out") == []
    assert not (tmp_path / "out").exists()
    assert list(pictures(report(Measure("front", "getattr", "ns", {})))) == []


@pytest.mark.parametrize("kept", sorted(KEPT.glob("*.json")), ids=lambda path: path.name)
def test_the_pictures_of_the_documents_are_of_these_measurements(kept: Path) -> None:
    made = dict(pictures(json.loads(kept.read_text())))
    assert made, "a run that is kept is shown"
    for bench, picture in made.items():
        assert (KEPT / f"{bench}.svg").read_text() == picture, (
            f"run: python -m tests.bench.plots {kept} --out docs/plots"
        )


def test_every_picture_has_its_measurement_and_is_shown() -> None:
    runs = [json.loads(each.read_text()) for each in KEPT.glob("*.json")]
    measured = {bench for each in runs for bench, _ in pictures(each)}
    drawn = {each.stem for each in KEPT.glob("*.svg")}
    assert drawn == measured <= set(PLOTS)
    shown = re.findall(r"\]\(plots/([\w-]+)\.svg\)", (ROOT / "docs/performance.md").read_text())
    assert set(shown) == drawn


def test_ratios_without_their_yardstick_have_no_picture() -> None:
    """As after ``--contestants copperfs``."""
    measure = Measure("front", "getattr", "ns", {"copperfs": [1.0]})
    assert list(pictures(report(measure))) == []
