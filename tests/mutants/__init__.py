"""Mutation tests: does any test notice when one place of the node or the codec is changed?

Decision 94 says why we wrote this tool. No CI runs it. ``survivors.md`` has the findings of one
run.
"""
