/*
 * Threads that wait for the source, so that nobody else has to; see pool.c.
 */
#ifndef COPPERFS_SOURCE_POOL_H
#define COPPERFS_SOURCE_POOL_H

#include "native.h"

#include <pthread.h>

/* So many threads that hang are replaced. */
enum { STUCK_MAX = 128 };

enum kind { SCAN, LOOK, READ, OPEN, CHUNK, SEEK, CLOSE };

struct job {
	struct job *next;
	unsigned long long id;
	enum kind kind;
	char *path; /* below the root */
	struct version version;
	uint64_t offset; /* of a chunk, or where data is looked for */
	size_t length; /* or a number of extents */
	char **untouchable; /* NULL-terminated */
	/* of a file that is read: what to look for in it, as mentions.h wants it, or NULL */
	char *looked_for;
	size_t looked_for_count;
	double deadline_s;
	/* who is told, instead of Python: one of these */
	reader_done *told;
	lister_done *told_names;
	seeker_done *told_extents;
	void *told_context;
	uint64_t trust; /* of the mounts, when it was asked for */
	/* while it is worked on, under the pool's lock */
	unsigned hands, invited;
	struct job *shared_next, **shared_link; /* the link is NULL when it is not listed */
	struct scan *scan;
	double slowest_s; /* of what has been answered, if it was slow at all */
	bool goes_on;	  /* begun by another thread, which was left behind */
	/* the outcome */
	int error;
	struct blob *blob;
	bool *mentioned; /* of each that was looked for */
	struct buffer buffer; /* a listing, or a link's target */
	struct attributes attributes;
	struct extents *extents;
	int fd;
};

/* A thread at work. */
struct hand {
	struct hand *next, **link;
	double started_s, deadline_s;
	bool helps;    /* in the scan of another */
	bool given_up; /* it hangs and does not count */
	/* for watch.c: where it is in a scan, and since how many looks at it */
	struct job *job;
	_Atomic size_t at;
	size_t seen_at;
	unsigned seen;
	/* once it was left behind there it has no job any more, but a reference to the scan */
	struct scan *left;
	char *left_path; /* of the directory; NULL: no memory for that */
};

/* Threads may outlive the Python object: whoever lets go last frees this. */
struct pool {
	_Atomic unsigned refs;
	pthread_mutex_t lock;
	pthread_cond_t work, watch;
	struct job *first, **end;
	struct job *done, **done_end;
	struct job *shared, **shared_end; /* scans that have invited */
	struct hand *working;
	int event_fd;
	unsigned concurrency, threads, idle, stuck, queued, busy, invited, helping;
	unsigned scans; /* under way */
	bool closed, is_watched, watch_sleeps;
	struct filesystems *filesystems;
	uint64_t own_device;
	size_t listing_max;
	char *root; /* with a slash at its end */
	double deadline_s;
	struct source_counts counts;
	struct files *files;
	struct reader reader;
	/* The kernel flags this descriptor when anything is mounted. Then directories are
	 * listed for Python alone, until it has seen what was mounted where. */
	int mounts_fd;
	uint64_t trust, trust_last; /* 0: not now */
};

/* NULL, and errno. `root` ends with a slash. */
struct pool *pool_new(const char *root, unsigned concurrency, uint64_t device,
		      size_t listing_max, double deadline_s);
void pool_close(struct pool *pool);
void pool_unref(struct pool *pool);
struct job *pool_job(struct pool *pool, enum kind kind, const char *path,
		     const struct version *version, uint64_t id);
/* False, and the job is gone: somebody else is to be told, but nobody can do it. */
bool pool_submit(struct pool *pool, struct job *job);
/* What has ended since this was last asked; the caller frees it. */
struct job *pool_drain(struct pool *pool);
void pool_replace_stuck(struct pool *pool);
/* Files that were kept open and not used for so long. */
void pool_close_unused(struct pool *pool, double for_s);
/* Whether nothing is listed for the front; mounts are noticed from now on. */
bool pool_watch_mounts(struct pool *pool);
void pool_trust_mounts(struct pool *pool);

/* --- under the lock, for watch.c --- */

/* One more thread for a scan; false: there is nothing for it to do, or there are enough. */
bool pool_invite(struct pool *pool, struct job *job);
/* Another thread does at once what is left of it. */
void pool_go_on(struct pool *pool, struct job *job);
void pool_give_up(struct pool *pool, struct hand *hand);

/* --- watch.c --- */

/* Under the lock: a scan has begun. */
void watch_begin(struct pool *pool);
/* Under the lock: names of this scan in which threads hang that others have left behind. */
void watch_skip(struct pool *pool, const struct job *job);

void jobs_free(struct job *job);
void job_free(struct job *job);

#endif
