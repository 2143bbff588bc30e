/* The command of a run, as the daemon's reply describes it. */
#ifndef COPPERFS_COMMAND_H
#define COPPERFS_COMMAND_H

#include "message.h"

struct reply {
	const char *mountpoint;
	bool in_place, remove, with_parent; /* as in cli/run.py */
	char **words;			    /* the command */
	int fds[FDS_MAX], fds_count;	    /* namespaces of mounts and users */
};

/* Returns its exit code, after it has ended. *cwd*: where it starts. */
int run_command(const struct reply *reply, const char *cwd);

#endif
