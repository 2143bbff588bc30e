"""Stand-in for a loaded parallel filesystem: ``copperfs pfs-sim``.

docs/pfs-sim.md describes its use.

A *client* is one mount point, as one node of a job is to Lustre. Each has its own caches (those of
this machine's kernel); all share the servers, the counts and the rules.

It talks to ``/dev/fuse`` itself, for 10 us a request. pyfuse3 serves one mount in a process and
costs 100 us a request: at 4,000 a second that is half a core, which a benchmark then lacks. libfuse
never allows parallel lookups in one directory. It shares only the mounting with copperfs, because
code that judges a filesystem must not share its mistakes.
"""
