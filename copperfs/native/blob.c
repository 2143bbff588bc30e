/*
 * Allocates blobs, and keeps a pool of mappings for chunks.
 */
#include "blob.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Larger blobs have pages of their own: freeing them gives memory back to the system, which malloc
 * would keep. */
enum { BLOB_MAP_ABOVE = 64 * 1024 };
/* A reader has 8 MiB in flight, and is rarely alone. */
enum { BLOB_POOL_BYTES = 16 << 20, BLOB_POOL_SLOTS = 64 };
/* Larger blobs are whole files, which would fill the pool. */
enum { BLOB_POOLED_MAX = 1 << 20 };

static struct blob_pool {
	pthread_mutex_t lock;
	size_t held_bytes;
	unsigned count;
	struct blob_slot {
		char *data;
		size_t mapped;
	} slots[BLOB_POOL_SLOTS]; /* the oldest first */
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Mappings come in eight sizes for each power of two: a used one often fits, and has at most an
 * eighth more pages than needed. */
static size_t mapping_of(size_t capacity)
{
	size_t step = 4096;

	while (step * 16 < capacity)
		step *= 2;
	return (capacity + step - 1) / step * step;
}

static char *pool_take(size_t mapped)
{
	char *data = NULL;

	pthread_mutex_lock(&pool.lock);
	for (unsigned i = pool.count; i-- > 0;) { /* the last one is in the processor's cache */
		struct blob_slot *slot = &pool.slots[i];

		if (slot->mapped != mapped)
			continue;
		data = slot->data;
		memmove(slot, slot + 1, (--pool.count - i) * sizeof(*slot));
		pool.held_bytes -= mapped;
		break;
	}
	pthread_mutex_unlock(&pool.lock);
	return data;
}

static void pool_give(char *data, size_t mapped)
{
	struct blob_slot gone[BLOB_POOL_SLOTS];
	unsigned going = 0;

	pthread_mutex_lock(&pool.lock);
	while (going < pool.count && (pool.count - going == BLOB_POOL_SLOTS ||
				       pool.held_bytes + mapped > BLOB_POOL_BYTES)) {
		gone[going] = pool.slots[going];
		pool.held_bytes -= gone[going++].mapped;
	}
	pool.count -= going;
	memmove(pool.slots, pool.slots + going, pool.count * sizeof(*pool.slots));
	pool.slots[pool.count++] = (struct blob_slot){ data, mapped };
	pool.held_bytes += mapped;
	pthread_mutex_unlock(&pool.lock);
	for (unsigned i = 0; i < going; i++)
		munmap(gone[i].data, gone[i].mapped);
}

/* Users' files do not belong in a core dump. */
static char *map(size_t mapped)
{
	char *data = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (data != MAP_FAILED)
		madvise(data, mapped, MADV_DONTDUMP);
	return data;
}

static struct blob *make(size_t capacity, bool pooled)
{
	size_t mapped = capacity > BLOB_MAP_ABOVE ? mapping_of(capacity) : 0;
	struct blob *blob = malloc(sizeof(*blob) + (mapped ? 0 : capacity));

	if (!blob)
		return NULL;
	atomic_init(&blob->refs, 1);
	blob->mapped = mapped;
	blob->pooled = pooled && mapped && mapped <= BLOB_POOLED_MAX;
	blob->capacity = blob->size = capacity;
	blob->data = (char *)(blob + 1);
	blob->lender = NULL;
	if (mapped) {
		blob->data = blob->pooled ? pool_take(mapped) : NULL;
		if (!blob->data)
			blob->data = map(mapped);
		if (blob->data == MAP_FAILED) {
			free(blob);
			return NULL;
		}
	}
	return blob;
}

struct blob *blob_new(size_t capacity) { return make(capacity, false); }

struct blob *blob_new_pooled(size_t capacity) { return make(capacity, true); }

void blob_free(struct blob *blob)
{
	if (blob->lender)
		blob->give_back(blob->lender);
	else if (blob->pooled)
		pool_give(blob->data, blob->mapped);
	else if (blob->mapped)
		munmap(blob->data, blob->mapped);
	free(blob);
}
