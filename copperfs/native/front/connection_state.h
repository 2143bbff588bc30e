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
 * The functions need the tables' lock.
 */
#ifndef COPPERFS_CONNECTION_STATE_H
#define COPPERFS_CONNECTION_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <linux/fuse.h>

enum {
	CONNECTION_MAGIC = 0x63666373,
	/* Of this layout. A successor of another version refuses. */
	CONNECTION_VERSION = 1,
	INIT_REQUEST_MAX = 256,
	RECORD_CELL = 192,
	SEGMENT_CELLS = 1 << 16, /* 12 MiB */
	SEGMENTS_MAX = 1024,
};

/* One cell, or two where the name is long. */
struct inode_record {
	_Atomic uint64_t id; /* 0: free */
	uint64_t parent;
	uint64_t nlookup;
	uint8_t cells; /* never changes */
	uint8_t negative, attached;
	uint8_t unused;
	uint16_t name_length;
	struct fuse_attr attr;
	char name[];
};

struct connection_header {
	uint32_t magic, version;
	/* Negotiated. */
	uint32_t init_size;
	uint32_t max_pages;
	uint32_t kernel_skips_opens;
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
	char *segments[SEGMENTS_MAX];
	unsigned segments_count;
	/* Of one and of two cells. */
	struct free_record *free[2];
};

/* Maps the memory of `fd`, which the caller keeps open. `inherited`: it was another process's.
 * False with errno set, and nothing is kept: EPROTO is another version. */
bool connection_open(struct connection_state *c, int fd, bool inherited);
void connection_close(struct connection_state *c);

static inline bool connection_is_kept(const struct connection_state *c) { return c->fd >= 0; }

/* With the values of `like`, whose cells do not count. NULL: there is no memory. */
struct inode_record *record_new(struct connection_state *c, const struct inode_record *like, const char *name);
void record_free(struct connection_state *c, struct inode_record *record);

/* All that count. */
typedef bool record_visit(struct inode_record *record, void *context);
bool records_each(struct connection_state *c, record_visit *visit, void *context);

/* The init request of the connection, as it came. */
void connection_note_init(struct connection_state *c, const char *request, uint32_t size);

#endif
