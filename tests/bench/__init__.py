"""Benchmarks: what a copperfs mount costs, as ratios against a read-only bind mount.

`make bench`, or `python -m tests.bench [--only NAME ...]`. Every benchmark measures the same work
on several contestants in one run, interleaved (A B C A B C ...), so that a neighbour on the machine
slows all of them alike, and compares medians:

    bind           the kernel's read-only bind mount: what no filesystem in userspace can beat
    bindfs         the usual FUSE pass-through, in C
    squashfuse     a squashfs image (lz4) of the same tree
    copperfs       copperfs as it is mounted by default
    passthrough_hp libfuse's own fast pass-through in C++, for the front's hits only

A benchmark is a module `bench_NAME.py` with `run(context) -> list[Measure]`. Targets stand beside
the measures as data; whether they are met is printed and written, and decides nothing: the exit
status is 0 whenever copperfs could be measured.

    contestants.py   the contestants and how each is mounted     lab.py       context, interleaving
    processes.py     mounting, unmounting, CPU, memory           results.py   Measure, table, JSON
    client.c         the loops that are too short for Python     packages.py  the imported packages
    passthrough.py   fetching and building passthrough_hp        client.py    building client.c
"""
