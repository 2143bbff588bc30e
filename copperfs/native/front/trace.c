/* Request trace for `copperfs profile`: path and cost of each request, in a bounded buffer that
 * Python empties ten times a second. Records that do not fit are counted; no thread waits. */
#include "front.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* As daemon/request_profile.py unpacks it; the path follows. */
struct record {
	uint64_t started_ns;
	uint64_t took_ns;
	uint64_t bytes; /* of a read */
	uint16_t path_length;
	uint8_t kind;
	uint8_t served_by;
	uint8_t type; /* S_IFMT >> 12; 0 if there is no such name */
	uint8_t padding[3];
};

bool trace_begin(struct front *f, size_t room)
{
	bool there;

	pthread_mutex_lock(&f->trace_lock);
	free(f->trace);
	f->trace = malloc(room);
	f->trace_room = room;
	there = f->trace != NULL;
	f->trace_used = 0;
	f->trace_lost = 0;
	pthread_mutex_unlock(&f->trace_lock);
	atomic_store(&f->tracing, there);
	return there;
}

void trace_end(struct front *f)
{
	atomic_store(&f->tracing, false);
	pthread_mutex_lock(&f->trace_lock);
	free(f->trace);
	f->trace = NULL;
	f->trace_used = 0;
	pthread_mutex_unlock(&f->trace_lock);
}

/* The caller frees the records. */
char *trace_take(struct front *f, size_t *size, uint64_t *lost)
{
	char *taken = NULL;

	pthread_mutex_lock(&f->trace_lock);
	*size = f->trace_used;
	*lost = f->trace_lost;
	if (f->trace && f->trace_used)
		taken = malloc(f->trace_used);
	if (taken) {
		memcpy(taken, f->trace, f->trace_used);
		f->trace_used = 0;
	}
	pthread_mutex_unlock(&f->trace_lock);
	return taken;
}

static void add(struct front *f, const struct record *record, const char *path)
{
	size_t size = sizeof(*record) + record->path_length;

	pthread_mutex_lock(&f->trace_lock);
	if (f->trace && f->trace_used + size <= f->trace_room) {
		memcpy(f->trace + f->trace_used, record, sizeof(*record));
		memcpy(f->trace + f->trace_used + sizeof(*record), path, record->path_length);
		f->trace_used += size;
	} else {
		f->trace_lost++;
	}
	pthread_mutex_unlock(&f->trace_lock);
}

static uint64_t read_size(const struct fuse_in_header *in, const struct inode *inode)
{
	const struct fuse_read_in *read = (const struct fuse_read_in *)(in + 1);
	uint64_t left;

	if (in->opcode != FUSE_READ || in->len < sizeof(*in) + sizeof(*read))
		return 0;
	left = read->offset < inode->attr.size ? inode->attr.size - read->offset : 0;
	return left < read->size ? left : read->size;
}

void trace_note(struct front *f, const struct fuse_in_header *in, enum kind kind,
		enum served_by served_by, uint64_t started_ns, uint64_t took_ns)
{
	struct record record = { .started_ns = started_ns, .took_ns = took_ns,
				 .kind = (uint8_t)kind, .served_by = (uint8_t)served_by };
	char path[4096 + 256 + 1];
	const char *name = (const char *)(in + 1);
	struct inode *inode;
	int length = -1;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, in->nodeid);
	if (inode)
		length = inode_path(inode, path, 4096);
	if (length >= 0 && kind == KIND_LOOKUP) {
		size_t name_length = strnlen(name, in->len - sizeof(*in));

		if (name_length > 255)
			name_length = 255;
		inode = inode_by_name(&f->tables, inode, name, name_length);
		if (length)
			path[length++] = '/';
		memcpy(path + length, name, name_length);
		length += (int)name_length;
		if (inode && !inode->negative)
			record.type = (uint8_t)(inode->attr.mode >> 12);
	} else if (length >= 0) {
		record.type = (uint8_t)(inode->attr.mode >> 12);
		record.bytes = read_size(in, inode);
	}
	tables_unlock(&f->tables);
	if (length < 0)
		return;
	record.path_length = (uint16_t)length;
	add(f, &record, path);
}
