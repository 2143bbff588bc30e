/*
 * Tells on which filesystem below the source's root a file lies.
 */
#ifndef COPPERFS_SOURCE_FILESYSTEMS_H
#define COPPERFS_SOURCE_FILESYSTEMS_H

#include <stdbool.h>
#include <stdint.h>

struct filesystems;
/* `device` is the root's. NULL with errno set. */
struct filesystems *filesystems_new(const char *root, uint64_t device);
void filesystems_free(struct filesystems *filesystems);
/* Fills the `flags` of reader.h. Returns an errno. */
int filesystems_flags(struct filesystems *filesystems, uint64_t device, uint32_t *flags);
void filesystems_ignore_inodes(struct filesystems *filesystems);

#endif
