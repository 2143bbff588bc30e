"""Stand-in for a loaded parallel filesystem: ``copperfs pfs-sim``.

It shows a local directory at one or several mount points, with what makes a parallel filesystem
slow: metadata servers that take time and work on a few operations at once, and shared bandwidth. It
counts every operation by path, and fails or hangs when told to. Users see what copperfs is worth
before they request nodes; tests assert what reaches the source.

A *client* is one mount point: what one node of a job is to Lustre. Each has its own caches (those
of this machine's kernel); all share the servers, the counts and the rules.

``server_model.py`` has the servers, ``pfs_faults.py`` the rules and counts (both without clock or
I/O), ``fuse_wire.py`` the kernel's messages, ``passthrough.py`` a client, ``request_loop.py`` the
waiting requests, ``pfs_control.py`` and ``pfs_client.py`` the two ends of the control socket,
``pfs_daemon.py`` the parts list, ``pfs_settings.py`` the settings.

It does not use pyfuse3, as the mount does. pyfuse3 serves one mount in a process, and costs 100 us
and more of Python for each request; at 4,000 a second that is half a core, which a benchmark then
lacks. Talking to ``/dev/fuse`` costs 10 us (30 if each request waits for the timer by itself). It
is also less code than working around libfuse was, which never allows parallel lookups in one
directory. It shares only the mounting with copperfs: what judges a filesystem must not share its
mistakes.
"""
