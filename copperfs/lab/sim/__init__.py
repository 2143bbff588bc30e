"""Simulator: runs a whole job of real node cores in virtual time, in one process and without I/O.

``world.py`` is the composition root. ``scenario.py`` has the language of golden scenarios.
"""
