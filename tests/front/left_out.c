/*
 * Names that are left out for want of memory cost a successor their own numbers, and no more: it
 * neither gives their numbers to other files nor keeps what was below them.
 */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { TABLES_MAX = 2 * SEGMENT_CELLS };

static uint64_t seen(struct tables *t, struct inode *parent, const char *name, bool directory)
{
	struct fuse_attr attr = { .mode = directory ? S_IFDIR | 0755 : S_IFREG | 0644 };
	struct inode *inode;

	attr.ino = t->next_id;
	inode = inode_obtain(t, parent, name, strlen(name), &attr, NULL, 0, FRESH_FOREVER);
	CHECK(inode);
	inode_refer(t, inode);
	return inode->id;
}

static void begin(struct tables *t, int fd, bool inherited)
{
	CHECK(!tables_init(t, TABLES_MAX, 16));
	CHECK(connection_open(&t->connection, fd, inherited));
	CHECK(!inherited || tables_adopt(t));
	tables_lock(t);
}

static void end(struct tables *t)
{
	tables_unlock(t);
	tables_destroy(t);
}

static void limit(rlim_t bytes)
{
	struct rlimit rlimit;

	CHECK(!getrlimit(RLIMIT_FSIZE, &rlimit));
	rlimit.rlim_cur = bytes;
	CHECK(!setrlimit(RLIMIT_FSIZE, &rlimit));
}

static void numbers_are_used_once(void)
{
	int fd = memfd_create("left-out", 0);
	struct tables t;
	uint64_t left_out;

	begin(&t, fd, false);
	limit(BEFORE_SEGMENTS);
	for (unsigned i = 0; i < SEGMENT_CELLS; i++) {
		char name[16];

		sprintf(name, "n%u", i);
		seen(&t, t.root, name, false);
	}
	left_out = seen(&t, t.root, "a", false);
	CHECK(t.connection.header->left_out == 1);
	end(&t);
	limit(RLIM_INFINITY);
	begin(&t, fd, true);
	CHECK(!inode_by_id(&t, left_out));
	CHECK(seen(&t, t.root, "b", false) > left_out);
	end(&t);
	close(fd);
}

static void without_room_for_any_there_is_none(void)
{
	int fd = memfd_create("left-out", 0);
	struct tables t;

	limit(BEFORE_SEGMENTS);
	CHECK(!tables_init(&t, TABLES_MAX, 16));
	CHECK(!connection_open(&t.connection, fd, false));
	CHECK(!connection_is_kept(&t.connection));
	tables_destroy(&t);
	limit(RLIM_INFINITY);
	close(fd);
}

/* The memory is full but for one cell whenever one is recorded. The child's lies before its
 * parent's, whose own parent was left out. */
static void nothing_stays_below_what_was_left_out(void)
{
	int fd = memfd_create("left-out", 0);
	uint64_t ids[SEGMENT_CELLS], top, parent, child;
	struct tables t;

	begin(&t, fd, false);
	for (unsigned i = 0; i < SEGMENT_CELLS; i++) {
		char name[16];

		sprintf(name, "n%u", i);
		ids[i] = seen(&t, t.root, name, false);
	}
	limit(BEFORE_SEGMENTS);
	top = seen(&t, t.root, "top", true);
	inode_forget(&t, ids[5], 1);
	parent = seen(&t, inode_by_id(&t, top), "parent", true);
	inode_forget(&t, ids[3], 1);
	child = seen(&t, inode_by_id(&t, parent), "child", false);
	CHECK(!inode_by_id(&t, top)->record && inode_by_id(&t, parent)->record);
	CHECK(inode_by_id(&t, child)->record < inode_by_id(&t, parent)->record);
	end(&t);
	limit(RLIM_INFINITY);
	begin(&t, fd, true);
	tables_check(&t);
	CHECK(!inode_by_id(&t, top) && !inode_by_id(&t, parent) && !inode_by_id(&t, child));
	CHECK(inode_by_id(&t, ids[7]) && inode_by_id(&t, ids[SEGMENT_CELLS - 1]));
	end(&t);
	close(fd);
}

int main(void)
{
	signal(SIGXFSZ, SIG_IGN);
	without_room_for_any_there_is_none();
	numbers_are_used_once();
	nothing_stays_below_what_was_left_out();
	return 0;
}
