"""Where chunks live on the node's disk.

``contract.py`` says what a store does, ``disk.py`` does it, and a contract suite (``tests/store/``)
holds it to that. Chunks in memory are the core's. A store decides nothing about other nodes:
it holds what it is given for as long as there is room, and hands it out again, whole and checked,
or says that it has not got it."""
