/*
 * Which filesystem below the source's root a file is on; filesystems.py does the same in Python.
 *
 * Two filesystems below one source may use the same inode number for different files, which `tar`
 * and `rsync` would take for hard links.  A device number tells them apart on one node, until one
 * of them is mounted anew; each node has its own.  What all nodes share is where a filesystem is
 * mounted, so its *tag* is a hash of that path below the root.  The filesystem of the root has none.
 *
 * A version never has a tag: what is compared is what the source itself says.
 *
 * A thread that sees a device for the first time reads the table of mounts, and reads it again if
 * anything was mounted since; the source is not asked.  The table does not have a subvolume of
 * btrfs or a layer of an overlay.  Such a device may be the root's own after a remount, so the
 * thread looks at the root; if it is not, its number tells it apart, which is right on this node.
 */
#define _GNU_SOURCE
#include "filesystems.h"

#include "../reader.h"

#include <poll.h>
#include <pthread.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { KNOWN_MAX = 64 };

struct known {
	uint64_t device;
	uint32_t tag;
};

struct filesystems {
	pthread_mutex_t lock;
	_Atomic uint64_t root_device;
	_Atomic uint32_t own_inodes; /* ATTR_OWN_INODE, or nothing */
	char *root;		     /* without a slash at its end */
	int mounts_fd;		     /* flagged by the kernel when anything is mounted */
	struct known known[KNOWN_MAX];
	unsigned count;
};

struct filesystems *filesystems_new(const char *root, uint64_t device)
{
	struct filesystems *filesystems = calloc(1, sizeof(*filesystems));
	size_t length = strlen(root);

	if (!filesystems)
		return NULL;
	while (length && root[length - 1] == '/')
		length--;
	filesystems->root = strndup(root, length);
	if (!filesystems->root) {
		free(filesystems);
		return NULL;
	}
	pthread_mutex_init(&filesystems->lock, NULL);
	filesystems->mounts_fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	atomic_init(&filesystems->root_device, device);
	return filesystems;
}

void filesystems_free(struct filesystems *filesystems)
{
	if (!filesystems)
		return;
	if (filesystems->mounts_fd >= 0)
		close(filesystems->mounts_fd);
	pthread_mutex_destroy(&filesystems->lock);
	free(filesystems->root);
	free(filesystems);
}

void filesystems_ignore_inodes(struct filesystems *filesystems)
{
	atomic_store(&filesystems->own_inodes, ATTR_OWN_INODE);
}

/* FNV-1a, folded; never 0, which is the root's. */
static uint32_t tag_of(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
	hash = (hash ^ (hash >> 32)) & ATTR_FILESYSTEM;
	return hash ? (uint32_t)hash : 1;
}

/* Spaces and the like are written as three octal digits. */
static void unescape(char *text)
{
	char *to = text;

	while (*text) {
		unsigned value;

		if (text[0] == '\\' && sscanf(text + 1, "%3o", &value) == 1) {
			*to++ = (char)value;
			text += 4;
		} else {
			*to++ = *text++;
		}
	}
	*to = 0;
}

/* What follows `above` and a slash in `path`; "" if they are the same, NULL if it is not below. */
static const char *below(const char *path, const char *above)
{
	size_t length = strlen(above);

	if (strncmp(path, above, length) || (path[length] && path[length] != '/'))
		return NULL;
	return path[length] ? path + length + 1 : path + length;
}

/* One line of the table: true, and the device and where it is mounted. */
static bool parse(char *line, uint64_t *device, char **mountpoint)
{
	unsigned major, minor;
	int at = 0;

	if (sscanf(line, "%*u %*u %u:%u %*s %n", &major, &minor, &at) != 2 || !at)
		return false;
	*device = makedev(major, minor);
	*mountpoint = line + at;
	line[at + (int)strcspn(*mountpoint, " ")] = 0;
	unescape(*mountpoint);
	if (!strcmp(*mountpoint, "/"))
		**mountpoint = 0;
	return true;
}

/* Reads the table: the device of the root's filesystem, and where `device` is mounted below, the
 * first of the shortest paths; NULL if nowhere. The caller frees it. */
static char *find(const char *root, uint64_t device, uint64_t *root_device)
{
	FILE *table = fopen("/proc/self/mountinfo", "re");
	char *line = NULL, *mountpoint, *found = NULL;
	size_t room = 0, longest = 0;
	uint64_t each;

	while (table && getline(&line, &room, table) > 0) {
		const char *path;

		if (!parse(line, &each, &mountpoint))
			continue;
		/* of two at one place the later one hides the other */
		if (below(root, mountpoint) && strlen(mountpoint) >= longest) {
			longest = strlen(mountpoint);
			*root_device = each;
		}
		path = below(mountpoint, root);
		if (!path || !*path || each != device)
			continue;
		if (found && (strlen(path) > strlen(found) ||
			      (strlen(path) == strlen(found) && strcmp(path, found) >= 0)))
			continue;
		free(found);
		found = strdup(path);
	}
	if (table)
		fclose(table);
	free(line);
	return found;
}

static uint32_t find_out(struct filesystems *filesystems, uint64_t device)
{
	uint64_t root_device = 0;
	char *found = find(filesystems->root, device, &root_device), text[32];
	struct stat root;
	uint32_t tag = 0;

	if (root_device != device && found)
		tag = tag_of(found);
	else if (root_device != device &&
		 (stat(*filesystems->root ? filesystems->root : "/", &root) ||
		  root.st_dev != device)) {
		snprintf(text, sizeof(text), "/%llu", (unsigned long long)device);
		tag = tag_of(text);
	}
	free(found);
	return tag;
}

static bool mounts_changed(const struct filesystems *filesystems)
{
	struct pollfd polled = { .fd = filesystems->mounts_fd, .events = POLLPRI };

	return poll(&polled, 1, 0) != 0;
}

static bool is_known(struct filesystems *filesystems, uint64_t device, uint32_t *tag)
{
	bool found = false;

	pthread_mutex_lock(&filesystems->lock);
	if (mounts_changed(filesystems))
		filesystems->count = 0;
	for (unsigned i = 0; i < filesystems->count && !found; i++) {
		found = filesystems->known[i].device == device;
		*tag = filesystems->known[i].tag;
	}
	pthread_mutex_unlock(&filesystems->lock);
	return found;
}

static void note(struct filesystems *filesystems, uint64_t device, uint32_t tag)
{
	pthread_mutex_lock(&filesystems->lock);
	if (filesystems->count == KNOWN_MAX)
		filesystems->count = 0;
	filesystems->known[filesystems->count++] = (struct known){ device, tag };
	pthread_mutex_unlock(&filesystems->lock);
}

uint32_t filesystems_flags(struct filesystems *filesystems, uint64_t device)
{
	uint32_t tag = 0;

	if (device != atomic_load(&filesystems->root_device) &&
	    !is_known(filesystems, device, &tag)) {
		tag = find_out(filesystems, device); /* the root may take its time */
		if (tag)
			note(filesystems, device, tag);
		else
			atomic_store(&filesystems->root_device, device);
	}
	return tag | atomic_load(&filesystems->own_inodes);
}
