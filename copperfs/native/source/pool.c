/*
 * Thread pool of the source: a fixed number of threads do its blocking calls. A thread that hangs
 * longer than its job's deadline no longer counts, and another is started, up to STUCK_MAX times.
 * Beyond that a job that finds no idle thread fails at once with EIO.
 *
 * Threads share scans (decision 12). A thread that has waited for the source in a scan invites one
 * more for each slow_s of the wait, up to HANDS_MAX. An idle thread accepts, and leaves as soon as
 * a job finds no idle thread, or another scan has invited.
 *
 * The thread that owns the job stays until all names are claimed, and waits for no other: the last
 * to leave packs the listing and reports it. A thread that hangs in a name is left behind
 * (hung_threads.c), and another does the rest, while fewer than STUCK_MAX hang.
 *
 * Longer than most modules: jobs, hung threads and shared scans are under one lock.
 */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "../bytecode_names.h"

enum {
	/* Lustre's client has at most 8 requests under way to a metadata server
	 * (mdc.*.max_rpcs_in_flight). */
	HANDS_MAX = 8,
	HELPERS_MAX = HANDS_MAX - 1, /* in all scans together */
	/* Threads that close files for jobs that wait for descriptors, which may hold all
	 * others. */
	CLOSERS_MAX = 4,
};
/* Between two tries without descriptors or memory. */
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
	if (job->scan) /* the pool was closed before another thread continued it */
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

/* Since the last call. */
static bool mounts_changed(struct pool *pool)
{
	struct pollfd polled = { .fd = pool->mounts_fd, .events = POLLPRI };

	return poll(&polled, 1, 0) != 0;
}

static bool mounts_are_as_trusted(struct pool *pool, const struct job *job)
{
	bool as_trusted;

	pthread_mutex_lock(&pool->lock); /* the kernel shows the flag to one reader only */
	if (pool->trust && mounts_changed(pool))
		pool->trust = 0;
	as_trusted = pool->trust && pool->trust == job->trust;
	pthread_mutex_unlock(&pool->lock);
	return as_trusted;
}

/* Python repeats a listing that fails here, and counts it then. */
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

static void look_through(struct job *job)
{
	job->mentioned = calloc(job->looked_for_count, sizeof(*job->mentioned));
	if (job->mentioned)
		find_mentioned(job->blob->data, job->blob->size, job->looked_for, job->mentioned);
}

/* For a scan this is only the beginning. */
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

static void pause_for(double seconds)
{
	struct timespec pause = { .tv_nsec = (long)(seconds * 1e9) };

	nanosleep(&pause, NULL);
}

static void start_thread(struct pool *pool, unsigned more);

static bool is_to_close(const struct pool *pool)
{
	return pool->first && pool->first->kind == CLOSE;
}

static unsigned workers(const struct pool *pool)
{
	return pool->threads - pool->stuck - pool->closing;
}

static void put_first(struct pool *pool, struct job *job)
{
	job->next = pool->first;
	pool->first = job;
	if (!job->next)
		pool->end = &job->next;
	pool->queued++;
}

/* Closing may hang. */
static void close_one_unused(struct pool *pool)
{
	static const struct version none;
	struct job *job = pool_job(pool, CLOSE, "", &none, 0);

	if (job)
		job->fd = files_take_unused(pool->files, 0);
	pthread_mutex_lock(&pool->lock);
	if (job && job->fd >= 0) {
		put_first(pool, job);
		job = NULL;
	}
	/* also for a job of a thread that hangs in the one before */
	if (is_to_close(pool) && !pool->idle && pool->closing < CLOSERS_MAX)
		start_thread(pool, 1);
	pthread_cond_signal(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	if (job)
		job_free(job);
}

/* Without descriptors or memory the fault is the daemon's. So the job waits for them, and at its
 * deadline ends like a job of a slow source. */
static void run_patiently(struct pool *pool, struct job *job)
{
	double pause_s = pause_first_s;

	run(pool, job);
	while (is_own_trouble(job->error)) {
		close_one_unused(pool);
		pause_for(pause_s);
		if (pool->closed || now_s() + pause_s > job->until_s) {
			job->error = ETIMEDOUT;
			break;
		}
		if (pause_s < pause_last_s)
			pause_s *= 2;
		job->error = 0;
		run(pool, job);
	}
}

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
		start_thread(pool, 0);
	pthread_cond_signal(&pool->work);
	return true;
}

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

/* By a job, or by a scan that has fewer helpers. */
static bool is_wanted_elsewhere(const struct pool *pool, const struct job *job)
{
	return pool->closed || pool->queued > pool->idle ||
	       (pool->shared && (pool->shared != job || job->shared_next));
}

static struct job *take(struct pool *pool)
{
	struct job *job = pool->first;

	pool->first = job->next;
	if (!pool->first)
		pool->end = &pool->first;
	pool->queued--;
	job->next = NULL;
	if (!job->goes_on) /* otherwise it has the count of the thread before */
		job->hands = 1;
	return job;
}

static void begin_work(struct pool *pool, struct hand *hand, struct job *job, bool helps)
{
	*hand = (struct hand){ .started_s = now_s(), .deadline_s = job->deadline_s, .job = job,
			       .helps = helps, .closes = job->kind == CLOSE, .next = pool->working, .link = &pool->working };
	if (pool->working)
		pool->working->link = &hand->next;
	pool->working = hand;
	pool->busy++;
	pool->helping += helps;
	pool->closing += hand->closes;
}

static void no_longer_busy(struct pool *pool, const struct hand *hand)
{
	pool->busy--;
	pool->helping -= hand->helps;
	pool->closing -= hand->closes;
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

/* `waited_s` was just spent waiting for the source. A thread that was left behind must not touch
 * the job any more. */
static void look_at_names(struct pool *pool, struct job *job, struct hand *hand, double waited_s)
{
	bool goes = false, helps = hand->helps;
	double answered_s = 0; /* by a name; opening the directory does not count */

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

/* For the last thread of the job. False: it must be done again. */
static bool finish(struct pool *pool, struct job *job)
{
	struct listing_header head;

	if (job->scan) {
		job->error = scan_end(job->scan, &job->buffer);
		job->scan = NULL;
		/* as in run_patiently() */
		if (is_own_trouble(job->error) && !pool->closed &&
		    now_s() + pause_last_s < job->until_s) {
			pause_for(pause_last_s);
			return false;
		}
		if (is_own_trouble(job->error))
			job->error = ETIMEDOUT;
	}
	if (job->told_names && !job->error) {
		memcpy(&head, job->buffer.bytes, sizeof(head));
		if (!(head.flags & LISTING_BARE))
			pool->counts.stat += head.count;
	}
	tell(job);
	return true;
}

static void put_last(struct pool *pool, struct job *job)
{
	*pool->end = job;
	pool->end = &job->next;
	pool->queued++;
}

static void do_again(struct pool *pool, struct job *job)
{
	job->error = 0;
	job->slowest_s = 0;
	job->goes_on = false;
	put_last(pool, job);
	pthread_cond_signal(&pool->work); /* this thread may be surplus */
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
		abort(); /* cannot fail */
}

static bool is_surplus(const struct pool *pool)
{
	return workers(pool) > pool->concurrency && !is_to_close(pool);
}

/* Releases the lock meanwhile. True: this thread is not needed any more. */
static bool work(struct pool *pool, struct job *job, bool helps)
{
	struct hand hand;
	bool begins = !helps && !job->goes_on, ended;
	double waited_s = 0;

	begin_work(pool, &hand, job, helps);
	if (!job->until_s)
		job->until_s = hand.started_s + job->deadline_s;
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
		return is_surplus(pool);
	}
	if (!helps)
		withdraw_invitations(pool, job);
	if (--job->hands == 0) {
		pthread_mutex_unlock(&pool->lock);
		ended = finish(pool, job);
		pthread_mutex_lock(&pool->lock);
		pool->scans -= job->kind == SCAN;
		if (ended)
			put_back(pool, job);
		else
			do_again(pool, job);
	}
	end_work(pool, &hand);
	return is_surplus(pool);
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

/* Unless `concurrency` threads and `more` of them work already. */
static void start_thread(struct pool *pool, unsigned more)
{
	sigset_t all, before;
	pthread_t thread;

	if (workers(pool) >= pool->concurrency + more ||
	    pool->threads - pool->closing >= pool->concurrency + STUCK_MAX + more)
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
	put_first(pool, job);
	if (pool->idle < pool->queued)
		start_thread(pool, 0);
	pthread_cond_signal(&pool->work);
}

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
		put_last(pool, job);
		for (unsigned i = pool->idle; i < pool->queued; i++)
			start_thread(pool, 0);
		pthread_cond_signal(&pool->work);
	}
	pthread_mutex_unlock(&pool->lock);
	return taken;
}

struct job *pool_job(struct pool *pool, enum job_kind kind, const char *path,
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
	/* without it no listing is trusted */
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
		ignored = 0; /* waking without work does no harm */
	pthread_mutex_unlock(&pool->lock);
	return done;
}

void pool_replace_stuck(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	give_up_on_stuck(pool);
	for (unsigned i = pool->idle; i < pool->queued && !pool->closed; i++)
		start_thread(pool, 0);
	pthread_mutex_unlock(&pool->lock);
}

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
		mounts_changed(pool); /* changes count from now on */
	pthread_mutex_unlock(&pool->lock);
	return untrusted;
}

void pool_trust_mounts(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->trust = ++pool->trust_last;
	pthread_mutex_unlock(&pool->lock);
}
