/*
 * Publishes listings, single entries, and attributes of directories.
 *
 * A published answer may be gone before its request is answered again: a listing was evicted, or an
 * idle entry dropped. The request is then forwarded once more, and answered here right after the
 * next publication.
 */
#include "front.h"

#include <string.h>
#include <sys/stat.h>

enum what { NAMES, NAME, ATTRIBUTES };

struct published {
	struct tables *tables;
	const struct listing *listing; /* NAMES */
	const char *name;	       /* NAME */
	size_t length;
	enum what what;
};

/* With both locks held. */
static bool is_answered_by(const struct pending *pending, const void *context)
{
	const struct published *p = context;
	const struct fuse_in_header *in = (const struct fuse_in_header *)pending->request;
	const char *name = (const char *)(in + 1);
	size_t room = pending->size - sizeof(*in), length;
	const struct row *row;

	if (pending->served_by == SERVED_FETCH)
		return false;
	switch (in->opcode) {
	case FUSE_GETATTR:
		return p->what == ATTRIBUTES;
	case FUSE_READDIR: case FUSE_READDIRPLUS:
		return p->what == NAMES;
	case FUSE_LOOKUP:
		length = strnlen(name, room);
		if (p->what == NAME)
			return length == p->length && !memcmp(name, p->name, length);
		if (p->what != NAMES)
			return false;
		row = listing_find(p->tables, p->listing, name, length);
		return !row || row_tells(p->listing, row);
	default:
		return false;
	}
}

/* With the tables locked. */
static struct pending *claim(struct front *f, uint64_t id, const struct published *published)
{
	if (!atomic_load_explicit(&f->sent_again, memory_order_relaxed))
		return NULL;
	return pending_claim_waiters(f, id, is_answered_by, published);
}

bool front_publish_listing(struct front *f, uint64_t id, struct listing *listing)
{
	struct pending *claimed = NULL;
	struct inode *inode;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	if (inode && !S_ISDIR(inode->attr.mode))
		inode = NULL;
	if (inode) {
		struct published published = { .tables = &f->tables, .listing = listing,
					       .what = NAMES };

		listing->published_ns = now_ns();
		inode_set_listing(&f->tables, inode, listing);
		ahead_listed(f, inode);
		claimed = claim(f, id, &published);
	}
	tables_unlock(&f->tables);
	if (!inode)
		listing_free(listing);
	answer_claimed(f, claimed, true);
	ahead_start(f);
	return inode;
}

bool front_publish_entry(struct front *f, uint64_t parent_id, const char *name, size_t length,
			 const struct fuse_attr *attr, const char *target, size_t target_length,
			 uint64_t fresh_until)
{
	struct published published = { .name = name, .length = length, .what = NAME };
	struct pending *claimed = NULL;
	struct inode *parent, *inode = NULL;

	tables_lock(&f->tables);
	parent = inode_by_id(&f->tables, parent_id);
	if (parent && attr)
		inode = inode_obtain(&f->tables, parent, name, length, attr, target, target_length,
				     fresh_until);
	else if (parent && inode_negative(&f->tables, parent, name, length, fresh_until))
		inode = inode_by_name(&f->tables, parent, name, length);
	if (inode) {
		inode->published_ns = now_ns();
		claimed = claim(f, parent_id, &published);
	}
	tables_unlock(&f->tables);
	answer_claimed(f, claimed, true);
	return inode;
}

bool front_publish_attributes(struct front *f, uint64_t id, const struct fuse_attr *attr,
			      uint64_t fresh_until)
{
	static const struct published published = { .what = ATTRIBUTES };
	struct pending *claimed = NULL;
	struct inode *inode;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	/* a number never changes its type: a link's content is its target */
	if (inode && (inode->attr.mode & S_IFMT) != (attr->mode & S_IFMT))
		inode = NULL;
	if (inode) {
		inode_set_attributes(&f->tables, inode, attr);
		inode->fresh_until = fresh_until;
		inode->published_ns = now_ns();
		claimed = claim(f, id, &published);
	}
	tables_unlock(&f->tables);
	answer_claimed(f, claimed, true);
	return inode;
}
