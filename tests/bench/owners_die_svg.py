"""Picture of `owners-die`: each epoch's time, beside FT-Cache's Figure 6(a)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from copperfs.lab.sim.svg_charts import Bars, bar_chart


def picture(walls: Mapping[str, Sequence[Sequence[float]]], about: str) -> str:
    epochs = range(len(next(iter(walls.values()))))
    return bar_chart(
        Bars(
            f"Owners that die, epoch by epoch ({about})",
            "epoch; in those so marked a node is killed",
            "seconds",
            [str(epoch + 1) for epoch in epochs],
            {name: [median(each) for each in of] for name, of in walls.items()},
            marks=["killed" if epoch % 2 else "" for epoch in epochs],
        )
    )
