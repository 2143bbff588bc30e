/*
 * Fetches without the handlers: a file of a directory whose listing was *granted* is read
 * whole by the source's threads, published, and whoever waits for it answered, all without
 * the GIL.  The handlers hear of it a few milliseconds later, many at a time.
 *
 * The core has reserved the bytes beforehand: they are taken from a credit, which it tops
 * up once it has made room for what was read.  Without credit, and when the read fails in
 * any way, the request takes the ordinary path through the handlers.
 */
#include "front.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t nanoseconds(uint64_t seconds, uint32_t rest)
{
	return (int64_t)seconds * 1000000000 + rest;
}

static bool take_credit(struct front *f, uint64_t bytes)
{
	bool enough;

	pthread_mutex_lock(&f->fetched_lock);
	enough = f->credit >= bytes;
	if (enough)
		f->credit -= bytes;
	pthread_mutex_unlock(&f->fetched_lock);
	return enough;
}

void give_credit(struct front *f, uint64_t bytes)
{
	pthread_mutex_lock(&f->fetched_lock);
	f->credit += bytes;
	pthread_mutex_unlock(&f->fetched_lock);
}

/* With the tables locked: the path to read for a node, or NULL if it has to be asked for.
 * The caller goes on with fetch_start(), without the lock. */
char *fetch_begin(struct front *f, struct node *node, struct version *version)
{
	const struct fuse_attr *a = &node->attr;
	char path[65536], *copy;
	int length;

	if (!f->reader || node->fetching || !node->attached || !S_ISREG(a->mode) || !a->size ||
	    a->size > f->whole_max || !node->parent->listing || !node->parent->listing->granted)
		return NULL;
	length = node_path(node, path, sizeof(path) - 1);
	if (length < 0 || !take_credit(f, a->size))
		return NULL;
	path[length] = 0;
	copy = strdup(path);
	if (!copy) {
		give_credit(f, a->size);
		return NULL;
	}
	*version = (struct version){ a->size, nanoseconds(a->mtime, a->mtimensec),
				     nanoseconds(a->ctime, a->ctimensec), a->ino };
	node->fetching = true;
	return copy;
}

/* Tells the handlers what is held now; the credit comes back from them. */
static bool note(struct front *f, const struct node *node, struct blob *blob)
{
	char path[65536];
	int length = node_path(node, path, sizeof(path));
	struct fetched *fetched = length < 0 ? NULL : malloc(sizeof(*fetched) + (size_t)length);
	uint64_t one = 1;
	bool first;

	if (!fetched)
		return false;
	*fetched = (struct fetched){ .id = node->id, .attr = node->attr,
				     .blob = blob_ref(blob), .path_length = (size_t)length };
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

static void answer_readers(struct front *f, uint64_t id, bool have_it)
{
	struct pending *pending = pending_claim_readers(f, id);

	while (pending) {
		struct pending *next = pending->next_reader;

		pending->next_reader = NULL;
		if (have_it) {
			front_retry(f, pending, NULL);
		} else {
			pending->answer = ANSWER_MISS;
			miss_forward(f, pending);
		}
		pending = next;
	}
}

/* In a thread of the source. What went wrong, the handlers find out for themselves. */
static void fetch_done(void *context, uint64_t id, const struct version *version,
		       struct blob *blob)
{
	struct front *f = context;
	struct node *node;
	bool published = false;

	tables_lock(&f->tables);
	node = node_by_id(&f->tables, id);
	if (node) {
		node->fetching = false;
		if (blob && !node->object && note(f, node, blob)) {
			node->object = blob_ref(blob);
			published = true;
		}
	}
	tables_unlock(&f->tables);
	if (!published)
		give_credit(f, version->size);
	blob_unref(blob);
	answer_readers(f, id, published);
}

/* Takes the path. One that does not start has failed: others may have joined it. */
void fetch_start(struct front *f, uint64_t id, char *path, const struct version *version)
{
	if (!f->reader->read(f->reader->pool, path, version, fetch_done, f, id))
		fetch_done(f, id, version, NULL);
	free(path);
}

void fetches_destroy(struct front *f)
{
	while (f->fetched_first) {
		struct fetched *fetched = f->fetched_first;

		f->fetched_first = fetched->next;
		blob_unref(fetched->blob);
		free(fetched);
	}
}
