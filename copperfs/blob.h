/*
 * A blob: immutable bytes outside the Python heap, shared by reference count.
 *
 * The daemon's objects live here.  The handlers fill a blob once (preadv straight
 * into it), seal it, and hand it to the front, whose threads answer reads from it
 * without the GIL.  Whoever lets go last frees it, and freeing needs no GIL: that
 * is why this is not a Python bytes object.
 *
 * Header only, so that the extension modules share the layout and not a library.
 *
 * What chunks lie in is used again: a fresh mapping of 1 MiB costs 256 page faults,
 * so that reading 1 MiB from the page cache into it took 445 us instead of 39 (in
 * the virtual machine that this was built on), a quarter of all that a chunk costs.
 * A pool keeps what was let go of last.  It belongs to `copperfs._blob`; the others
 * get it through the capsule, and each blob knows its own, since whoever lets go
 * last may be in another module than whoever made it.
 *
 * A blob may also have its bytes from somebody else, who does not change them: what
 * came from another node stays in the message that it came in.
 */
#ifndef COPPERFS_BLOB_H
#define COPPERFS_BLOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Above this a blob has pages of its own, so that freeing it gives them back to
 * the system at once but for the few that the pool keeps; malloc would keep them. */
enum { BLOB_MAP_ABOVE = 64 * 1024 };
/* A reader has 8 MiB on its way, and is rarely alone. */
enum { BLOB_POOL_BYTES = 16 << 20, BLOB_POOL_SLOTS = 64 };
/* Larger ones are files that are held whole: they stay, and would fill the pool. */
enum { BLOB_POOLED_MAX = 1 << 20 };

struct blob_pool {
	pthread_mutex_t lock;
	size_t held_bytes;
	unsigned count;
	struct blob_slot {
		char *data;
		size_t mapped;
	} slots[BLOB_POOL_SLOTS]; /* the oldest first */
};

struct blob {
	_Atomic unsigned refs;
	size_t mapped; /* bytes of its mapping; 0: it has none, the bytes follow here */
	struct blob_pool *pool;
	size_t capacity;
	size_t size;
	char *data;
	void *lender; /* whose bytes these are; NULL: they are its own */
	void (*give_back)(void *lender); /* without the GIL */
	struct blob *next_dropped; /* of a list whose owner frees it later */
};

/* Mappings come in eight sizes for each power of two, so that what was let go of
 * often fits.  A blob that gets a used one has at most an eighth more pages than it
 * needs; a fresh one has none that were never written to. */
static inline size_t blob_mapping(size_t capacity)
{
	size_t step = 4096;

	while (step * 16 < capacity)
		step *= 2;
	return (capacity + step - 1) / step * step;
}

static inline char *blob_pool_take(struct blob_pool *pool, size_t mapped)
{
	char *data = NULL;

	pthread_mutex_lock(&pool->lock);
	for (unsigned i = pool->count; i-- > 0;) { /* the last one is in the processor's cache */
		struct blob_slot *slot = &pool->slots[i];

		if (slot->mapped != mapped)
			continue;
		data = slot->data;
		memmove(slot, slot + 1, (--pool->count - i) * sizeof(*slot));
		pool->held_bytes -= mapped;
		break;
	}
	pthread_mutex_unlock(&pool->lock);
	return data;
}

static inline void blob_pool_give(struct blob_pool *pool, char *data, size_t mapped)
{
	struct blob_slot gone[BLOB_POOL_SLOTS];
	unsigned going = 0;

	pthread_mutex_lock(&pool->lock);
	while (going < pool->count && (pool->count - going == BLOB_POOL_SLOTS ||
				       pool->held_bytes + mapped > BLOB_POOL_BYTES)) {
		gone[going] = pool->slots[going];
		pool->held_bytes -= gone[going++].mapped;
	}
	pool->count -= going;
	memmove(pool->slots, pool->slots + going, pool->count * sizeof(*pool->slots));
	pool->slots[pool->count++] = (struct blob_slot){ data, mapped };
	pool->held_bytes += mapped;
	pthread_mutex_unlock(&pool->lock);
	for (unsigned i = 0; i < going; i++)
		munmap(gone[i].data, gone[i].mapped);
}

/* Other people's files are no part of a core dump, which is also small then. */
static inline char *blob_map(size_t mapped)
{
	char *data = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (data != MAP_FAILED)
		madvise(data, mapped, MADV_DONTDUMP);
	return data;
}

/* `pool` may be NULL. */
static inline struct blob *blob_new_in(struct blob_pool *pool, size_t capacity)
{
	size_t mapped = capacity > BLOB_MAP_ABOVE ? blob_mapping(capacity) : 0;
	struct blob *blob = malloc(sizeof(*blob) + (mapped ? 0 : capacity));

	if (!blob)
		return NULL;
	atomic_init(&blob->refs, 1);
	blob->mapped = mapped;
	blob->pool = mapped && mapped <= BLOB_POOLED_MAX ? pool : NULL;
	blob->capacity = blob->size = capacity;
	blob->data = (char *)(blob + 1);
	blob->lender = NULL;
	if (mapped) {
		blob->data = blob->pool ? blob_pool_take(blob->pool, mapped) : NULL;
		if (!blob->data)
			blob->data = blob_map(mapped);
		if (blob->data == MAP_FAILED) {
			free(blob);
			return NULL;
		}
	}
	return blob;
}

static inline struct blob *blob_new(size_t capacity)
{
	return blob_new_in(NULL, capacity);
}

static inline struct blob *blob_ref(struct blob *blob)
{
	atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
	return blob;
}

/* True: that was the last reference, and blob_free() is the caller's. */
static inline bool blob_let_go(struct blob *blob)
{
	return blob && atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) == 1;
}

static inline void blob_free(struct blob *blob)
{
	if (blob->lender)
		blob->give_back(blob->lender);
	else if (blob->pool)
		blob_pool_give(blob->pool, blob->data, blob->mapped);
	else if (blob->mapped)
		munmap(blob->data, blob->mapped);
	free(blob);
}

static inline void blob_unref(struct blob *blob)
{
	if (blob_let_go(blob))
		blob_free(blob);
}

/* What `copperfs._blob` offers the other extension modules, in a capsule. */
struct blob_api {
	/* a new reference to the blob behind a Python Blob, NULL with TypeError set */
	struct blob *(*get)(void *python_object);
	/* a sealed Python Blob that takes the reference, also when it fails */
	void *(*wrap)(struct blob *blob);
	struct blob_pool *pool;
};
#define BLOB_API_CAPSULE "copperfs._blob.api"

#endif
