/*
 * Watch thread: finds names whose stat hangs, so that scans continue without them (decision 82).
 *
 * A stat of a file whose server is gone hangs until the server is back, and cannot be interrupted.
 * So the scan *leaves the thread behind*: the name becomes a row without attributes, and the thread
 * counts as hung (pool.c). A later scan skips the name while the thread hangs.
 *
 * Separate lookups add to the load of a source. So a name is left behind only if it is slow
 * compared with the others of its directory: after a second, or four times the slowest answer,
 * whichever is longer. While no name has been answered, the scan waits for half of the deadline, so
 * that the listing still comes in time.
 *
 * Time is counted in looks at the thread: after the process was stopped for a minute, it is one
 * look later. When a thread is seen in one name twice, another one is invited, so that a scan waits
 * for several hung names side by side.
 *
 * When STUCK_MAX threads hang, no more are left behind, and the scan fails at its deadline.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <signal.h>
#include <string.h>
#include <time.h>

enum { LOOKS_AT_LEAST = 4, SLOWER_TIMES = 4 };
static const double left_after_s = 1.0, look_least_s = 0.005;

static double shorter(double a, double b) { return a < b ? a : b; }

static double look_every_s(const struct pool *pool)
{
	double every_s = shorter(left_after_s, pool->deadline_s / 2) / LOOKS_AT_LEAST;

	return every_s > look_least_s ? every_s : look_least_s;
}

static bool hangs(const struct pool *pool, const struct hand *hand)
{
	double waits_s = pool->deadline_s / 2, slow_s = SLOWER_TIMES * hand->job->slowest_s;

	if (pool->stuck >= STUCK_MAX) /* no thread would replace it */
		return false;
	if (scan_has_answered(hand->job->scan))
		waits_s = shorter(waits_s, slow_s > left_after_s ? slow_s : left_after_s);
	return hand->seen >= LOOKS_AT_LEAST && hand->seen * look_every_s(pool) >= waits_s;
}

static void leave(struct pool *pool, struct hand *hand)
{
	struct job *job = hand->job;

	if (!scan_leave(job->scan, hand->seen_at))
		return; /* it has just been answered */
	hand->left = job->scan;
	hand->left_path = strdup(job->path);
	hand->job = NULL;
	pool_give_up(pool, hand);
	/* The owner of a scan stays until all names are claimed, and some thread has to be the
	 * last. */
	if (!hand->helps || job->hands == 1)
		pool_go_on(pool, job);
	else
		job->hands--;
}

static void look_at_hands(struct pool *pool)
{
	struct hand *next;

	for (struct hand *hand = pool->working; hand; hand = next) {
		size_t at;

		next = hand->next;
		if (hand->left) /* watch_skip() needs the place */
			continue;
		at = hand->at;
		if (!at || at != hand->seen_at) {
			hand->seen_at = at;
			hand->seen = 0;
			continue;
		}
		hand->seen++;
		pool_invite(pool, hand->job);
		if (hangs(pool, hand))
			leave(pool, hand);
	}
}

static void wait_for_look(struct pool *pool)
{
	struct timespec until;
	long ns;

	clock_gettime(CLOCK_MONOTONIC, &until);
	ns = until.tv_nsec + (long)(look_every_s(pool) * 1e9); /* a quarter of a second at most */
	until.tv_sec += ns / 1000000000;
	until.tv_nsec = ns % 1000000000;
	pthread_cond_timedwait(&pool->watch, &pool->lock, &until);
}

static void *watch_main(void *argument)
{
	struct pool *pool = argument;

	pthread_mutex_lock(&pool->lock);
	while (!pool->closed) {
		pool->watch_sleeps = !pool->scans;
		if (pool->watch_sleeps) {
			pthread_cond_wait(&pool->watch, &pool->lock);
			continue;
		}
		wait_for_look(pool);
		look_at_hands(pool);
	}
	pthread_mutex_unlock(&pool->lock);
	pool_unref(pool);
	return NULL;
}

void watch_begin(struct pool *pool)
{
	sigset_t all, before;
	pthread_t thread;

	pool->scans++;
	if (pool->watch_sleeps)
		pthread_cond_signal(&pool->watch);
	if (pool->is_watched)
		return;
	sigfillset(&all); /* signals are Python's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	atomic_fetch_add(&pool->refs, 1);
	pool->is_watched = !pthread_create(&thread, NULL, watch_main, pool);
	if (pool->is_watched)
		pthread_detach(thread);
	else
		atomic_fetch_sub(&pool->refs, 1); /* the next scan tries again */
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void watch_skip(struct pool *pool, const struct job *job)
{
	for (const struct hand *hand = pool->working; hand; hand = hand->next)
		if (hand->left && hand->left_path && !strcmp(hand->left_path, job->path))
			scan_skip(job->scan, scan_name(hand->left, hand->seen_at));
}
