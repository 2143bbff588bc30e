/*
 * Looking, reading and opening: what posix.py does, without the GIL.
 *
 * A path may be longer than a system call takes, because the source's own prefix is
 * added to it; it is then walked in pieces.
 */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	/* A regular file may have become a fifo or a link since it was looked at. */
	OPEN_FILE = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
	OPEN_DIRECTORY = O_RDONLY | O_CLOEXEC | O_DIRECTORY,
	WALK = O_PATH | O_CLOEXEC | O_DIRECTORY,
	READ_BYTES = 1 << 20,
	/* Of a large file so much is asked for ahead, as pieces that come side by side: what
	 * Lustre's client has under way to one server (osc.*.max_rpcs_in_flight). */
	AHEAD_BYTES = 8 * READ_BYTES,
	/* What the kernel reads in one go of most filesystems. */
	ASK_BYTES = 128 * 1024,
	CHUNK_TRIES = 2,
	LINK_TRIES = 8,
};

/* A change within the same tick of the source's clock as the one before leaves no trace
 * in the version. Ticks are 4 ms and rarely 10. */
static const int64_t tick_ns = 20000000;

struct blob_pool *source_blobs;

/* Finds a directory from which the rest of the path is short enough. */
static int reach(const char *path, int *directory, const char **rest)
{
	char piece[PATH_MAX];

	*directory = AT_FDCWD;
	while (strlen(path) >= PATH_MAX) {
		size_t length = PATH_MAX - 1;
		int onward;

		while (length && path[length] != '/')
			length--;
		if (!length)
			return ENAMETOOLONG;
		memcpy(piece, path, length);
		piece[length] = 0;
		onward = openat(*directory, piece, WALK);
		if (*directory != AT_FDCWD)
			close(*directory);
		*directory = AT_FDCWD;
		if (onward < 0)
			return errno;
		*directory = onward;
		path += length + 1;
	}
	*rest = path;
	return 0;
}

static void let_go(int directory)
{
	if (directory != AT_FDCWD)
		close(directory);
}

static int open_at(const char *path, int flags, int *fd)
{
	const char *rest;
	int directory, error = reach(path, &directory, &rest);

	if (error)
		return error;
	*fd = openat(directory, rest, flags);
	/* a network filesystem noticed only now that the name leads elsewhere */
	if (*fd < 0 && errno == ESTALE)
		*fd = openat(directory, rest, flags);
	error = *fd < 0 ? errno : 0;
	let_go(directory);
	return error;
}

static int64_t nanoseconds(const struct timespec *time)
{
	return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static int64_t since_epoch(uint64_t seconds, uint32_t rest)
{
	return (int64_t)seconds * 1000000000 + rest;
}

bool is_version(const struct attributes *a, const struct version *version)
{
	return a->size == version->size && a->ino == version->ino &&
	       since_epoch(a->mtime, a->mtimensec) == version->mtime_ns &&
	       since_epoch(a->ctime, a->ctimensec) == version->ctime_ns;
}

static int check_kept(int fd, const struct version *version, uint64_t device, nlink_t links_min)
{
	struct stat now;

	if (fstat(fd, &now))
		return errno;
	if (!S_ISREG(now.st_mode) || (uint64_t)now.st_size != version->size ||
	    nanoseconds(&now.st_mtim) != version->mtime_ns ||
	    nanoseconds(&now.st_ctim) != version->ctime_ns ||
	    shown_inode(now.st_ino, now.st_dev, device) != version->ino ||
	    now.st_nlink < links_min)
		return ESTALE;
	return 0;
}

static int check(int fd, const struct version *version, uint64_t device)
{
	return check_kept(fd, version, device, 0);
}

static void let_settle(const struct version *version)
{
	struct timespec now, wait = { 0 };
	int64_t age_ns;

	clock_gettime(CLOCK_REALTIME, &now);
	age_ns = nanoseconds(&now) - version->ctime_ns;
	if (age_ns < 0 || age_ns >= tick_ns)
		return;
	wait.tv_nsec = tick_ns - age_ns;
	nanosleep(&wait, NULL);
}

int source_open_directory(const char *path, uint64_t device, int *fd,
			  struct attributes *attributes)
{
	struct stat status;
	int error = open_at(path, OPEN_DIRECTORY, fd);

	if (error)
		return error;
	if (fstat(*fd, &status)) {
		error = errno;
		close(*fd);
		return error;
	}
	fill_attributes(attributes, &status, device);
	return 0;
}

int source_open(const char *path, const struct version *version, uint64_t device, int *fd,
		struct source_counts *counts)
{
	int error = open_at(path, OPEN_FILE, fd);

	/* there is a link, a socket or a device by now where a file was */
	if (error == ELOOP || error == ENXIO || error == ENODEV)
		return ESTALE;
	if (error)
		return error;
	counts->open++;
	error = check(*fd, version, device);
	if (error)
		close(*fd);
	return error;
}

/* Whether what is asked for ahead is there for the read. A filesystem that is mounted without
 * the page cache (FUSE's direct_io) would read it twice; it is known by refusing this mapping. */
static bool is_cached(int fd)
{
	void *page = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);

	if (page == MAP_FAILED)
		return false;
	munmap(page, 1);
	return true;
}

int source_open_for_pieces(const char *path, const struct version *version, uint64_t device,
			   int *fd, struct source_counts *counts)
{
	int error = source_open(path, version, device, fd, counts);

	if (!error)
		posix_fadvise(*fd, 0, 0, POSIX_FADV_RANDOM);
	return error;
}

static int read_whole(int fd, struct blob *blob, struct source_counts *counts)
{
	size_t done = 0, asked = 0;
	bool ahead = blob->size > READ_BYTES && is_cached(fd);

	while (done < blob->size) {
		size_t part = blob->size - done < READ_BYTES ? blob->size - done : READ_BYTES;
		ssize_t got;

		/* each call is good for one readahead of the filesystem at most */
		for (; ahead && asked < blob->size && asked < done + AHEAD_BYTES;
		     asked += READ_BYTES)
			posix_fadvise(fd, (off_t)asked, READ_BYTES, POSIX_FADV_WILLNEED);
		got = pread(fd, blob->data + done, part, (off_t)done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return errno;
		if (got == 0)
			return ESTALE;
		counts->read++;
		done += (size_t)got;
	}
	counts->read_bytes += done;
	return 0;
}

int source_read(const char *path, const struct version *version, uint64_t device,
		struct blob **blob, struct source_counts *counts)
{
	int fd, error = source_open(path, version, device, &fd, counts);

	if (error)
		return error;
	let_settle(version);
	*blob = blob_new_in(source_blobs, version->size);
	error = *blob ? read_whole(fd, *blob, counts) : ENOMEM;
	if (!error)
		error = check(fd, version, device);
	if (error && *blob) {
		blob_unref(*blob);
		*blob = NULL;
	}
	close(fd);
	return error;
}

/* What is done with a file that stays open for the next: a piece of it is read, or it is looked
 * where it has data. */
struct errand {
	uint64_t offset;
	struct source_counts *counts;
	struct blob *blob;
	uint64_t own_device;
	uint64_t size;
	unsigned extents_max;
	struct extents *extents;
};
typedef int work_of(int fd, const struct errand *errand);

static int read_piece(int fd, const struct errand *errand)
{
	struct blob *blob = errand->blob;
	struct source_counts *counts = errand->counts;
	uint64_t offset = errand->offset;
	size_t done = 0;
	bool ahead = blob->size > ASK_BYTES && is_cached(fd);

	/* all of it at once, since nothing is read ahead otherwise */
	for (size_t asked = 0; ahead && asked < blob->size; asked += ASK_BYTES)
		posix_fadvise(fd, (off_t)(offset + asked), ASK_BYTES, POSIX_FADV_WILLNEED);
	while (done < blob->size) {
		ssize_t got = pread(fd, blob->data + done, blob->size - done,
				    (off_t)(offset + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return errno;
		if (got == 0)
			return ESTALE;
		counts->read++;
		done += (size_t)got;
	}
	counts->read_bytes += done;
	return 0;
}

/* The next extent from `at` on; ENXIO if there is none. */
static int find_extent(int fd, uint64_t at, const struct errand *errand, struct extent *found)
{
	off_t data = lseek(fd, (off_t)at, SEEK_DATA), hole;

	errand->counts->seek++;
	if (data < 0)
		return errno;
	hole = lseek(fd, data, SEEK_HOLE);
	errand->counts->seek++;
	if (hole < 0)
		return errno;
	*found = (struct extent){ (uint64_t)data, (uint64_t)hole };
	return found->data >= at && found->hole > found->data && found->hole <= errand->size
		       ? 0 : EIO;
}

static int find_data(int fd, const struct errand *errand)
{
	struct extents *extents = errand->extents;
	struct stat status;
	int error = 0;

	if (fstat(fd, &status))
		return errno;
	if (status.st_dev == errand->own_device)
		return ELOOP;
	extents->from = extents->until = errand->offset;
	extents->count = 0;
	while (!error && extents->count < errand->extents_max && extents->until < errand->size) {
		struct extent *next = &extents->each[extents->count];

		error = find_extent(fd, extents->until, errand, next);
		if (!error) {
			extents->until = next->hole;
			extents->count++;
		}
	}
	if (error == ENXIO) { /* the rest is a hole */
		extents->until = errand->size;
		error = 0;
	}
	return error;
}

/* With a descriptor that is kept. It may have lost its file, or its server: once more anew. */
static int with_kept(struct files *files, const char *path, const struct version *version,
		     uint64_t device, work_of *work, const struct errand *errand)
{
	struct open_file *file;
	bool was_open = true;
	int fd, error = 0;

	for (int i = 0; i < CHUNK_TRIES && was_open; i++) {
		error = files_borrow(files, path, version, device, errand->counts, &file, &fd,
				     &was_open);
		if (error)
			break;
		if (was_open) /* it may have lost its name; one that was just opened had it */
			error = check_kept(fd, version, device, 1);
		if (!error) {
			let_settle(version);
			error = work(fd, errand);
		}
		if (!error)
			error = check(fd, version, device);
		files_return(files, file, !error);
		if (!error)
			return 0;
	}
	return error;
}

int source_read_chunk(struct files *files, const char *path, const struct version *version,
		      uint64_t offset, size_t length, uint64_t device, struct blob **blob,
		      struct source_counts *counts)
{
	struct errand errand = { .offset = offset, .counts = counts };
	int error;

	*blob = errand.blob = blob_new_in(source_blobs, length);
	if (!*blob)
		return ENOMEM;
	error = with_kept(files, path, version, device, read_piece, &errand);
	if (error) {
		blob_unref(*blob);
		*blob = NULL;
	}
	return error;
}

int source_find_data(struct files *files, const char *path, const struct version *version,
		     uint64_t offset, unsigned count, uint64_t device, uint64_t own_device,
		     struct extents **extents, struct source_counts *counts)
{
	struct errand errand = { .offset = offset, .counts = counts, .own_device = own_device,
				 .size = version->size, .extents_max = count };
	int error;

	errand.extents = malloc(sizeof(*errand.extents) + count * sizeof(struct extent));
	if (!errand.extents)
		return ENOMEM;
	error = with_kept(files, path, version, device, find_data, &errand);
	if (error)
		free(errand.extents);
	*extents = error ? NULL : errand.extents;
	return error;
}

static int read_link(int directory, const char *name, struct buffer *target)
{
	ssize_t length;

	if (!target->bytes)
		target->bytes = malloc(PATH_MAX);
	if (!target->bytes)
		return ENOMEM;
	length = readlinkat(directory, name, target->bytes, PATH_MAX);
	if (length < 0)
		return errno;
	target->used = (size_t)length;
	return 0;
}

int source_look(const char *path, uint64_t device, struct attributes *attributes,
		struct buffer *target, struct source_counts *counts)
{
	const char *name;
	struct stat status;
	int directory, error = reach(path, &directory, &name);

	if (error)
		return error;
	counts->stat++;
	error = EIO;
	for (int i = 0; i < LINK_TRIES; i++) {
		error = fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT)
				? errno : 0;
		if (error || !S_ISLNK(status.st_mode))
			break;
		error = read_link(directory, name, target);
		if (error != EINVAL) /* EINVAL: it became something else meanwhile */
			break;
	}
	let_go(directory);
	if (!error)
		fill_attributes(attributes, &status, device);
	return error;
}
