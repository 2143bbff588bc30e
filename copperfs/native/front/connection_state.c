#include "connection_state.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_SIZE ((size_t)4096)
#define SEGMENT_SIZE ((size_t)SEGMENT_CELLS * RECORD_CELL)

#define FIXED_SIZE ((size_t)BEFORE_SEGMENTS)
#define READING_SIZE (FIXED_SIZE - HEADER_SIZE)

_Static_assert(sizeof(struct connection_header) <= HEADER_SIZE, "one page");
_Static_assert(offsetof(struct inode_record, name) + 255 <= 2 * RECORD_CELL, "any name fits");
_Static_assert(sizeof(struct request_record) == 16, "the request is aligned");
_Static_assert(CELLS_MAX <= UINT8_MAX, "any request that is kept fits");

/* In the private memory of this process: a successor finds free cells by their numbers. */
struct free_record {
	struct free_record *next;
	struct record_head *record;
};

static bool map_segment(struct connection_state *c)
{
	size_t at = FIXED_SIZE + c->segments_count * SEGMENT_SIZE;
	void *mapped;

	if (c->segments_count == SEGMENTS_MAX) {
		errno = ENOMEM;
		return false;
	}
	mapped = mmap(NULL, SEGMENT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, (off_t)at);
	if (mapped == MAP_FAILED)
		return false;
	c->segments[c->segments_count++] = mapped;
	return true;
}

static bool grow(struct connection_state *c)
{
	size_t size = FIXED_SIZE + (c->segments_count + 1) * SEGMENT_SIZE;

	/* A page without room would be a SIGBUS later. Most are never touched. */
	return !ftruncate(c->fd, (off_t)size) && map_segment(c);
}

static bool is_sound(const struct connection_state *c, size_t size)
{
	const struct connection_header *header = c->header;

	return header->magic == CONNECTION_MAGIC && header->version == CONNECTION_VERSION &&
	       header->init_size <= INIT_REQUEST_MAX && header->readers <= READERS_MAX &&
	       (size - FIXED_SIZE) % SEGMENT_SIZE == 0 &&
	       header->used <= (size - FIXED_SIZE) / RECORD_CELL;
}

static struct record_head *cell(const struct connection_state *c, uint64_t number)
{
	return (struct record_head *)(c->segments[number / SEGMENT_CELLS] +
			   number % SEGMENT_CELLS * RECORD_CELL);
}

/* 0: too many. */
static uint8_t cells_for(bool is_request, size_t length)
{
	size_t before = is_request ? offsetof(struct request_record, request)
				   : offsetof(struct inode_record, name);
	size_t cells = (before + length + RECORD_CELL - 1) / RECORD_CELL;

	return cells <= CELLS_MAX ? (uint8_t)cells : 0;
}

static void put_aside(struct connection_state *c, struct record_head *record)
{
	struct free_record *each = malloc(sizeof(*each));

	if (!each)
		return; /* the next process finds it */
	each->record = record;
	each->next = c->free[record->cells - 1];
	c->free[record->cells - 1] = each;
}

/* False: these are no cells. */
static bool gather_free(struct connection_state *c)
{
	for (uint64_t at = 0; at < c->header->used;) {
		struct record_head *record = cell(c, at);

		/* One that is free may have been written by half. */
		if (!record->cells || record->cells > CELLS_MAX ||
		    at + record->cells > c->header->used ||
		    (record->id && cells_for(record->is_request, record->length) != record->cells))
			return false;
		at += record->cells;
		if (!record->id)
			put_aside(c, record);
	}
	return true;
}

static bool open_memory(struct connection_state *c, int fd, bool inherited)
{
	struct stat status;
	void *mapped;

	if (!inherited && ftruncate(fd, (off_t)FIXED_SIZE))
		return false;
	if (fstat(fd, &status))
		return false;
	if ((size_t)status.st_size < FIXED_SIZE) {
		errno = EPROTO;
		return false;
	}
	mapped = mmap(NULL, HEADER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		return false;
	c->header = mapped;
	mapped = mmap(NULL, READING_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)HEADER_SIZE);
	if (mapped == MAP_FAILED)
		return false;
	c->reading = mapped;
	if (!inherited) {
		c->header->version = CONNECTION_VERSION;
		c->header->epoch = c->header->told_epoch = 1;
		c->header->magic = CONNECTION_MAGIC;
		/* Without room for any record not even the first request could be kept. */
		return grow(c);
	}
	if (!is_sound(c, (size_t)status.st_size)) {
		errno = EPROTO;
		return false;
	}
	while (FIXED_SIZE + c->segments_count * SEGMENT_SIZE < (size_t)status.st_size)
		if (!map_segment(c))
			return false;
	if (!gather_free(c)) {
		errno = EPROTO;
		return false;
	}
	return true;
}

bool connection_open(struct connection_state *c, int fd, bool inherited)
{
	int error;

	memset(c, 0, sizeof(*c));
	c->fd = fd;
	if (open_memory(c, fd, inherited))
		return true;
	error = errno;
	connection_close(c);
	errno = error;
	return false;
}

void connection_close(struct connection_state *c)
{
	for (int i = 0; i < CELLS_MAX; i++)
		while (c->free[i]) {
			struct free_record *each = c->free[i];

			c->free[i] = each->next;
			free(each);
		}
	for (unsigned i = 0; i < c->segments_count; i++)
		munmap(c->segments[i], SEGMENT_SIZE);
	if (c->reading)
		munmap(c->reading, READING_SIZE);
	if (c->header)
		munmap(c->header, HEADER_SIZE);
	c->reading = NULL;
	c->segments_count = 0;
	c->header = NULL;
	c->fd = -1;
}

static struct record_head *take_free(struct connection_state *c, uint8_t cells)
{
	struct free_record *each = c->free[cells - 1];
	struct record_head *record;

	if (!each)
		return NULL;
	c->free[cells - 1] = each->next;
	record = each->record;
	free(each);
	return record;
}

static struct record_head *take_unused(struct connection_state *c, uint8_t cells)
{
	uint64_t at = c->header->used;
	struct record_head *record;

	/* Each lies in one segment. */
	while (at % SEGMENT_CELLS + cells > SEGMENT_CELLS) {
		record = cell(c, at);
		record->cells = 1;
		put_aside(c, record);
		c->header->used = ++at;
	}
	if (at + cells > (uint64_t)c->segments_count * SEGMENT_CELLS && !grow(c))
		return NULL;
	record = cell(c, at);
	record->cells = cells;
	c->header->used = at + cells;
	return record;
}

static struct record_head *take(struct connection_state *c, uint8_t cells)
{
	struct record_head *record = take_free(c, cells);

	return record ? record : take_unused(c, cells);
}

struct inode_record *record_new(struct connection_state *c, const struct inode_record *like, const char *name)
{
	struct inode_record *record;

	/* A successor must not give the number of one that is left out to another file: the kernel
	 * would show the content that it has of the first. */
	if (like->head.id >= c->header->next_id)
		c->header->next_id = like->head.id + 1;
	record = (struct inode_record *)take(c, cells_for(false, like->head.length));
	if (!record) {
		c->header->left_out++;
		return NULL;
	}
	record->parent = like->parent;
	record->nlookup = like->nlookup;
	record->negative = like->negative;
	record->attached = like->attached;
	record->head.is_request = false;
	record->head.length = like->head.length;
	record->attr = like->attr;
	memcpy(record->name, name, like->head.length);
	atomic_store(&record->head.id, like->head.id);
	return record;
}

struct request_record *request_record_new(struct connection_state *c, const char *request, size_t size)
{
	uint8_t cells = cells_for(true, size);
	struct request_record *record = cells ? (struct request_record *)take(c, cells) : NULL;

	if (!record)
		return NULL;
	record->head.is_request = true;
	record->head.interrupted = false;
	record->head.length = (uint16_t)size;
	memcpy(record->request, request, size);
	atomic_store(&record->head.id, ((const struct fuse_in_header *)request)->unique);
	return record;
}

void record_free(struct connection_state *c, struct record_head *record)
{
	atomic_store(&record->id, 0);
	/* Its other values change after that. */
	atomic_signal_fence(memory_order_seq_cst);
	put_aside(c, record);
}

/* The next one of this kind from `at` on. */
static struct record_head *next_record(struct connection_state *c, uint64_t *at, bool is_request)
{
	while (*at < c->header->used) {
		struct record_head *record = cell(c, *at);

		*at += record->cells;
		if (record->id && record->is_request == is_request)
			return record;
	}
	return NULL;
}

bool records_each(struct connection_state *c, record_visit *visit, void *context)
{
	struct record_head *record;

	for (uint64_t at = 0; (record = next_record(c, &at, false));)
		if (!visit((struct inode_record *)record, context))
			return false;
	return true;
}

bool requests_each(struct connection_state *c, request_visit *visit, void *context)
{
	struct record_head *record;

	for (uint64_t at = 0; (record = next_record(c, &at, true));)
		if (!visit((struct request_record *)record, context))
			return false;
	return true;
}

void connection_note_init(struct connection_state *c, const char *request, uint32_t size)
{
	if (!connection_is_kept(c) || size > INIT_REQUEST_MAX)
		return;
	memcpy(c->header->init_request, request, size);
	c->header->init_size = size;
}
