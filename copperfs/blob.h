/*
 * A blob: immutable bytes outside the Python heap, shared by reference count.
 *
 * The daemon's objects live here.  The handlers fill a blob once (preadv straight
 * into it), seal it, and hand it to the front, whose threads answer reads from it
 * without the GIL.  Whoever lets go last frees it, and freeing needs no GIL: that
 * is why this is not a Python bytes object.
 *
 * Header only, so that the extension modules share the layout and not a library.
 */
#ifndef COPPERFS_BLOB_H
#define COPPERFS_BLOB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Above this a blob has pages of its own, so that freeing it gives them back to
 * the system at once; malloc would keep them.  Rounding to pages wastes at most
 * 4 KiB in 64, 6 %. */
enum { BLOB_MAP_ABOVE = 64 * 1024 };

struct blob {
	_Atomic unsigned refs;
	bool mapped;
	size_t capacity;
	size_t size;
	char *data;
};

static inline struct blob *blob_new(size_t capacity)
{
	bool mapped = capacity > BLOB_MAP_ABOVE;
	struct blob *blob = malloc(sizeof(*blob) + (mapped ? 0 : capacity));

	if (!blob)
		return NULL;
	atomic_init(&blob->refs, 1);
	blob->mapped = mapped;
	blob->capacity = blob->size = capacity;
	blob->data = (char *)(blob + 1);
	if (mapped) {
		blob->data = mmap(NULL, capacity, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (blob->data == MAP_FAILED) {
			free(blob);
			return NULL;
		}
	}
	return blob;
}

static inline struct blob *blob_ref(struct blob *blob)
{
	atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
	return blob;
}

static inline void blob_unref(struct blob *blob)
{
	if (!blob || atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (blob->mapped)
		munmap(blob->data, blob->capacity);
	free(blob);
}

/* What `copperfs._blob` offers the other extension modules, in a capsule. */
struct blob_api {
	/* a new reference to the blob behind a Python Blob, NULL with TypeError set */
	struct blob *(*get)(void *python_object);
	/* a sealed Python Blob that takes the reference, also when it fails */
	void *(*wrap)(struct blob *blob);
};
#define BLOB_API_CAPSULE "copperfs._blob.api"

#endif
