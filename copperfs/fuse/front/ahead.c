/*
 * Reading ahead: who has asked for two files of one ending in a small directory will mostly
 * ask for the others.  They are read meanwhile, a few at a time.
 *
 * What is read follows from which files were asked for, not from their order, so that a
 * job of many nodes reads what one node alone would: the core has the same rule for jobs
 * (copperfs/core/ahead.py), and the numbers must be the same in both.
 *
 * A file that is read ahead is one that is fetched like any other: on credit, once, and who
 * asks for it meanwhile joins.  If it cannot be read, nobody is told: who asks for it finds
 * out.  Without credit it waits until there is some.
 */
#include "front.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	AHEAD_FILES_MAX = 512,
	AHEAD_FILE_BYTES_MAX = 128 * 1024,
	AHEAD_BYTES_MAX = 4 * 1024 * 1024,
};

/* The rest of one ending in one directory. */
struct ahead {
	struct ahead *next;
	uint64_t directory;
	uint32_t row; /* the next one to look at */
	size_t length;
	char ending[];
};

/* From the last dot on, which is not its first character; NULL if there is none. */
static const char *ending_of(const char *name, size_t name_length, size_t *length)
{
	for (size_t at = name_length; at-- > 1;)
		if (name[at] == '.') {
			*length = name_length - at;
			return name + at;
		}
	return NULL;
}

static bool ends_so(const struct row *row, const char *ending, size_t length)
{
	size_t own_length;
	const char *own = ending_of(row->name, row->name_length, &own_length);

	return own && own_length == length && !memcmp(own, ending, length);
}

static bool is_small(const struct front *f, const struct fuse_attr *attr)
{
	return S_ISREG(attr->mode) && attr->size && attr->size <= AHEAD_FILE_BYTES_MAX &&
	       attr->size <= f->whole_max;
}

static bool are_few(const struct front *f, const struct listing *listing, const char *ending,
		    size_t length)
{
	uint64_t bytes = 0;
	unsigned files = 0;

	for (uint32_t i = 0; i < listing->count; i++) {
		const struct row *row = listing_row(listing, i);

		if (!is_small(f, &row->attr) || !ends_so(row, ending, length))
			continue;
		bytes += row->attr.size;
		if (++files > AHEAD_FILES_MAX || bytes > AHEAD_BYTES_MAX)
			return false;
	}
	return true;
}

/* The note of an ending, made the first time; NULL: this is that time, or out of memory. */
static struct ending *find_ending(struct listing *listing, const struct row *first,
				  const char *ending, size_t length)
{
	struct ending *each;

	for (each = listing->endings; each; each = each->next)
		if (ends_so(each->first, ending, length))
			return each;
	each = malloc(sizeof(*each));
	if (each) {
		*each = (struct ending){ .next = listing->endings, .first = first };
		listing->endings = each;
	}
	return NULL;
}

/* With the tables locked: this file of a granted listing is asked for. ahead_start() comes
 * next, without the lock. */
void ahead_note(struct front *f, const struct node *file)
{
	struct listing *listing = file->parent->listing;
	const char *ending;
	const struct row *row;
	struct ending *noted;
	struct ahead *ahead;
	size_t length;

	if (!f->ahead_max || !listing->read_ahead || !is_small(f, &file->attr))
		return;
	ending = ending_of(file->name, file->name_length, &length);
	row = ending ? listing_find(&f->tables, listing, file->name, file->name_length) : NULL;
	noted = row ? find_ending(listing, row, ending, length) : NULL;
	if (!noted || noted->begun || noted->first == row)
		return;
	noted->begun = true;
	if (!are_few(f, listing, ending, length))
		return;
	ahead = malloc(sizeof(*ahead) + length);
	if (!ahead)
		return;
	*ahead = (struct ahead){ .directory = file->parent->id, .length = length };
	memcpy(ahead->ending, ending, length);
	*f->ahead_end = ahead;
	f->ahead_end = &ahead->next;
}

static void drop_first(struct front *f)
{
	struct ahead *ahead = f->ahead_first;

	f->ahead_first = ahead->next;
	if (!f->ahead_first)
		f->ahead_end = &f->ahead_first;
	free(ahead);
}

/* With the tables locked: the next file of this ending that nobody has or reads, NULL if that
 * was all. */
static struct node *next_file(struct front *f, struct ahead *ahead)
{
	struct node *directory = node_by_id(&f->tables, ahead->directory);
	struct listing *listing = directory ? directory->listing : NULL;

	/* it may be another listing by now, without what was allowed */
	if (!listing || !listing->granted || !listing->read_ahead)
		return NULL;
	while (ahead->row < listing->count && f->tables.nodes < f->tables.nodes_max) {
		const struct row *row = listing_row(listing, ahead->row++);
		struct node *node;

		if (!is_small(f, &row->attr) || !ends_so(row, ahead->ending, ahead->length))
			continue;
		node = node_obtain(&f->tables, directory, row->name, row->name_length, &row->attr,
				   "", 0, listing->fresh_until);
		if (node && !node->object && !node->fetching)
			return node;
	}
	return NULL;
}

/* What to read next; NULL: nothing, or not now. */
static char *begin_next(struct front *f, uint64_t *id, struct version *version)
{
	char *path = NULL;

	tables_lock(&f->tables);
	while (f->ahead_first && f->ahead_running < f->ahead_max && !path) {
		struct node *file = next_file(f, f->ahead_first);

		if (!file) {
			drop_first(f);
			continue;
		}
		path = fetch_begin(f, file, file->attr.size, version);
		if (!path) { /* no credit: once more when there is some */
			f->ahead_first->row--;
			break;
		}
		file->ahead = true;
		f->ahead_running++;
		*id = file->id;
	}
	tables_unlock(&f->tables);
	return path;
}

static void ended(struct front *f)
{
	tables_lock(&f->tables);
	f->ahead_running--;
	tables_unlock(&f->tables);
}

/* In a thread of the source. */
static void ahead_done(void *context, uint64_t id, const struct version *version,
		       struct blob *blob)
{
	struct front *f = context;

	read_done(f, id, version, blob);
	ended(f);
	ahead_start(f);
}

/* As many as may be read at a time. */
void ahead_start(struct front *f)
{
	struct version version;
	uint64_t id;
	char *path;

	while ((path = begin_next(f, &id, &version))) {
		bool begun = f->reader->read(f->reader->pool, path, &version, ahead_done, f, id);

		free(path);
		if (begun)
			continue;
		/* the source hangs, or it is the end: what is left is asked for or not */
		read_done(f, id, &version, NULL);
		ended(f);
		ahead_destroy(f);
	}
}

void ahead_destroy(struct front *f)
{
	tables_lock(&f->tables);
	while (f->ahead_first)
		drop_first(f);
	tables_unlock(&f->tables);
}
