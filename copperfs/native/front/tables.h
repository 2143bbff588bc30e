/*
 * The front's tables: hold what is known of the mount. They know nothing of Python, sockets or
 * /dev/fuse.
 *
 * An inode is a file or directory that the kernel may ask about by number. Its number, FUSE's
 * nodeid, names one *version* of a file: when the source's file changes, the name gets a new
 * number, and a program that holds the old one open keeps its bytes. So a reader never gets a mix
 * of two versions.
 *
 * The handlers publish listings, objects, chunks and handles, and can withdraw them at any time. An
 * inode lives as long as the kernel refers to it (nlookup), and is made only when it is asked for.
 *
 * One mutex guards all of it, held for some 100 ns and never across a system call; a thread
 * releases the GIL before it takes it. A clear holds it longer, to traverse all inodes, and so does
 * suffix_index.c, once for each listing with prefetch: 0.1 ms for the 4,096 names of --listing-max, 1.2
 * ms for 50,000.
 */
#ifndef COPPERFS_TABLES_H
#define COPPERFS_TABLES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <linux/fuse.h>

#include "../blob.h"
#include "../listing.h"
#include "../reader.h"
#include "connection_state.h"

#define FRESH_FOREVER UINT64_MAX

struct ending {
	const char *text;
	size_t length;
	uint32_t first, last; /* row numbers, plus one */
	uint32_t files;
	uint64_t bytes;
	const struct row *requested;
	bool begun; /* a second one was requested: the rest is prefetched */
};

struct endings {
	struct ending *each;
	uint32_t count, room;
	uint32_t *slots, mask; /* hash -> number + 1 */
	uint32_t next[];       /* the next row of its ending, plus one */
};

struct listing {
	char *rows;
	uint32_t count;
	bool bare;
	bool granted; /* its files may be read without the handlers */
	bool granted_below; /* the same for all directories below */
	bool read_ahead;    /* its files may be prefetched */
	struct endings *endings;
	bool endings_known;
	uint32_t *beside; /* rows to fetch when a compiled file mentions them */
	uint32_t beside_count;
	bool beside_known;
	uint64_t fresh_until;
	uint64_t published_ns; /* answers any request that came before it */
	uint32_t index_mask;
	uint32_t *offsets;
	uint32_t *index;   /* hash -> row number + 1 */
	uint32_t *order;   /* the row of each name, by cookie */
	uint32_t names;	   /* without duplicates */
	uint64_t *cookies; /* in that order; NULL: each follows from its name */
	struct listing *next_dropped;
};

struct handle {
	_Atomic unsigned refs;
	struct handle *next_dropped;
	int fd;
	struct fuse_attr version; /* size, mtime, ctime and ino must not change */
};

struct chunk_link {
	struct chunk *next;
	struct chunk **from; /* the pointer to this one; NULL: in no list */
};

struct chunk {
	struct chunk *next_in_bucket; /* later in the list of dropped chunks */
	struct chunk_link of_inode, touched;
	struct inode *inode;
	uint64_t index;
	struct blob *blob;
};

/* Untouched pages take no memory. Tests have fewer buckets. */
#ifndef CHUNK_BUCKETS
#define CHUNK_BUCKETS (1u << 16)
#endif

enum {
	/* each of at most 2 KiB */
	EXTENTS_INODES_MAX = 64,
	CHUNK_BYTES_MIN = 4096,
	/* a MiB that begins inside a chunk of the smallest size */
	PIECES_MAX = (1 << 20) / CHUNK_BYTES_MIN + 1,
};

/* Under the tables' lock. */
struct inode {
	/* constant */
	uint64_t id;
	struct inode *parent;
	uint16_t name_length;

	/* kept while the kernel refers to it, or to an inode below it */
	bool negative : 1; /* known not to exist */
	bool attached : 1; /* found by (parent, name) */
	bool idle : 1;	   /* no reference of the kernel */
	uint32_t children;
	uint64_t nlookup;
	struct inode_record *record; /* for a successor; NULL: it needs none */
	struct inode *next_by_id;
	struct inode *next_by_name;
	struct inode *idle_next, *idle_previous;

	struct fuse_attr attr;
	uint64_t fresh_until;
	uint64_t published_ns;

	/* content, which can be withdrawn at any time */
	struct blob *object; /* a file's bytes or a link's target */
	struct listing *listing;
	struct handle *handle;
	struct extents *extents;
	struct chunk *first_chunk;
	uint32_t chunk_bytes; /* of all chunks but the last; 0: none so far */
	uint32_t chunk_count;
	uint16_t handle_slot;
	uint8_t extents_slot;
	bool touched : 1;     /* used since the last take */

	/* valid while a fetch without the handlers is under way */
	bool fetching : 1;
	bool ahead : 1;	   /* no request had asked */
	bool outdated : 1; /* its content may have changed since */
	/* lasts from one such fetch to the next */
	bool awaits_names : 1; /* the handlers have a request for its names */
	bool tried : 1; /* a prefetch of its listing failed */

	/* for HUNG_NS after a request timed out */
	struct {
		uint64_t until;
		uint32_t thread;
		bool seek;
	} hung;

	char name[];
};

struct tables {
	uint64_t hash_seed;
	uint32_t inodes_max, idle_max, handle_max;

	/* Guards everything below. */
	pthread_mutex_t lock;
	uint64_t epoch; /* counts clears, like the node's */

	struct inode *root;
	struct inode **by_id;
	struct inode **by_name;
	_Atomic uint32_t mask; /* also read without the lock */
	uint64_t next_id;
	uint32_t inodes;
	struct inode idle; /* list head, oldest first */
	uint32_t idle_count;
	uint32_t shed_hand;

	/* Rings: one more inode withdraws the oldest. */
	uint64_t *handle_ids;
	uint32_t handle_next;
	uint64_t extents_ids[EXTENTS_INODES_MAX];
	uint32_t extents_next;

	struct chunk **by_chunk;
	uint64_t chunks;
	struct chunk *touched;

	struct connection_state connection;

	/* Freed by tables_unlock(), after the lock. */
	struct handle *dropped;
	struct chunk *dropped_chunks;
	struct listing *dropped_listings;
	struct blob *dropped_blobs;
};

int tables_init(struct tables *t, uint32_t inodes_max, uint32_t handle_max);
void tables_destroy(struct tables *t);

static inline void tables_lock(struct tables *t) { pthread_mutex_lock(&t->lock); }
void tables_unlock(struct tables *t);

/* Checks every length; NULL with errno set. */
struct listing *listing_open(const struct tables *t, const char *bytes, size_t size,
			     uint64_t fresh_until);
void listing_free(struct listing *listing);
void endings_free(struct endings *endings);
uint64_t tables_hash(const struct tables *t, const char *text, size_t length);
static inline size_t index_slots(uint32_t count)
{
	size_t slots = 4;

	while (slots < (size_t)count * 2)
		slots *= 2;
	return slots;
}
/* The node's charge for a listing except its path: cost_of_listing() in
 * node/cache/metadata_cache.py. */
static inline uint64_t listing_cost(size_t size, uint32_t count)
{
	return 2 * (uint64_t)size + 16 * (uint64_t)count + 8 * (uint64_t)index_slots(count) + 1536;
}
const struct row *listing_row(const struct listing *listing, uint32_t number);

/* readdir_cookies.c */
enum { COOKIE_START, COOKIE_DOT, COOKIE_DOTS, COOKIE_NAMES };
/* Tests use fewer, so that many names collide. */
#ifndef COOKIE_BITS
#define COOKIE_BITS 63
#endif
bool listing_order(struct listing *listing);
/* The first place after `cookie`; `names` if there is none. */
uint32_t listing_after(const struct listing *listing, uint64_t cookie);
const struct row *listing_given(const struct listing *listing, uint32_t place, uint64_t *cookie);
/* False: the name needs a lookup of its own. */
static inline bool row_tells(const struct listing *listing, const struct row *row)
{
	return !listing->bare && !(row->length & ROW_UNKNOWN);
}
const struct row *listing_find(const struct tables *t, const struct listing *listing,
			       const char *name, size_t length);

void handle_unref(struct handle *handle);
static inline int64_t attr_nanoseconds(uint64_t seconds, uint32_t rest)
{
	return (int64_t)seconds * 1000000000 + rest;
}
bool same_version(const struct fuse_attr *a, const struct fuse_attr *b);
/* 0 where it is not compared. */
static inline uint64_t version_ino(const struct fuse_attr *a)
{
	return a->flags & ATTR_OWN_INODE ? 0 : a->ino;
}
/* One may date from before the job left the numbers out. */
static inline bool same_ino(uint64_t a, uint64_t b) { return a == b || !a || !b; }
/* Files of two filesystems must not look like hard links. */
uint64_t shown_ino(const struct fuse_attr *a);
struct fuse_attr shown(const struct fuse_attr *a);

/* Takes the reference to the blob, unless it fails. */
struct chunk *chunk_new(uint64_t index, struct blob *blob);
void chunk_free(struct chunk *chunk);
void chunks_free_dropped(struct chunk *dropped);

/* --- all below need the lock held --- */

struct inode *inode_by_id(struct tables *t, uint64_t id);
struct inode *inode_by_name(struct tables *t, struct inode *parent, const char *name,
			    size_t length);
/* The existing inode if its version is the same. inodes_max does not limit lookups: the kernel
 * holds more memory for each name than an inode takes. Callers with another purpose check it
 * first. */
struct inode *inode_obtain(struct tables *t, struct inode *parent, const char *name,
			   size_t length, const struct fuse_attr *attr, const char *target,
			   size_t target_length, uint64_t fresh_until);
/* NULL: the tables cannot tell. */
struct inode *inode_reach(struct tables *t, const char *path, size_t length);
/* False: there is no room. */
bool inode_negative(struct tables *t, struct inode *parent, const char *name, size_t length,
		    uint64_t fresh_until);
void inode_forget(struct tables *t, uint64_t id, uint64_t nlookup);
void inode_refer(struct tables *t, struct inode *inode);
/* Below the root, without a leading slash; -1: it does not fit. */
int inode_path(const struct inode *inode, char *path, size_t size);

void inode_set_attributes(struct tables *t, struct inode *inode, const struct fuse_attr *attr);
void inode_set_listing(struct tables *t, struct inode *inode, struct listing *listing);
void inode_set_object(struct tables *t, struct inode *inode, struct blob *object);
void inode_set_handle(struct tables *t, struct inode *inode, struct handle *handle);
void inode_drop_handle(struct tables *t, struct inode *inode);
void inode_set_extents(struct tables *t, struct inode *inode, struct extents *extents);
/* Takes the chunk; false: it does not belong to this file. */
bool inode_add_chunk(struct tables *t, struct inode *inode, uint32_t chunk_bytes,
		     struct chunk *chunk);
void inode_drop_chunk(struct tables *t, struct inode *inode, uint64_t index);
void inode_drop_chunks(struct tables *t, struct inode *inode);
struct chunk *chunk_find(struct tables *t, const struct inode *inode, uint64_t index);
uint64_t inode_cut(const struct inode *inode, uint64_t offset, uint64_t size);

struct piece {
	struct blob *blob; /* a reference of its own */
	size_t at, length;
};
/* At most PIECES_MAX; -1: a chunk is missing. */
int inode_pieces(struct tables *t, const struct inode *inode, uint64_t offset, size_t size,
		 struct piece *pieces);

struct touched_chunk {
	uint64_t id, index;
};
size_t tables_take_touched(struct tables *t, struct touched_chunk *taken, size_t room);
void inode_withdraw(struct tables *t, struct inode *inode);
/* Withdraws all, and expires everything. */
void tables_clear(struct tables *t, uint64_t epoch);
/* Enters what `connection` has of another process; in empty tables. False: there is no memory. */
bool tables_adopt(struct tables *t);
void tables_revoke_below(struct tables *t); /* from now on the handlers are asked to list */
/* A listing that is being fetched must not be published. */
void inode_outdate_listing(struct tables *t, struct inode *inode);

#endif
