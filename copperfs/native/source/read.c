/*
 * Stats, reads and opens files of the source, without the GIL.
 */
#define _GNU_SOURCE
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	/* A regular file may have become a fifo or a link. */
	OPEN_FILE = O_RDONLY | O_NONBLOCK | O_NOCTTY,
	OPEN_DIRECTORY = O_RDONLY | O_DIRECTORY,
	READ_BYTES = 1 << 20,
	/* Fetched side by side: what Lustre's client has under way to one server
	 * (osc.*.max_rpcs_in_flight). */
	AHEAD_BYTES = 8 * READ_BYTES,
	/* The kernel's read-ahead on most filesystems. */
	ASK_BYTES = 128 * 1024,
	CHUNK_TRIES = 2,
	LOOK_TRIES = 2,
};

/* A second change in one tick of the source's clock leaves no trace in the version. Ticks are 4 ms
 * and rarely 10. */
static const int64_t tick_ns = 20000000;
/* The source's clock may be this far behind ours (lab/sim/version_settling.py). */
static const int64_t behind_ns = 2000000000;

static int64_t nanoseconds(const struct timespec *time)
{
	return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static int64_t since_epoch(uint64_t seconds, uint32_t rest)
{
	return (int64_t)seconds * 1000000000 + rest;
}

bool is_version(const struct fuse_attr *a, const struct version *version)
{
	return a->size == version->size && (!version->ino || a->ino == version->ino) &&
	       since_epoch(a->mtime, a->mtimensec) == version->mtime_ns &&
	       since_epoch(a->ctime, a->ctimensec) == version->ctime_ns;
}

static int check_kept(int fd, const struct version *version, nlink_t links_min)
{
	struct stat now;

	if (fstat(fd, &now))
		return errno;
	if (!S_ISREG(now.st_mode) || (uint64_t)now.st_size != version->size ||
	    nanoseconds(&now.st_mtim) != version->mtime_ns ||
	    nanoseconds(&now.st_ctim) != version->ctime_ns ||
	    (version->ino && now.st_ino != version->ino) ||
	    now.st_nlink < links_min)
		return ESTALE;
	return 0;
}

static int check(int fd, const struct version *version)
{
	return check_kept(fd, version, 0);
}

/* Waits a tick if a version may be of the source's current tick: the next change then gets another
 * time. The source's clock cannot be asked. */
static void let_settle(const struct version *version)
{
	struct timespec now, wait = { .tv_nsec = tick_ns };

	clock_gettime(CLOCK_REALTIME, &now);
	if (nanoseconds(&now) - version->ctime_ns < tick_ns + behind_ns)
		while (clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, &wait) == EINTR)
			;
}

int source_open_directory(const char *root, const char *path,
			  struct filesystems *filesystems, int *fd,
			  struct fuse_attr *attributes)
{
	struct stat status;
	int error = open_below(root, path, OPEN_DIRECTORY, fd);

	if (error)
		return error;
	if (fstat(*fd, &status)) {
		error = errno;
		close(*fd);
		return error;
	}
	error = fill_attributes(attributes, &status, filesystems);
	if (error)
		close(*fd);
	return error;
}

int source_open(const char *root, const char *path, const struct version *version,
		int *fd, struct source_counts *counts)
{
	int error = open_below(root, path, OPEN_FILE, fd);

	/* a link, a socket or a device has replaced the file */
	if (error == ELOOP || error == ENXIO || error == ENODEV)
		return ESTALE;
	if (error)
		return error;
	counts->open++;
	error = check(*fd, version);
	if (error)
		close(*fd);
	else
		let_settle(version);
	return error;
}

/* A mount without the page cache (FUSE's direct_io) would read prefetched bytes twice; it refuses
 * this mapping. */
static bool is_cached(int fd)
{
	void *page = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);

	if (page == MAP_FAILED)
		return false;
	munmap(page, 1);
	return true;
}

int source_open_for_pieces(const char *root, const char *path, const struct version *version,
			   int *fd, struct source_counts *counts)
{
	int error = source_open(root, path, version, fd, counts);

	if (!error)
		posix_fadvise(*fd, 0, 0, POSIX_FADV_RANDOM);
	return error;
}

/* Reads all these bytes of a file; ESTALE if it ends before. */
static int read_all(int fd, char *data, size_t size, uint64_t offset, struct source_counts *counts)
{
	size_t done = 0;

	while (done < size) {
		ssize_t got = pread(fd, data + done, size - done, (off_t)(offset + done));

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

static int read_whole(int fd, struct blob *blob, struct source_counts *counts)
{
	size_t advised = 0;
	bool ahead = blob->size > READ_BYTES && is_cached(fd);
	int error = 0;

	for (size_t done = 0; !error && done < blob->size; done += READ_BYTES) {
		size_t part = blob->size - done < READ_BYTES ? blob->size - done : READ_BYTES;

		/* each call starts at most one read-ahead of the filesystem */
		for (; ahead && advised < blob->size && advised < done + AHEAD_BYTES;
		     advised += READ_BYTES)
			posix_fadvise(fd, (off_t)advised, READ_BYTES, POSIX_FADV_WILLNEED);
		error = read_all(fd, blob->data + done, part, done, counts);
	}
	return error;
}

int source_read(const char *root, const char *path, const struct version *version,
		struct blob **blob, struct source_counts *counts)
{
	int fd, error = source_open(root, path, version, &fd, counts);

	if (error)
		return error;
	*blob = blob_new_pooled(version->size);
	error = *blob ? read_whole(fd, *blob, counts) : ENOMEM;
	if (!error)
		error = check(fd, version);
	if (error && *blob) {
		blob_unref(*blob);
		*blob = NULL;
	}
	close(fd);
	return error;
}

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
	uint64_t offset = errand->offset;
	bool ahead = blob->size > ASK_BYTES && is_cached(fd);

	/* the whole piece: there is no other read-ahead */
	for (size_t advised = 0; ahead && advised < blob->size; advised += ASK_BYTES)
		posix_fadvise(fd, (off_t)(offset + advised), ASK_BYTES, POSIX_FADV_WILLNEED);
	return read_all(fd, blob->data, blob->size, offset, errand->counts);
}

/* ENXIO: there is none. */
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

/* A kept descriptor may have lost its file, or its server: then once more anew. */
static int with_kept(struct files *files, const char *path, const struct version *version,
		     work_of *work, const struct errand *errand)
{
	struct open_file *file;
	bool was_open = true;
	int fd, error = 0;

	for (int i = 0; i < CHUNK_TRIES && was_open; i++) {
		error = files_borrow(files, path, version, errand->counts, &file, &fd, &was_open);
		if (error)
			break;
		if (was_open) /* a kept one may have lost its name */
			error = check_kept(fd, version, 1);
		if (!error)
			error = work(fd, errand);
		if (!error)
			error = check(fd, version);
		files_return(files, file, !error);
		if (!error)
			return 0;
	}
	return error;
}

int source_read_chunk(struct files *files, const char *path, const struct version *version,
		      uint64_t offset, size_t length, struct blob **blob,
		      struct source_counts *counts)
{
	struct errand errand = { .offset = offset, .counts = counts };
	int error;

	*blob = errand.blob = blob_new_pooled(length);
	if (!*blob)
		return ENOMEM;
	error = with_kept(files, path, version, read_piece, &errand);
	if (error) {
		blob_unref(*blob);
		*blob = NULL;
	}
	return error;
}

int source_find_data(struct files *files, const char *path, const struct version *version,
		     uint64_t offset, unsigned count, uint64_t own_device,
		     struct extents **extents, struct source_counts *counts)
{
	struct errand errand = { .offset = offset, .counts = counts, .own_device = own_device,
				 .size = version->size, .extents_max = count };
	int error;

	errand.extents = malloc(sizeof(*errand.extents) + count * sizeof(struct extent));
	if (!errand.extents)
		return ENOMEM;
	error = with_kept(files, path, version, find_data, &errand);
	if (error)
		free(errand.extents);
	*extents = error ? NULL : errand.extents;
	return error;
}

static int read_link(int fd, struct buffer *target)
{
	ssize_t length;

	if (!target->bytes)
		target->bytes = malloc(PATH_MAX);
	if (!target->bytes)
		return ENOMEM;
	length = readlinkat(fd, "", target->bytes, PATH_MAX);
	if (length < 0)
		return errno;
	target->used = (size_t)length;
	return 0;
}

/* Both of the same file. */
static int look(const char *root, const char *path, struct stat *status, struct buffer *target)
{
	int fd, error = open_below(root, path, O_PATH, &fd);

	if (error)
		return error;
	error = fstat(fd, status) ? errno : 0;
	if (!error && S_ISLNK(status->st_mode))
		error = read_link(fd, target);
	close(fd);
	return error;
}

int source_look(const char *root, const char *path, struct filesystems *filesystems,
		struct fuse_attr *attributes, struct buffer *target, struct source_counts *counts)
{
	struct stat status;
	int error = ESTALE;

	counts->stat++;
	for (int i = 0; i < LOOK_TRIES && error == ESTALE; i++)
		error = look(root, path, &status, target);
	if (!error)
		error = fill_attributes(attributes, &status, filesystems);
	if (error) {
		free(target->bytes);
		*target = (struct buffer){ 0 };
	}
	return error;
}
