"""Where chunks live: on the node's disk, or in its memory.

``contract.py`` says what a store does, ``disk.py`` and ``memory.py`` are the two that do it, and
one contract suite (``tests/store/``) holds both to it. A store decides nothing about other nodes:
it holds what it is given for as long as there is room, and hands it out again, whole and checked,
or says that it has not got it."""
