/*
 * Tells on which filesystem below the source's root a file lies (decision 80).
 *
 * All nodes agree on where a filesystem is mounted below the root, but not on device numbers. So a
 * hash of that path is its *tag*, which keeps files with one inode number apart; the root's
 * filesystem has none. A version never has a tag.
 *
 * A thread that meets a new device reads the table of mounts, if it has changed; the source is not
 * asked. The table's descriptor is kept for the time when all others are used up. An unreadable
 * table is an error, because a wrong tag would travel to all nodes.
 *
 * The table lacks subvolumes of btrfs and layers of an overlay. Unless such a device is the root's
 * own after a remount, its number tells it apart, on this node.
 */
#define _GNU_SOURCE
#include "mount_tags.h"

#include "../reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum {
	KNOWN_MAX = 65536, /* 1 MiB: more devices than are ever mounted */
	TABLE_ROOM = 1 << 16,
	/* if something is mounted while the table is read */
	READ_TRIES = 4,
};

struct known {
	uint64_t device;
	uint32_t tag;
};

struct filesystems {
	pthread_mutex_t lock;
	_Atomic uint64_t root_device;
	_Atomic uint32_t own_inodes; /* ATTR_OWN_INODE, or 0 */
	char *root;		     /* without a slash at its end */
	int mounts_fd;		     /* flagged by the kernel when anything is mounted */
	bool is_read;		     /* the table, since it last changed */
	uint64_t table_root;
	struct known *known;	     /* by device */
	size_t count, room;
};

struct filesystems *filesystems_new(const char *root, uint64_t device)
{
	struct filesystems *filesystems = calloc(1, sizeof(*filesystems));
	size_t length = strlen(root);
	int error;

	if (!filesystems)
		return NULL;
	while (length && root[length - 1] == '/')
		length--;
	filesystems->root = strndup(root, length);
	if (!filesystems->root) {
		free(filesystems);
		return NULL;
	}
	filesystems->mounts_fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	if (filesystems->mounts_fd < 0) {
		error = errno;
		free(filesystems->root);
		free(filesystems);
		errno = error;
		return NULL;
	}
	pthread_mutex_init(&filesystems->lock, NULL);
	atomic_init(&filesystems->root_device, device);
	return filesystems;
}

void filesystems_free(struct filesystems *filesystems)
{
	if (!filesystems)
		return;
	close(filesystems->mounts_fd);
	pthread_mutex_destroy(&filesystems->lock);
	free(filesystems->root);
	free(filesystems->known);
	free(filesystems);
}

void filesystems_ignore_inodes(struct filesystems *filesystems)
{
	atomic_store(&filesystems->own_inodes, ATTR_OWN_INODE);
}

/* FNV-1a, folded; never 0, which stands for the root's filesystem. */
static uint32_t tag_of(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
	hash = (hash ^ (hash >> 32)) & ATTR_FILESYSTEM;
	return hash ? (uint32_t)hash : 1;
}

/* Spaces and the like are three octal digits. */
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

/* The rest of `path` after `above` and a slash; NULL: it is not below. */
static const char *below(const char *path, const char *above)
{
	size_t length = strlen(above);

	if (strncmp(path, above, length) || (path[length] && path[length] != '/'))
		return NULL;
	return path[length] ? path + length + 1 : path + length;
}

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

/* --- under the lock --- */

static bool mounts_changed(const struct filesystems *filesystems)
{
	struct pollfd polled = { .fd = filesystems->mounts_fd, .events = POLLPRI };

	return poll(&polled, 1, 0) != 0;
}

static struct known *place_of(const struct filesystems *filesystems, uint64_t device)
{
	size_t first = 0, end = filesystems->count;

	while (first < end) {
		size_t middle = first + (end - first) / 2;

		if (filesystems->known[middle].device < device)
			first = middle + 1;
		else
			end = middle;
	}
	return filesystems->known + first;
}

static bool is_known(const struct filesystems *filesystems, uint64_t device, uint32_t *tag)
{
	const struct known *place;

	if (!filesystems->count)
		return false;
	place = place_of(filesystems, device);
	if (place == filesystems->known + filesystems->count || place->device != device)
		return false;
	*tag = place->tag;
	return true;
}

static int make_room(struct filesystems *filesystems, size_t room)
{
	struct known *known;

	if (room <= filesystems->room)
		return 0;
	known = realloc(filesystems->known, room * sizeof(*known));
	if (!known)
		return ENOMEM;
	filesystems->known = known;
	filesystems->room = room;
	return 0;
}

static int note(struct filesystems *filesystems, uint64_t device, uint32_t tag)
{
	struct known *place;
	uint32_t before;

	if (is_known(filesystems, device, &before))
		return 0;
	if (filesystems->count >= KNOWN_MAX) {
		filesystems->count = 0;
		filesystems->is_read = false;
	}
	if (filesystems->count == filesystems->room &&
	    make_room(filesystems, filesystems->room ? 2 * filesystems->room : 16))
		return ENOMEM;
	place = place_of(filesystems, device);
	memmove(place + 1, place,
		(size_t)(filesystems->known + filesystems->count - place) * sizeof(*place));
	*place = (struct known){ device, tag };
	filesystems->count++;
	return 0;
}

static int read_table(const struct filesystems *filesystems, char **text)
{
	size_t room = TABLE_ROOM, used = 0;
	char *more;
	ssize_t got;

	*text = malloc(room);
	if (!*text)
		return ENOMEM;
	while ((got = pread(filesystems->mounts_fd, *text + used, room - used - 1,
			    (off_t)used)) != 0) {
		if (got < 0 && errno != EINTR) {
			int error = errno;

			free(*text);
			return error;
		}
		used += got > 0 ? (size_t)got : 0;
		if (room - used > 1)
			continue;
		room *= 2;
		more = realloc(*text, room);
		if (!more) {
			free(*text);
			return ENOMEM;
		}
		*text = more;
	}
	(*text)[used] = 0;
	return 0;
}

struct mount {
	uint64_t device;
	const char *path;
};

/* By device, with the first of its shortest paths before the others. */
static int in_order(const void *one, const void *other)
{
	const struct mount *a = one, *b = other;
	size_t length_a = strlen(a->path), length_b = strlen(b->path);

	if (a->device != b->device)
		return a->device < b->device ? -1 : 1;
	if (length_a != length_b)
		return length_a < length_b ? -1 : 1;
	return strcmp(a->path, b->path);
}

static size_t lines_in(const char *text)
{
	size_t count = 0;

	for (; *text; text++)
		count += *text == '\n';
	return count;
}

/* `mounts` has room for one entry a line. */
static int note_table(struct filesystems *filesystems, char *text, struct mount *mounts)
{
	size_t count = 0, longest = 0;
	char *rest = text, *line, *mountpoint;
	uint64_t device;
	int error;

	while ((line = strsep(&rest, "\n"))) {
		const char *path;

		if (!parse(line, &device, &mountpoint))
			continue;
		/* of two mounts at one place the later hides the earlier */
		if (below(filesystems->root, mountpoint) && strlen(mountpoint) >= longest) {
			longest = strlen(mountpoint);
			filesystems->table_root = device;
		}
		path = below(mountpoint, filesystems->root);
		if (path && *path)
			mounts[count++] = (struct mount){ device, path };
	}
	qsort(mounts, count, sizeof(*mounts), in_order);
	error = make_room(filesystems, count);
	for (size_t i = 0; i < count && !error; i++) {
		if (mounts[i].device == filesystems->table_root ||
		    (i && mounts[i].device == mounts[i - 1].device))
			continue;
		filesystems->known[filesystems->count++] =
			(struct known){ mounts[i].device, tag_of(mounts[i].path) };
	}
	return error;
}

static int learn(struct filesystems *filesystems)
{
	int error = 0;

	for (int tries = 0; !filesystems->is_read && !error; tries++) {
		struct mount *mounts;
		char *text;

		filesystems->count = 0;
		filesystems->table_root = 0;
		error = read_table(filesystems, &text);
		if (error)
			return error;
		mounts = calloc(lines_in(text) + 1, sizeof(*mounts));
		error = mounts ? note_table(filesystems, text, mounts) : ENOMEM;
		free(mounts);
		free(text);
		filesystems->is_read = !error && (tries >= READ_TRIES || !mounts_changed(filesystems));
	}
	return error;
}

/* A tag of 0 is the root's. */
static int look_up(struct filesystems *filesystems, uint64_t device, bool *found, uint32_t *tag)
{
	int error = 0;

	pthread_mutex_lock(&filesystems->lock);
	if (mounts_changed(filesystems))
		filesystems->is_read = false;
	error = learn(filesystems);
	*found = !error && (device == filesystems->table_root ||
			    is_known(filesystems, device, tag));
	pthread_mutex_unlock(&filesystems->lock);
	return error;
}

/* The table lacks the device. This asks the root, which may take long. */
static int find_out(struct filesystems *filesystems, uint64_t device, uint32_t *tag)
{
	struct stat root;
	char text[32];
	int error;

	if (!stat(*filesystems->root ? filesystems->root : "/", &root) && root.st_dev == device)
		return 0;
	snprintf(text, sizeof(text), "/%llu", (unsigned long long)device);
	*tag = tag_of(text);
	pthread_mutex_lock(&filesystems->lock);
	error = note(filesystems, device, *tag);
	pthread_mutex_unlock(&filesystems->lock);
	return error;
}

int filesystems_flags(struct filesystems *filesystems, uint64_t device, uint32_t *flags)
{
	uint32_t tag = 0;
	bool found;
	int error;

	if (device != atomic_load(&filesystems->root_device)) {
		error = look_up(filesystems, device, &found, &tag);
		if (!error && !found)
			error = find_out(filesystems, device, &tag);
		if (error)
			return error;
		if (!tag)
			atomic_store(&filesystems->root_device, device);
	}
	*flags = tag | atomic_load(&filesystems->own_inodes);
	return 0;
}
