"""The same core in virtual time: a whole job in one process, without I/O.

``world.py`` is the composition root and where to begin; ``scenario.py`` the language of golden
scenarios, ``python -m copperfs.sim`` replays one, or a seed.
"""
