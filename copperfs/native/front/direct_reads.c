/*
 * Bypass: reads of files too large to be held, through a descriptor of the source's file that the
 * handlers published.
 *
 * The front thread answers what the system's page cache has (RWF_NOWAIT), and worker threads wait
 * for the rest. After each read the file must still be the promised version.
 */
#define _GNU_SOURCE /* preadv2 */
#include "front.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

struct bypass_job {
	struct bypass_job *next;
	struct handle *handle;
	uint64_t unique;
	uint64_t offset;
	uint32_t size;
};

/* AT_STATX_DONT_SYNC does not ask a server, which may not answer. */
static bool still_this_version(const struct handle *handle, int sync)
{
	struct statx now;

	return !statx(handle->fd, "", AT_EMPTY_PATH | sync, STATX_BASIC_STATS, &now) &&
	       now.stx_size == handle->version.size &&
	       (uint64_t)now.stx_mtime.tv_sec == handle->version.mtime &&
	       now.stx_mtime.tv_nsec == handle->version.mtimensec &&
	       (uint64_t)now.stx_ctime.tv_sec == handle->version.ctime &&
	       now.stx_ctime.tv_nsec == handle->version.ctimensec;
}

/* Reads to the end: the kernel would take a short reply for the end of the file. */
static ssize_t read_fully(const struct handle *handle, char *buffer, uint64_t offset,
			  uint32_t size, int flags)
{
	size_t done = 0;

	while (done < size) {
		struct iovec part = { buffer + done, size - done };
		ssize_t got = preadv2(handle->fd, &part, 1, (off_t)(offset + done), flags);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done;
}

static uint32_t within_file(const struct handle *handle, uint64_t offset, uint32_t size)
{
	uint64_t left = offset < handle->version.size ? handle->version.size - offset : 0;

	return left < size ? (uint32_t)left : size;
}

bool bypass_read_nowait(struct front *f, struct handle *handle, const struct fuse_in_header *in,
			const struct fuse_read_in *read, char *scratch)
{
	uint32_t size = within_file(handle, read->offset, read->size);
	ssize_t got = read_fully(handle, scratch, read->offset, size, RWF_NOWAIT);

	if (got != (ssize_t)size || !still_this_version(handle, AT_STATX_DONT_SYNC))
		return false;
	atomic_fetch_add_explicit(&f->statistics.read_bytes[SERVED_BYPASS], size,
				  memory_order_relaxed);
	front_reply(f, in->unique, 0, scratch, size);
	return true;
}

/* The handlers look the file up again. */
static void ask_handlers(struct front *f, struct pending *pending, struct handle *handle)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)pending->request;
	struct inode *inode;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, in->nodeid);
	if (inode && inode->handle == handle)
		inode_drop_handle(&f->tables, inode);
	tables_unlock(&f->tables);
	miss_forward(f, pending);
}

static void work(struct front *f, struct bypass_job *job, char *buffer)
{
	uint32_t size = within_file(job->handle, job->offset, job->size);
	ssize_t got = read_fully(job->handle, buffer, job->offset, size, 0);
	bool sound = got == (ssize_t)size && still_this_version(job->handle, AT_STATX_SYNC_AS_STAT);
	struct pending *pending = pending_claim(f, job->unique);

	if (!pending)
		return; /* interrupted or overdue */
	if (!sound && pending->tries++ < TRIES_MAX) {
		ask_handlers(f, pending, job->handle);
		return;
	}
	if (sound)
		atomic_fetch_add(&f->statistics.read_bytes[SERVED_BYPASS], size);
	front_reply(f, job->unique, sound ? 0 : got < 0 ? (int)-got : ESTALE, buffer,
		    sound ? size : 0);
	front_count(f, (const struct fuse_in_header *)pending->request, SERVED_BYPASS,
		    pending->started_ns);
	pending_free(f, pending);
}

static void *worker_main(void *argument)
{
	struct front *f = argument;
	char *buffer = malloc(REPLY_MAX);

	pthread_mutex_lock(&f->bypass_lock);
	while (buffer && !f->ended) {
		struct bypass_job *job = f->bypass_first;

		if (!job) {
			f->bypass_idle++;
			pthread_cond_wait(&f->bypass_work, &f->bypass_lock);
			f->bypass_idle--;
			continue;
		}
		f->bypass_first = job->next;
		if (!f->bypass_first)
			f->bypass_end = &f->bypass_first;
		pthread_mutex_unlock(&f->bypass_lock);
		work(f, job, buffer);
		handle_unref(job->handle);
		free(job);
		pthread_mutex_lock(&f->bypass_lock);
	}
	pthread_mutex_unlock(&f->bypass_lock);
	free(buffer);
	return NULL;
}

/* Takes the handle's reference, and the pending. */
void bypass_queue(struct front *f, struct handle *handle, struct pending *pending)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)pending->request;
	const struct fuse_read_in *read = (const struct fuse_read_in *)(in + 1);
	struct bypass_job *job = malloc(sizeof(*job));
	unsigned waiting = 0;

	if (job)
		*job = (struct bypass_job){ .handle = handle, .unique = pending->unique,
					    .offset = read->offset, .size = read->size };
	/* the pending may be freed from here on; without a job its deadline answers */
	if (!pending_add(f, pending) || !job) {
		handle_unref(handle);
		free(job);
		return;
	}
	pthread_mutex_lock(&f->bypass_lock);
	*f->bypass_end = job;
	f->bypass_end = &job->next;
	for (job = f->bypass_first; job && waiting <= f->bypass_idle; job = job->next)
		waiting++;
	if (waiting > f->bypass_idle && f->bypass_threads < BYPASS_THREADS_MAX && !f->ended &&
	    !pthread_create(&f->bypass_thread[f->bypass_threads], NULL, worker_main, f))
		f->bypass_threads++;
	pthread_cond_signal(&f->bypass_work);
	pthread_mutex_unlock(&f->bypass_lock);
}

/* A worker may hang in the source, so it is not waited for. */
void bypass_stop(struct front *f)
{
	pthread_mutex_lock(&f->bypass_lock);
	pthread_cond_broadcast(&f->bypass_work);
	while (f->bypass_first) {
		struct bypass_job *job = f->bypass_first;

		f->bypass_first = job->next;
		handle_unref(job->handle);
		free(job);
	}
	f->bypass_end = &f->bypass_first;
	pthread_mutex_unlock(&f->bypass_lock);
}
