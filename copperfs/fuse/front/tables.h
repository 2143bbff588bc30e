/*
 * The front's tables: what is known of the mount, for answering without Python.
 *
 * A node is one file or directory that the kernel may ask about by number.  A
 * node number names one *version* of a file: when the source's file changes, the
 * name gets a new number, and whoever holds the old one open keeps its bytes.
 * That is how nobody ever reads a mix of two versions.
 *
 * Four things are found here: nodes by number, nodes by (parent, name), the rows of a
 * directory's complete listing by name, and chunks of files by node and index.
 * Listings, objects, chunks and handles are published by the handlers and can be
 * withdrawn at any time; nodes live as long as the kernel refers to them (nlookup),
 * which is why nodes are made only when they are asked for, while a listing of 10,000
 * names is one flat buffer.
 *
 * One mutex guards it all, held for some 100 ns and never across a system call;
 * whoever takes it has let go of the GIL first.  It is held for longer to go through all
 * nodes (a clear), and once for each listing that is read ahead of, when its first small
 * file is asked for: endings.c takes 5 to 25 ns for each name then, 0.1 ms for the 4,096 of
 * --listing-max, 1.2 ms for 50,000.
 *
 * Nothing in here knows of Python, sockets or /dev/fuse.
 */
#ifndef COPPERFS_TABLES_H
#define COPPERFS_TABLES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <linux/fuse.h>

#include "../../blob.h"
#include "../../reader.h"

#define FRESH_FOREVER UINT64_MAX

/* --- packed listings: copperfs/core/listing.py has the same format in words --- */

#define LISTING_MAGIC 0x31534c43u /* "CLS1" */
enum { LISTING_BARE = 1 }; /* rows carry only name, type and inode number */

struct listing_header {
	uint32_t magic;
	uint32_t count;
	uint32_t flags;
	uint32_t absolute_links;
};

struct row {
	uint32_t length; /* of the whole row, a multiple of 8; and perhaps ROW_UNKNOWN */
	uint16_t name_length;
	uint16_t target_length; /* of a symbolic link, after the name */
	struct fuse_attr attr;
	char name[];
};

/* In a row's length: its attributes could not be had. It has its name, type and inode number,
 * as all rows of a bare listing have. */
enum { ROW_UNKNOWN = 1 };

/* What small files end in: see endings.c. */
struct ending {
	const char *text; /* in the name of one of them */
	size_t length;
	uint32_t first, last; /* of its rows, plus one */
	uint32_t files;
	uint64_t bytes;
	const struct row *asked; /* the first that was asked for */
	bool begun; /* another one was asked for, too: the rest is read ahead */
};

struct endings {
	struct ending *each;
	uint32_t count, room;
	uint32_t *slots, mask; /* hash -> number of the ending + 1 */
	uint32_t next[];       /* of each row: the next one of its ending, plus one */
};

struct listing {
	char *rows; /* a private copy of the packed listing */
	uint32_t count;
	bool bare;
	bool granted; /* its files may be read without asking the handlers */
	bool granted_below; /* and all directories below it listed, and their files read */
	bool read_ahead;    /* its files may be read before they are asked for */
	struct endings *endings;
	bool endings_known;
	uint32_t *beside; /* rows that are fetched when a compiled file mentions them */
	uint32_t beside_count;
	bool beside_known;
	uint64_t fresh_until;
	uint32_t index_mask;
	uint32_t *offsets; /* of row i */
	uint32_t *index;   /* hash -> row number + 1 */
	uint32_t *order;   /* where the row of each name is, by cookie */
	uint32_t names;	   /* in `order`: a name that is there twice is given once */
	uint64_t *cookies; /* in that order; NULL: those that follow from the names */
	struct listing *next_dropped;
};

/* An open descriptor of a file that is too large to be held; reads go to it. */
struct handle {
	_Atomic unsigned refs;
	struct handle *next_dropped;
	int fd;
	struct fuse_attr version; /* size, mtime, ctime and ino as they must stay */
};

struct chunk_link {
	struct chunk *next;
	struct chunk **from; /* what points to this one; NULL: it is in no list */
};

/* A piece of a file: chunks.c. */
struct chunk {
	struct chunk *next_in_bucket; /* of those that were dropped, once it is */
	struct chunk_link of_node, touched;
	struct node *node;
	uint64_t index;
	struct blob *blob;
};

/* 64 GiB in chunks of a MiB have one in each; pages are only taken when touched. Tests have
 * fewer, so that there is more than one in some. */
#ifndef CHUNK_BUCKETS
#define CHUNK_BUCKETS (1u << 16)
#endif

enum {
	/* how many nodes keep their extents, 2 KiB each at most */
	EXTENTS_NODES_MAX = 64,
	CHUNK_BYTES_MIN = 4096,
	/* a read of a MiB that begins within a chunk of the smallest size */
	PIECES_MAX = (1 << 20) / CHUNK_BYTES_MIN + 1,
};

struct node {
	uint64_t id;
	struct node *parent;
	struct node *next_by_id;
	struct node *next_by_name;
	struct node *idle_next, *idle_previous;
	uint64_t nlookup;
	uint64_t fresh_until;
	uint64_t hung_until; /* reading it, or looking for holes, took too long a moment ago ... */
	uint32_t hung_for;   /* ... for this thread */
	struct fuse_attr attr;
	struct blob *object; /* a file's bytes or a link's target */
	struct listing *listing;
	struct handle *handle;
	struct extents *extents; /* where it has data, as far as that was asked for */
	struct chunk *first_chunk;
	uint32_t chunk_bytes; /* of all but the last one; 0: it has had none so far */
	uint32_t chunk_count;
	uint32_t children;
	uint16_t name_length;
	uint8_t extents_slot; /* its place in the ring, if its number is there */
	bool attached : 1; /* found by (parent, name) */
	bool negative : 1; /* known not to exist */
	bool idle : 1;	   /* in the list of those the kernel does not refer to */
	bool touched : 1;  /* its content was used since last asked */
	bool fetching : 1; /* its bytes or names are being read for it */
	bool ahead : 1;	   /* ... and nobody had asked for them */
	bool outdated : 1; /* ... since before a time from which on others may be there */
	bool asked : 1;	   /* the handlers were asked for its names and gave none yet */
	bool tried : 1;	   /* listing it ahead failed before */
	bool hung_seek : 1; /* what took too long was looking for holes */
	char name[];
};

struct tables {
	pthread_mutex_t lock;
	uint64_t hash_seed;
	uint32_t mask;
	struct node **by_id;
	struct node **by_name;
	struct chunk **by_chunk;
	struct node *root;
	struct node idle; /* head of the list, oldest first */
	uint64_t next_id;
	uint64_t epoch; /* counts clears, as the core does */
	uint32_t nodes, nodes_max;
	uint32_t idle_count, idle_max;
	uint32_t handle_next, handle_max;
	uint64_t *handle_ids; /* a ring: publishing one handle more withdraws the oldest */
	struct handle *dropped; /* let go of when the lock is: closing may take long */
	/* a ring, as that of handles, in which each node has one place */
	uint64_t extents_ids[EXTENTS_NODES_MAX];
	uint32_t extents_next;
	uint64_t chunks;
	struct chunk *touched; /* those used since they were last taken */
	struct chunk *dropped_chunks; /* tables_unlock() frees these after the lock: */
	struct listing *dropped_listings;
	struct blob *dropped_blobs;
	uint32_t shed_hand;
};

int tables_init(struct tables *t, uint32_t nodes_max, uint32_t handle_max);
void tables_destroy(struct tables *t);

static inline void tables_lock(struct tables *t) { pthread_mutex_lock(&t->lock); }
void tables_unlock(struct tables *t);

/* Makes a listing of packed bytes, checking every length; NULL with errno. */
struct listing *listing_open(const struct tables *t, const char *bytes, size_t size,
			     uint64_t fresh_until);
void listing_free(struct listing *listing);
void endings_free(struct endings *endings);
/* With a seed of this process, so that nobody can prepare names that collide. */
uint64_t tables_hash(const struct tables *t, const char *text, size_t length);
/* Slots of an index by name, of which at most half are used. */
static inline size_t index_slots(uint32_t count)
{
	size_t slots = 4;

	while (slots < (size_t)count * 2)
		slots *= 2;
	return slots;
}
/* What the core charges for one but for its path: cost_of_listing() in core/cache.py. */
static inline uint64_t listing_cost(size_t size, uint32_t count)
{
	return 2 * (uint64_t)size + 16 * (uint64_t)count + 8 * (uint64_t)index_slots(count) + 1536;
}
const struct row *listing_row(const struct listing *listing, uint32_t number);

/* Walks: walks.c. */
enum { COOKIE_START, COOKIE_DOT, COOKIE_DOTS, COOKIE_NAMES };
/* How many of the hash's bits are used; tests use fewer, so that many names share theirs. */
#ifndef COOKIE_BITS
#define COOKIE_BITS 63
#endif
/* Puts an open listing in order; false: no memory. */
bool listing_order(struct listing *listing);
/* The place of the first name after `cookie`; `names` if there is none. */
uint32_t listing_after(const struct listing *listing, uint64_t cookie);
/* The name at a place in the walk's order. */
const struct row *listing_given(const struct listing *listing, uint32_t place, uint64_t *cookie);
/* Whether a row has attributes to answer with; if not, the name is looked up by itself. */
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
/* Of versions: one may be of before the job began to leave the numbers out. */
static inline bool same_ino(uint64_t a, uint64_t b) { return a == b || !a || !b; }
/* The inode number as it is shown: files of two filesystems must not look like hard links. */
uint64_t shown_ino(const struct fuse_attr *a);
/* For the kernel. */
struct fuse_attr shown(const struct fuse_attr *a);

/* Takes the reference to the blob, unless it fails. */
struct chunk *chunk_new(uint64_t index, struct blob *blob);
void chunk_free(struct chunk *chunk);
void chunks_free_dropped(struct chunk *dropped);

/* --- everything below wants the lock held --- */

struct node *node_by_id(struct tables *t, uint64_t id);
struct node *node_by_name(struct tables *t, struct node *parent, const char *name,
			  size_t length);
/* The node of a name with these attributes: the one there is if its version is the
 * same, a new one otherwise.  NULL when the tables are full. */
struct node *node_obtain(struct tables *t, struct node *parent, const char *name,
			 size_t length, const struct fuse_attr *attr, const char *target,
			 size_t target_length, uint64_t fresh_until);
/* What a path leads to by what is known, its nodes being made where they are in a listing; NULL
 * if that does not tell. */
struct node *node_reach(struct tables *t, const char *path, size_t length);
/* Remembers that a name does not exist; false when there is no room for that. */
bool node_negative(struct tables *t, struct node *parent, const char *name, size_t length,
		   uint64_t fresh_until);
void node_forget(struct tables *t, uint64_t id, uint64_t nlookup);
void node_refer(struct tables *t, struct node *node); /* the kernel has one reference more */
/* Writes the path below the root, no leading slash; its length, or -1 if too small. */
int node_path(const struct node *node, char *path, size_t size);

void node_set_attributes(struct tables *t, struct node *node, const struct fuse_attr *attr);
void node_set_listing(struct tables *t, struct node *node, struct listing *listing);
void node_set_object(struct tables *t, struct node *node, struct blob *object);
void node_set_handle(struct tables *t, struct node *node, struct handle *handle);
void node_drop_handle(struct tables *t, struct node *node);
void node_set_extents(struct tables *t, struct node *node, struct extents *extents);
/* Takes the chunk, in the place of what there was; false: it is none of this file. */
bool node_add_chunk(struct tables *t, struct node *node, uint32_t chunk_bytes,
		    struct chunk *chunk);
void node_drop_chunk(struct tables *t, struct node *node, uint64_t index);
void node_drop_chunks(struct tables *t, struct node *node);
struct chunk *chunk_find(struct tables *t, const struct node *node, uint64_t index);
/* How many of these bytes are within the file. */
uint64_t node_cut(const struct node *node, uint64_t offset, uint64_t size);

struct piece {
	struct blob *blob; /* a reference of its own */
	size_t at, length;
};
/* Bytes within a file that has chunks, as pieces; how many they are, at most PIECES_MAX, or
 * -1 if a chunk is missing. */
int node_pieces(struct tables *t, const struct node *node, uint64_t offset, size_t size,
		struct piece *pieces);

struct touched_chunk {
	uint64_t id, index;
};
/* The chunks that were used since this was last asked, up to so many. */
size_t tables_take_touched(struct tables *t, struct touched_chunk *taken, size_t room);
/* Lets go of all its content. */
void node_withdraw(struct tables *t, struct node *node);
void tables_clear(struct tables *t); /* withdraws all, and nothing is fresh any more */
void tables_revoke_below(struct tables *t); /* from now on the handlers are asked to list */
/* Whatever is being read for its listing now must not be published any more. */
void node_outdate_listing(struct tables *t, struct node *node);

#endif
