/*
 * The source in C: scans, stats, reads and opens without the GIL. pool.h has its threads.
 */
#ifndef COPPERFS_SOURCE_H
#define COPPERFS_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "../blob.h"
#include "../listing.h"
#include "../reader.h"
#include "mount_tags.h"

struct buffer {
	char *bytes;
	size_t used, room;
};

struct source_counts {
	_Atomic uint64_t open, read, read_bytes, stat, scandir, seek;
};

bool is_version(const struct fuse_attr *a, const struct version *version);

/* All return 0 or an errno. */

int fill_attributes(struct fuse_attr *a, const struct stat *status,
		    struct filesystems *filesystems);

/* scan_begin takes the descriptor, and reads `untouchable` until the end. The last thread calls
 * scan_end, which frees the scan, also on error. */
struct scan;
int scan_begin(int fd, size_t limit, struct filesystems *filesystems,
	       const char *const *untouchable, struct scan **scan);
size_t scan_left(const struct scan *scan);
/* Meanwhile `at` tells scan_leave() the name; else it is 0. */
enum looked { NOTHING_LEFT, LOOKED, LEFT_BEHIND };
enum looked scan_look(struct scan *scan, _Atomic size_t *at);
bool scan_has_answered(const struct scan *scan); /* for any name */
/* The thread that hangs there from then on touches only its own reference to the scan. False: the
 * name has just been answered. */
bool scan_leave(struct scan *scan, size_t at);
const char *scan_name(const struct scan *scan, size_t at);
void scan_skip(struct scan *scan, const char *name); /* another scan hangs in it */
void scan_unref(struct scan *scan);
int scan_end(struct scan *scan, struct buffer *packed);

/* Follows links to the root, and none below it; with O_PATH it opens a link itself. */
int open_below(const char *root, const char *path, int flags, int *fd);

int source_open_directory(const char *root, const char *path,
			  struct filesystems *filesystems, int *fd,
			  struct fuse_attr *attributes);
int source_look(const char *root, const char *path, struct filesystems *filesystems,
		struct fuse_attr *attributes, struct buffer *target, struct source_counts *counts);
int source_read(const char *root, const char *path, const struct version *version,
		struct blob **blob, struct source_counts *counts);
int source_open(const char *root, const char *path, const struct version *version,
		int *fd, struct source_counts *counts);
/* No read-ahead beyond what was asked for. */
int source_open_for_pieces(const char *root, const char *path, const struct version *version,
			   int *fd, struct source_counts *counts);

/* files.c */
struct files;
struct open_file;
/* Refers to `root`. A thread waits at most `deadline_s` for a file that another opens. */
struct files *files_new(const char *root, double deadline_s);
void files_free(struct files *files);
/* Lends the descriptor; if it comes back `is_good`, it is kept for the next job. */
int files_borrow(struct files *files, const char *path, const struct version *version,
		 struct source_counts *counts, struct open_file **borrowed, int *fd,
		 bool *was_open);
void files_return(struct files *files, struct open_file *file, bool is_good);
/* -1: there is none. */
int files_take_unused(struct files *files, double for_s);

int source_read_chunk(struct files *files, const char *path, const struct version *version,
		      uint64_t offset, size_t length, struct blob **blob,
		      struct source_counts *counts);
/* The caller frees the extents. A file on `own_device`, of the daemon's own mount, is not asked:
 * the daemon would wait for itself. */
int source_find_data(struct files *files, const char *path, const struct version *version,
		     uint64_t offset, unsigned count, uint64_t own_device,
		     struct extents **extents, struct source_counts *counts);

#endif
