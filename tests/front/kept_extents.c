/*
 * The extents of files (where they have data) stay cached while two are walked in turns.
 *
 * They also answer if everything is cleared right after the lookup. The open file of one stays
 * while another is opened anew.
 *
 * On command, our pthread_mutex_unlock clears the tables, as another waiting thread may.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sys/uio.h>

#undef pthread_mutex_unlock
int pthread_mutex_unlock(pthread_mutex_t *mutex);

enum { SIZE = 10000, DATA = 1000, HOLE = 2000 };
#define HANGS_NS (3600 * 1000000000ull)

static struct front front;
static bool clears; /* after the next unlock of the tables */
static struct fuse_lseek_out answered;
static unsigned answers;
static struct {
	seeker_done *done;
	uint64_t unique;
} begun;

int clearing_unlock(pthread_mutex_t *mutex);
int clearing_unlock(pthread_mutex_t *mutex)
{
	int error = pthread_mutex_unlock(mutex);

	if (clears && mutex == &front.tables.lock) {
		clears = false;
		tables_lock(&front.tables);
		tables_clear(&front.tables, front.tables.epoch + 1);
		tables_unlock(&front.tables);
	}
	return error;
}

ssize_t noted_writev(int fd, const struct iovec *parts, int count);
ssize_t noted_writev(int fd, const struct iovec *parts, int count)
{
	const struct fuse_out_header *out = parts[0].iov_base;

	(void)fd;
	CHECK(count == 2 && !out->error && parts[1].iov_len == sizeof(answered));
	memcpy(&answered, parts[1].iov_base, sizeof(answered));
	answers++;
	return out->len;
}

static struct extents *extents_of(void)
{
	struct extents *extents = malloc(sizeof(*extents) + sizeof(struct extent));

	CHECK(extents);
	*extents = (struct extents){ .from = 0, .until = HOLE, .count = 1 };
	extents->each[0] = (struct extent){ .data = DATA, .hole = HOLE };
	return extents;
}

static struct inode *file_of(struct tables *t, const char *name)
{
	struct fuse_attr attr = { .mode = S_IFREG | 0644, .size = SIZE, .ino = 7 };
	struct inode *inode = inode_obtain(t, t->root, name, 1, &attr, NULL, 0, FRESH_FOREVER);

	CHECK(inode);
	inode_refer(t, inode);
	return inode;
}

/* The other inode is also released now and then, and requested again. */
static void walk_in_turns(struct tables *t, struct inode *one, struct inode *other)
{
	inode_set_extents(t, one, extents_of());
	for (unsigned i = 0; i < 4 * EXTENTS_INODES_MAX; i++) {
		if (i % 2)
			inode_withdraw(t, other);
		inode_set_extents(t, other, extents_of());
		CHECK(one->extents && other->extents);
	}
}

static void set_handle(struct tables *t, struct inode *inode)
{
	struct handle *handle = calloc(1, sizeof(*handle));

	CHECK(handle);
	atomic_init(&handle->refs, 1);
	handle->fd = -1;
	inode_set_handle(t, inode, handle);
}

static void open_in_turns(struct tables *t, struct inode *one, struct inode *other)
{
	set_handle(t, one);
	for (unsigned i = 0; i < 4 * t->handle_max; i++) {
		if (i % 2)
			inode_drop_handle(t, other);
		set_handle(t, other);
		CHECK(one->handle && other->handle);
	}
}

/* At most this many files at a time. */
static void walk_many(struct tables *t)
{
	unsigned kept = 0, open = 0;

	t->handle_max = EXTENTS_INODES_MAX; /* the first places of its ring */
	t->handle_next = 0;
	for (unsigned i = 0; i < 2 * EXTENTS_INODES_MAX; i++) {
		char name = (char)(128 + i);
		struct inode *inode = file_of(t, &name);

		inode_set_extents(t, inode, extents_of());
		set_handle(t, inode);
	}
	for (uint64_t id = FUSE_ROOT_ID; id < t->next_id; id++) {
		kept += inode_by_id(t, id)->extents != NULL;
		open += inode_by_id(t, id)->handle != NULL;
	}
	CHECK(kept == EXTENTS_INODES_MAX && open == EXTENTS_INODES_MAX);
}

static bool begin_seek(void *pool, const char *path, const struct version *version,
		       uint64_t offset, unsigned count, seeker_done *done, void *context,
		       uint64_t unique)
{
	(void)pool, (void)path, (void)version, (void)offset, (void)count, (void)context;
	begun.done = done;
	begun.unique = unique;
	return true;
}

static void ask(uint64_t id, uint32_t whence, char *scratch)
{
	struct {
		struct fuse_in_header in;
		struct fuse_lseek_in lseek;
	} request = { .in = { .len = sizeof(request), .opcode = FUSE_LSEEK, .unique = 2,
			      .nodeid = id },
		      .lseek = { .offset = DATA, .whence = whence } };

	front_request(&front, (const char *)&request, sizeof(request), scratch);
}

int main(void)
{
	static const struct reader reader = { .seek = begin_seek };
	struct tables *t = &front.tables;
	char *scratch = malloc(REPLY_MAX);
	struct inode *one, *other;

	CHECK(scratch && !front_init(&front, 1000));
	front.reader = &reader;
	front.whole_max = SIZE / 2;
	front.finds_holes = true;
	tables_lock(t);
	one = file_of(t, "a");
	other = file_of(t, "b");
	walk_in_turns(t, one, other);
	open_in_turns(t, one, other);
	walk_many(t);
	inode_withdraw(t, one);
	tables_unlock(t);

	ask(one->id, SEEK_HOLE, scratch);
	CHECK(begun.done && !answers);
	clears = true;
	begun.done(&front, begun.unique, extents_of());
	CHECK(answers == 1 && answered.offset == HOLE && !front.pending_count);

	/* a request that has waited until the deadline does not wait again at once */
	begun.done = NULL;
	other->hung.until = now_ns() + HANGS_NS;
	inode_withdraw(t, other);
	ask(other->id, SEEK_HOLE, scratch);
	CHECK(begun.done && answers == 1); /* it was a read */
	begun.done(&front, begun.unique, NULL);
	CHECK(answers == 2 && answered.offset == SIZE);
	begun.done = NULL;
	other->hung.seek = true;
	ask(other->id, SEEK_HOLE, scratch);
	CHECK(!begun.done && answers == 3 && answered.offset == SIZE);
	front_destroy(&front);
	free(scratch);
	return 0;
}
