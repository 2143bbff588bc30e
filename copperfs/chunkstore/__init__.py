"""Chunk store: keeps chunks on the node's disk.

``store_interface.py`` is the contract that ``disk_store.py`` fulfils. A store returns chunks whole
and checked, or says that it has none.
"""
