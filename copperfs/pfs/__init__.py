"""A stand-in for a loaded parallel filesystem: ``copperfs pfs-sim``.

It shows a local directory at one or several mount points, with what makes a parallel filesystem
slow: metadata servers that take their time and work on a few operations at once, and bandwidth that
is shared. It counts every operation by path, and fails or hangs when told to. Users see what
copperfs is worth before they ask for nodes; tests assert what reaches the source.

A *client* is one mount point: what one node of a job is to Lustre. Each has caches of its own
(those of this machine's kernel); all share the servers, the counts and the rules.

``model.py`` has the servers, ``faults.py`` the rules and counts (both without clock or I/O),
``wire.py`` the kernel's messages, ``passthrough.py`` a client, ``loop.py`` what waits and when,
``control.py`` and ``client.py`` the two ends of the control socket, ``daemon.py`` the parts list,
``settings.py`` the settings.

Why not pyfuse3, as for the mount itself: it serves one mount in a process, and costs 100 us and
more of Python for each request, at 4,000 a second half a core that a benchmark then lacks.
Talking to ``/dev/fuse`` costs 10 us (30 if each request waits for the timer by itself) and is less
code than working around libfuse was, which never allows parallel lookups in one directory. Of
copperfs only the mounting is shared: what judges a filesystem must not share its mistakes.
"""
