/*
 * The front: threads that own /dev/fuse and answer what is already known.
 *
 *   kernel <-- fuse_fd --> front threads --(miss_fd, SEQPACKET)--> pyfuse3 on trio
 *                 ^             |  ^ tables.h, filled by the handlers
 *                 |             +--(control_fd, SEQPACKET)--> trio: ioctls of ours
 *                 +--- replier thread <--- replies from both sockets
 *
 * A request that the tables can answer never leaves C.  Another one is kept as a
 * *pending*, and sent on as it is.  The handlers then fill the tables and reply with
 * the private error FRONT_RETRY: the front answers the kept request again, now from
 * the tables.  So there is one encoder of replies, and one keeper of the kernel's
 * reference counts.  A read that misses again after that is sent on with FRONT_FULL
 * in its handle: its handler must answer with the bytes themselves.
 *
 * Files of listings that the handlers *granted* are not even asked for, nor the names of
 * directories below them, where that was granted too: the source's threads read and list
 * (fetches.c), and the handlers hear of it later.
 *
 * Every pending is answered exactly once, by whoever takes it out of the table: the
 * replier, the end of a fetch, a bypass worker, its deadline, or an interrupt by a fatal
 * signal.
 *
 * No thread of the front ever takes the GIL, blocks in a send, or waits for the source,
 * save the bypass workers, which do nothing else.
 */
#ifndef COPPERFS_FRONT_H
#define COPPERFS_FRONT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include <linux/fuse.h>

#include "../../reader.h"
#include "tables.h"

/* Not an errno that the kernel or a source can produce; libfuse lets up to 999 pass. */
enum { FRONT_RETRY = 998 };
#define FRONT_FULL (1ull << 63)

/* 'copperfs' among ioctl types; docs/ioctl.md has the requests. */
enum { FRONT_IOCTL_TYPE = 0xC7 };

enum {
	REQUEST_MAX = 64 * 1024,      /* also the most forgets that come at once */
	REPLY_MAX = 1024 * 1024,      /* data of one reply: the kernel's 256 pages */
	WRITE_MAX = 4096,	      /* writes are refused; the least the kernel takes */
	PENDING_BUCKETS = 4096,
	WAITER_BUCKETS = 256,
	LOOKED_INTO = 1024,
	PENDING_MAX = 100000,	      /* some 500 bytes each: 50 MB at the very worst */
	BYPASS_THREADS_MAX = 64,      /* 64 reads of 128 KiB at 20 ms are 400 MiB/s */
	HANDLES_MAX = 256,
	HANDLES_PART = 4,	      /* of all descriptors, at most */
	TRIES_MAX = 16,
	/* the handlers keep the source's deadline themselves; this is the last resort */
	GRACE_S = 5,
	TRACE_MAX = 32 * 1024 * 1024, /* some 250,000 records in a tenth of a second */
	HUNG_NS = 100000000, /* the kernel tries again at once, if it does */
};

/* Kinds of requests, for the statistics; module.c has their names. */
enum kind {
	KIND_LOOKUP, KIND_GETATTR, KIND_READLINK, KIND_READ, KIND_READDIR, KIND_STATFS,
	KIND_OPEN, KIND_IOCTL, KIND_REFUSED, KIND_OTHER, KINDS,
};
/* How it was answered. */
enum answer { ANSWER_HIT, ANSWER_FETCH, ANSWER_MISS, ANSWER_BYPASS, ANSWERS };

/* Latencies in buckets of a quarter of an octave of nanoseconds. */
enum { LATENCY_BUCKETS = 160 };

struct front_statistics {
	_Atomic uint64_t answers[KINDS][ANSWERS];
	_Atomic uint64_t latency[KINDS][ANSWERS][LATENCY_BUCKETS];
	_Atomic uint64_t negative;	/* lookups answered with "no such file" */
	_Atomic uint64_t read_bytes[ANSWERS];
	_Atomic uint64_t forgets, interrupts, killed, overdue, overflows, protocol_errors,
		full_replies, notifications, handler_requests;
};

struct pending {
	struct pending *next;
	struct pending *next_waiter; /* of those that wait for a fetch for the same node */
	uint64_t unique;
	uint64_t started_ns;
	uint32_t tries;
	bool interrupted;
	enum answer answer;
	size_t size;
	_Alignas(8) char request[];
};

struct bypass_job; /* bypass.c */

/* A file that was read without asking, or a directory that was listed, for the handlers to
 * hear of. */
struct fetched {
	struct fetched *next;
	uint64_t id;
	uint64_t epoch;
	uint64_t credit; /* what it took, and takes until they have heard */
	bool ahead;	 /* it was read ahead */
	bool used;	 /* ... and asked for meanwhile */
	struct fuse_attr attr;
	struct blob *blob; /* NULL: it is a listing */
	char *packed;
	size_t packed_size;
	size_t path_length;
	char path[];
};

/* What is to be fetched ahead, in its order; under the tables' lock. */
struct ahead_list {
	struct ahead *first, **end;
	uint32_t count;
	unsigned running;
};

/* An answer "no such name" that the kernel may believe, from when it was found until it is
 * written; under the tables' lock. */
struct denial {
	struct denial *next, **link;
	uint64_t epoch;
};

struct front {
	struct tables tables;
	struct denial *denials;
	pthread_cond_t denial_written;
	_Atomic unsigned denials_awaited; /* by so many */
	int fuse_fd, miss_fd, control_fd, wake_fd;
	bool kernel_cache;
	unsigned threads_count;
	_Atomic unsigned max_pages;
	uint64_t deadline_ns; /* of the source, for fetches and the bypass */
	uint64_t init_offered; /* what the kernel offered in INIT */
	_Atomic bool opens_unasked; /* the kernel stops asking for opens after ENOSYS */
	_Atomic bool ended;    /* unmounted, or told to stop */
	struct fuse_statfs_out statfs; /* under the tables' lock */
	_Atomic bool statfs_known;

	pthread_mutex_t pending_lock;
	struct pending *pending[PENDING_BUCKETS];
	struct pending *waiters[WAITER_BUCKETS]; /* for fetches */
	_Atomic unsigned pending_count; /* the statistics read it without the lock */
	unsigned interrupted_count;
	/* Lookups and walks under way by the number of their directory, several to a slot: the
	 * kernel holds its lock for them. */
	_Atomic unsigned looked_into[LOOKED_INTO];

	pthread_mutex_t overflow_lock;
	struct overflow *overflow_first, **overflow_end;

	pthread_mutex_t bypass_lock;
	pthread_cond_t bypass_work;
	struct bypass_job *bypass_first, **bypass_end;
	_Atomic unsigned bypass_threads; /* as pending_count */
	unsigned bypass_idle;
	pthread_t bypass_thread[BYPASS_THREADS_MAX];

	const struct reader *reader; /* NULL: every file is asked for */
	uint64_t whole_max;
	bool finds_holes; /* of larger files the source may be asked for holes */
	pthread_mutex_t fetched_lock;
	struct fetched *fetched_first, **fetched_end;
	uint64_t credit; /* bytes that may be read without asking */
	uint64_t credit_most; /* ... when nothing is on its way */
	int fetched_fd;

	unsigned ahead_max; /* so many files at a time are read ahead; 0: none ever */
	struct ahead_list ahead_files, ahead_lists;

	_Atomic bool tracing;
	pthread_mutex_t trace_lock;
	char *trace; /* records, while somebody wants them */
	size_t trace_room, trace_used;
	uint64_t trace_lost;

	pthread_t *threads;
	pthread_t replier;
	struct front_statistics statistics;
};

uint64_t now_ns(void);

/* front.c: lifecycle.  The descriptors stay the caller's. */
int front_init(struct front *f, uint32_t nodes_max);
int front_start(struct front *f);
void front_stop(struct front *f);
void front_destroy(struct front *f);

/* requests.c: one request from the kernel; scratch has REPLY_MAX bytes. */
void front_request(struct front *f, const char *request, size_t size, char *scratch);
/* A kept request, again, now that the tables were filled; takes the pending. */
void front_retry(struct front *f, struct pending *pending, char *scratch);

/* reply.c: what goes to the kernel. */
bool front_reply(struct front *f, uint64_t unique, int error, const void *data, size_t size);
bool front_reply_parts(struct front *f, uint64_t unique, struct iovec *parts, int count);
void front_count(struct front *f, const struct fuse_in_header *in, enum answer answer,
		 uint64_t started_ns);
int front_invalidate_entry(struct front *f, uint64_t parent, const char *name, size_t length);
int front_invalidate_inode(struct front *f, uint64_t id);
/* The first with the tables locked, the second without. */
void denial_begin(struct front *f, struct denial *denial);
void denial_end(struct front *f, struct denial *denial);
/* Directories that a notification would wait for, one for each slot of looked_into. */
struct later {
	bool some, slots[LOOKED_INTO];
};
long front_invalidate_all(struct front *f, struct later *later);
long front_invalidate_later(struct front *f, const struct later *later);
long front_shed(struct front *f, uint32_t count);

/* misses.c: what is on its way through Python. */
void miss_forward(struct front *f, struct pending *pending);
struct pending *pending_new(const char *request, size_t size, uint64_t started_ns);
bool pending_add(struct front *f, struct pending *pending);
struct pending *pending_claim(struct front *f, uint64_t unique);
struct pending *pending_claim_waiters(struct front *f, uint64_t id);
void pending_interrupt(struct front *f, uint64_t interrupt_unique, uint64_t unique);
void front_handler_reply(struct front *f, char *reply, size_t size, char *scratch);
void *replier_main(void *front);
void misses_destroy(struct front *f);

/* fetches.c: whole files read, and directories listed, without asking the handlers. */
char *read_begin(struct front *f, struct node *file, struct version *version);
void read_start(struct front *f, uint64_t id, char *path, const struct version *version);
char *list_begin(struct front *f, struct node *directory, struct version *version);
void list_start(struct front *f, uint64_t id, char *path, const struct version *version);
bool list_may_begin(const struct front *f, const struct node *directory);
void list_end(struct front *f, uint64_t id, char *packed, size_t size);
/* Taken before a directory is listed, because nobody knows how large that will be: most need
 * less, and one that needs more has to find the rest. */
enum { LISTING_CREDIT = 16 * 1024 };
char *fetch_begin(struct front *f, struct node *node, uint64_t credit, struct version *version);
reader_done read_done;
lister_done list_done;
void give_credit(struct front *f, uint64_t bytes);
void fetched_free(struct fetched *fetched);
void fetches_destroy(struct front *f);

struct version version_of(const struct fuse_attr *a);

/* holes.c: where a file has data. The first two with the tables locked. EAGAIN: the source has
 * to be asked. seek_start() takes the pending. */
int hole_find(const struct front *f, const struct node *node, const struct fuse_lseek_in *asked,
	      bool retried, uint64_t *found);
char *seek_begin(const struct node *node, uint64_t offset, struct version *version,
		 unsigned *count);
void seek_start(struct front *f, struct pending *pending, const char *path,
		const struct version *version, unsigned count);

/* ahead.c: what will be asked for, as far as one can tell. The first two with the tables
 * locked, ahead_start() after them. */
void ahead_note(struct front *f, const struct node *file);
void ahead_listed(struct front *f, const struct node *directory);
void ahead_read(struct front *f, uint64_t id);
void ahead_init(struct front *f);
void ahead_start(struct front *f);
void ahead_destroy(struct front *f);

/* endings.c: the small files of a listing by what they end in; with the tables locked. */
enum { AHEAD_FILE_BYTES_MAX = 128 * 1024 };
const char *ending_of(const char *name, size_t name_length, size_t *length);
bool is_read_ahead(const struct front *f, const struct fuse_attr *attr);
struct ending *ending_find(struct front *f, struct listing *listing, const char *text,
			   size_t length);
/* Tests count how often a name is looked at. */
#ifdef AHEAD_STEPS
extern uint64_t ahead_steps;
#define AHEAD_STEP() ((void)ahead_steps++)
#else
#define AHEAD_STEP() ((void)0)
#endif

/* bypass.c: reads that go straight to the source's file. */
bool bypass_read_nowait(struct front *f, struct handle *handle, const struct fuse_in_header *in,
			const struct fuse_read_in *read, char *scratch);
void bypass_queue(struct front *f, struct handle *handle, struct pending *pending);
void bypass_stop(struct front *f);

/* trace.c: what was asked of which path. */
bool trace_begin(struct front *f, size_t room);
void trace_end(struct front *f);
char *trace_take(struct front *f, size_t *size, uint64_t *lost);
void trace_note(struct front *f, const struct fuse_in_header *in, enum kind kind,
		enum answer answer, uint64_t started_ns, uint64_t took_ns);

/* init.c: the negotiation with the kernel. */
void init_edit_request(struct front *f, char *request, size_t size);
bool init_edit_reply(struct front *f, char *reply, size_t size);

#endif
