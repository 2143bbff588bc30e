/*
 * Threads that wait for the source: pool.c.
 */
#ifndef COPPERFS_SOURCE_POOL_H
#define COPPERFS_SOURCE_POOL_H

#include "source.h"

#include <pthread.h>

/* At most this number of hung threads is replaced. */
enum { STUCK_MAX = 128 };

enum job_kind { SCAN, LOOK, READ, OPEN, CHUNK, SEEK, CLOSE };

struct job {
	struct job *next;
	unsigned long long id;
	enum job_kind kind;
	char *path; /* below the root */
	struct version version;
	uint64_t offset; /* of a chunk, or of a search for data */
	size_t length; /* or a number of extents */
	char **untouchable; /* NULL-terminated */
	/* in the format of bytecode_names.c, or NULL */
	char *looked_for;
	size_t looked_for_count;
	double deadline_s;
	double until_s; /* set when the job begins; it may be repeated until then */
	/* one of these receives the outcome instead of Python */
	reader_done *told;
	lister_done *told_names;
	seeker_done *told_extents;
	void *told_context;
	uint64_t trust; /* the pool's, when the job was submitted */
	/* under the pool's lock */
	unsigned hands, invited;
	struct job *shared_next, **shared_link; /* the link is NULL while not listed */
	struct scan *scan;
	double slowest_s;
	bool goes_on;	  /* the thread that began it was left behind */
	int error;
	struct blob *blob;
	bool *mentioned;
	struct buffer buffer; /* a listing, or a link's target */
	struct fuse_attr attributes;
	struct extents *extents;
	int fd;
};

struct hand {
	struct hand *next, **link;
	double started_s, deadline_s;
	bool helps;    /* in the scan of another thread */
	bool closes;   /* does not count towards `concurrency` */
	bool given_up; /* it hangs and does not count */
	/* for hung_threads.c: its name in a scan, and for how many looks */
	struct job *job;
	_Atomic size_t at;
	size_t seen_at;
	unsigned seen;
	/* When left behind it has no job, but a reference to the scan. */
	struct scan *left;
	char *left_path; /* of the directory; NULL: no memory */
};

/* Threads may outlive the Python object: the last reference frees this. */
struct pool {
	_Atomic unsigned refs;
	pthread_mutex_t lock;
	pthread_cond_t work, watch;
	struct job *first, **end;
	struct job *done, **done_end;
	struct job *shared, **shared_end; /* scans that have invited */
	struct hand *working;
	int event_fd;
	unsigned concurrency, threads, idle, stuck, queued, busy, invited, helping, closing;
	unsigned scans;
	bool closed, is_watched, watch_sleeps;
	struct filesystems *filesystems;
	uint64_t own_device;
	size_t listing_max;
	char *root; /* with a slash at its end */
	double deadline_s;
	struct source_counts counts;
	struct files *files;
	struct reader reader;
	/* The kernel flags it when anything is mounted. From then on directories are listed for
	 * Python alone, until it has read the mounts. */
	int mounts_fd;
	uint64_t trust, trust_last; /* 0: not now */
};

/* On failure NULL, with errno set. `root` ends with a slash. */
struct pool *pool_new(const char *root, unsigned concurrency, uint64_t device,
		      size_t listing_max, double deadline_s);
void pool_close(struct pool *pool);
void pool_unref(struct pool *pool);
struct job *pool_job(struct pool *pool, enum job_kind kind, const char *path,
		     const struct version *version, uint64_t id);
/* False: the job is freed; its receiver is not Python, and no thread can do it. */
bool pool_submit(struct pool *pool, struct job *job);
/* The caller frees the jobs. */
struct job *pool_drain(struct pool *pool);
void pool_replace_stuck(struct pool *pool);
void pool_close_unused(struct pool *pool, double for_s);
/* Whether listing for the front is off; mounts are noticed from now on. */
bool pool_watch_mounts(struct pool *pool);
void pool_trust_mounts(struct pool *pool);

/* --- under the lock, for hung_threads.c --- */

/* False: no name is left, or there are enough threads. */
bool pool_invite(struct pool *pool, struct job *job);
void pool_go_on(struct pool *pool, struct job *job);
void pool_give_up(struct pool *pool, struct hand *hand);

/* --- hung_threads.c: both under the lock --- */

void watch_begin(struct pool *pool);
/* Skips names in which threads hang that earlier scans left behind. */
void watch_skip(struct pool *pool, const struct job *job);

void jobs_free(struct job *job);
void job_free(struct job *job);

#endif
