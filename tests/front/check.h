/* Invariants of the tables, and of replies to the kernel, that hold at any time. */
#ifndef CHECK_H
#define CHECK_H

#include "../../copperfs/native/front/front.h"
#include "assertion.h"

#include <string.h>
#include <sys/stat.h>

/* Chunks of one inode; how many. */
static inline uint32_t chunks_check(struct tables *t, const struct inode *n)
{
	uint32_t count = 0;

	for (struct chunk *c = n->first_chunk; c; c = c->of_inode.next) {
		uint64_t begin = c->index * n->chunk_bytes;

		CHECK(c->inode == n && chunk_find(t, n, c->index) == c);
		CHECK(*c->of_inode.from == c && (!c->touched.from || *c->touched.from == c));
		CHECK(begin < n->attr.size && c->blob->size <= n->attr.size - begin);
		CHECK(c->blob->size == n->chunk_bytes || begin + c->blob->size == n->attr.size);
		count++;
	}
	CHECK(count == n->chunk_count);
	return count;
}

/* In rows without attributes: a value that no inode may have. */
enum { UNKNOWN_LINKS = 0xdead };

static inline void inode_check(struct tables *t, struct inode *n, uint32_t children)
{
	CHECK(n->attr.nlink != UNKNOWN_LINKS);
	CHECK(n->id < t->next_id);
	CHECK(inode_by_id(t, n->id) == n);
	CHECK(n->children == children);
	if (n == t->root) {
		CHECK(n->id == FUSE_ROOT_ID && !n->parent && !n->attached && !n->idle);
		return;
	}
	CHECK(n->name_length >= 1 && n->name_length <= 255);
	CHECK(n->parent && inode_by_id(t, n->parent->id) == n->parent);
	CHECK(!n->attached || inode_by_name(t, n->parent, n->name, n->name_length) == n);
	CHECK(n->nlookup || n->children || n->idle); /* otherwise it should have been freed */
	CHECK(!(n->idle && n->nlookup));
	CHECK(!n->negative || (!n->nlookup && !n->object && !n->handle && !n->first_chunk));
	CHECK(!n->first_chunk || S_ISREG(n->attr.mode));
	if (n->object && !S_ISLNK(n->attr.mode))
		CHECK(S_ISREG(n->attr.mode) && n->object->size == n->attr.size);
	if (n->listing)
		CHECK(S_ISDIR(n->attr.mode));
	CHECK(!n->extents || (S_ISREG(n->attr.mode) && n->extents->count <= EXTENTS_MAX &&
			      n->extents->until <= n->attr.size));
	if (n->handle)
		CHECK(atomic_load(&n->handle->refs) >= 1);
}

/* With the lock held. */
static inline void tables_check(struct tables *t)
{
	uint32_t nodes = 0, attached = 0, idle_flags = 0, idle = 0, named = 0, handles = 0;
	uint32_t extents = 0;
	uint64_t chunks = 0, touched = 0;
	uint32_t *children = calloc(t->next_id, sizeof(*children));

	CHECK(children);
	for (uint32_t i = 0; i <= t->mask; i++)
		for (const struct inode *n = t->by_id[i]; n; n = n->next_by_id)
			if (n->parent)
				children[n->parent->id]++;
	for (uint32_t i = 0; i <= t->mask; i++) {
		for (struct inode *n = t->by_id[i]; n; n = n->next_by_id) {
			CHECK((n->id & t->mask) == i);
			inode_check(t, n, children[n->id]);
			chunks += chunks_check(t, n);
			nodes++;
			attached += n->attached;
			idle_flags += n->idle;
			handles += n->handle != NULL;
			extents += n->extents != NULL;
		}
		for (const struct inode *n = t->by_name[i]; n; n = n->next_by_name) {
			CHECK(n->attached);
			named++;
		}
	}
	for (const struct inode *n = t->idle.idle_next; n != &t->idle; n = n->idle_next) {
		CHECK(n->idle && n->idle_next->idle_previous == n);
		idle++;
	}
	free(children);
	CHECK(nodes == t->inodes && attached == named);
	CHECK(idle == idle_flags && idle == t->idle_count && idle <= t->idle_max);
	CHECK(handles <= t->handle_max && extents <= EXTENTS_INODES_MAX);
	CHECK(t->inodes / 8 <= t->mask + 1);
	CHECK(!t->dropped && !t->dropped_chunks && !t->dropped_listings && !t->dropped_blobs);
	for (const struct chunk *c = t->touched; c; c = c->touched.next)
		touched++;
	CHECK(chunks == t->chunks && touched <= chunks);
}

/* --- replies --- */

typedef void found_inode(void *context, uint64_t id);

static inline void names_check(const char *data, size_t size, bool plus, uint64_t offset,
			       found_inode *found, void *context)
{
	for (size_t at = 0; at < size;) {
		size_t prefix = plus ? sizeof(struct fuse_entry_out) : 0;
		struct fuse_entry_out entry;
		struct fuse_dirent d;

		CHECK(size - at >= prefix + FUSE_NAME_OFFSET);
		memcpy(&d, data + at + prefix, FUSE_NAME_OFFSET);
		CHECK(d.namelen >= 1 && d.namelen <= 255);
		CHECK(size - at >= prefix + FUSE_NAME_OFFSET + d.namelen);
		CHECK(!memchr(data + at + prefix + FUSE_NAME_OFFSET, '/', d.namelen));
		/* the dots, and then cookies */
		CHECK(offset < COOKIE_DOTS ? d.off == offset + 1
					   : d.off > offset && d.off <= INT64_MAX);
		offset = d.off;
		if (plus) {
			memcpy(&entry, data + at, sizeof(entry));
			if (entry.nodeid)
				found(context, entry.nodeid);
		}
		at += FUSE_REC_ALIGN(prefix + FUSE_NAME_OFFSET + d.namelen);
		CHECK(at <= size);
	}
}

/* Would the kernel accept this reply to that request? Reports each inode that the kernel refers
 * to from then on. */
static inline void reply_check(const char *request, const struct fuse_out_header *out,
			       const char *data, found_inode *found, void *context)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)request;
	const struct fuse_read_in *read = (const struct fuse_read_in *)(in + 1);
	const struct fuse_ioctl_in *ioctl = (const struct fuse_ioctl_in *)(in + 1);
	size_t size = out->len - sizeof(*out);
	struct fuse_entry_out entry;
	struct fuse_init_out init;

	CHECK(out->error <= 0 && out->error > -512);
	CHECK(!out->error || !size);
	if (out->error)
		return;
	switch (in->opcode) {
	case FUSE_LOOKUP:
		CHECK(size == sizeof(entry));
		memcpy(&entry, data, sizeof(entry));
		CHECK(entry.entry_valid_nsec < 1000000000 && entry.attr_valid_nsec < 1000000000);
		if (entry.nodeid)
			found(context, entry.nodeid);
		break;
	case FUSE_GETATTR:
		CHECK(size == sizeof(struct fuse_attr_out));
		break;
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		CHECK(size <= read->size);
		names_check(data, size, in->opcode == FUSE_READDIRPLUS, read->offset, found,
			    context);
		break;
	case FUSE_READ:
		CHECK(size <= read->size);
		break;
	case FUSE_READLINK:
		CHECK(size >= 1 && size <= 4096);
		break;
	case FUSE_STATFS:
		CHECK(size == sizeof(struct fuse_statfs_out));
		break;
	case FUSE_LSEEK:
		CHECK(size == sizeof(struct fuse_lseek_out));
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		CHECK(size == sizeof(struct fuse_open_out));
		break;
	case FUSE_IOCTL:
		CHECK(size >= sizeof(struct fuse_ioctl_out) &&
		      size - sizeof(struct fuse_ioctl_out) <= ioctl->out_size);
		break;
	case FUSE_INIT:
		CHECK(size >= sizeof(init));
		memcpy(&init, data, sizeof(init));
		CHECK(!(init.flags & ~((const struct fuse_init_in *)(in + 1))->flags));
		CHECK(!(init.flags & FUSE_INIT_EXT) && !init.flags2); /* no passthrough */
		/* a reply that large fits into a socket's buffer of the usual size */
		CHECK(init.max_pages * 4096 + sizeof(*out) <= 212992);
		break;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_DESTROY:
		CHECK(!size);
		break;
	default:
		CHECK(!"this request cannot succeed");
	}
}

#endif
