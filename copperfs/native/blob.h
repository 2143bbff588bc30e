/*
 * Blob: immutable bytes outside the Python heap, shared by reference count.
 *
 * The handlers fill a blob once and seal it; the front's threads read it without the GIL. The last
 * reference frees it, also without the GIL.
 *
 * A pool keeps released mappings: a read of 1 MiB from the page cache into a fresh one took 445 us
 * instead of 39.
 *
 * A blob may borrow its bytes: those from another node stay in their message.
 */
#ifndef COPPERFS_BLOB_H
#define COPPERFS_BLOB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct blob {
	_Atomic unsigned refs;
	size_t mapped; /* bytes of its mapping; 0: the bytes follow here */
	bool pooled;
	size_t capacity;
	size_t size;
	char *data;
	void *lender; /* owns the bytes; NULL: the blob does */
	void (*give_back)(void *lender); /* called without the GIL */
	struct blob *next_dropped; /* of a list whose owner frees it later */
};

struct blob *blob_new(size_t capacity);
/* Reuses memory: for blobs that live briefly. */
struct blob *blob_new_pooled(size_t capacity);

static inline struct blob *blob_ref(struct blob *blob)
{
	atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
	return blob;
}

/* True: the caller has to call blob_free(). */
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
