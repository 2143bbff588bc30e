/*
 * Solo fetches: content comes without the handlers, on a node that is a job by itself (decision 9).
 *
 * The source's threads read a file whole if the listing of its directory was *granted*, and list a
 * directory if its parent's listing grants all below it. The bytes come from an allowance that the
 * node has reserved. Without allowance, and when a fetch fails, the request goes to the handlers.
 *
 * A listing that must be shown differently, or lacks attributes, is not published: the handlers get
 * it, and need not list again. A listing is as old as the beginning of its fetch; after a clear
 * since then it is dropped (`outdated`).
 */
#include "front.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct version version_of(const struct fuse_attr *a)
{
	return (struct version){ a->size, attr_nanoseconds(a->mtime, a->mtimensec),
				 attr_nanoseconds(a->ctime, a->ctimensec), version_ino(a) };
}

static bool take_allowance(struct front *f, uint64_t bytes)
{
	bool enough;

	pthread_mutex_lock(&f->fetched_lock);
	enough = f->allowance >= bytes;
	if (enough)
		f->allowance -= bytes;
	pthread_mutex_unlock(&f->fetched_lock);
	return enough;
}

void return_allowance(struct front *f, uint64_t bytes)
{
	pthread_mutex_lock(&f->fetched_lock);
	f->allowance += bytes;
	pthread_mutex_unlock(&f->fetched_lock);
}

/* With the tables locked: notes the version; NULL without allowance. */
char *fetch_begin(struct front *f, struct inode *inode, uint64_t allowance,
		  struct version *version)
{
	char path[65536], *copy;
	int length = inode_path(inode, path, sizeof(path) - 1);

	if (length < 0 || !take_allowance(f, allowance))
		return NULL;
	path[length] = 0;
	copy = strdup(path);
	if (!copy) {
		return_allowance(f, allowance);
		return NULL;
	}
	*version = version_of(&inode->attr);
	inode->fetching = true;
	inode->outdated = false;
	return copy;
}

/* With the tables locked, and read_start() then without. NULL: the handlers have to read the
 * file. */
char *read_begin(struct front *f, struct inode *file, struct version *version)
{
	const struct fuse_attr *a = &file->attr;

	if (!f->reader || file->fetching || !file->attached || !S_ISREG(a->mode) || !a->size ||
	    a->size > f->whole_max || !file->parent->listing || !file->parent->listing->granted)
		return NULL;
	ahead_note(f, file);
	return fetch_begin(f, file, a->size, version);
}

static bool may_list(const struct inode *directory)
{
	return directory->attached && directory->parent->listing &&
	       directory->parent->listing->granted_below;
}

/* Handlers that were asked for a directory's names own its listing until they have published. */
bool list_may_begin(const struct front *f, const struct inode *directory)
{
	return f->reader && !directory->listing && !directory->fetching &&
	       !directory->awaits_names && S_ISDIR(directory->attr.mode) && may_list(directory);
}

/* The same, with list_start(). */
char *list_begin(struct front *f, struct inode *directory, struct version *version)
{
	char *path = NULL;

	if (directory->listing || directory->fetching || !S_ISDIR(directory->attr.mode))
		return NULL;
	if (list_may_begin(f, directory))
		path = fetch_begin(f, directory, LISTING_ALLOWANCE, version);
	directory->awaits_names = !path;
	return path;
}

void fetched_free(struct fetched *fetched)
{
	blob_unref(fetched->blob);
	free(fetched->packed);
	free(fetched);
}

/* With the tables locked. On failure the caller keeps the content. */
static bool note(struct front *f, const struct inode *inode, const struct fetched *filled)
{
	char path[65536];
	int length = inode_path(inode, path, sizeof(path));
	struct fetched *fetched = length < 0 ? NULL : malloc(sizeof(*fetched) + (size_t)length);
	uint64_t one = 1;
	bool first;

	if (!fetched)
		return false;
	*fetched = *filled;
	fetched->id = inode->id;
	fetched->epoch = f->tables.epoch;
	fetched->attr = inode->attr;
	fetched->path_length = (size_t)length;
	memcpy(fetched->path, path, (size_t)length);
	pthread_mutex_lock(&f->fetched_lock);
	first = !f->fetched_first;
	*f->fetched_end = fetched;
	f->fetched_end = &fetched->next;
	pthread_mutex_unlock(&f->fetched_lock);
	if (first && write(f->fetched_fd, &one, sizeof(one)) < 0)
		return true; /* it is signalled already */
	return true;
}

static bool wants_names(const struct pending *pending)
{
	uint32_t opcode = ((const struct fuse_in_header *)pending->request)->opcode;

	return opcode == FUSE_READDIR || opcode == FUSE_READDIRPLUS;
}

void answer_claimed(struct front *f, struct pending *pending, bool have_it)
{
	char *scratch = NULL;

	while (pending) {
		struct pending *next = pending->next_waiter;
		bool names = wants_names(pending);

		pending->next_waiter = NULL;
		if (have_it && names && !scratch)
			scratch = malloc(REPLY_MAX);
		if (have_it && (scratch || !names)) {
			front_retry(f, pending, scratch);
		} else {
			pending->served_by = SERVED_MISS;
			miss_forward(f, pending);
		}
		pending = next;
	}
	free(scratch);
}

static bool waits_for_fetch(const struct pending *pending, const void *unused)
{
	(void)unused;
	return pending->served_by == SERVED_FETCH;
}

static void answer_waiters(struct front *f, uint64_t id, bool have_it)
{
	answer_claimed(f, pending_claim_waiters(f, id, waits_for_fetch, NULL), have_it);
}

/* In a thread of the source. The handlers find errors for themselves. */
void read_done(void *context, uint64_t id, const struct version *version, struct blob *blob)
{
	struct front *f = context;
	struct fetched fetched = { .allowance = version->size, .blob = blob };
	struct inode *inode;
	bool published = false;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	if (inode) {
		fetched.ahead = inode->ahead;
		fetched.used = inode->touched;
		inode->fetching = inode->ahead = false;
		if (blob && !inode->object) {
			/* before note(): the handlers may drop it as soon as they hear of it */
			inode->object = blob_ref(blob);
			published = note(f, inode, &fetched);
			if (!published)
				inode_set_object(&f->tables, inode, NULL);
		}
	}
	tables_unlock(&f->tables);
	if (!published) {
		return_allowance(f, version->size);
		blob_unref(blob);
	}
	answer_waiters(f, id, published);
	if (published)
		ahead_read(f, id);
}

/* Takes the path. A read that does not start ends: other requests may have joined it. */
void read_start(struct front *f, uint64_t id, char *path, const struct version *version)
{
	if (!f->reader->read(f->reader->pool, path, version, read_done, f, id))
		read_done(f, id, version, NULL);
	free(path);
}

static bool has_absolute_links(const char *packed)
{
	struct listing_header header;

	memcpy(&header, packed, sizeof(header));
	return header.absolute_links > 0;
}

/* NULL: the handlers have to publish it, or there is no allowance. */
static struct listing *own_listing(struct front *f, const char *packed, size_t size)
{
	struct listing *listing = listing_open(&f->tables, packed, size, FRESH_FOREVER);

	if (listing && (listing->bare || has_absolute_links(packed) ||
			!take_allowance(f, listing_cost(size, listing->count)))) {
		listing_free(listing);
		listing = NULL;
	}
	if (listing)
		listing->granted = listing->granted_below = listing->read_ahead = true;
	return listing;
}

/* `packed` is NULL on failure. The caller then calls ahead_start(). */
void list_end(struct front *f, uint64_t id, char *packed, size_t size)
{
	struct listing *listing;
	struct fetched fetched = { .packed = packed, .packed_size = size };
	struct inode *inode;
	bool noted = false, known;

	return_allowance(f, LISTING_ALLOWANCE);
	listing = packed ? own_listing(f, packed, size) : NULL;
	if (listing)
		fetched.allowance = listing_cost(size, listing->count);
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	if (inode) {
		fetched.ahead = inode->ahead;
		inode->fetching = inode->ahead = false;
		/* the grant may have been revoked meanwhile */
		noted = packed && !inode->outdated && may_list(inode) && note(f, inode, &fetched);
	}
	if (noted && listing && !inode->listing) {
		listing->published_ns = now_ns();
		inode_set_listing(&f->tables, inode, listing);
		ahead_listed(f, inode);
		listing = NULL;
	}
	known = inode && inode->listing;
	if (inode && !known)
		inode->awaits_names = true;
	tables_unlock(&f->tables);
	if (!noted) {
		return_allowance(f, fetched.allowance);
		free(packed);
	}
	listing_free(listing);
	answer_waiters(f, id, known);
}

void list_done(void *context, uint64_t id, char *packed, size_t size)
{
	list_end(context, id, packed, size);
	ahead_start(context);
}

void list_start(struct front *f, uint64_t id, char *path, const struct version *version)
{
	if (!f->reader->list(f->reader->pool, path, version, list_done, f, id))
		list_done(f, id, NULL, 0);
	free(path);
}

void solo_fetches_destroy(struct front *f)
{
	while (f->fetched_first) {
		struct fetched *fetched = f->fetched_first;

		f->fetched_first = fetched->next;
		fetched_free(fetched);
	}
}
