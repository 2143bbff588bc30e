/* A wall clock that is wrong by COPPER_LAB_SKEW_NS nanoseconds, for one process: LD_PRELOAD.
 *
 * A node compares the wall clock with the times that the source's server gives. libc gives the
 * wrong time to Python and C alike. The kernel keeps the right one, so a wall-clock deadline is
 * shifted back before the kernel gets it. Monotonic clocks and file times are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define SECOND_NS 1000000000ll
/* Of a deadline of unknown clock: no machine is up for thirty years. */
#define WALL_CLOCK_S 1000000000ll

static int64_t skew_ns;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_mutex_timedlock)(pthread_mutex_t *, const struct timespec *);
static int (*real_sem_timedwait)(sem_t *, const struct timespec *);

static void *real(const char *name)
{
	/* An older version of the same name may come first, and has another layout. */
	void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");

	return found ? found : dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void begin(void)
{
	const char *text = getenv("COPPER_LAB_SKEW_NS");

	real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	real_cond_timedwait = real("pthread_cond_timedwait");
	real_mutex_timedlock = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
	real_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
	skew_ns = text ? strtoll(text, NULL, 10) : 0;
}

static void shift(struct timespec *time, int64_t by_ns)
{
	int64_t ns = time->tv_nsec + by_ns % SECOND_NS;

	time->tv_sec += by_ns / SECOND_NS;
	if (ns < 0) {
		ns += SECOND_NS;
		time->tv_sec--;
	} else if (ns >= SECOND_NS) {
		ns -= SECOND_NS;
		time->tv_sec++;
	}
	time->tv_nsec = (long)ns;
}

static struct timespec unshifted(const struct timespec *deadline)
{
	struct timespec found = *deadline;

	if (found.tv_sec > WALL_CLOCK_S)
		shift(&found, -skew_ns);
	return found;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int failed;

	if (!real_clock_gettime) /* another library's constructor comes before ours */
		real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	failed = real_clock_gettime(clock, now);
	if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		shift(now, skew_ns);
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec time;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &time))
		return -1;
	now->tv_sec = time.tv_sec;
	now->tv_usec = time.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *out)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now))
		return -1;
	if (out)
		*out = now.tv_sec;
	return now.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
	return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
			   const struct timespec *restrict deadline)
{
	struct timespec until = unshifted(deadline);

	return real_cond_timedwait(cond, mutex, &until);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex,
			    const struct timespec *restrict deadline)
{
	struct timespec until = unshifted(deadline);

	return real_mutex_timedlock(mutex, &until);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline)
{
	struct timespec until = unshifted(deadline);

	return real_sem_timedwait(semaphore, &until);
}
