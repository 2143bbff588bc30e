/*
 * The interface between the front and the source's threads: reads a file or lists a directory
 * without Python, where the node has allowed it, on its allowance.
 */
#ifndef COPPERFS_READER_H
#define COPPERFS_READER_H

#include "blob.h"

#include <stddef.h>
#include <stdint.h>

/* `flags` of attributes, until the kernel gets them: the tag of the file's filesystem
 * (mount_tags.c), and whether the inode number is private to the client that read it, and so no
 * part of a version. */
#define ATTR_FILESYSTEM 0x7fffffffu
#define ATTR_OWN_INODE 0x80000000u

/* Version in types.py */
struct version {
	uint64_t size;
	int64_t mtime_ns, ctime_ns;
	uint64_t ino; /* 0: not compared */
};

/* The callee takes the reference to the blob; NULL: it failed. In a thread of the source. */
typedef void reader_done(void *context, uint64_t tag, const struct version *version,
			 struct blob *blob);
/* The callee frees the packed listing; NULL: it failed. */
typedef void lister_done(void *context, uint64_t tag, char *packed, size_t size);

struct extent {
	uint64_t data, hole;
};
enum { EXTENTS_MAX = 128 };
/* Between `from` and `until` the rest is holes. `until` is the end of the last extent, or of the
 * file. */
struct extents {
	uint64_t from, until;
	uint32_t count;
	struct extent each[];
};
/* The callee frees the extents; NULL: it failed. */
typedef void seeker_done(void *context, uint64_t tag, struct extents *extents);

struct reader {
	void *pool;
	/* False: not now. `path` is below the source's root. */
	bool (*read)(void *pool, const char *path, const struct version *version,
		     reader_done *done, void *context, uint64_t tag);
	/* Only as long as nothing was mounted: a path below might lead back into the daemon's own
	 * mount. */
	bool (*list)(void *pool, const char *path, const struct version *version,
		     lister_done *done, void *context, uint64_t tag);
	bool (*seek)(void *pool, const char *path, const struct version *version,
		     uint64_t offset, unsigned count, seeker_done *done, void *context,
		     uint64_t tag);
};
#define READER_CAPSULE "copperfs.reader"

#endif
