"""A real cluster that is hurt at random while applications read through it, and judged.

``python -m tests.chaos --seed S`` (or ``make chaos SEED=S``) brings up a job of 16 nodes, each with
a network of its own, over a source that counts what reaches it. For each seed a *schedule* is drawn
(``schedule.py``): who is killed, stopped, cut off, given a bad cable or stuck, when, and how long.
While it is carried out (``arena.py``), each node has a reader that compares every byte of 2,000
files with what is known (``reader.py``, ``content.py``), and a program that imports a package. Then
all is healed, and it is judged (``judge.py``): on nodes whose own daemon was there, no application
may have seen an error, nobody anywhere a wrong byte, and the tree has to become whole again. How
long reads stalled, and what was read from the source more than once, is reported (``report.py``)
and decides nothing: it depends on the machine.
"""
