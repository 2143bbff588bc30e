/*
 * On which filesystem below the source's root a file lies, in terms that all nodes of a job share;
 * filesystems.c.
 */
#ifndef COPPERFS_SOURCE_FILESYSTEMS_H
#define COPPERFS_SOURCE_FILESYSTEMS_H

#include <stdbool.h>
#include <stdint.h>

struct filesystems;
/* `device` is the root's. On failure NULL, with errno set. */
struct filesystems *filesystems_new(const char *root, uint64_t device);
void filesystems_free(struct filesystems *filesystems);
/* Fills the `flags` of the attributes of a file on this device: see reader.h. Returns an errno if
 * the table of mounts cannot be read, or without memory. */
int filesystems_flags(struct filesystems *filesystems, uint64_t device, uint32_t *flags);
/* From now on inode numbers are taken as private to this client. */
void filesystems_ignore_inodes(struct filesystems *filesystems);

#endif
