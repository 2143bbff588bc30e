/*
 * Connection state: what a successor of this daemon has to know of the kernel's connection, in
 * memory that outlives the process (decision 98).
 *
 * The kernel holds node numbers, and has agreed on features. Another process that answers it must
 * know each number with its path and version, how often the kernel refers to it, and what was
 * agreed on. All else is found again: content, listings, and handles can be withdrawn at any time.
 *
 * The process may be killed between any two instructions:
 * - A record counts once its number is stored, which happens last; its removal begins with the
 *   number. A number is stored before the kernel is told of it.
 * - A reference is counted before the kernel has it, and forgotten after the kernel has said so. So
 *   a successor may count one too many, which costs a record, but never one too few.
 * - The attributes of a directory may be half old and half new. They have expired for a successor,
 *   which asks for them before it shows them. Those of all else never change.
 *
 * Where the kernel does not resend, requests are here as well: requests_in_hand.h.
 *
 * The functions need the tables' lock.
 */
#ifndef COPPERFS_CONNECTION_STATE_H
#define COPPERFS_CONNECTION_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <linux/fuse.h>

enum {
	CONNECTION_MAGIC = 0x63666373,
	/* Of this layout. A successor of another version refuses. */
	CONNECTION_VERSION = 2,
	INIT_REQUEST_MAX = 256,
	RECORD_CELL = 192,
	SEGMENT_CELLS = 1 << 16, /* 12 MiB */
	SEGMENTS_MAX = 1024,
	/* Threads of the front, each with a place to read into. What is larger is a write. */
	READERS_MAX = 64,
	READING_ROOM = 5 * 4096, /* the largest ioctl is 16,455 bytes */
	BEFORE_SEGMENTS = 4096 + READERS_MAX * READING_ROOM,
	CELLS_MAX = (READING_ROOM + 16 + RECORD_CELL - 1) / RECORD_CELL,
};

/* How a successor gets the requests that were not answered. */
enum takeover_by { TAKEOVER_UNDECIDED, TAKEOVER_BY_RESEND, TAKEOVER_BY_MEMORY, NO_TAKEOVER };

/* One cell or more. */
struct record_head {
	_Atomic uint64_t id; /* of the inode or the request; 0: free */
	uint8_t cells;	     /* never changes */
	bool is_request, interrupted;
	uint16_t length; /* of the name or the request */
};

struct inode_record {
	struct record_head head;
	uint64_t parent;
	uint64_t nlookup;
	struct fuse_attr attr;
	uint8_t negative, attached;
	char name[];
};

struct request_record {
	struct record_head head;
	char request[]; /* aligned */
};

struct connection_header {
	uint32_t magic, version;
	/* Negotiated. */
	uint32_t init_size;
	uint32_t max_pages;
	uint32_t kernel_skips_opens;
	_Atomic uint32_t takeover_by; /* enum takeover_by */
	/* How many threads have a place to read into. */
	uint32_t readers;
	_Alignas(8) char init_request[INIT_REQUEST_MAX];

	uint64_t next_id;
	/* Of the node, and the last one that the kernel was told of. */
	uint64_t epoch, told_epoch;
	/* Cells that were ever used. */
	_Atomic uint64_t used;
	/* Names that were left out because there was no memory. A successor does not know them. */
	uint64_t left_out;
	/* Grows while the daemon lives; the keeper looks at it. */
	_Atomic uint64_t signs_of_life;
};

struct connection_state {
	int fd; /* -1: no successor is wanted */
	struct connection_header *header;
	char *reading; /* READING_ROOM for each thread */
	char *segments[SEGMENTS_MAX];
	unsigned segments_count;
	/* By their cells. */
	struct free_record *free[CELLS_MAX];
};

/* Maps the memory of `fd`, which the caller keeps open. `inherited`: it was another process's.
 * False with errno set, and nothing is kept: EPROTO is another version. */
bool connection_open(struct connection_state *c, int fd, bool inherited);
void connection_close(struct connection_state *c);

static inline bool connection_is_kept(const struct connection_state *c) { return c->fd >= 0; }

/* With the values of `like`, whose cells do not count. NULL: there is no memory. */
struct inode_record *record_new(struct connection_state *c, const struct inode_record *like, const char *name);
void record_free(struct connection_state *c, struct record_head *record);

/* All that count. */
typedef bool record_visit(struct inode_record *record, void *context);
bool records_each(struct connection_state *c, record_visit *visit, void *context);

typedef bool request_visit(struct request_record *record, void *context);
bool requests_each(struct connection_state *c, request_visit *visit, void *context);

/* A copy of a request. NULL: there is no memory. */
struct request_record *request_record_new(struct connection_state *c, const char *request, size_t size);

/* The init request of the connection, as it came. */
void connection_note_init(struct connection_state *c, const char *request, uint32_t size);

#endif
