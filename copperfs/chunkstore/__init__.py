"""Chunk store: keeps chunks on the node's disk.

``store.py`` says what a store does, ``disk_store.py`` does it, and a contract suite
(``tests/store/``) checks that. The core holds chunks in memory. A store decides nothing about other
nodes. It holds chunks as long as there is room, and returns them whole and checked, or says that it
has none.
"""
