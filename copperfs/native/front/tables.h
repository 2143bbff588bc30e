/*
 * The front's tables: hold what is known of the mount, so that requests are answered without
 * Python.
 *
 * A node is one file or directory that the kernel may ask about by number. A node number names one
 * *version* of a file: when the source's file changes, the name gets a new number, and a program
 * that holds the old one open keeps its bytes. So a reader never gets a mix of two versions.
 *
 * The tables find nodes by number, nodes by (parent, name), the rows of a directory's complete
 * listing by name, and chunks of files by node and index. The handlers publish listings, objects,
 * chunks and handles, and can withdraw them at any time. Nodes live as long as the kernel refers to
 * them (nlookup). That is why a node is made only when it is asked for, while a listing of 10,000
 * names is one flat buffer.
 *
 * One mutex guards all of it, held for some 100 ns and never across a system call; a thread
 * releases the GIL before it takes it. The mutex is held longer to traverse all nodes (a clear),
 * and once for each listing with prefetch, when its first small file is asked for: endings.c then
 * takes 5 to 25 ns for each name, 0.1 ms for the 4,096 of --listing-max, 1.2 ms for 50,000.
 *
 * The tables know nothing of Python, sockets or /dev/fuse.
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

#define FRESH_FOREVER UINT64_MAX

/* The small files of one ending: see endings.c. */
struct ending {
	const char *text; /* points into the name of one of them */
	size_t length;
	uint32_t first, last; /* row numbers, plus one */
	uint32_t files;
	uint64_t bytes;
	const struct row *asked; /* the first that was asked for */
	bool begun; /* a second one was asked for: the rest is prefetched */
};

struct endings {
	struct ending *each;
	uint32_t count, room;
	uint32_t *slots, mask; /* hash -> number of the ending + 1 */
	uint32_t next[];       /* for each row: the next row of its ending, plus one */
};

struct listing {
	char *rows; /* a private copy of the packed listing */
	uint32_t count;
	bool bare;
	bool granted; /* its files may be read without the handlers */
	bool granted_below; /* the same for all directories below it and their files */
	bool read_ahead;    /* its files may be prefetched */
	struct endings *endings;
	bool endings_known;
	uint32_t *beside; /* rows that are fetched when a compiled file mentions them */
	uint32_t beside_count;
	bool beside_known;
	uint64_t fresh_until;
	uint64_t published_ns; /* answers any request that came before it, whatever its age */
	uint32_t index_mask;
	uint32_t *offsets; /* of row i */
	uint32_t *index;   /* hash -> row number + 1 */
	uint32_t *order;   /* the row of each name, by cookie */
	uint32_t names;	   /* in `order`: a duplicate name is given once */
	uint64_t *cookies; /* in that order; NULL: each follows from its name */
	struct listing *next_dropped;
};

/* An open descriptor of a file that is too large to be held; reads go through it. */
struct handle {
	_Atomic unsigned refs;
	struct handle *next_dropped;
	int fd;
	struct fuse_attr version; /* size, mtime, ctime and ino that must not change */
};

struct chunk_link {
	struct chunk *next;
	struct chunk **from; /* the pointer that leads to this one; NULL: it is in no list */
};

/* A piece of a file: chunks.c. */
struct chunk {
	struct chunk *next_in_bucket; /* after it is dropped: in the list of dropped chunks */
	struct chunk_link of_node, touched;
	struct node *node;
	uint64_t index;
	struct blob *blob;
};

/* 64 GiB in chunks of a MiB have one in each bucket; untouched pages take no memory. Tests have
 * fewer buckets, so that some hold more than one. */
#ifndef CHUNK_BUCKETS
#define CHUNK_BUCKETS (1u << 16)
#endif

enum {
	/* how many nodes keep their extents, of at most 2 KiB each */
	EXTENTS_NODES_MAX = 64,
	CHUNK_BYTES_MIN = 4096,
	/* a read of a MiB that begins inside a chunk of the smallest size */
	PIECES_MAX = (1 << 20) / CHUNK_BYTES_MIN + 1,
};

/* All fields of a node are under the tables' lock. */
struct node {
	/* identity, constant while it lives */
	uint64_t id;
	struct node *parent;
	uint16_t name_length;

	/* how it is found, and how long it is kept: while the kernel refers to it, or to a node
	 * below it */
	bool negative : 1; /* known not to exist */
	bool attached : 1; /* found by (parent, name) */
	bool idle : 1;	   /* in the list of nodes without references of the kernel */
	uint32_t children;
	uint64_t nlookup;
	struct node *next_by_id;
	struct node *next_by_name;
	struct node *idle_next, *idle_previous;

	/* attributes, and until when they are valid */
	struct fuse_attr attr;
	uint64_t fresh_until;
	uint64_t published_ns; /* of its attributes, like a listing's */

	/* content, each part of which can be withdrawn at any time */
	struct blob *object; /* a file's bytes or a link's target */
	struct listing *listing;
	struct handle *handle;
	struct extents *extents; /* the ranges with data, as far as they are known */
	struct chunk *first_chunk;
	uint32_t chunk_bytes; /* size of all chunks but the last; 0: it has had none so far */
	uint32_t chunk_count;
	uint16_t handle_slot; /* its place in the ring of handles, if its number is there */
	uint8_t extents_slot; /* the same for the ring of extents */
	bool touched : 1;     /* its content was used since the last take */

	/* set when a fetch without the handlers begins, valid until it ends */
	bool fetching : 1; /* its bytes or names are being fetched */
	bool ahead : 1;	   /* ... and no request had asked for them */
	bool outdated : 1; /* ... but began before its content may have changed */
	/* lasts from one such fetch to the next */
	bool asked : 1; /* the handlers were asked for its names and have not answered */
	bool tried : 1; /* a prefetch of its listing failed before */

	/* for HUNG_NS after a read, or a search for holes, timed out */
	struct {
		uint64_t until;
		uint32_t thread; /* the thread that waited */
		bool seek;	 /* it searched for holes */
	} hung;

	char name[];
};

struct tables {
	/* constant */
	uint64_t hash_seed;
	uint32_t nodes_max, idle_max, handle_max;

	/* Guards everything below, and everything reached from there. */
	pthread_mutex_t lock;
	uint64_t epoch; /* counts clears, like the core's epoch */

	/* nodes and their indexes */
	struct node *root;
	struct node **by_id;
	struct node **by_name;
	_Atomic uint32_t mask; /* code that goes round the buckets reads it without the lock */
	uint64_t next_id;
	uint32_t nodes;
	struct node idle; /* head of the list, oldest first */
	uint32_t idle_count;
	uint32_t shed_hand;

	/* Rings with one place for each node: publishing one more withdraws the oldest. */
	uint64_t *handle_ids;
	uint32_t handle_next;
	uint64_t extents_ids[EXTENTS_NODES_MAX];
	uint32_t extents_next;

	struct chunk **by_chunk;
	uint64_t chunks;
	struct chunk *touched; /* chunks that were used since the last take */

	/* Released content. tables_unlock() frees it after the lock: closing may take long. */
	struct handle *dropped;
	struct chunk *dropped_chunks;
	struct listing *dropped_listings;
	struct blob *dropped_blobs;
};

int tables_init(struct tables *t, uint32_t nodes_max, uint32_t handle_max);
void tables_destroy(struct tables *t);

static inline void tables_lock(struct tables *t) { pthread_mutex_lock(&t->lock); }
void tables_unlock(struct tables *t);

/* Makes a listing of packed bytes and checks every length; NULL with errno set. */
struct listing *listing_open(const struct tables *t, const char *bytes, size_t size,
			     uint64_t fresh_until);
void listing_free(struct listing *listing);
void endings_free(struct endings *endings);
/* Seeded for this process, so that users cannot prepare names that collide. */
uint64_t tables_hash(const struct tables *t, const char *text, size_t length);
/* Slots of an index by name, of which at most half are used. */
static inline size_t index_slots(uint32_t count)
{
	size_t slots = 4;

	while (slots < (size_t)count * 2)
		slots *= 2;
	return slots;
}
/* The core's charge for a listing except its path: cost_of_listing() in
 * node/cache/metadata_cache.py. */
static inline uint64_t listing_cost(size_t size, uint32_t count)
{
	return 2 * (uint64_t)size + 16 * (uint64_t)count + 8 * (uint64_t)index_slots(count) + 1536;
}
const struct row *listing_row(const struct listing *listing, uint32_t number);

/* Walks: walks.c. */
enum { COOKIE_START, COOKIE_DOT, COOKIE_DOTS, COOKIE_NAMES };
/* The number of the hash's bits in use; tests use fewer, so that many names collide. */
#ifndef COOKIE_BITS
#define COOKIE_BITS 63
#endif
/* Orders an open listing; false: no memory. */
bool listing_order(struct listing *listing);
/* The place of the first name after `cookie`; `names` if there is none. */
uint32_t listing_after(const struct listing *listing, uint64_t cookie);
/* The name at a place in the walk's order. */
const struct row *listing_given(const struct listing *listing, uint32_t place, uint64_t *cookie);
/* Whether a row has attributes to answer with; if not, the name needs a lookup of its own. */
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
/* Part of a version; 0 where it is not compared. */
static inline uint64_t version_ino(const struct fuse_attr *a)
{
	return a->flags & ATTR_OWN_INODE ? 0 : a->ino;
}
/* Compares versions: one may date from before the job left the numbers out. */
static inline bool same_ino(uint64_t a, uint64_t b) { return a == b || !a || !b; }
/* The inode number that is shown: files of two filesystems must not look like hard links. */
uint64_t shown_ino(const struct fuse_attr *a);
/* The attributes as the kernel gets them. */
struct fuse_attr shown(const struct fuse_attr *a);

/* Takes the reference to the blob, unless it fails. */
struct chunk *chunk_new(uint64_t index, struct blob *blob);
void chunk_free(struct chunk *chunk);
void chunks_free_dropped(struct chunk *dropped);

/* --- all functions below need the lock held --- */

struct node *node_by_id(struct tables *t, uint64_t id);
struct node *node_by_name(struct tables *t, struct node *parent, const char *name,
			  size_t length);
/* The node of a name with these attributes: the existing one if its version is the same, a new one
 * otherwise. NULL without memory. nodes_max does not limit lookups, because the kernel holds more
 * memory for each name than a node takes; callers that make nodes for another purpose check it
 * first. */
struct node *node_obtain(struct tables *t, struct node *parent, const char *name,
			 size_t length, const struct fuse_attr *attr, const char *target,
			 size_t target_length, uint64_t fresh_until);
/* The node that a path leads to, as far as the tables know. Nodes that only a listing has are made.
 * NULL if the tables cannot tell. */
struct node *node_reach(struct tables *t, const char *path, size_t length);
/* Records that a name does not exist; false when there is no room for that. */
bool node_negative(struct tables *t, struct node *parent, const char *name, size_t length,
		   uint64_t fresh_until);
void node_forget(struct tables *t, uint64_t id, uint64_t nlookup);
void node_refer(struct tables *t, struct node *node); /* counts one more reference of the kernel */
/* Writes the path below the root, without a leading slash; its length, or -1 if it does not fit. */
int node_path(const struct node *node, char *path, size_t size);

void node_set_attributes(struct tables *t, struct node *node, const struct fuse_attr *attr);
void node_set_listing(struct tables *t, struct node *node, struct listing *listing);
void node_set_object(struct tables *t, struct node *node, struct blob *object);
void node_set_handle(struct tables *t, struct node *node, struct handle *handle);
void node_drop_handle(struct tables *t, struct node *node);
void node_set_extents(struct tables *t, struct node *node, struct extents *extents);
/* Takes the chunk and replaces an earlier one; false: it does not belong to this file. */
bool node_add_chunk(struct tables *t, struct node *node, uint32_t chunk_bytes,
		    struct chunk *chunk);
void node_drop_chunk(struct tables *t, struct node *node, uint64_t index);
void node_drop_chunks(struct tables *t, struct node *node);
struct chunk *chunk_find(struct tables *t, const struct node *node, uint64_t index);
/* The number of these bytes that lie within the file. */
uint64_t node_cut(const struct node *node, uint64_t offset, uint64_t size);

struct piece {
	struct blob *blob; /* a reference of its own */
	size_t at, length;
};
/* Finds bytes within a chunked file as pieces; their number, at most PIECES_MAX, or -1 if a chunk
 * is missing. */
int node_pieces(struct tables *t, const struct node *node, uint64_t offset, size_t size,
		struct piece *pieces);

struct touched_chunk {
	uint64_t id, index;
};
/* Takes the chunks that were used since the last call, up to `room`. */
size_t tables_take_touched(struct tables *t, struct touched_chunk *taken, size_t room);
/* Withdraws all its content. */
void node_withdraw(struct tables *t, struct node *node);
void tables_clear(struct tables *t); /* withdraws all, and expires everything */
void tables_revoke_below(struct tables *t); /* from now on the handlers are asked to list */
/* A listing of it that is being fetched now must not be published any more. */
void node_outdate_listing(struct tables *t, struct node *node);

#endif
