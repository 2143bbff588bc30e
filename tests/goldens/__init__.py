"""Goldens: frozen records of behaviour that a redesign of the inside must leave unchanged.

The suite says whether copperfs is right; goldens say whether it does the same as on the day on
which they were frozen (``docs/develop.md``).
"""
