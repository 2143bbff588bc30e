/*
 * The pool: a fixed number of threads work for the source at a time.  One that hangs in it
 * longer than its job's deadline no longer counts, and another is started in its place.  That
 * happens up to STUCK_MAX times.  Beyond it the threads that do not hang go on, and a job for which
 * none of them is idle fails at once with EIO.
 *
 * Scans are shared.  A parallel filesystem answers a stat in about a millisecond and many
 * at once, so a directory that one thread looks through takes as long as it has names,
 * while other threads are idle.  So whoever has just waited for the source in a scan invites
 * one more thread for each slow_s that the answer took, up to HANDS_MAX: where stats are quick
 * nobody is woken, and where they are not all that may help are there at once.  An
 * invitation is taken up by a thread that has no job to do, and that leaves as soon as a job
 * has nobody to do it, or another scan has invited.  So a job waits for a thread that helps for
 * at most the time of one stat, and scans take turns at the HELPERS_MAX that there are for all.
 *
 * The thread whose job it is stays until all names are claimed, and does not wait for the
 * others: the last one to leave packs the listing and tells.  A name that hangs takes one thread
 * from the pool, as it does when it is looked at by itself.  The scan leaves that thread behind
 * (watch.c), and another one does the rest, while fewer than STUCK_MAX hang.
 *
 * Longer than most modules: jobs, threads that hang and shared scans are under one lock.
 */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "../mentions.h"

enum {
	/* Lustre's client has at most 8 requests under way to a metadata server
	 * (mdc.*.max_rpcs_in_flight); more would only wait there, before everybody else's. */
	HANDS_MAX = 8,
	HELPERS_MAX = HANDS_MAX - 1, /* in all scans together */
};
/* Between two tries while descriptors or memory are used up. */
static const double pause_first_s = 0.002, pause_last_s = 0.1;
/* Waking a thread takes some 20 us, a local stat 2, a remote one from 200. */
static const double slow_s = 100e-6;

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void job_free(struct job *job)
{
	for (char **each = job->untouchable; each && *each; each++)
		free(*each);
	free(job->untouchable);
	free(job->looked_for);
	free(job->mentioned);
	if (job->scan) /* another thread was to go on with it, and the pool was closed */
		scan_unref(job->scan);
	free(job->path);
	free(job->buffer.bytes);
	free(job->extents);
	blob_unref(job->blob);
	if (job->fd >= 0)
		close(job->fd);
	free(job);
}

void jobs_free(struct job *job)
{
	while (job) {
		struct job *next = job->next;

		job_free(job);
		job = next;
	}
}

void pool_unref(struct pool *pool)
{
	if (atomic_fetch_sub(&pool->refs, 1) != 1)
		return;
	jobs_free(pool->first);
	jobs_free(pool->done);
	files_free(pool->files);
	filesystems_free(pool->filesystems);
	close(pool->event_fd);
	if (pool->mounts_fd >= 0)
		close(pool->mounts_fd);
	free(pool->root);
	pthread_mutex_destroy(&pool->lock);
	pthread_cond_destroy(&pool->work);
	pthread_cond_destroy(&pool->watch);
	free(pool);
}

static bool is_for_the_front(const struct job *job)
{
	return job->told || job->told_names || job->told_extents;
}

static bool is_for_python(const struct job *job)
{
	return !is_for_the_front(job) && job->kind != CLOSE;
}

/* Whether anything was mounted since this was last asked. */
static bool mounts_changed(struct pool *pool)
{
	struct pollfd polled = { .fd = pool->mounts_fd, .events = POLLPRI };

	return poll(&polled, 1, 0) != 0;
}

static bool mounts_are_as_trusted(struct pool *pool, const struct job *job)
{
	bool as_trusted;

	pthread_mutex_lock(&pool->lock); /* the flag is shown to one only */
	if (pool->trust && mounts_changed(pool))
		pool->trust = 0;
	as_trusted = pool->trust && pool->trust == job->trust;
	pthread_mutex_unlock(&pool->lock);
	return as_trusted;
}

/* What fails here is asked for again by Python, which counts it then. */
static int list(struct pool *pool, struct job *job)
{
	static const char *const none[] = { NULL };
	int fd, error;

	if (!mounts_are_as_trusted(pool, job))
		return EAGAIN;
	error = source_open_directory(pool->root, job->path, pool->filesystems, &fd,
				      &job->attributes);
	if (error)
		return error;
	if (!is_version(&job->attributes, &job->version)) {
		close(fd);
		return ESTALE;
	}
	pool->counts.scandir++;
	return scan_begin(fd, pool->listing_max, pool->filesystems, none, &job->scan);
}

/* Without memory nothing is mentioned. */
static void look_through(struct job *job)
{
	job->mentioned = calloc(job->looked_for_count, sizeof(*job->mentioned));
	if (job->mentioned)
		find_mentioned(job->blob->data, job->blob->size, job->looked_for, job->mentioned);
}

/* A scan is only begun. */
static void run(struct pool *pool, struct job *job)
{
	int fd;

	switch (job->kind) {
	case SCAN:
		if (job->told_names) {
			job->error = list(pool, job);
			break;
		}
		pool->counts.scandir++;
		job->error = source_open_directory(pool->root, job->path,
						   pool->filesystems, &fd,
						   &job->attributes);
		if (!job->error)
			job->error = scan_begin(fd, pool->listing_max, pool->filesystems,
						(const char *const *)job->untouchable,
						&job->scan);
		break;
	case LOOK:
		job->error = source_look(pool->root, job->path, pool->filesystems,
					 &job->attributes, &job->buffer, &pool->counts);
		break;
	case READ:
		job->error = source_read(pool->root, job->path, &job->version, &job->blob,
					 &pool->counts);
		if (!job->error && job->looked_for_count)
			look_through(job);
		break;
	case OPEN:
		job->error = source_open(pool->root, job->path, &job->version, &job->fd,
					 &pool->counts);
		if (job->error)
			job->fd = -1;
		break;
	case CHUNK:
		job->error = source_read_chunk(pool->files, job->path, &job->version, job->offset,
					       job->length, &job->blob,
					       &pool->counts);
		break;
	case SEEK:
		job->error = source_find_data(pool->files, job->path, &job->version, job->offset,
					      (unsigned)job->length, pool->own_device,
					      &job->extents, &pool->counts);
		break;
	case CLOSE:
		close(job->fd);
		job->fd = -1;
		break;
	}
}

static bool is_own_trouble(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM;
}

/* If descriptors or memory are used up, the daemon is at fault and not the source. So the job
 * waits until they come back; at its deadline it ends as one of a slow source does. */
static void run_patiently(struct pool *pool, struct job *job)
{
	double until_s = now_s() + job->deadline_s, pause_s = pause_first_s;

	run(pool, job);
	while (is_own_trouble(job->error)) {
		struct timespec pause = { .tv_nsec = (long)(pause_s * 1e9) };
		int unused = files_take_unused(pool->files, 0);

		if (unused >= 0)
			close(unused);
		else
			nanosleep(&pause, NULL);
		if (pool->closed || now_s() + pause_s > until_s) {
			job->error = ETIMEDOUT;
			break;
		}
		if (pause_s < pause_last_s)
			pause_s *= 2;
		job->error = 0;
		run(pool, job);
	}
}

static void start_thread(struct pool *pool);

/* --- scans that are shared; under the lock --- */

static void list_as_shared(struct pool *pool, struct job *job)
{
	if (job->shared_link)
		return;
	job->shared_next = NULL;
	job->shared_link = pool->shared_end;
	*pool->shared_end = job;
	pool->shared_end = &job->shared_next;
}

static void unlist(struct pool *pool, struct job *job)
{
	if (!job->shared_link)
		return;
	*job->shared_link = job->shared_next;
	if (job->shared_next)
		job->shared_next->shared_link = job->shared_link;
	else
		pool->shared_end = job->shared_link;
	job->shared_link = NULL;
}

static bool may_help(const struct pool *pool)
{
	return pool->shared && pool->helping < HELPERS_MAX;
}

/* One more thread, if there is something for it to do besides what is claimed next by those
 * who are at it. */
bool pool_invite(struct pool *pool, struct job *job)
{
	if (pool->closed || job->hands + job->invited >= HANDS_MAX ||
	    scan_left(job->scan) <= job->invited + 1)
		return false;
	list_as_shared(pool, job);
	job->invited++;
	pool->invited++;
	if (!may_help(pool))
		return true;
	if (pool->idle < pool->queued + pool->invited)
		start_thread(pool);
	pthread_cond_signal(&pool->work);
	return true;
}

/* Of the scan whose turn it is. */
static struct job *accept_invitation(struct pool *pool)
{
	struct job *job = pool->shared;

	job->invited--;
	pool->invited--;
	job->hands++;
	unlist(pool, job);
	if (job->invited)
		list_as_shared(pool, job);
	return job;
}

static void withdraw_invitations(struct pool *pool, struct job *job)
{
	unlist(pool, job);
	pool->invited -= job->invited;
	job->invited = 0;
}

/* Whether a helper is of more use elsewhere: for a job, or in a scan that has fewer. */
static bool is_wanted_elsewhere(const struct pool *pool, const struct job *job)
{
	return pool->closed || pool->queued > pool->idle ||
	       (pool->shared && (pool->shared != job || job->shared_next));
}

/* --- the threads --- */

static struct job *take(struct pool *pool)
{
	struct job *job = pool->first;

	pool->first = job->next;
	if (!pool->first)
		pool->end = &pool->first;
	pool->queued--;
	job->next = NULL;
	if (!job->goes_on) /* or it still has that of the one before */
		job->hands = 1;
	return job;
}

static void begin_work(struct pool *pool, struct hand *hand, struct job *job, bool helps)
{
	*hand = (struct hand){ .started_s = now_s(), .deadline_s = job->deadline_s, .job = job,
			       .helps = helps, .next = pool->working, .link = &pool->working };
	if (pool->working)
		pool->working->link = &hand->next;
	pool->working = hand;
	pool->busy++;
	pool->helping += helps;
}

static void no_longer_busy(struct pool *pool, const struct hand *hand)
{
	pool->busy--;
	pool->helping -= hand->helps;
}

void pool_give_up(struct pool *pool, struct hand *hand)
{
	if (hand->given_up)
		return;
	hand->given_up = true;
	pool->stuck++;
	no_longer_busy(pool, hand);
}

static void end_work(struct pool *pool, struct hand *hand)
{
	*hand->link = hand->next;
	if (hand->next)
		hand->next->link = hand->link;
	if (hand->given_up)
		pool->stuck--;
	else
		no_longer_busy(pool, hand);
}

/* Until there are no more; or, for a helper, until it is of more use elsewhere. `waited_s`:
 * for the source, just now. Who is left behind must not touch the job any more. */
static void look_at_names(struct pool *pool, struct job *job, struct hand *hand, double waited_s)
{
	bool goes = false, helps = hand->helps;
	double answered_s = 0; /* by a name, and not by the directory when it was opened */

	while (!goes) {
		double started_s;

		if (waited_s > slow_s) {
			pthread_mutex_lock(&pool->lock);
			if (answered_s > job->slowest_s)
				job->slowest_s = answered_s;
			while (waited_s > slow_s && pool_invite(pool, job))
				waited_s -= slow_s;
			goes = helps && is_wanted_elsewhere(pool, job);
			pthread_mutex_unlock(&pool->lock);
		}
		started_s = now_s();
		if (goes || scan_look(job->scan, &hand->at) != LOOKED)
			break;
		waited_s = answered_s = now_s() - started_s;
		goes = helps && waited_s <= slow_s;
	}
}

static void tell(struct job *job)
{
	if (job->told) {
		job->told(job->told_context, job->id, &job->version, job->blob);
		job->blob = NULL;
	} else if (job->told_names) {
		job->told_names(job->told_context, job->id, job->buffer.bytes, job->buffer.used);
		job->buffer.bytes = NULL;
	} else if (job->told_extents) {
		job->told_extents(job->told_context, job->id, job->extents);
		job->extents = NULL;
	}
}

/* By the last thread that worked for it. */
static void finish(struct pool *pool, struct job *job)
{
	struct listing_head head;

	if (job->scan) {
		job->error = scan_end(job->scan, &job->buffer);
		job->scan = NULL;
		if (is_own_trouble(job->error)) /* no reader is told of it */
			job->error = ETIMEDOUT;
	}
	if (job->told_names && !job->error) {
		memcpy(&head, job->buffer.bytes, sizeof(head));
		if (!(head.flags & LISTING_IS_BARE))
			pool->counts.stat += head.count;
	}
	tell(job);
}

static void put_back(struct pool *pool, struct job *job)
{
	uint64_t one = 1;

	if (!is_for_python(job)) {
		job_free(job);
		return;
	}
	*pool->done_end = job;
	pool->done_end = &job->next;
	if (write(pool->event_fd, &one, sizeof(one)) < 0)
		abort(); /* cannot be: it is our own */
}

/* Under the lock, which it lets go of. True if there are enough threads without this one. */
static bool work(struct pool *pool, struct job *job, bool helps)
{
	struct hand hand;
	bool begins = !helps && !job->goes_on;
	double waited_s = 0;

	begin_work(pool, &hand, job, helps);
	if (begins && job->kind == SCAN)
		watch_begin(pool);
	pthread_mutex_unlock(&pool->lock);
	if (begins) {
		run_patiently(pool, job);
		waited_s = now_s() - hand.started_s;
	}
	if (begins && job->scan) {
		pthread_mutex_lock(&pool->lock);
		watch_skip(pool, job);
		pthread_mutex_unlock(&pool->lock);
	}
	if (job->scan)
		look_at_names(pool, job, &hand, waited_s);
	pthread_mutex_lock(&pool->lock);
	if (hand.left) {
		end_work(pool, &hand);
		pthread_mutex_unlock(&pool->lock);
		free(hand.left_path);
		scan_unref(hand.left);
		pthread_mutex_lock(&pool->lock);
		return pool->threads - pool->stuck > pool->concurrency;
	}
	if (!helps)
		withdraw_invitations(pool, job);
	if (--job->hands == 0) {
		pthread_mutex_unlock(&pool->lock);
		finish(pool, job);
		pthread_mutex_lock(&pool->lock);
		pool->scans -= job->kind == SCAN;
		put_back(pool, job);
	}
	end_work(pool, &hand);
	return pool->threads - pool->stuck > pool->concurrency;
}

static void *thread_main(void *argument)
{
	struct pool *pool = argument;
	bool surplus = false;

	pthread_mutex_lock(&pool->lock);
	while (!surplus && !pool->closed) {
		if (pool->first) {
			surplus = work(pool, take(pool), false);
		} else if (may_help(pool)) {
			surplus = work(pool, accept_invitation(pool), true);
		} else {
			pool->idle++;
			pthread_cond_wait(&pool->work, &pool->lock);
			pool->idle--;
		}
	}
	pool->threads--;
	pthread_mutex_unlock(&pool->lock);
	pool_unref(pool);
	return NULL;
}

static void start_thread(struct pool *pool)
{
	sigset_t all, before;
	pthread_t thread;

	if (pool->threads - pool->stuck >= pool->concurrency ||
	    pool->threads >= pool->concurrency + STUCK_MAX)
		return;
	sigfillset(&all); /* signals are Python's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	atomic_fetch_add(&pool->refs, 1);
	if (pthread_create(&thread, NULL, thread_main, pool)) {
		atomic_fetch_sub(&pool->refs, 1);
	} else {
		pthread_detach(thread);
		pool->threads++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void pool_go_on(struct pool *pool, struct job *job)
{
	job->goes_on = true;
	job->next = pool->first;
	pool->first = job;
	if (!job->next)
		pool->end = &job->next;
	pool->queued++;
	if (pool->idle < pool->queued)
		start_thread(pool);
	pthread_cond_signal(&pool->work);
}

/* Threads that hang beyond their jobs' deadlines are replaced. */
static void give_up_on_stuck(struct pool *pool)
{
	double now = now_s();

	for (struct hand *hand = pool->working; hand; hand = hand->next)
		if (now - hand->started_s > hand->deadline_s)
			pool_give_up(pool, hand);
}

bool pool_submit(struct pool *pool, struct job *job)
{
	uint64_t one = 1;
	bool taken = true;

	pthread_mutex_lock(&pool->lock);
	give_up_on_stuck(pool);
	if (job->kind != CLOSE &&
	    (pool->closed || (pool->stuck >= STUCK_MAX && pool->idle <= pool->queued))) {
		job->error = EIO;
		taken = !is_for_the_front(job);
	}
	if (!taken) {
		job_free(job);
	} else if (job->error) {
		*pool->done_end = job;
		pool->done_end = &job->next;
		if (write(pool->event_fd, &one, sizeof(one)) < 0)
			abort();
	} else {
		*pool->end = job;
		pool->end = &job->next;
		pool->queued++;
		for (unsigned i = pool->idle; i < pool->queued; i++)
			start_thread(pool);
		pthread_cond_signal(&pool->work);
	}
	pthread_mutex_unlock(&pool->lock);
	return taken;
}

struct job *pool_job(struct pool *pool, enum kind kind, const char *path,
		     const struct version *version, uint64_t id)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->fd = -1;
	job->id = id;
	job->kind = kind;
	job->version = *version;
	job->deadline_s = pool->deadline_s;
	job->path = strdup(path);
	if (!job->path) {
		job_free(job);
		return NULL;
	}
	return job;
}

/* --- the front --- */

/* struct reader: a file that the front wants. */
static bool read_for(void *context, const char *path, const struct version *version,
		     reader_done *done, void *done_context, uint64_t tag)
{
	struct job *job = pool_job(context, READ, path, version, tag);

	if (!job)
		return false;
	job->told = done;
	job->told_context = done_context;
	return pool_submit(context, job);
}

/* And a directory. */
static bool list_for(void *context, const char *path, const struct version *version,
		     lister_done *done, void *done_context, uint64_t tag)
{
	struct pool *pool = context;
	struct job *job = pool_job(pool, SCAN, path, version, tag);

	if (!job)
		return false;
	job->told_names = done;
	job->told_context = done_context;
	pthread_mutex_lock(&pool->lock);
	job->trust = pool->trust;
	pthread_mutex_unlock(&pool->lock);
	if (!job->trust) {
		job_free(job);
		return false;
	}
	return pool_submit(pool, job);
}

/* And where a file has data. */
static bool seek_for(void *context, const char *path, const struct version *version,
		     uint64_t offset, unsigned count, seeker_done *done, void *done_context,
		     uint64_t tag)
{
	struct job *job = pool_job(context, SEEK, path, version, tag);

	if (!job)
		return false;
	job->offset = offset;
	job->length = count;
	job->told_extents = done;
	job->told_context = done_context;
	return pool_submit(context, job);
}

/* --- its life --- */

struct pool *pool_new(const char *root, unsigned concurrency, uint64_t device,
		      size_t listing_max, double deadline_s)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	pthread_condattr_t by_clock;
	int error;

	if (!pool)
		return NULL;
	atomic_init(&pool->refs, 1);
	pool->concurrency = concurrency;
	pool->listing_max = listing_max;
	pool->root = strdup(root);
	pool->deadline_s = deadline_s;
	pool->files = pool->root ? files_new(pool->root, deadline_s) : NULL;
	pool->filesystems = filesystems_new(root, device);
	error = pool->filesystems ? ENOMEM : errno;
	pool->reader = (struct reader){ pool, read_for, list_for, seek_for };
	/* where there is none, nothing is ever trusted */
	pool->mounts_fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	pool->end = &pool->first;
	pool->done_end = &pool->done;
	pool->shared_end = &pool->shared;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->work, NULL);
	pthread_condattr_init(&by_clock);
	pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->watch, &by_clock);
	pthread_condattr_destroy(&by_clock);
	pool->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (pool->event_fd < 0 || !pool->root || !pool->files || !pool->filesystems) {
		if (pool->event_fd < 0)
			error = errno;
		pool_unref(pool);
		errno = error;
		return NULL;
	}
	return pool;
}

void pool_close(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->closed = true;
	pthread_cond_broadcast(&pool->work);
	pthread_cond_broadcast(&pool->watch);
	pthread_mutex_unlock(&pool->lock);
}

struct job *pool_drain(struct pool *pool)
{
	struct job *done;
	uint64_t ignored;

	pthread_mutex_lock(&pool->lock);
	done = pool->done;
	pool->done = NULL;
	pool->done_end = &pool->done;
	if (read(pool->event_fd, &ignored, sizeof(ignored)) < 0)
		ignored = 0; /* woken for nothing */
	pthread_mutex_unlock(&pool->lock);
	return done;
}

void pool_replace_stuck(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	give_up_on_stuck(pool);
	for (unsigned i = pool->idle; i < pool->queued && !pool->closed; i++)
		start_thread(pool);
	pthread_mutex_unlock(&pool->lock);
}

/* By threads, because closing may hang as well. */
void pool_close_unused(struct pool *pool, double for_s)
{
	static const struct version none;
	int fd;

	while (!pool->closed && (fd = files_take_unused(pool->files, for_s)) >= 0) {
		struct job *job = pool_job(pool, CLOSE, "", &none, 0);

		if (!job) {
			close(fd);
			return;
		}
		job->fd = fd;
		pool_submit(pool, job);
	}
}

bool pool_watch_mounts(struct pool *pool)
{
	bool untrusted;

	pthread_mutex_lock(&pool->lock);
	untrusted = !pool->trust && pool->mounts_fd >= 0;
	if (untrusted)
		mounts_changed(pool); /* from now on */
	pthread_mutex_unlock(&pool->lock);
	return untrusted;
}

void pool_trust_mounts(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->trust = ++pool->trust_last;
	pthread_mutex_unlock(&pool->lock);
}
