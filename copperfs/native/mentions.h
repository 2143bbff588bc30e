/*
 * Bytecode scan: which names a compiled Python file mentions; mentions.c.
 */
#ifndef COPPERFS_MENTIONS_H
#define COPPERFS_MENTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* Looks for `names`: each has its length before it, and a 0 ends them. `found` has a flag for each,
 * false at the start. Returns the number of steps; only tests use it. */
size_t find_mentioned(const char *data, size_t size, const char *names, bool *found);

/* A name that was found: sorted by qsort(), then searched. */
struct looked_for {
	const char *name; /* with its length before it */
	bool *found;
};
int compare_looked_for(const void *one, const void *other);
/* The index of the first entry with this name, or `count`. Adds the comparisons to `steps`. */
size_t find_looked_for(const struct looked_for *sorted, size_t count, const char *name,
		       size_t length, size_t *steps);

#endif
