/*
 * Descriptor cache: keeps files of the source open between reads of their chunks, each of which
 * checks the version (decision 63).
 *
 * At most FILES_MAX descriptors are kept besides those in use (fewer where descriptors are scarce).
 * While one thread opens a file, others that want it wait until their deadline.
 */
#include "source.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
	/* Twice the default of --source-concurrency; each open file is state on a server. */
	FILES_MAX = 64,
	/* Of all descriptors (transport/descriptor_limits.py has the budget). */
	FILES_PART = 16,
};

struct open_file {
	struct open_file *next;
	char *path;
	struct version version;
	int fd; /* -1: it is being opened */
	unsigned users;
	bool kept;
	double used_s;
};

struct files {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	const char *root;
	double deadline_s;
	struct open_file *first; /* most recently used */
	unsigned count, count_max;
};

struct files *files_new(const char *root, double deadline_s)
{
	struct files *files = calloc(1, sizeof(*files));
	pthread_condattr_t monotonic;
	struct rlimit limit;

	if (!files)
		return NULL;
	files->root = root;
	files->deadline_s = deadline_s;
	files->count_max = FILES_MAX;
	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur / FILES_PART < FILES_MAX)
		files->count_max = (unsigned)(limit.rlim_cur / FILES_PART);
	pthread_mutex_init(&files->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&files->opened, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return files;
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void file_free(struct open_file *file)
{
	if (!file)
		return;
	if (file->fd >= 0)
		close(file->fd);
	free(file->path);
	free(file);
}

/* --- under the lock --- */

static struct open_file **place_of(struct files *files, const char *path,
				   const struct version *version)
{
	struct open_file **each = &files->first;

	while (*each && (memcmp(&(*each)->version, version, sizeof(*version)) ||
			 strcmp((*each)->path, path)))
		each = &(*each)->next;
	return each;
}

static void keep(struct files *files, struct open_file *file)
{
	file->kept = true;
	file->next = files->first;
	files->first = file;
	files->count++;
}

static struct open_file *take_out(struct files *files, struct open_file **place)
{
	struct open_file *file = *place;

	*place = file->next;
	file->next = NULL;
	file->kept = false;
	files->count--;
	return file;
}

/* NULL: none is beyond the limit, or all are in use. */
static struct open_file *surplus(struct files *files)
{
	struct open_file **last = NULL;

	if (files->count <= files->count_max)
		return NULL;
	for (struct open_file **each = &files->first; *each; each = &(*each)->next)
		if (!(*each)->users)
			last = each;
	return last ? take_out(files, last) : NULL;
}

/* NULL: the thread that opens the file hangs. */
static struct open_file **wait_for(struct files *files, const char *path,
				   const struct version *version)
{
	double until_s = now_s() + files->deadline_s;
	struct timespec until = { .tv_sec = (time_t)until_s };
	struct open_file **place;
	bool overdue = false;

	until.tv_nsec = (long)((until_s - (double)until.tv_sec) * 1e9);
	while (*(place = place_of(files, path, version)) && (*place)->fd < 0) {
		if (overdue)
			return NULL;
		overdue = pthread_cond_timedwait(&files->opened, &files->lock, &until);
	}
	return place;
}

/* --- in threads of the source --- */

int files_borrow(struct files *files, const char *path, const struct version *version,
		 struct source_counts *counts, struct open_file **borrowed, int *fd,
		 bool *was_open)
{
	struct open_file *file, **place, *other;
	int error;

	pthread_mutex_lock(&files->lock);
	place = wait_for(files, path, version);
	if (!place) {
		pthread_mutex_unlock(&files->lock);
		return ETIMEDOUT;
	}
	*was_open = *place;
	if (*was_open) {
		file = take_out(files, place);
		keep(files, file);
		file->users++;
		*fd = file->fd;
		*borrowed = file;
		pthread_mutex_unlock(&files->lock);
		return 0;
	}
	file = calloc(1, sizeof(*file));
	if (!file || !(file->path = strdup(path))) {
		pthread_mutex_unlock(&files->lock);
		free(file);
		return ENOMEM;
	}
	file->version = *version;
	file->fd = -1;
	file->users = 1;
	keep(files, file);
	other = surplus(files);
	pthread_mutex_unlock(&files->lock);
	file_free(other);

	error = source_open_for_pieces(files->root, path, version, fd, counts);

	pthread_mutex_lock(&files->lock);
	if (error)
		take_out(files, place_of(files, path, version));
	else
		file->fd = *fd;
	pthread_cond_broadcast(&files->opened);
	pthread_mutex_unlock(&files->lock);
	if (error)
		file_free(file);
	*borrowed = error ? NULL : file;
	return error;
}

void files_return(struct files *files, struct open_file *file, bool is_good)
{
	struct open_file *other = NULL;

	pthread_mutex_lock(&files->lock);
	file->users--;
	file->used_s = now_s();
	if (file->kept && !is_good)
		take_out(files, place_of(files, file->path, &file->version));
	if (!file->kept && !file->users)
		other = file;
	else
		other = surplus(files);
	pthread_mutex_unlock(&files->lock);
	file_free(other);
}

int files_take_unused(struct files *files, double for_s)
{
	double before = now_s() - for_s;
	int fd = -1;

	pthread_mutex_lock(&files->lock);
	for (struct open_file **each = &files->first; *each; each = &(*each)->next) {
		struct open_file *file = *each;

		if (file->users || file->used_s > before)
			continue;
		take_out(files, each);
		fd = file->fd;
		file->fd = -1;
		file_free(file);
		break;
	}
	pthread_mutex_unlock(&files->lock);
	return fd;
}

void files_free(struct files *files)
{
	if (!files)
		return;
	while (files->first)
		file_free(take_out(files, &files->first));
	pthread_mutex_destroy(&files->lock);
	pthread_cond_destroy(&files->opened);
	free(files);
}
