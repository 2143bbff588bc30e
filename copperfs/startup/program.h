/* The program copperfs (program.c), and how it joins the run of another process (join.c). */
#ifndef COPPERFS_PROGRAM_H
#define COPPERFS_PROGRAM_H

#include <limits.h>
#include <stdbool.h>

/* The build sets it to that of the Python for which copperfs is installed: python3.11. */
#ifndef PYTHON
#define PYTHON "python3"
#endif

/* A script whose first line the installer made name the interpreter. */
#define SCRIPT "bin/copperfs-start"

enum { FAILED = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127 };

struct installation {
	char program[PATH_MAX];	 /* /env/bin/copperfs */
	char prefix[PATH_MAX];	 /* /env */
	char packages[PATH_MAX]; /* /env/lib/python3.11/site-packages */
};

/* Into PATH_MAX bytes; false if it is longer. */
bool join_path(char *result, const char *directory, const char *below);

/*
 * Returns the exit code of the run's command, or -1: Python has to run it. *listener is then the
 * socket at which other processes wait for what Python finds out, or -1.
 */
int join_run(char **words, const char *program, int *listener);

#endif
