"""Local cluster: a whole job on one machine, N daemons with N mounts, for trials and for tests.

``bring_up.py`` starts it, ``teardown.py`` ends it in whatever state it is, ``cluster_health.py``
reports on it, ``node_faults.py`` kills single nodes and restarts them. They share the file of
``cluster_state.py``. ``node_daemons.py`` starts one daemon, ``node_networks.py`` gives each node a
network of its own.
"""
