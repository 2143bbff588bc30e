/*
 * Memory files: copies of files that would otherwise be read in pieces of 128 KiB, by the page
 * cache. With O_DIRECT a read of PIECE is one request to most filesystems, or a few.
 */
#define _GNU_SOURCE
#include "memory_file.h"

#include "elf_image.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((size_t)4 << 20)
#define ALIGNED ((size_t)4096)
/* A bundle ends with where its index begins, its own length, and this word (bundle.py). */
#define LAST_WORD "copperfs"

int open_direct(const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);

	return file < 0 && errno == EINVAL ? open(path, O_RDONLY | O_CLOEXEC) : file;
}

static bool write_all(int fd, const char *data, size_t size)
{
	while (size) {
		ssize_t written = write(fd, data, size);

		if (written == 0 || (written < 0 && errno != EINTR))
			return false;
		if (written > 0) {
			data += written;
			size -= (size_t)written;
		}
	}
	return true;
}

/* How many bytes of a file are wanted, by its first ones. 0: it is no such file. */
typedef size_t wanted_fn(const char *begin, size_t size);

static size_t all(const char *begin, size_t size)
{
	(void)begin;
	(void)size;
	return SIZE_MAX;
}

static bool copy_file(int file, int copy, wanted_fn *wanted)
{
	bool direct = true, is_first = true;
	size_t left = PIECE;
	ssize_t got = -1;
	char *piece;

	if (posix_memalign((void **)&piece, ALIGNED, PIECE))
		return false;
	while (left) {
		size_t rounded = (left + ALIGNED - 1) / ALIGNED * ALIGNED;

		got = read(file, piece, left < PIECE ? rounded : PIECE);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EINVAL && direct) {
			direct = false;
			if (!fcntl(file, F_SETFL, 0))
				continue;
		}
		if (got <= 0)
			break;
		if (is_first)
			left = wanted(piece, (size_t)got);
		is_first = false;
		if ((size_t)got > left)
			got = (ssize_t)left;
		if (!write_all(copy, piece, (size_t)got)) {
			got = -1;
			break;
		}
		left -= (size_t)got;
	}
	free(piece);
	return wanted == all ? got == 0 : !left && !is_first && got > 0;
}

static bool forget_run_path(int copy)
{
	struct stat status;
	char *begin;

	if (fstat(copy, &status))
		return false;
	begin = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
	if (begin == MAP_FAILED)
		return false;
	elf_forget_run_path(begin, (size_t)status.st_size);
	return !munmap(begin, (size_t)status.st_size);
}

/* The copy is sealed: a run passes it to the daemon. */
static int copy_in_memory(int file, const char *name, wanted_fn *wanted)
{
	int copy = memfd_create(name, MFD_ALLOW_SEALING);
	/* a limit of file sizes counts for memory files, too */
	void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
	bool done = copy >= 0 && copy_file(file, copy, wanted) &&
		    (wanted == all || forget_run_path(copy)) &&
		    !fcntl(copy, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK);

	signal(SIGXFSZ, before);
	close(file);
	if (copy >= 0 && !done)
		close(copy);
	return done ? copy : -1;
}

/* An interrupted copy of an installation, or a full disk, leaves a part of it. */
static bool is_whole(int copy)
{
	char end[8 + sizeof(LAST_WORD) - 1];
	struct stat status;
	uint64_t length;

	if (fstat(copy, &status) || (size_t)status.st_size < sizeof(end) ||
	    pread(copy, end, sizeof(end), status.st_size - (off_t)sizeof(end)) != sizeof(end))
		return false;
	memcpy(&length, end, sizeof(length));
	return length == (uint64_t)status.st_size && !memcmp(end + 8, LAST_WORD, sizeof(end) - 8);
}

int bundle_in_memory(int file)
{
	int copy = copy_in_memory(file, "copperfs-bundle", all);

	if (copy >= 0 && !is_whole(copy)) {
		close(copy);
		return -1;
	}
	return copy;
}

int program_in_memory(const char *path)
{
	const char *slash = strrchr(path, '/');
	int file = open_direct(path);

	return file < 0 ? -1 : copy_in_memory(file, slash ? slash + 1 : path, elf_mapped_size);
}
