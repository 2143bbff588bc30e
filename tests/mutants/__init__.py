"""Mutation tests: does any test notice when one place of the core or the codec is changed?

``operators`` lists the changes and draws from them. ``loading`` has a changed module imported
instead of the real one. ``trial`` runs tests and seeds on it in a process of its own. ``baseline``
measures which test executes which statement, and how long it takes. ``__main__`` runs all of it.
Decision 94 says why we wrote this tool. No CI runs it. ``survivors.md`` has the findings of one
run.
"""
