"""Simulator: runs a whole job of real node cores in virtual time, in one process and without I/O.

``world.py`` is the composition root and where to begin. ``scenario.py`` has the language of golden
scenarios. ``python -m copperfs.lab.sim`` replays a scenario or a seed.
"""
