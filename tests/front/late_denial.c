/*
 * Order of a denial and an invalidation: the notification must come after the denial.
 *
 * The front finds "no such name", and is cleared before it writes that. If the kernel were told
 * first to look everything up again, it would believe the denial without end. Our writev holds the
 * answer back until the thread that notifies the kernel waits for it, or has notified.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <sched.h>
#include <sys/uio.h>

static struct front front;
static _Atomic bool is_held;
static _Atomic unsigned answers, told;

ssize_t late_writev(int fd, const struct iovec *parts, int count);
ssize_t late_writev(int fd, const struct iovec *parts, int count)
{
	const struct fuse_out_header *out = parts[0].iov_base;
	const struct fuse_entry_out *entry = count > 1 ? parts[1].iov_base : NULL;

	(void)fd;
	if (!out->unique) {
		CHECK(answers == 1); /* not before */
		told++;
		errno = EINVAL;
		return out->error == 8 ? -1 : (ssize_t)out->len; /* an older kernel */
	}
	CHECK(count == 2 && !out->error && !entry->nodeid && entry->entry_valid);
	is_held = true;
	while (!front.denials_awaited && !told)
		sched_yield();
	answers++;
	return out->len;
}

static void *ask(void *scratch)
{
	static const char name[] = "absent";
	struct {
		struct fuse_in_header in;
		char name[sizeof(name)];
	} request = { .in = { .len = sizeof(request.in) + sizeof(name), .opcode = FUSE_LOOKUP, .unique = 2,
			      .nodeid = FUSE_ROOT_ID + 1 } };

	memcpy(request.name, name, sizeof(name));
	front_request(&front, (const char *)&request, sizeof(request.in) + sizeof(name), scratch);
	return NULL;
}

static struct listing *listing_of(const char *name)
{
	_Alignas(8) char packed[sizeof(struct listing_header) + sizeof(struct row) + 16] = { 0 };
	struct row *row = (struct row *)(packed + sizeof(struct listing_header));
	struct listing *listing;

	*(struct listing_header *)packed = (struct listing_header){ LISTING_MAGIC, 1, 0, 0 };
	row->name_length = (uint16_t)strlen(name);
	memcpy(row->name, name, row->name_length);
	row->attr.mode = S_IFDIR | 0755;
	row->attr.ino = 7;
	row->length = sizeof(*row) + 16;
	listing = listing_open(&front.tables, packed, sizeof(packed), FRESH_FOREVER);
	CHECK(listing);
	return listing;
}

int main(void)
{
	struct tables *t = &front.tables;
	struct inode *directory;
	struct later later;
	pthread_t asker;
	char *scratch = malloc(REPLY_MAX);

	CHECK(scratch && !front_init(&front, 1000));
	front.kernel_cache = true;
	t->root->attr.mode = S_IFDIR | 0755;
	tables_lock(t);
	inode_set_listing(t, t->root, listing_of("directory"));
	directory = inode_obtain(t, t->root, "directory", 9,
				 &listing_row(t->root->listing, 0)->attr, NULL, 0, FRESH_FOREVER);
	CHECK(directory && directory->id == FUSE_ROOT_ID + 1);
	inode_refer(t, directory);
	inode_set_listing(t, directory, listing_of("there"));
	tables_unlock(t);
	CHECK(!pthread_create(&asker, NULL, ask, scratch));
	while (!is_held)
		sched_yield();
	tables_lock(t);
	tables_clear(t, t->epoch + 1);
	tables_unlock(t);
	CHECK(front_invalidate_all(&front, &later) == 1 && !later.some);
	CHECK(!pthread_join(asker, NULL));
	CHECK(answers == 1 && told == 4 && !front.denials);
	front_destroy(&front);
	free(scratch);
	return 0;
}
