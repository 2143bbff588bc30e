"""Goldens: frozen records of behaviour that a redesign of the inside must leave unchanged.

Goldens do not say whether copperfs is right; the suite does. They say whether copperfs does the
same as on the day on which they were frozen. ``docs/develop.md`` tells how to use them.
"""
