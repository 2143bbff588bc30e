/*
 * The source's C side: scanning, looking, reading and opening without the GIL, and a
 * pool of threads that wait for the source (pool.h).  posix.py and pool.py do the same in
 * Python, for a mount without C; one contract suite holds both.
 */
#ifndef COPPERFS_SOURCE_NATIVE_H
#define COPPERFS_SOURCE_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "../blob.h"
#include "../reader.h"
#include "filesystems.h"

struct attributes { /* struct fuse_attr, as in types.py */
	uint64_t ino, size, blocks, atime, mtime, ctime;
	uint32_t atimensec, mtimensec, ctimensec;
	uint32_t mode, nlink, uid, gid, rdev, blksize, flags;
};

struct buffer {
	char *bytes;
	size_t used, room;
};

/* What reached the source. */
struct source_counts {
	_Atomic uint64_t open, read, read_bytes, stat, scandir, seek;
};

bool is_version(const struct attributes *a, const struct version *version);

/* What a packed listing begins with. */
struct listing_head {
	uint32_t magic, count, flags, absolute_links;
};
enum { LISTING_IS_BARE = 1 };
/* In the length of a row that tells nothing but number and type. */
enum { ROW_IS_UNKNOWN = 1 };

/* All return 0 or an errno. */

int fill_attributes(struct attributes *a, const struct stat *status,
		    struct filesystems *filesystems);

/* A scan that threads can share. Begin takes the descriptor, and keeps the names in
 * `untouchable` until the end; the last to look ends it, which frees it also on error. */
struct scan;
int scan_begin(int fd, size_t limit, struct filesystems *filesystems,
	       const char *const *untouchable, struct scan **scan);
size_t scan_left(const struct scan *scan);
/* At one more name; `at` says which meanwhile, for scan_leave(), and is 0 otherwise. */
enum looked { NOTHING_LEFT, LOOKED, LEFT_BEHIND };
enum looked scan_look(struct scan *scan, _Atomic size_t *at);
bool scan_has_answered(const struct scan *scan); /* of any name */
/* The scan goes on without the thread that hangs there; false: it has been answered just now. The
 * thread has a reference to the scan from then on, and touches nothing else. */
bool scan_leave(struct scan *scan, size_t at);
const char *scan_name(const struct scan *scan, size_t at);
void scan_skip(struct scan *scan, const char *name); /* one in which another scan hangs */
void scan_unref(struct scan *scan);
int scan_end(struct scan *scan, struct buffer *packed);

/* Where blobs come from; set once, before the first thread. */
extern struct blob_pool *source_blobs;

/* What a path below the root leads to, through no link; of a link itself with O_PATH. A root that
 * is a link is followed. */
int open_below(const char *root, const char *path, int flags, int *fd);

int source_open_directory(const char *root, const char *path,
			  struct filesystems *filesystems, int *fd,
			  struct attributes *attributes);
int source_look(const char *root, const char *path, struct filesystems *filesystems,
		struct attributes *attributes, struct buffer *target, struct source_counts *counts);
int source_read(const char *root, const char *path, const struct version *version,
		struct blob **blob, struct source_counts *counts);
int source_open(const char *root, const char *path, const struct version *version,
		int *fd, struct source_counts *counts);
/* For reading pieces here and there: what was not asked for is not read ahead. */
int source_open_for_pieces(const char *root, const char *path, const struct version *version,
			   int *fd, struct source_counts *counts);

/* Files that stay open for a while; files.c. */
struct files;
struct open_file;
/* Keeps `root`. A thread waits at most `deadline_s` for a file that another thread opens. */
struct files *files_new(const char *root, double deadline_s);
void files_free(struct files *files);
/* Lends the descriptor until it is returned; `is_good` keeps it for the next. */
int files_borrow(struct files *files, const char *path, const struct version *version,
		 struct source_counts *counts, struct open_file **borrowed, int *fd,
		 bool *was_open);
void files_return(struct files *files, struct open_file *file, bool is_good);
/* One that nobody has used for so long, for the caller to close; -1 if there is none. */
int files_take_unused(struct files *files, double for_s);

/* A piece of a file, by a descriptor that is kept. */
int source_read_chunk(struct files *files, const char *path, const struct version *version,
		      uint64_t offset, size_t length, struct blob **blob,
		      struct source_counts *counts);
/* Where it has data from `offset` on, for the caller to free. Nothing is asked of a file on
 * `own_device`, that of the daemon's own mount: there it would wait for itself. */
int source_find_data(struct files *files, const char *path, const struct version *version,
		     uint64_t offset, unsigned count, uint64_t own_device,
		     struct extents **extents, struct source_counts *counts);

#endif
