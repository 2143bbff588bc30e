"""Benchmarks: what a copperfs mount costs, as ratios against a read-only bind mount.

`make bench`, or `python -m tests.bench [--only NAME ...]`. Every benchmark measures the same work
on several contestants in one run, interleaved (A B C A B C ...), and compares medians:

    bind           the kernel's read-only bind mount: what no filesystem in userspace can beat
    bindfs         the usual FUSE pass-through, in C
    squashfuse     a squashfs image (lz4) of the same tree
    copperfs       copperfs as it is mounted by default
    passthrough_hp libfuse's own fast pass-through in C++, for the front's hits only

A benchmark is a module `bench_NAME.py` with `run(context) -> list[Measure]`. The exit status is 0
whenever copperfs could be measured, whether targets are met or not.
"""
