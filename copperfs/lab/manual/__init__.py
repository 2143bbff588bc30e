"""Generators of the manual, ``docs/options.md``, ``docs/commands.md`` and ``man/``, from what
``--help`` says."""
