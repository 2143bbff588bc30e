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

_Static_assert(sizeof(struct connection_header) <= HEADER_SIZE, "one page");
_Static_assert(offsetof(struct inode_record, name) + 255 <= 2 * RECORD_CELL, "any name fits");

/* In the private memory of this process: a successor finds free cells by their numbers. */
struct free_record {
	struct free_record *next;
	struct inode_record *record;
};

static bool map_segment(struct connection_state *c)
{
	size_t at = HEADER_SIZE + c->segments_count * SEGMENT_SIZE;
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
	size_t size = HEADER_SIZE + (c->segments_count + 1) * SEGMENT_SIZE;

	/* A page without room would be a SIGBUS later. Most are never touched. */
	return !ftruncate(c->fd, (off_t)size) && map_segment(c);
}

static bool is_sound(const struct connection_state *c, size_t size)
{
	const struct connection_header *header = c->header;

	return header->magic == CONNECTION_MAGIC && header->version == CONNECTION_VERSION &&
	       header->init_size <= INIT_REQUEST_MAX && (size - HEADER_SIZE) % SEGMENT_SIZE == 0 &&
	       header->used <= (size - HEADER_SIZE) / RECORD_CELL;
}

static struct inode_record *cell(const struct connection_state *c, uint64_t number)
{
	return (struct inode_record *)(c->segments[number / SEGMENT_CELLS] +
				 number % SEGMENT_CELLS * RECORD_CELL);
}

static uint8_t cells_for(uint16_t name_length)
{
	return offsetof(struct inode_record, name) + name_length > RECORD_CELL ? 2 : 1;
}

static void put_aside(struct connection_state *c, struct inode_record *record)
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
		struct inode_record *record = cell(c, at);

		if ((record->cells != 1 && record->cells != 2) ||
		    at + record->cells > c->header->used ||
		    cells_for(record->name_length) > record->cells)
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

	if (!inherited && ftruncate(fd, (off_t)HEADER_SIZE))
		return false;
	if (fstat(fd, &status))
		return false;
	if ((size_t)status.st_size < HEADER_SIZE) {
		errno = EPROTO;
		return false;
	}
	mapped = mmap(NULL, HEADER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		return false;
	c->header = mapped;
	if (!inherited) {
		c->header->version = CONNECTION_VERSION;
		c->header->epoch = c->header->told_epoch = 1;
		c->header->magic = CONNECTION_MAGIC;
		return true;
	}
	if (!is_sound(c, (size_t)status.st_size)) {
		errno = EPROTO;
		return false;
	}
	while (HEADER_SIZE + c->segments_count * SEGMENT_SIZE < (size_t)status.st_size)
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
	for (int i = 0; i < 2; i++)
		while (c->free[i]) {
			struct free_record *each = c->free[i];

			c->free[i] = each->next;
			free(each);
		}
	for (unsigned i = 0; i < c->segments_count; i++)
		munmap(c->segments[i], SEGMENT_SIZE);
	if (c->header)
		munmap(c->header, HEADER_SIZE);
	c->segments_count = 0;
	c->header = NULL;
	c->fd = -1;
}

static struct inode_record *take_free(struct connection_state *c, uint8_t cells)
{
	struct free_record *each = c->free[cells - 1];
	struct inode_record *record;

	if (!each)
		return NULL;
	c->free[cells - 1] = each->next;
	record = each->record;
	free(each);
	return record;
}

static struct inode_record *take_unused(struct connection_state *c, uint8_t cells)
{
	uint64_t at = c->header->used;
	struct inode_record *record;

	/* A pair lies in one segment. */
	if (cells == 2 && at % SEGMENT_CELLS == SEGMENT_CELLS - 1) {
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

struct inode_record *record_new(struct connection_state *c, const struct inode_record *like, const char *name)
{
	uint8_t cells = cells_for(like->name_length);
	struct inode_record *record;

	/* A successor must not give the number of one that is left out to another file: the kernel
	 * would show the content that it has of the first. */
	if (like->id >= c->header->next_id)
		c->header->next_id = like->id + 1;
	record = take_free(c, cells);
	if (!record)
		record = take_unused(c, cells);
	if (!record) {
		c->header->left_out++;
		return NULL;
	}
	record->parent = like->parent;
	record->nlookup = like->nlookup;
	record->negative = like->negative;
	record->attached = like->attached;
	record->name_length = like->name_length;
	record->attr = like->attr;
	memcpy(record->name, name, like->name_length);
	atomic_store(&record->id, like->id);
	return record;
}

void record_free(struct connection_state *c, struct inode_record *record)
{
	atomic_store(&record->id, 0);
	/* Its other values change after that. */
	atomic_signal_fence(memory_order_seq_cst);
	put_aside(c, record);
}

bool records_each(struct connection_state *c, record_visit *visit, void *context)
{
	for (uint64_t at = 0; at < c->header->used;) {
		struct inode_record *record = cell(c, at);

		at += record->cells;
		if (record->id && !visit(record, context))
			return false;
	}
	return true;
}

void connection_note_init(struct connection_state *c, const char *request, uint32_t size)
{
	if (!connection_is_kept(c) || size > INIT_REQUEST_MAX)
		return;
	memcpy(c->header->init_request, request, size);
	c->header->init_size = size;
}
