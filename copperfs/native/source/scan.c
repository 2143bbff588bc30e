/*
 * Directory scan: lists names with their attributes as a packed listing (model/listing.py).
 *
 * First the names are collected. Then any number of threads look at them, each at the next
 * unclaimed name. The last thread packs the same bytes, or the same error, as one thread alone
 * would give.
 *
 * A name whose stat fails, or hangs and is left behind (hung_threads.c), becomes a row with nothing but
 * number and type. Only an error of the directory itself ends the scan, which checks it at the
 * first name that fails.
 */
#define _GNU_SOURCE
#include "source.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Once this number of names hang, a scan skips the rest: each may take a thread. */
enum { LEFT_MAX = 4 };

enum state { OPEN_STILL, ANSWERED, LEFT };

/* Only the thread that has claimed the name writes here, unless it was left behind. */
struct found {
	size_t name_at;
	_Atomic int state;
	struct fuse_attr attributes; /* number and type, until all are known */
	char *target;
	size_t target_length;
	bool untouchable;
	int error;
};

struct scan {
	DIR *directory;
	int fd;
	struct filesystems *filesystems;
	const char *const *untouchable; /* names that lead back into the mount */
	struct buffer names, found;
	size_t count;
	bool larger; /* than the limit: no name gets a stat */
	_Atomic size_t claimed;
	_Atomic bool is_doubted; /* a name has failed, so the directory got a stat */
	_Atomic int failed;	 /* its outcome, or ENOMEM */
	_Atomic bool has_answered;
	_Atomic unsigned left;
	_Atomic unsigned refs; /* the job's, and one for each thread that was left behind */
	struct listing_header header;
	struct buffer packed;
};

static bool reserve(struct buffer *buffer, size_t size)
{
	size_t room = buffer->room ? buffer->room : 4096;
	char *bytes;

	while (room < buffer->used + size)
		room *= 2;
	if (room == buffer->room)
		return true;
	bytes = realloc(buffer->bytes, room);
	if (!bytes)
		return false;
	buffer->bytes = bytes;
	buffer->room = room;
	return true;
}

int fill_attributes(struct fuse_attr *a, const struct stat *status,
		    struct filesystems *filesystems)
{
	*a = (struct fuse_attr){
		.ino = status->st_ino,
		.size = (uint64_t)status->st_size,
		.blocks = (uint64_t)status->st_blocks,
		.atime = (uint64_t)status->st_atim.tv_sec,
		.mtime = (uint64_t)status->st_mtim.tv_sec,
		.ctime = (uint64_t)status->st_ctim.tv_sec,
		.atimensec = (uint32_t)status->st_atim.tv_nsec,
		.mtimensec = (uint32_t)status->st_mtim.tv_nsec,
		.ctimensec = (uint32_t)status->st_ctim.tv_nsec,
		.mode = status->st_mode,
		.nlink = (uint32_t)status->st_nlink,
		.uid = status->st_uid,
		.gid = status->st_gid,
		.rdev = (uint32_t)status->st_rdev,
		.blksize = (uint32_t)status->st_blksize,
	};
	return filesystems_flags(filesystems, status->st_dev, &a->flags);
}

static bool is_untouchable(const struct scan *scan, const char *name)
{
	for (const char *const *each = scan->untouchable; *each; each++)
		if (!strcmp(*each, name))
			return true;
	return false;
}

static int add_row(struct scan *scan, const char *name, const struct fuse_attr *attributes,
		   const char *target, size_t target_length, bool is_known)
{
	size_t name_length = strlen(name);
	size_t length = (sizeof(struct row) + name_length + target_length + 7) & ~(size_t)7;
	struct row *row;

	if (!reserve(&scan->packed, length))
		return ENOMEM;
	row = (struct row *)(scan->packed.bytes + scan->packed.used);
	memset(row, 0, length);
	row->length = (uint32_t)length | (is_known ? 0 : ROW_UNKNOWN);
	row->name_length = (uint16_t)name_length;
	row->target_length = (uint16_t)target_length;
	row->attr = *attributes;
	memcpy(row->name, name, name_length);
	if (target_length)
		memcpy(row->name + name_length, target, target_length);
	scan->packed.used += length;
	scan->header.count++;
	scan->header.absolute_links += target_length && target[0] == '/';
	return 0;
}

/* Both of one moment: a name that is replaced in between is read again. */
static int look_at(struct scan *scan, const char *name, struct fuse_attr *attributes,
		   char *target, ssize_t *target_length)
{
	struct stat status;
	int error;

	for (int tries = 0; tries < 8; tries++) {
		*target_length = 0;
		if (fstatat(scan->fd, name, &status, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT))
			return errno;
		error = fill_attributes(attributes, &status, scan->filesystems);
		if (error) { /* the directory fails, not the name */
			scan->failed = error;
			return error;
		}
		if (!S_ISLNK(status.st_mode))
			return 0;
		*target_length = readlinkat(scan->fd, name, target, PATH_MAX);
		if (*target_length >= 0)
			return 0;
		if (errno != EINVAL) /* it is no link any more */
			return errno;
	}
	return EIO;
}

static int add_bare(struct scan *scan, const struct dirent *found)
{
	struct fuse_attr attributes = { .ino = found->d_ino,
					 .mode = (uint32_t)DTTOIF(found->d_type),
					 .nlink = 1, .blksize = 4096 };

	if (is_untouchable(scan, found->d_name))
		attributes.mode = S_IFDIR;
	return add_row(scan, found->d_name, &attributes, NULL, 0, true);
}

static int add_found(struct scan *scan, const struct dirent *entry)
{
	bool untouchable = is_untouchable(scan, entry->d_name);
	size_t size = strlen(entry->d_name) + 1;
	struct found *found;

	if (!reserve(&scan->names, size) || !reserve(&scan->found, sizeof(*found)))
		return ENOMEM;
	found = (struct found *)(scan->found.bytes + scan->found.used);
	*found = (struct found){ .name_at = scan->names.used,
				 .untouchable = untouchable,
				 .attributes = { .ino = entry->d_ino, .nlink = 1,
						 .blksize = 4096 } };
	found->attributes.mode = untouchable ? S_IFDIR : (uint32_t)DTTOIF(entry->d_type);
	memcpy(scan->names.bytes + scan->names.used, entry->d_name, size);
	scan->names.used += size;
	scan->found.used += sizeof(*found);
	scan->count++;
	return 0;
}

static bool is_itself_or_above(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

/* Up to one name beyond `limit`. */
static int collect(struct scan *scan, size_t limit)
{
	const struct dirent *entry;
	int error = 0;

	while (!error && !scan->larger && (errno = 0, entry = readdir(scan->directory))) {
		if (is_itself_or_above(entry->d_name))
			continue;
		scan->larger = scan->count >= limit;
		error = add_found(scan, entry);
	}
	if (!error && !scan->larger)
		error = errno;
	return error;
}

/* For a directory that is too large, or may be listed but not searched. */
static int pack_bare(struct scan *scan)
{
	const struct dirent *entry;
	int error = 0;

	scan->header = (struct listing_header){ .magic = LISTING_MAGIC, .flags = LISTING_BARE };
	scan->packed.used = sizeof(struct listing_header);
	rewinddir(scan->directory);
	while (!error && (errno = 0, entry = readdir(scan->directory)))
		if (!is_itself_or_above(entry->d_name))
			error = add_bare(scan, entry);
	return error ? error : errno;
}

/* In the order of the directory, without names that have vanished. */
static int pack(struct scan *scan)
{
	const struct found *all = (const struct found *)scan->found.bytes;
	int error = 0;

	scan->header = (struct listing_header){ .magic = LISTING_MAGIC };
	scan->packed.used = sizeof(struct listing_header);
	for (size_t i = 0; i < scan->count && !error; i++) {
		bool is_answered = all[i].state == ANSWERED;
		bool is_known = all[i].untouchable || (is_answered && !all[i].error);

		if (is_answered && all[i].error == ENOENT)
			continue;
		/* a thread that was left behind may write now, so only what was known before is
		 * read */
		error = add_row(scan, scan->names.bytes + all[i].name_at, &all[i].attributes,
				is_known ? all[i].target : NULL,
				is_known ? all[i].target_length : 0, is_known);
	}
	return error;
}

void scan_unref(struct scan *scan)
{
	struct found *all = (struct found *)scan->found.bytes;

	if (atomic_fetch_sub(&scan->refs, 1) != 1)
		return;
	for (size_t i = 0; i < scan->count; i++)
		free(all[i].target);
	closedir(scan->directory);
	free(scan->names.bytes);
	free(scan->found.bytes);
	free(scan->packed.bytes);
	free(scan);
}

int scan_begin(int fd, size_t limit, struct filesystems *filesystems,
	       const char *const *untouchable, struct scan **begun)
{
	struct scan *scan = calloc(1, sizeof(*scan));
	int error;

	if (!scan) {
		close(fd);
		return ENOMEM;
	}
	scan->refs = 1;
	scan->fd = fd;
	scan->filesystems = filesystems;
	scan->untouchable = untouchable;
	scan->directory = fdopendir(fd);
	if (!scan->directory) {
		error = errno;
		close(fd);
		free(scan);
		return error;
	}
	error = reserve(&scan->packed, sizeof(struct listing_header)) ? collect(scan, limit) : ENOMEM;
	if (error) {
		scan_unref(scan);
		return error;
	}
	*begun = scan;
	return 0;
}

size_t scan_left(const struct scan *scan)
{
	size_t claimed = scan->claimed;

	return scan->larger || scan->failed || scan->left >= LEFT_MAX || claimed >= scan->count ? 0 : scan->count - claimed;
}

bool scan_has_answered(const struct scan *scan) { return scan->has_answered; }

const char *scan_name(const struct scan *scan, size_t at)
{
	return scan->names.bytes + ((const struct found *)scan->found.bytes)[at - 1].name_at;
}

/* Whether the directory itself fails. */
static void doubt(struct scan *scan)
{
	struct stat status;

	if (!scan->is_doubted && !atomic_exchange(&scan->is_doubted, true) &&
	    fstatat(scan->fd, ".", &status, AT_SYMLINK_NOFOLLOW))
		scan->failed = errno;
}

static bool answer(struct found *found)
{
	int before = OPEN_STILL;

	return atomic_compare_exchange_strong(&found->state, &before, ANSWERED);
}

enum looked scan_look(struct scan *scan, _Atomic size_t *at)
{
	struct fuse_attr attributes;
	char target[PATH_MAX], *copy = NULL;
	ssize_t target_length = 0;
	struct found *found;
	size_t index;
	int error;

	if (!scan_left(scan) || (index = scan->claimed++) >= scan->count)
		return NOTHING_LEFT;
	found = (struct found *)scan->found.bytes + index;
	if (found->untouchable || found->state == LEFT)
		return LOOKED;
	*at = index + 1;
	error = look_at(scan, scan->names.bytes + found->name_at, &attributes, target,
			&target_length);
	if (error && error != ENOENT)
		doubt(scan);
	if (!error && target_length) {
		copy = malloc((size_t)target_length);
		if (copy)
			memcpy(copy, target, (size_t)target_length);
		else
			scan->failed = ENOMEM;
	}
	*at = 0;
	if (!answer(found)) {
		free(copy);
		return LEFT_BEHIND;
	}
	scan->has_answered = true;
	found->error = error;
	if (!error)
		found->attributes = attributes;
	found->target = copy;
	found->target_length = copy ? (size_t)target_length : 0;
	return LOOKED;
}

static bool leave(struct found *found)
{
	int before = OPEN_STILL;

	return atomic_compare_exchange_strong(&found->state, &before, LEFT);
}

bool scan_leave(struct scan *scan, size_t at)
{
	scan->refs++;
	if (leave((struct found *)scan->found.bytes + at - 1)) {
		scan->left++;
		return true;
	}
	scan->refs--;
	return false;
}

void scan_skip(struct scan *scan, const char *name)
{
	struct found *all = (struct found *)scan->found.bytes;

	for (size_t i = 0; i < scan->count; i++)
		if (!strcmp(scan->names.bytes + all[i].name_at, name))
			leave(&all[i]);
}

int scan_end(struct scan *scan, struct buffer *packed)
{
	int error = scan->larger ? EACCES : scan->failed;

	if (!error)
		error = pack(scan);
	if (error == EACCES)
		error = pack_bare(scan);
	if (!error) {
		memcpy(scan->packed.bytes, &scan->header, sizeof(scan->header));
		*packed = scan->packed;
		scan->packed.bytes = NULL;
	}
	scan_unref(scan);
	return error;
}
