/* The front's lifecycle: setup, threads, and end. */
#include "front.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* Fewer where descriptors are scarce (transport/descriptor_limits.py has the budget). */
static uint32_t handles_max(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur / HANDLES_PART >= HANDLES_MAX)
		return HANDLES_MAX;
	return limit.rlim_cur < HANDLES_PART ? 1 : (uint32_t)(limit.rlim_cur / HANDLES_PART);
}

int front_init(struct front *f, uint32_t inodes_max)
{
	if (tables_init(&f->tables, inodes_max, handles_max()))
		return -1;
	f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	f->fetched_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	f->crowded_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (f->wake_fd < 0 || f->fetched_fd < 0 || f->crowded_fd < 0) {
		for (int i = 0; i < 3; i++) {
			int fd = i ? i == 1 ? f->fetched_fd : f->crowded_fd : f->wake_fd;

			if (fd >= 0)
				close(fd);
		}
		tables_destroy(&f->tables);
		return -1;
	}
	pthread_mutex_init(&f->pending_lock, NULL);
	pthread_mutex_init(&f->overflow_lock, NULL);
	pthread_mutex_init(&f->bypass_lock, NULL);
	pthread_cond_init(&f->bypass_work, NULL);
	f->overflow_end = &f->overflow_first;
	f->bypass_end = &f->bypass_first;
	pthread_cond_init(&f->denial_written, NULL);
	pthread_mutex_init(&f->fetched_lock, NULL);
	pthread_mutex_init(&f->trace_lock, NULL);
	pthread_mutex_init(&f->end_lock, NULL);
	f->fetched_end = &f->fetched_first;
	ahead_init(f);
	f->max_pages = 32;
	return 0;
}

bool front_keep_connection(struct front *f, int fd, bool inherited, bool may_resend, bool may_record)
{
	if (!connection_open(&f->tables.connection, fd, inherited))
		return false;
	f->inherited = inherited;
	f->may_resend = may_resend;
	f->may_record = may_record;
	f->records_requests = inherited ? front_takeover_by(f) == TAKEOVER_BY_MEMORY : may_record;
	return !inherited || tables_adopt(&f->tables);
}

void front_sign_of_life(struct front *f)
{
	tables_lock(&f->tables);
	pthread_mutex_lock(&f->pending_lock);
	if (connection_is_kept(&f->tables.connection))
		f->tables.connection.header->signs_of_life++;
	pthread_mutex_unlock(&f->pending_lock);
	tables_unlock(&f->tables);
}

/* Shows the peer of the control socket its end, once: a front thread may come here long after
 * front_stop(), when the descriptors' numbers are reused. front_stop() waits for the first call. */
static void end(struct front *f)
{
	uint64_t one = 1;

	pthread_mutex_lock(&f->end_lock);
	if (!f->ended) {
		f->ended = true;
		if (f->control_fd >= 0)
			shutdown(f->control_fd, SHUT_RDWR);
		while (write(f->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
			; /* any other failure: it is signalled already */
	}
	pthread_mutex_unlock(&f->end_lock);
}

/* Into `place`, where a successor finds it. `*request` is either that or `own`. */
static ssize_t read_into(struct front *f, char *place, char *own, char **request)
{
	struct iovec parts[2] = { { place, READING_ROOM },
				  { own + READING_ROOM, READ_BUFFER - READING_ROOM } };
	ssize_t size;

	place_empty(place);
	size = readv(f->fuse_fd, parts, 2);
	*request = place;
	if (size > READING_ROOM || (size > 0 && is_forget(place))) {
		memcpy(own, place, size < READING_ROOM ? (size_t)size : READING_ROOM);
		*request = own;
	}
	if (size > 0 && is_forget(place))
		place_empty(place);
	return size;
}

static void *front_main(void *argument)
{
	struct front *f = argument;
	char *request = aligned_alloc(8, READ_BUFFER), *scratch = malloc(REPLY_MAX);
	char *place = NULL, *came;

	/* If the kernel had to make a page for a request while this process is killed, the request would
	 * fail with EIO, and no successor would get it. */
	if (request)
		memset(request, 0, REQUEST_MAX);
	if (f->records_requests) {
		place = reading_place(&f->tables.connection, f->readers++);
		memset(place, 0, READING_ROOM);
	}
	while (request && scratch && !f->ended) {
		ssize_t size;

		came = request;
		if (place && f->records_requests)
			size = read_into(f, place, request, &came);
		else
			size = read(f->fuse_fd, request, READ_BUFFER);
		if (size > 0)
			front_request(f, came, (size_t)size, scratch);
		/* ENOENT: the request was aborted before it was read */
		else if (size == 0 || (errno != EINTR && errno != ENOENT && errno != EAGAIN))
			break;
	}
	end(f);
	free(request);
	free(scratch);
	return NULL;
}

int front_start(struct front *f)
{
	sigset_t all, before;
	int error = 0;

	f->threads = calloc(f->threads_count, sizeof(*f->threads));
	if (f->threads_count > READERS_MAX) {
		errno = EINVAL;
		return -1;
	}
	if (!f->threads || (f->inherited && !init_replay(f)))
		return -1;
	/* signals are Python's */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&f->replier, NULL, replier_main, f);
	/* before any of them reads what is new */
	if (!error && connection_is_kept(&f->tables.connection) && !front_take_up(f))
		error = errno;
	for (unsigned i = 0; i < f->threads_count && !error; i++)
		error = pthread_create(&f->threads[i], NULL, front_main, f);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = error;
	return error ? -1 : 0;
}

/* Front threads in read() on a busy mount cannot be called back; they and the tables live until the
 * process ends. */
void front_stop(struct front *f)
{
	end(f);
	bypass_stop(f);
	pthread_join(f->replier, NULL);
}

void front_destroy(struct front *f)
{
	misses_destroy(f);
	solo_fetches_destroy(f);
	ahead_destroy(f);
	trace_end(f);
	tables_destroy(&f->tables);
	close(f->wake_fd);
	close(f->fetched_fd);
	close(f->crowded_fd);
	free(f->threads);
	free(f->groups);
}
