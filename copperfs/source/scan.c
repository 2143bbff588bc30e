/*
 * A directory's names with their attributes, in one go: a packed listing, the format
 * of core/listing.py.  scan.py does the same in Python.
 */
#define _GNU_SOURCE
#include "native.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct row {
	uint32_t length;
	uint16_t name_length, target_length;
	struct attributes attributes;
};

enum { MAGIC = 0x31534c43 };

struct scan {
	DIR *directory;
	int fd;
	uint64_t device;
	const char *const *untouchable; /* names that lead back into the mount */
	struct listing_head header;
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

/* Two filesystems below one source may use the same number for different files; those
 * that are not on the root's filesystem get another one. source/scan.py does the same. */
uint64_t shown_inode(uint64_t inode, uint64_t device, uint64_t root_device)
{
	uint64_t mixed = device + 0x9e3779b97f4a7c15u;

	if (device == root_device)
		return inode;
	mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
	mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
	return inode ^ mixed ^ (mixed >> 31);
}

void fill_attributes(struct attributes *a, const struct stat *status, uint64_t root_device)
{
	*a = (struct attributes){
		.ino = shown_inode(status->st_ino, status->st_dev, root_device),
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
}

static bool is_untouchable(const struct scan *scan, const char *name)
{
	for (const char *const *each = scan->untouchable; *each; each++)
		if (!strcmp(*each, name))
			return true;
	return false;
}

static int add_row(struct scan *scan, const char *name, const struct attributes *attributes,
		   const char *target, size_t target_length)
{
	size_t name_length = strlen(name);
	size_t length = (sizeof(struct row) + name_length + target_length + 7) & ~(size_t)7;
	struct row *row;

	if (!reserve(&scan->packed, length))
		return ENOMEM;
	row = (struct row *)(scan->packed.bytes + scan->packed.used);
	memset(row, 0, length);
	row->length = (uint32_t)length;
	row->name_length = (uint16_t)name_length;
	row->target_length = (uint16_t)target_length;
	row->attributes = *attributes;
	memcpy(row + 1, name, name_length);
	if (target_length)
		memcpy((char *)(row + 1) + name_length, target, target_length);
	scan->packed.used += length;
	scan->header.count++;
	scan->header.absolute_links += target_length && target[0] == '/';
	return 0;
}

/* Attributes, and a link's target, of one moment: what is replaced in between is looked at
 * again. */
static int look_at(struct scan *scan, const char *name, struct attributes *attributes,
		   char *target, ssize_t *target_length)
{
	struct stat status;

	for (int tries = 0; tries < 8; tries++) {
		*target_length = 0;
		if (fstatat(scan->fd, name, &status, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT))
			return errno;
		fill_attributes(attributes, &status, scan->device);
		if (!S_ISLNK(status.st_mode))
			return 0;
		*target_length = readlinkat(scan->fd, name, target, PATH_MAX);
		if (*target_length >= 0)
			return 0;
		if (errno != EINVAL) /* EINVAL: it is no link any more */
			return errno;
	}
	return EIO;
}

/* 0, or an errno. A name that vanishes between being listed and being looked at is no
 * longer there, so it is left out. */
static int scan_name(struct scan *scan, const struct dirent *found, bool bare)
{
	struct attributes attributes = { .ino = found->d_ino,
					 .mode = (uint32_t)DTTOIF(found->d_type),
					 .nlink = 1, .blksize = 4096 };
	char target[PATH_MAX];
	ssize_t target_length = 0;
	int error = 0;

	if (is_untouchable(scan, found->d_name))
		attributes.mode = S_IFDIR;
	else if (!bare)
		error = look_at(scan, found->d_name, &attributes, target, &target_length);
	if (error)
		return error == ENOENT ? 0 : error;
	return add_row(scan, found->d_name, &attributes, target, (size_t)target_length);
}

/* One pass over the directory. EFBIG: more than `limit` names, and not asked for bare. */
static int scan_names(struct scan *scan, size_t limit, bool bare)
{
	const struct dirent *found;
	int error = 0;

	scan->header = (struct listing_head){ .magic = MAGIC, .flags = bare ? LISTING_IS_BARE : 0 };
	scan->packed.used = sizeof(struct listing_head);
	rewinddir(scan->directory);
	while (!error && (errno = 0, found = readdir(scan->directory))) {
		if (!strcmp(found->d_name, ".") || !strcmp(found->d_name, ".."))
			continue;
		if (!bare && scan->header.count >= limit)
			return EFBIG;
		error = scan_name(scan, found, bare);
	}
	return error ? error : errno;
}

/* Counts before looking: the attributes of 4,096 names would be asked in vain. */
static bool is_larger_than(struct scan *scan, size_t limit)
{
	size_t count = 0;

	while (count <= limit + 2 && readdir(scan->directory))
		count++;
	return count > limit + 2; /* "." and ".." */
}

static int scan_directory(struct scan *scan, size_t limit)
{
	int error;

	if (!reserve(&scan->packed, sizeof(struct listing_head)))
		return ENOMEM;
	if (is_larger_than(scan, limit))
		return scan_names(scan, limit, true);
	error = scan_names(scan, limit, false);
	/* it grew meanwhile, or may be listed but not searched */
	if (error == EFBIG || error == EACCES)
		error = scan_names(scan, limit, true);
	return error;
}

int source_scan(int fd, size_t limit, uint64_t device, const char *const *untouchable,
		struct buffer *packed)
{
	struct scan scan = { .fd = fd, .device = device, .untouchable = untouchable };
	int error;

	scan.directory = fdopendir(fd);
	if (!scan.directory) {
		error = errno;
		close(fd);
		return error;
	}
	error = scan_directory(&scan, limit);
	closedir(scan.directory);
	if (error) {
		free(scan.packed.bytes);
		return error;
	}
	memcpy(scan.packed.bytes, &scan.header, sizeof(scan.header));
	*packed = scan.packed;
	return 0;
}
