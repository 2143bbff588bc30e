/*
 * Chunk table: holds the pieces of files that are not held whole.
 *
 * One table serves all files, by inode number and index: a file of terabytes with three chunks
 * costs three entries, and no table grows under the lock. Used chunks also enter a list for the
 * handlers.
 *
 * tables_unlock() frees the bytes: giving a megabyte back to the system takes as long as a thousand
 * lookups.
 */
#include "tables.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct chunk **bucket_of(struct tables *t, uint64_t id, uint64_t index)
{
	uint64_t hash = t->hash_seed ^ (id * 0x9e3779b97f4a7c15u + index);

	hash = (hash ^ (hash >> 31)) * 0xbf58476d1ce4e5b9u;
	return &t->by_chunk[(hash ^ (hash >> 29)) & (CHUNK_BUCKETS - 1)];
}

struct chunk *chunk_find(struct tables *t, const struct inode *inode, uint64_t index)
{
	struct chunk *chunk = *bucket_of(t, inode->id, index);

	while (chunk && (chunk->inode != inode || chunk->index != index))
		chunk = chunk->next_in_bucket;
	return chunk;
}

struct chunk *chunk_new(uint64_t index, struct blob *blob)
{
	struct chunk *chunk = calloc(1, sizeof(*chunk));

	if (!chunk)
		return NULL;
	chunk->index = index;
	chunk->blob = blob;
	return chunk;
}

void chunk_free(struct chunk *chunk)
{
	if (chunk)
		blob_unref(chunk->blob);
	free(chunk);
}

static void link_in(struct chunk_link *link, struct chunk **head, struct chunk *chunk,
		    struct chunk_link *next_link)
{
	link->next = *head;
	link->from = head;
	if (next_link)
		next_link->from = &link->next;
	*head = chunk;
}

static void link_out(struct chunk_link *link, struct chunk_link *next_link)
{
	*link->from = link->next;
	if (next_link)
		next_link->from = link->from;
	*link = (struct chunk_link){ 0 };
}

static void enter_touched(struct tables *t, struct chunk *chunk)
{
	if (!chunk->touched.from)
		link_in(&chunk->touched, &t->touched, chunk,
			t->touched ? &t->touched->touched : NULL);
}

static void leave_touched(struct chunk *chunk)
{
	if (chunk->touched.from)
		link_out(&chunk->touched,
			 chunk->touched.next ? &chunk->touched.next->touched : NULL);
}

static void drop(struct tables *t, struct chunk *chunk)
{
	struct chunk **link = bucket_of(t, chunk->inode->id, chunk->index);

	while (*link != chunk)
		link = &(*link)->next_in_bucket;
	*link = chunk->next_in_bucket;
	leave_touched(chunk);
	link_out(&chunk->of_inode, chunk->of_inode.next ? &chunk->of_inode.next->of_inode : NULL);
	chunk->inode->chunk_count--;
	t->chunks--;
	chunk->next_in_bucket = t->dropped_chunks;
	t->dropped_chunks = chunk;
}

static uint64_t chunk_size(const struct inode *inode, uint64_t index, uint32_t chunk_bytes)
{
	uint64_t left = inode->attr.size - index * chunk_bytes;

	return left < chunk_bytes ? left : chunk_bytes;
}

bool inode_add_chunk(struct tables *t, struct inode *inode, uint32_t chunk_bytes,
		     struct chunk *chunk)
{
	struct chunk **bucket, *before;

	if (!S_ISREG(inode->attr.mode) || chunk_bytes < CHUNK_BYTES_MIN || !inode->attr.size ||
	    chunk->index > (inode->attr.size - 1) / chunk_bytes ||
	    chunk->blob->size != chunk_size(inode, chunk->index, chunk_bytes))
		return false;
	if (inode->chunk_bytes != chunk_bytes) /* all chunks of a file have one size */
		inode_drop_chunks(t, inode);
	inode->chunk_bytes = chunk_bytes;
	before = chunk_find(t, inode, chunk->index);
	if (before)
		drop(t, before);
	bucket = bucket_of(t, inode->id, chunk->index);
	chunk->next_in_bucket = *bucket;
	*bucket = chunk;
	chunk->inode = inode;
	link_in(&chunk->of_inode, &inode->first_chunk, chunk,
		inode->first_chunk ? &inode->first_chunk->of_inode : NULL);
	inode->chunk_count++;
	t->chunks++;
	return true;
}

void inode_drop_chunk(struct tables *t, struct inode *inode, uint64_t index)
{
	struct chunk *chunk = chunk_find(t, inode, index);

	if (chunk)
		drop(t, chunk);
}

void inode_drop_chunks(struct tables *t, struct inode *inode)
{
	while (inode->first_chunk)
		drop(t, inode->first_chunk);
}

void chunks_free_dropped(struct chunk *dropped)
{
	while (dropped) {
		struct chunk *next = dropped->next_in_bucket;

		chunk_free(dropped);
		dropped = next;
	}
}

uint64_t inode_cut(const struct inode *inode, uint64_t offset, uint64_t size)
{
	uint64_t left = offset < inode->attr.size ? inode->attr.size - offset : 0;

	return size < left ? size : left;
}

int inode_pieces(struct tables *t, const struct inode *inode, uint64_t offset, size_t size,
		 struct piece *pieces)
{
	int count = 0;

	while (size) {
		struct chunk *chunk = chunk_find(t, inode, offset / inode->chunk_bytes);
		size_t at = offset % inode->chunk_bytes, length = inode->chunk_bytes - at;

		if (length > size)
			length = size;
		/* it has the right size, unless the attributes were changed since */
		if (!chunk || count == PIECES_MAX || at + length > chunk->blob->size) {
			while (count)
				blob_unref(pieces[--count].blob);
			return -1;
		}
		enter_touched(t, chunk);
		pieces[count++] = (struct piece){ blob_ref(chunk->blob), at, length };
		offset += length;
		size -= length;
	}
	return count;
}

size_t tables_take_touched(struct tables *t, struct touched_chunk *taken, size_t room)
{
	size_t count = 0;

	while (t->touched && count < room) {
		struct chunk *chunk = t->touched;

		taken[count++] = (struct touched_chunk){ chunk->inode->id, chunk->index };
		leave_touched(chunk);
	}
	return count;
}
