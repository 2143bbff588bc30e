"""copperfs: a read-only view of a shared filesystem, read once for the whole job.

``docs/architecture.md`` is the map; ``docs/glossary.md`` defines the words.
"""

__version__ = "0.1.0"
