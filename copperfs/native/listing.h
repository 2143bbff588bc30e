/*
 * The format of a packed listing, as scan.c writes it and tables.c reads it.
 * copperfs/model/listing.py describes it, and packs and reads it in Python.
 */
#ifndef COPPERFS_LISTING_H
#define COPPERFS_LISTING_H

#include <stdint.h>
#include <linux/fuse.h>

#define LISTING_MAGIC 0x31534c43u /* "CLS1" */
enum { LISTING_BARE = 1 }; /* rows carry only name, type and inode number */

struct listing_header {
	uint32_t magic;
	uint32_t count;
	uint32_t flags;
	uint32_t absolute_links;
};

struct row {
	uint32_t length; /* of the whole row, a multiple of 8; may include ROW_UNKNOWN */
	uint16_t name_length;
	uint16_t target_length; /* of a symbolic link, after the name */
	struct fuse_attr attr;
	char name[];
};

/* In a row's length: its attributes could not be read. It has its name, type and inode number, as
 * all rows of a bare listing have. */
enum { ROW_UNKNOWN = 1 };

#endif
