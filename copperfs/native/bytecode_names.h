/*
 * Bytecode scan: bytecode_names.c.
 */
#ifndef COPPERFS_MENTIONS_H
#define COPPERFS_MENTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* Each of `names` has its length before it, and a 0 ends them. `found` has a flag for each, false
 * at the start. Returns the number of steps, for tests. */
size_t find_mentioned(const char *data, size_t size, const char *names, bool *found);

struct looked_for {
	const char *name; /* with its length before it */
	bool *found;
};
int compare_looked_for(const void *one, const void *other);
/* The first entry with this name, or `count`. */
size_t find_looked_for(const struct looked_for *sorted, size_t count, const char *name,
		       size_t length, size_t *steps);

#endif
