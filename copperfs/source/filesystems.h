/*
 * Which filesystem below the source's root a file is on, as all nodes of a job say it; filesystems.c.
 */
#ifndef COPPERFS_SOURCE_FILESYSTEMS_H
#define COPPERFS_SOURCE_FILESYSTEMS_H

#include <stdbool.h>
#include <stdint.h>

struct filesystems;
/* `device` is the root's; NULL, and errno. */
struct filesystems *filesystems_new(const char *root, uint64_t device);
void filesystems_free(struct filesystems *filesystems);
/* What `flags` of the attributes has to say of a file on this device: see reader.h. An errno if the
 * table of mounts cannot be read, or there is no memory. */
int filesystems_flags(struct filesystems *filesystems, uint64_t device, uint32_t *flags);
/* From now on inode numbers are those of this client alone. */
void filesystems_ignore_inodes(struct filesystems *filesystems);

#endif
