"""Chaos test: hurts a real cluster at random while applications read through it, and judges it.

``python -m tests.chaos --seed S`` (or ``make chaos SEED=S``) starts a job of 16 nodes, which differ
(``mixture.py``). Each seed yields a *schedule* (``schedule.py``): which nodes, names and servers of
the source are hurt, when, and how long. While it runs (``arena.py``, ``around.py``), a reader on
each node compares every byte of 2,000 files with the known content (``reader.py``, ``content.py``),
and a program imports a package. Then every fault is healed and the run is judged (``judge.py``):

- No application saw an error, except that its own daemon was dead, or the error of a sick name.
- No application on any node saw a wrong byte.
- The tree became whole again.

The report (``report.py``) also has stalls and repeated reads of the source, which depend on the
machine and decide nothing.
"""
