/* Copies of files in memory files, read in a few large pieces. */
#ifndef COPPERFS_MEMORY_FILE_H
#define COPPERFS_MEMORY_FILE_H

#include <stdbool.h>

/* Past the page cache, where the filesystem can. -1 if it cannot be opened. */
int open_direct(const char *path);

/* These return a descriptor that a program inherits, or -1. The copies are sealed. */

/* All of a file that write_bundle.py has written; *file* is closed. */
int bundle_in_memory(int file);

/* What is mapped of a program or a library, with changes to the way it finds its own libraries
 * (elf_image.h). */
int program_in_memory(const char *path);

#endif
