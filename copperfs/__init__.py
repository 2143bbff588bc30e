"""copperfs: a read-only view of a shared filesystem, read once for the whole job.

``docs/architecture.md`` has the map; ``docs/glossary.md`` the words.
"""

from importlib.metadata import version

__version__ = version("copperfs")
