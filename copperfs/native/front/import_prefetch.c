/*
 * Prefetch in the front: reads files and lists directories before the kernel asks for them.
 *
 * Decisions 41 and 42 have the rules. The node has the same for jobs
 * (copperfs/node/prefetch/python_imports.py), and the numbers must be the same in both. The set of
 * requests decides what is read, not their order, so that a job of many nodes reads what one would.
 *
 * A directory is traversed a fixed number of times, whatever is asked for in it. A prefetch takes
 * allowance, or waits for it; a request that comes meanwhile joins.
 */
#include "front.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../bytecode_names.h"

enum {
	AHEAD_FILES_MAX = 512,
	AHEAD_BYTES_MAX = 4 * 1024 * 1024,
	LIBRARY_BYTES_MAX = 4 * 1024 * 1024,
	LOOKED_THROUGH_BYTES_MAX = 1024 * 1024,
	FILES_FOR_EACH_DIRECTORY = 4,
	QUEUE_MAX = 1 << 16,
	/* a directory with more directories and libraries is no package */
	BESIDE_MAX = 4096,
};

static const char compiled[] = "__pycache__";
static const char itself[] = "__init__.";
static const char library[] = ".so";
enum {
	COMPILED_LENGTH = sizeof(compiled) - 1,
	ITSELF_LENGTH = sizeof(itself) - 1,
	LIBRARY_LENGTH = sizeof(library) - 1,
};

struct ahead {
	struct ahead *next;
	uint64_t directory;
	bool tried;
	size_t length;
	char name[];
};

static bool ends_so(const struct row *row, const char *ending, size_t length)
{
	size_t own_length;
	const char *own = ending_of(row->name, row->name_length, &own_length);

	return own && own_length == length && !memcmp(own, ending, length);
}

/* The name of the module: the length up to the first dot. */
static size_t stem_length(const struct row *row)
{
	const char *dot = memchr(row->name, '.', row->name_length);

	return dot ? (size_t)(dot - row->name) : row->name_length;
}

static bool is_library(const struct front *f, const struct row *row)
{
	return S_ISREG(row->attr.mode) && row->attr.size && row->attr.size <= f->whole_max &&
	       row->attr.size <= LIBRARY_BYTES_MAX && ends_so(row, library, LIBRARY_LENGTH);
}

static bool is_compiled(const struct inode *directory)
{
	return directory->name_length == COMPILED_LENGTH &&
	       !memcmp(directory->name, compiled, COMPILED_LENGTH);
}

static bool is_called_compiled(const struct row *row)
{
	return row->name_length == COMPILED_LENGTH && !memcmp(row->name, compiled, COMPILED_LENGTH);
}

static bool has_compiled(struct front *f, const struct listing *listing)
{
	const struct row *row = listing_find(&f->tables, listing, compiled, COMPILED_LENGTH);

	return row && row_tells(listing, row) && S_ISDIR(row->attr.mode);
}

/* With the tables locked. */
static void add(struct ahead_list *list, const struct inode *directory, const char *name,
		size_t length)
{
	struct ahead *ahead =
		list->count < QUEUE_MAX ? malloc(sizeof(*ahead) + length) : NULL;

	if (!ahead)
		return;
	*ahead = (struct ahead){ .directory = directory->id, .length = length };
	memcpy(ahead->name, name, length);
	*list->end = ahead;
	list->end = &ahead->next;
	list->count++;
}

static void drop_first(struct ahead_list *list)
{
	struct ahead *ahead = list->first;

	list->first = ahead->next;
	if (!list->first)
		list->end = &list->first;
	list->count--;
	free(ahead);
}

/* --- choosing; with the tables locked, then ahead_start() without --- */

static void add_ending(struct front *f, const struct inode *directory, const struct ending *ending)
{
	const struct listing *listing = directory->listing;

	if (ending->files > AHEAD_FILES_MAX || ending->bytes > AHEAD_BYTES_MAX ||
	    f->ahead_files.count + ending->files > QUEUE_MAX)
		return;
	for (uint32_t i = ending->first; i; i = listing->endings->next[i - 1]) {
		const struct row *row = listing_row(listing, i - 1);

		AHEAD_STEP();
		add(&f->ahead_files, directory, row->name, row->name_length);
	}
}

void ahead_note(struct front *f, const struct inode *file)
{
	struct listing *listing = file->parent->listing;
	const char *ending;
	const struct row *row;
	struct ending *noted;
	size_t length;

	if (!f->ahead_max || !listing->read_ahead || !is_read_ahead(f, &file->attr))
		return;
	ending = ending_of(file->name, file->name_length, &length);
	row = ending ? listing_find(&f->tables, listing, file->name, file->name_length) : NULL;
	noted = row ? ending_find(f, listing, ending, length) : NULL;
	if (!noted || noted->begun)
		return;
	if (!noted->requested)
		noted->requested = row;
	if (noted->requested == row && !is_compiled(file->parent))
		return;
	/* libraries of packages are read once a module mentions them */
	if (length == LIBRARY_LENGTH && !memcmp(ending, library, length) &&
	    has_compiled(f, listing))
		return;
	noted->begun = true;
	add_ending(f, file->parent, noted);
}

static bool lists_below(const struct front *f, const struct listing *listing)
{
	return f->ahead_max && listing && listing->granted_below && listing->read_ahead;
}

void ahead_listed(struct front *f, const struct inode *directory)
{
	if (lists_below(f, directory->listing) && has_compiled(f, directory->listing))
		add(&f->ahead_lists, directory, compiled, COMPILED_LENGTH);
}

static void find_beside(struct front *f, struct listing *listing)
{
	bool directories = lists_below(f, listing);
	uint32_t room = 0;

	listing->beside_known = true;
	for (uint32_t i = 0; i < listing->count; i++) {
		const struct row *row = listing_row(listing, i);

		if (!row_tells(listing, row))
			continue;
		if (!(S_ISDIR(row->attr.mode) ? directories && !is_called_compiled(row)
					      : is_library(f, row)))
			continue;
		if (listing->beside_count == BESIDE_MAX) {
			listing->beside_count = 0;
			return;
		}
		if (listing->beside_count == room) {
			uint32_t *grown;

			room = room ? 2 * room : 16;
			grown = realloc(listing->beside, room * sizeof(*grown));
			if (!grown)
				return;
			listing->beside = grown;
		}
		listing->beside[listing->beside_count++] = i;
	}
}

/* The package whose compiled __init__ this file is, if its listing allows prefetching. */
static struct inode *package_of(const struct front *f, const struct inode *file)
{
	struct inode *directory = file->parent, *package = directory ? directory->parent : NULL;

	if (!f->ahead_max || !package || !is_compiled(directory) || !package->listing ||
	    !package->listing->read_ahead || package->listing->bare ||
	    file->attr.size > LOOKED_THROUGH_BYTES_MAX || file->name_length < ITSELF_LENGTH ||
	    memcmp(file->name, itself, ITSELF_LENGTH))
		return NULL;
	return package;
}

/* The names to look for, for bytecode_names.c, and the blob to search; NULL: none. */
static char *looked_for(struct front *f, const struct inode *file, struct blob **blob)
{
	struct inode *package = package_of(f, file);
	struct listing *listing = package ? package->listing : NULL;
	char *names, *end;

	if (!listing || !file->object)
		return NULL;
	if (!listing->beside_known)
		find_beside(f, listing);
	if (!listing->beside_count)
		return NULL;
	end = names = malloc(listing->beside_count * (size_t)256 + 1);
	for (uint32_t i = 0; names && i < listing->beside_count; i++) {
		const struct row *row = listing_row(listing, listing->beside[i]);
		size_t length = S_ISDIR(row->attr.mode) ? row->name_length : stem_length(row);

		if (!length || length > 255)
			continue;
		*end++ = (char)(unsigned char)length;
		memcpy(end, row->name, length);
		end += length;
	}
	if (names) {
		*end = 0;
		*blob = blob_ref(file->object);
	}
	return names;
}

static struct looked_for *found_of(const char *names, bool *found, size_t *count)
{
	struct looked_for *those = malloc(*count * sizeof(*those));
	size_t left = 0;

	for (const char *each = names; those && *each; each += 1 + (unsigned char)*each, found++)
		if (*found)
			those[left++] = (struct looked_for){ each, found };
	*count = left;
	if (those)
		qsort(those, left, sizeof(*those), compare_looked_for);
	return those;
}

/* With the tables locked. One mention of a name is enough. */
static void add_mentioned(struct front *f, struct inode *package, const struct looked_for *those,
			  size_t count)
{
	struct listing *listing = package->listing;
	uint32_t left = 0;

	for (uint32_t i = 0; i < listing->beside_count; i++) {
		const struct row *row = listing_row(listing, listing->beside[i]);
		bool is_directory = S_ISDIR(row->attr.mode);
		size_t length = is_directory ? row->name_length : stem_length(row);
		size_t steps = 0;

		if (find_looked_for(those, count, row->name, length, &steps) == count)
			listing->beside[left++] = listing->beside[i];
		else
			add(is_directory ? &f->ahead_lists : &f->ahead_files, package, row->name,
			    row->name_length);
	}
	listing->beside_count = left;
}

/* The scan of the file runs without the lock. */
void ahead_read(struct front *f, uint64_t id)
{
	struct blob *blob = NULL;
	struct looked_for *those = NULL;
	const struct inode *file;
	struct inode *package;
	char *names = NULL;
	bool *found;
	size_t count = 0;

	tables_lock(&f->tables);
	file = inode_by_id(&f->tables, id);
	if (file)
		names = looked_for(f, file, &blob);
	tables_unlock(&f->tables);
	for (char *each = names; each && *each; each += 1 + (unsigned char)*each)
		count++;
	found = count ? calloc(count, sizeof(*found)) : NULL;
	if (found) {
		find_mentioned(blob->data, blob->size, names, found);
		those = found_of(names, found, &count);
	}
	if (those && count) {
		tables_lock(&f->tables);
		file = inode_by_id(&f->tables, id);
		package = file ? package_of(f, file) : NULL;
		if (package)
			add_mentioned(f, package, those, count);
		tables_unlock(&f->tables);
	}
	blob_unref(blob);
	free(those);
	free(names);
	free(found);
	ahead_start(f);
}

/* --- choosing the next; with the tables locked --- */

static struct inode *inode_of_row(struct front *f, struct inode *directory, const struct row *row)
{
	if (f->tables.inodes >= f->tables.inodes_max || !row_tells(directory->listing, row))
		return NULL;
	return inode_obtain(&f->tables, directory, row->name, row->name_length, &row->attr,
			    row->name + row->name_length, row->target_length,
			    directory->listing->fresh_until);
}

/* NULL: its listing no longer allows prefetching. */
static struct inode *directory_of(struct front *f, const struct ahead *ahead)
{
	struct inode *directory = inode_by_id(&f->tables, ahead->directory);
	const struct listing *listing = directory ? directory->listing : NULL;

	return listing && listing->granted && listing->read_ahead ? directory : NULL;
}

/* NULL on the second try, and if the content is here or on its way. */
static struct inode *named(struct front *f, struct ahead *ahead)
{
	struct inode *directory = ahead->tried ? NULL : directory_of(f, ahead);
	const struct row *row = NULL;
	struct inode *inode;

	AHEAD_STEP();
	ahead->tried = true;
	if (directory)
		row = listing_find(&f->tables, directory->listing, ahead->name, ahead->length);
	/* it may have become another file since */
	if (row && !S_ISDIR(row->attr.mode) && !is_read_ahead(f, &row->attr) && !is_library(f, row))
		row = NULL;
	inode = row ? inode_of_row(f, directory, row) : NULL;
	return inode && !inode->object && !inode->fetching ? inode : NULL;
}

static char *begin_next(struct front *f, struct ahead_list *list, unsigned most, uint64_t *id,
			struct version *version)
{
	char *path = NULL;

	tables_lock(&f->tables);
	while (list->first && list->running < most && !path) {
		struct inode *inode = named(f, list->first);
		bool is_directory;
		uint64_t allowance;

		if (!inode) {
			drop_first(list);
			continue;
		}
		is_directory = S_ISDIR(inode->attr.mode);
		allowance = is_directory ? LISTING_ALLOWANCE : inode->attr.size;
		/* a small budget never has this allowance, and the others would wait for it */
		if (allowance > f->allowance_max || (is_directory && !list_may_begin(f, inode)))
			continue;
		path = fetch_begin(f, inode, allowance, version);
		if (!path) { /* no allowance yet */
			list->first->tried = false;
			break;
		}
		inode->ahead = true;
		list->running++;
		*id = inode->id;
	}
	tables_unlock(&f->tables);
	return path;
}

static void ended(struct front *f, struct ahead_list *list)
{
	tables_lock(&f->tables);
	list->running--;
	tables_unlock(&f->tables);
}

/* --- in threads of the source --- */

static void file_done(void *context, uint64_t id, const struct version *version,
		      struct blob *blob)
{
	struct front *f = context;

	read_done(f, id, version, blob);
	ended(f, &f->ahead_files);
	ahead_start(f);
}

/* After a mount the source's threads list nothing for a moment. Dropping a directory for that would
 * make runs differ, so it is queued again: only once if its listing had begun. */
static void put_back(struct front *f, uint64_t id, bool begun)
{
	struct inode *inode;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	if (inode && inode->parent && !inode->listing && !inode->fetching &&
	    !(begun && inode->tried)) {
		inode->tried |= begun;
		inode->awaits_names = false;
		add(&f->ahead_lists, inode->parent, inode->name, inode->name_length);
	}
	tables_unlock(&f->tables);
}

static void directory_done(void *context, uint64_t id, char *packed, size_t size)
{
	struct front *f = context;
	bool failed = !packed;

	list_end(f, id, packed, size);
	ended(f, &f->ahead_lists);
	if (failed)
		put_back(f, id, true);
	ahead_start(f);
}

/* --- without the lock --- */

static void start_lists(struct front *f)
{
	unsigned most = f->ahead_max / FILES_FOR_EACH_DIRECTORY;
	struct version version;
	uint64_t id;
	char *path;

	while ((path = begin_next(f, &f->ahead_lists, most ? most : 1, &id, &version))) {
		bool begun = f->reader->list(f->reader->pool, path, &version, directory_done, f,
					     id);

		free(path);
		if (begun)
			continue;
		/* something was mounted, or the source hangs; add_allowance() is called once it is
		 * known where */
		list_end(f, id, NULL, 0);
		ended(f, &f->ahead_lists);
		put_back(f, id, false);
		break;
	}
}

static void start_files(struct front *f)
{
	struct version version;
	uint64_t id;
	char *path;

	while ((path = begin_next(f, &f->ahead_files, f->ahead_max, &id, &version))) {
		bool begun = f->reader->read(f->reader->pool, path, &version, file_done, f, id);

		free(path);
		if (begun)
			continue;
		/* the source hangs, or the front ends */
		read_done(f, id, &version, NULL);
		ended(f, &f->ahead_files);
		ahead_destroy(f);
	}
}

void ahead_start(struct front *f)
{
	if (!f->ahead_max)
		return;
	start_lists(f);
	start_files(f);
}

static void drop_all(struct ahead_list *list)
{
	while (list->first)
		drop_first(list);
}

void ahead_init(struct front *f)
{
	f->ahead_files.end = &f->ahead_files.first;
	f->ahead_lists.end = &f->ahead_lists.first;
}

void ahead_destroy(struct front *f)
{
	tables_lock(&f->tables);
	drop_all(&f->ahead_files);
	drop_all(&f->ahead_lists);
	tables_unlock(&f->tables);
}
