/*
 * The front: threads that own /dev/fuse and answer requests from the tables.
 *
 *   kernel <-- fuse_fd --> front threads --(miss_fd, SEQPACKET)--> pyfuse3 on trio
 *                 ^             |  ^ tables.h, filled by the handlers
 *                 |             +--(control_fd, SEQPACKET)--> trio: ioctls of ours
 *                 +--- replier thread <--- replies from both sockets
 *
 * A request that the tables cannot answer is kept as a *pending* and forwarded unchanged. The
 * handlers fill the tables and reply with FRONT_RETRY; the front then answers it from the tables
 * (decision 2). Content that was published since a request came answers it even if it has expired
 * by then.
 *
 * If the content is gone by then, the request is forwarded once more. publish.c then answers it
 * during the publication; a read has FRONT_WITH_BYTES in its fh, and its handler answers with the
 * bytes.
 *
 * Every pending is answered exactly once, by the code that takes it out of the table. No thread of
 * the front takes the GIL, blocks in a send, or waits for the source, except the bypass workers.
 */
#ifndef COPPERFS_FRONT_H
#define COPPERFS_FRONT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include <linux/fuse.h>

#include "../reader.h"
#include "requests_in_hand.h"
#include "tables.h"

/* No errno of a kernel or source; libfuse lets values up to 999 pass. */
enum { FRONT_RETRY = 998 };
#define FRONT_WITH_BYTES (1ull << 63)

enum { FRONT_IOCTL_TYPE = 0xC7 };

enum {
	REQUEST_MAX = 64 * 1024,      /* but for forgets */
	REPLY_MAX = 1024 * 1024,      /* the kernel's 256 pages */
	FORGOTTEN_AT_ONCE = 1024,
	READ_BUFFER = REPLY_MAX + 64 * 1024, /* the kernel wants it larger than max_write */
	PENDING_BUCKETS = 4096,
	WAITER_BUCKETS = 256,
	LOOKED_INTO = 1024,
	PENDING_MAX = 100000,	      /* some 500 bytes each */
	BYPASS_THREADS_MAX = 64,      /* 64 reads of 128 KiB at 20 ms are 400 MiB/s */
	HANDLES_MAX = 256,
	HANDLES_PART = 4,	      /* the share of all descriptors, at most */
	TRIES_MAX = 16,
	/* the handlers enforce the source's deadline; this is the last resort */
	GRACE_S = 5,
	TRACE_MAX = 32 * 1024 * 1024, /* some 250,000 records in a tenth of a second */
	HUNG_NS = 100000000, /* the kernel retries at once, if at all */
};

/* front_type.c has their names. */
enum kind {
	KIND_LOOKUP, KIND_GETATTR, KIND_READLINK, KIND_READ, KIND_READDIR, KIND_STATFS,
	KIND_OPEN, KIND_IOCTL, KIND_REFUSED, KIND_OTHER, KINDS,
};
enum served_by { SERVED_HIT, SERVED_FETCH, SERVED_MISS, SERVED_BYPASS, SERVED_KINDS };

/* In quarters of an octave of nanoseconds. */
enum { LATENCY_BUCKETS = 160 };

struct front_statistics {
	_Atomic uint64_t answers[KINDS][SERVED_KINDS];
	_Atomic uint64_t latency[KINDS][SERVED_KINDS][LATENCY_BUCKETS];
	_Atomic uint64_t negative;
	_Atomic uint64_t read_bytes[SERVED_KINDS];
	_Atomic uint64_t forgets, interrupts, killed, overdue, overflows, protocol_errors,
		full_replies, notifications, handler_requests;
	/* Errors of the front itself: EIO, ENOMEM. */
	_Atomic uint64_t unanswered, no_room;
};

struct pending {
	struct pending *next;
	struct pending *next_waiter;
	uint64_t unique;
	uint64_t started_ns;
	uint32_t tries;
	bool interrupted;
	struct request_record *record; /* for a successor, or NULL */
	enum served_by served_by;
	size_t size;
	_Alignas(8) char request[];
};

struct bypass_job;

/* Fetched without the handlers, which have not heard of it yet. */
struct fetched {
	struct fetched *next;
	uint64_t id;
	uint64_t epoch;
	uint64_t allowance;
	bool ahead;
	bool used;
	struct fuse_attr attr;
	struct blob *blob; /* NULL: it is a listing */
	char *packed;
	size_t packed_size;
	size_t path_length;
	char path[];
};

struct ahead_list {
	struct ahead *first, **end;
	uint32_t count;
	unsigned running;
};

/* A cacheable answer "no such name", until it is written. */
struct denial {
	struct denial *next, **link;
	uint64_t epoch;
};

/* A thread with the tables' lock may take pending_lock or fetched_lock as well. No other two locks
 * are ever held at once. Atomic fields are read without a lock. */
struct front {
	/* Constant once the threads run. */
	int fuse_fd, miss_fd, control_fd;
	int wake_fd;
	int fetched_fd; /* readable once something was fetched */
	int crowded_fd; /* readable with more than inodes_max inodes */
	bool kernel_cache;
	uint64_t deadline_ns;	     /* for fetches and the bypass */
	const struct reader *reader; /* NULL: every file goes through the handlers */
	uint64_t whole_max;
	bool finds_holes;
	uint64_t allowance_max; /* when no fetch is under way */
	unsigned ahead_max;   /* prefetches at a time; 0: none */
	bool below_overlay; /* which would answer ESTALE for all that it has cached */
	uint32_t *groups;   /* shown as files of shown_group */
	unsigned groups_count;
	uint32_t shown_group;
	bool inherited; /* the kernel has negotiated with another process */
	bool may_resend, may_record; /* how a successor may get requests */
	unsigned threads_count;
	pthread_t *threads;
	pthread_t replier;

	/* Set by the first request, before there is another. */
	uint64_t init_offered;
	_Atomic unsigned max_pages;
	_Atomic bool kernel_skips_opens; /* the kernel stops asking after ENOSYS */
	_Atomic bool records_requests;
	_Atomic unsigned readers;

	pthread_mutex_t end_lock; /* held while the end is announced */
	_Atomic bool ended;

	/* Under the tables' lock. */
	struct tables tables;
	struct ahead_list ahead_files, ahead_lists;
	struct denial *denials;
	pthread_cond_t denial_written;
	_Atomic unsigned denials_awaited;
	struct fuse_statfs_out statfs;
	_Atomic bool statfs_known;
	_Atomic bool crowded;

	pthread_mutex_t pending_lock;
	struct pending *pending[PENDING_BUCKETS];
	struct pending *waiters[WAITER_BUCKETS]; /* for fetches, or for a publication */
	_Atomic unsigned sent_again;		 /* how many for a publication */
	_Atomic unsigned pending_count;
	unsigned interrupted_count;
	/* Lookups and walks under way by their directory's number, several to a slot: the kernel
	 * holds the directory's lock during them. */
	_Atomic unsigned looked_into[LOOKED_INTO];

	pthread_mutex_t overflow_lock;
	struct overflow *overflow_first, **overflow_end;

	pthread_mutex_t bypass_lock;
	pthread_cond_t bypass_work;
	struct bypass_job *bypass_first, **bypass_end;
	_Atomic unsigned bypass_threads;
	unsigned bypass_idle;
	pthread_t bypass_thread[BYPASS_THREADS_MAX];

	pthread_mutex_t fetched_lock;
	struct fetched *fetched_first, **fetched_end;
	uint64_t allowance; /* bytes to fetch without the handlers */

	_Atomic bool tracing;
	pthread_mutex_t trace_lock;
	char *trace;
	size_t trace_room, trace_used;
	uint64_t trace_lost;

	struct front_statistics statistics;
};

uint64_t now_ns(void);

/* front.c. The descriptors stay the caller's. */
int front_init(struct front *f, uint32_t inodes_max);
/* Before the start. `fd` is the memory of the connection, which another process had if it is
 * `inherited`: then that one has decided how a successor gets requests. */
bool front_keep_connection(struct front *f, int fd, bool inherited, bool may_resend, bool may_record);
/* The kernel gives back what was not answered. An errno; EINVAL: it is older than 6.9. */
int front_resend(struct front *f);
enum takeover_by front_takeover_by(const struct front *f);
/* This process lives, and no thread of the front holds a lock for good. */
void front_sign_of_life(struct front *f);
int front_start(struct front *f);
void front_stop(struct front *f);
void front_destroy(struct front *f);

/* requests.c; scratch has REPLY_MAX bytes. */
void front_request(struct front *f, const char *request, size_t size, char *scratch);
/* Takes the pending. */
void front_retry(struct front *f, struct pending *pending, char *scratch);
/* Takes up the requests of a dead process. False with errno set. */
bool front_take_up(struct front *f);

/* reply.c */
bool front_reply(struct front *f, uint64_t unique, int error, const void *data, size_t size);
bool front_reply_parts(struct front *f, uint64_t unique, struct iovec *parts, int count);
void front_count(struct front *f, const struct fuse_in_header *in, enum served_by served_by,
		 uint64_t started_ns);
int front_invalidate_entry(struct front *f, uint64_t parent, const char *name, size_t length);
int front_invalidate_inode(struct front *f, uint64_t id);
/* The first with the tables locked, the second without. */
void denial_begin(struct front *f, struct denial *denial);
void denial_end(struct front *f, struct denial *denial);
/* Directories that a notification would wait for. */
struct later {
	uint64_t epoch;
	bool some, slots[LOOKED_INTO];
};
long front_invalidate_all(struct front *f, struct later *later);
long front_invalidate_later(struct front *f, const struct later *later);
long front_shed(struct front *f, uint32_t count);
/* There are more than inodes_max: crowded_fd is readable until the number is taken. */
void front_tell_crowded(struct front *f);
uint64_t front_take_crowded(struct front *f);

/* misses.c */
void miss_forward(struct front *f, struct pending *pending);
struct pending *pending_new(const char *request, size_t size, uint64_t started_ns);
/* After its reply, with no lock held. Without a record nothing happens. */
void request_answered(struct front *f, struct request_record *record);
void pending_free(struct front *f, struct pending *pending);
bool pending_add(struct front *f, struct pending *pending);
struct pending *pending_claim(struct front *f, uint64_t unique);
/* Takes out the wanted waiters of an inode, chained by next_waiter. */
typedef bool waiter_wanted(const struct pending *pending, const void *context);
struct pending *pending_claim_waiters(struct front *f, uint64_t id, waiter_wanted *wanted,
				      const void *context);
void pending_interrupt(struct front *f, uint64_t interrupt_unique, uint64_t unique);
void front_handler_reply(struct front *f, char *reply, size_t size, char *scratch);
void *replier_main(void *front);
void misses_destroy(struct front *f);

/* solo_fetches.c: only where the node is a job by itself. */
char *read_begin(struct front *f, struct inode *file, struct version *version);
void read_start(struct front *f, uint64_t id, char *path, const struct version *version);
char *list_begin(struct front *f, struct inode *directory, struct version *version);
void list_start(struct front *f, uint64_t id, char *path, const struct version *version);
bool list_may_begin(const struct front *f, const struct inode *directory);
void list_end(struct front *f, uint64_t id, char *packed, size_t size);
/* Taken before a listing's size is known. Most need less. */
enum { LISTING_ALLOWANCE = 16 * 1024 };
char *fetch_begin(struct front *f, struct inode *inode, uint64_t allowance,
		  struct version *version);
reader_done read_done;
lister_done list_done;
void return_allowance(struct front *f, uint64_t bytes);
void fetched_free(struct fetched *fetched);
void solo_fetches_destroy(struct front *f);

struct version version_of(const struct fuse_attr *a);

/* holes.c. The first two with the tables locked. EAGAIN: the source has to be asked. seek_start()
 * takes the pending. */
int hole_find(const struct front *f, const struct inode *inode, const struct fuse_lseek_in *seek,
	      bool retried, uint64_t *found);
char *seek_begin(const struct inode *inode, uint64_t offset, struct version *version,
		 unsigned *count);
void seek_start(struct front *f, struct pending *pending, const char *path,
		const struct version *version, unsigned count);

/* import_prefetch.c. The first two with the tables locked, ahead_start() after them. */
void ahead_note(struct front *f, const struct inode *file);
void ahead_listed(struct front *f, const struct inode *directory);
void ahead_read(struct front *f, uint64_t id);
void ahead_init(struct front *f);
void ahead_start(struct front *f);
void ahead_destroy(struct front *f);

/* suffix_index.c, with the tables locked. */
enum { AHEAD_FILE_BYTES_MAX = 128 * 1024 };
const char *ending_of(const char *name, size_t name_length, size_t *length);
bool is_read_ahead(const struct front *f, const struct fuse_attr *attr);
struct ending *ending_find(struct front *f, struct listing *listing, const char *text,
			   size_t length);
#ifdef AHEAD_STEPS
extern uint64_t ahead_steps;
#define AHEAD_STEP() ((void)ahead_steps++)
#else
#define AHEAD_STEP() ((void)0)
#endif

/* Forwards the claimed requests if `have_it` is false. */
void answer_claimed(struct front *f, struct pending *claimed, bool have_it);

/* publish.c. False: the kernel has forgotten the inode, or there is no memory. The first takes the
 * listing. */
bool front_publish_listing(struct front *f, uint64_t id, struct listing *listing);
bool front_publish_entry(struct front *f, uint64_t parent_id, const char *name, size_t length,
			 const struct fuse_attr *attr, const char *target, size_t target_length,
			 uint64_t fresh_until);
bool front_publish_attributes(struct front *f, uint64_t id, const struct fuse_attr *attr,
			      uint64_t fresh_until);

/* direct_reads.c */
bool bypass_read_nowait(struct front *f, struct handle *handle, const struct fuse_in_header *in,
			const struct fuse_read_in *read, char *scratch);
void bypass_queue(struct front *f, struct handle *handle, struct pending *pending);
void bypass_stop(struct front *f);

/* trace.c */
bool trace_begin(struct front *f, size_t room);
void trace_end(struct front *f);
char *trace_take(struct front *f, size_t *size, uint64_t *lost);
void trace_note(struct front *f, const struct fuse_in_header *in, enum kind kind,
		enum served_by served_by, uint64_t started_ns, uint64_t took_ns);

/* init.c */
/* libfuse negotiates as it did for another process, of whose reply the kernel hears nothing. */
bool init_replay(struct front *f);
void init_edit_request(struct front *f, char *request, size_t size);
bool init_edit_reply(struct front *f, char *reply, size_t size);

#endif
