/*
 * The packed listing, which scan.c writes and tables.c reads. copperfs/model/listing.py describes
 * it.
 */
#ifndef COPPERFS_LISTING_H
#define COPPERFS_LISTING_H

#include <stdint.h>
#include <linux/fuse.h>

#define LISTING_MAGIC 0x31534c43u /* "CLS1" */
enum { LISTING_BARE = 1 }; /* rows have only name, type and inode number */

struct listing_header {
	uint32_t magic;
	uint32_t count;
	uint32_t flags;
	uint32_t absolute_links;
};

struct row {
	uint32_t length; /* of the row, a multiple of 8; may include ROW_UNKNOWN */
	uint16_t name_length;
	uint16_t target_length; /* of a symbolic link, after the name */
	struct fuse_attr attr;
	char name[];
};

/* In a row's length: its attributes could not be read. */
enum { ROW_UNKNOWN = 1 };

#endif
