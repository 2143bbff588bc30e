/*
 * Blob: immutable bytes outside the Python heap, shared by reference count.
 *
 * The daemon's objects live here. The handlers fill a blob once (preadv straight into it), seal it,
 * and hand it to the front, whose threads answer reads from it without the GIL. The last reference
 * to go frees it, and freeing needs no GIL: that is why this is not a Python bytes object.
 *
 * The mappings of chunks are used again. A fresh mapping of 1 MiB costs 256 page faults: reading 1
 * MiB from the page cache into it took 445 us instead of 39 (in the virtual machine that this was
 * built on), a quarter of all that a chunk costs. A pool keeps the mappings that were released
 * last.
 *
 * A blob may also have its bytes from a lender, which does not change them: bytes from another node
 * stay in the message that they came in.
 */
#ifndef COPPERFS_BLOB_H
#define COPPERFS_BLOB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct blob {
	_Atomic unsigned refs;
	size_t mapped; /* bytes of its mapping; 0: it has none, the bytes follow here */
	bool pooled; /* its mapping goes back to the pool */
	size_t capacity;
	size_t size;
	char *data;
	void *lender; /* owns these bytes; NULL: they are the blob's own */
	void (*give_back)(void *lender); /* called without the GIL */
	struct blob *next_dropped; /* of a list whose owner frees it later */
};

/* NULL: no memory. */
struct blob *blob_new(size_t capacity);
/* In used memory, if there is some: for blobs that live briefly. */
struct blob *blob_new_pooled(size_t capacity);

static inline struct blob *blob_ref(struct blob *blob)
{
	atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
	return blob;
}

/* Drops a reference. True: it was the last, and the caller has to call blob_free(). */
static inline bool blob_let_go(struct blob *blob)
{
	return blob && atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) == 1;
}

void blob_free(struct blob *blob);

static inline void blob_unref(struct blob *blob)
{
	if (blob_let_go(blob))
		blob_free(blob);
}

#endif
