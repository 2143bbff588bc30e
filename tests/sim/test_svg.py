"""SVG charts: they are valid XML, and every point is in them."""

from xml.etree import ElementTree

import pytest

from copperfs.lab.sim.svg_charts import Bars, Chart, ChartLine, Log, bar_chart, line_chart

SVG = "{http://www.w3.org/2000/svg}"
LINES = (
    ChartLine("ours & theirs", ((32, 1.5), (8300, 2.0))),
    ChartLine("published", ((2048, 120.0),), is_joined=False),
)


@pytest.mark.parametrize("linear", [True, False])
def test_a_chart(linear: bool) -> None:
    chart = Chart("title <1>", "nodes", "seconds", LINES, "a note", up_from_zero=linear)
    tree = ElementTree.fromstring(line_chart(chart))
    texts = [each.text for each in tree.iter(f"{SVG}text")]
    assert {"title <1>", "ours & theirs", "published", "a note", "32", "8,300"} <= set(texts)
    assert len(list(tree.iter(f"{SVG}circle"))) == 3 + len(LINES)
    assert len(list(tree.iter(f"{SVG}polyline"))) == 1
    for circle in tree.iter(f"{SVG}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 760


def test_powers_of_ten_are_evenly_far_apart() -> None:
    scale = Log([32, 8300], 0, 300)
    assert scale.ticks == [10, 100, 1000, 10000]
    assert [scale.at(tick) for tick in scale.ticks] == pytest.approx([0, 100, 200, 300])


@pytest.mark.parametrize("most", [2.5, 80])
def test_bars(most: float) -> None:
    bars = Bars(
        "title", "across", "ratio", ["a long name that is folded", "b"],
        {"ours": [1.25, 0.5], "theirs": [None, most]},
        marks=["killed", ""], level=1, note="a note",
    )  # fmt: skip
    tree = ElementTree.fromstring(bar_chart(bars))
    texts = [each.text for each in tree.iter(f"{SVG}text")]
    assert {"1.25", "0.5", f"{most:g}", "ours", "theirs", "killed", "a note", "b"} <= set(texts)
    drawn = [each for each in tree.iter(f"{SVG}rect") if each.attrib["width"] != "10"]
    assert len(drawn) == 3, "and none where there is no value"
    lengths = [float(each.attrib["height"]) for each in drawn]
    assert 0 < lengths[1] < lengths[0] < lengths[2]
    floors = [float(each.attrib["y"]) + float(each.attrib["height"]) for each in drawn]
    assert floors == pytest.approx([360] * 3, abs=0.11)
    height = float(tree.attrib["viewBox"].split()[3])
    assert all(float(each.attrib["y"]) < height for each in tree.iter(f"{SVG}text"))
