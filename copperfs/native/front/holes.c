/*
 * Holes: SEEK_DATA and SEEK_HOLE, so that `tar -S` and `cp` read only the data of a sparse file
 * (decision 88).
 *
 * The source is asked only about a file that is larger than the limit for whole files and has fewer
 * blocks than its size would take. Of any other file, and whenever the source gives no answer, all
 * is data: an unreported hole reads as zeros.
 *
 * The kernel never gets ENOSYS: it would not ask again for the life of the mount.
 */
#define _GNU_SOURCE /* SEEK_DATA */
#include "front.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A reader that continues gets four times the number known. */
enum { EXTENTS_FIRST = 2, EXTENTS_GROWTH = 4, BLOCK = 512 };

static bool may_have_holes(const struct front *f, const struct inode *inode)
{
	return f->finds_holes && inode->attached && inode->attr.size > f->whole_max &&
	       inode->attr.blocks < inode->attr.size / BLOCK;
}

static uint64_t find_known(const struct extents *known, uint64_t size, uint64_t offset,
			   bool wants_data)
{
	for (uint32_t i = 0; i < known->count; i++) {
		const struct extent *extent = &known->each[i];

		if (offset >= extent->hole)
			continue;
		if (wants_data)
			return offset < extent->data ? extent->data : offset;
		return offset < extent->data ? offset : extent->hole;
	}
	return wants_data ? size : offset; /* the rest is a hole */
}

static bool is_known(const struct extents *known, uint64_t offset)
{
	return known && offset >= known->from && offset < known->until;
}

/* 0, or ENXIO: there is no more data. */
static int find_in(const struct extents *known, uint64_t size, const struct fuse_lseek_in *seek,
		   uint64_t *found)
{
	bool wants_data = seek->whence == SEEK_DATA;

	*found = find_known(known, size, seek->offset, wants_data);
	return wants_data && *found >= size ? ENXIO : 0;
}

int hole_find(const struct front *f, const struct inode *inode, const struct fuse_lseek_in *seek,
	      bool retried, uint64_t *found)
{
	bool wants_data = seek->whence == SEEK_DATA;
	uint64_t size = inode->attr.size;

	if ((!wants_data && seek->whence != SEEK_HOLE) || !S_ISREG(inode->attr.mode))
		return EINVAL;
	if (seek->offset >= size)
		return ENXIO;
	if (is_known(inode->extents, seek->offset))
		return find_in(inode->extents, size, seek, found);
	if (!retried && may_have_holes(f, inode))
		return EAGAIN;
	*found = wants_data ? seek->offset : size;
	return 0;
}

char *seek_begin(const struct inode *inode, uint64_t offset, struct version *version,
		 unsigned *count)
{
	const struct extents *known = inode->extents;
	char path[65536];
	int length = inode_path(inode, path, sizeof(path) - 1);

	if (length < 0)
		return NULL;
	path[length] = 0;
	*version = version_of(&inode->attr);
	*count = EXTENTS_FIRST;
	if (known && known->until == offset && known->count * EXTENTS_GROWTH <= EXTENTS_MAX)
		*count = known->count * EXTENTS_GROWTH;
	else if (known && known->until == offset)
		*count = EXTENTS_MAX;
	return strdup(path);
}

/* Replaces `known`, unless `more` begins where it ends. */
static struct extents *joined(const struct extents *known, struct extents *more)
{
	struct extents *both;
	uint32_t count;

	if (!known || known->until != more->from || known->count + more->count > EXTENTS_MAX)
		return more;
	count = known->count + more->count;
	both = malloc(sizeof(*both) + count * sizeof(struct extent));
	if (!both)
		return more;
	*both = (struct extents){ known->from, more->until, count };
	memcpy(both->each, known->each, known->count * sizeof(struct extent));
	memcpy(both->each + known->count, more->each, more->count * sizeof(struct extent));
	free(more);
	return both;
}

/* In a thread of the source. Answers from `extents`: a clear may drop the inode's at once. */
static void seek_done(void *context, uint64_t unique, struct extents *extents)
{
	struct front *f = context;
	struct pending *pending = pending_claim(f, unique);
	struct fuse_lseek_out out = { 0 };
	const struct fuse_in_header *in;
	const struct fuse_lseek_in *seek;
	int error = EAGAIN;
	struct inode *inode;

	if (!pending) { /* interrupted or overdue */
		free(extents);
		return;
	}
	in = (const struct fuse_in_header *)pending->request;
	seek = (const struct fuse_lseek_in *)(in + 1);
	if (is_known(extents, seek->offset)) {
		tables_lock(&f->tables);
		inode = inode_by_id(&f->tables, in->nodeid);
		if (inode && S_ISREG(inode->attr.mode) && extents->until <= inode->attr.size) {
			error = find_in(extents, inode->attr.size, seek, &out.offset);
			inode_set_extents(&f->tables, inode, joined(inode->extents, extents));
			extents = NULL;
		}
		tables_unlock(&f->tables);
	}
	free(extents);
	if (error == EAGAIN) { /* all is data, then */
		front_retry(f, pending, NULL);
		return;
	}
	front_reply(f, unique, error, &out, error ? 0 : sizeof(out));
	front_count(f, in, pending->served_by, pending->started_ns);
	pending_free(f, pending);
}

void seek_start(struct front *f, struct pending *pending, const char *path,
		const struct version *version, unsigned count)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)pending->request;
	uint64_t offset = ((const struct fuse_lseek_in *)(in + 1))->offset, unique = in->unique;

	/* the deadline may answer it from here on */
	if (pending_add(f, pending) &&
	    !f->reader->seek(f->reader->pool, path, version, offset, count, seek_done, f, unique))
		seek_done(f, unique, NULL);
}
