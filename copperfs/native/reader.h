/*
 * The interface between the front and the source's threads: reads a whole file or lists a directory
 * without Python. The core decides beforehand where this is allowed, and how many bytes may be
 * fetched so (a credit). It hears of each file and listing afterwards. The bytes, and the check of
 * the version, are the same as if the core had asked.
 */
#ifndef COPPERFS_READER_H
#define COPPERFS_READER_H

#include "blob.h"

#include <stddef.h>
#include <stdint.h>

/* `flags` of attributes, until they are shown to the kernel: on which filesystem the file lies (0:
 * that of the source's root), and whether the inode number is private to the client that read it.
 * Such a number is no part of a version. */
#define ATTR_FILESYSTEM 0x7fffffffu
#define ATTR_OWN_INODE 0x80000000u

/* Version in types.py */
struct version {
	uint64_t size;
	int64_t mtime_ns, ctime_ns;
	uint64_t ino; /* 0: not compared */
};

/* The outcome: a blob, whose reference the callee takes, or NULL. Called in a thread of the
 * source. */
typedef void reader_done(void *context, uint64_t tag, const struct version *version,
			 struct blob *blob);
/* The outcome: a packed listing, which the callee frees, or NULL. */
typedef void lister_done(void *context, uint64_t tag, char *packed, size_t size);

/* A range of data in a file, and where the hole behind it begins. */
struct extent {
	uint64_t data, hole;
};
enum { EXTENTS_MAX = 128 };
/* The extents between `from` and `until`; the rest is holes. `until` is the end of the last extent,
 * or of the file. */
struct extents {
	uint64_t from, until;
	uint32_t count;
	struct extent each[];
};
/* The outcome: extents, which the callee frees, or NULL. */
typedef void seeker_done(void *context, uint64_t tag, struct extents *extents);

struct reader {
	void *pool;
	/* False: not now. `path` is below the source's root. */
	bool (*read)(void *pool, const char *path, const struct version *version,
		     reader_done *done, void *context, uint64_t tag);
	/* Lists the directory of this version, as long as nothing was mounted: a path below it
	 * might lead back into the daemon's own mount. */
	bool (*list)(void *pool, const char *path, const struct version *version,
		     lister_done *done, void *context, uint64_t tag);
	/* Finds at most `count` extents of a file from `offset` on. */
	bool (*seek)(void *pool, const char *path, const struct version *version,
		     uint64_t offset, unsigned count, seeker_done *done, void *context,
		     uint64_t tag);
};
#define READER_CAPSULE "copperfs.reader"

#endif
