"""A whole job on one machine, for trying it out and for tests: N daemons with N mounts.

``up.py`` starts it, ``down.py`` ends it however it is, ``status.py`` looks at it, ``hurt.py`` kills
single nodes and brings them back. What they know of each other is in ``state.py``'s file.
``daemons.py`` is how one daemon starts, ``network.py`` gives each node a network of its own.
"""
