"""Generators of ``docs/options.md``, ``docs/commands.md`` and ``man/`` from ``--help``."""
