"""Chaos test: hurts a real cluster at random while applications read through it, and judges it.

``python -m tests.chaos --seed S`` (or ``make chaos SEED=S``) starts a job of 16 nodes. Each node
has its own network, its own client of the source, and other differences (``mixture.py``). The
source counts what reaches it. Each seed yields a *schedule* (``schedule.py``). It says which nodes
are killed, stopped, cut off, given a lossy link or stuck, and which names and servers of the source
are sick, when, and how long. While the schedule runs (``arena.py``, ``around.py``), a reader on
each node compares every byte of 2,000 files with the known content (``reader.py``, ``content.py``),
and a program imports a package. Then every fault is healed and the run is judged (``judge.py``):

- No application saw an error, except that its own daemon was dead, or the error of a sick name.
- No application on any node saw a wrong byte.
- The tree became whole again.

The report (``report.py``) also has how long reads stalled and what was read from the source more
than once. Both depend on the machine and decide nothing.
"""
