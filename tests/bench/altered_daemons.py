"""Altered daemons: they differ from the product's in one thing, to compare it with.

The node and the front have these switches, and no option of copperfs sets them. A command that runs
in the environment of ``altered`` starts such daemons, by ``altered/sitecustomize.py``.
"""

from pathlib import Path
from typing import Literal

Alteration = Literal["lost-from-source", "uncached", "busy"]
"""``lost-from-source``: each reader reads the chunks of an owner that is gone from the source.
``uncached``: the kernel believes no entry and no attributes. ``busy``: a thread of the daemon
computes all the time, as a large job's may."""


def altered(*alterations: Alteration) -> dict[str, str]:
    """The variables that make a command start such daemons."""
    if not alterations:
        return {}
    directory = Path(__file__).parent / "altered"
    return {"PYTHONPATH": str(directory), "BENCH_DAEMONS": " ".join(alterations)}
