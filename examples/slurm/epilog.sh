#!/bin/sh
# For Epilog= in slurm.conf: it runs as root on each node when a job has ended. Mounts whose daemons
# were killed with the job are removed; those of other jobs, whose daemons live, are left alone.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:$PATH
${COPPERFS:-copperfs} umount --stale ${WITHIN:-} || true # an epilog that fails drains its node
