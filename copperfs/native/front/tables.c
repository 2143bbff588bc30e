#include "tables.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* FNV-1a with a seed of this process, so that users cannot prepare names that collide. */
static uint64_t hash_name(const struct tables *t, uint64_t salt, const char *name, size_t length)
{
	uint64_t hash = t->hash_seed ^ (salt * 0x9e3779b97f4a7c15u);

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3u;
	return hash ^ (hash >> 29);
}

uint64_t tables_hash(const struct tables *t, const char *text, size_t length)
{
	return hash_name(t, 0, text, length);
}

const struct row *listing_row(const struct listing *listing, uint32_t number)
{
	return (const struct row *)(listing->rows + listing->offsets[number]);
}

const struct row *listing_find(const struct tables *t, const struct listing *listing,
			       const char *name, size_t length)
{
	uint32_t slot = (uint32_t)hash_name(t, 0, name, length) & listing->index_mask;

	for (; listing->index[slot]; slot = (slot + 1) & listing->index_mask) {
		const struct row *row = listing_row(listing, listing->index[slot] - 1);

		if (row->name_length == length && !memcmp(row->name, name, length))
			return row;
	}
	return NULL;
}

void endings_free(struct endings *endings)
{
	if (!endings)
		return;
	free(endings->each);
	free(endings->slots);
	free(endings);
}

void listing_free(struct listing *listing)
{
	if (!listing)
		return;
	endings_free(listing->endings);
	free(listing->rows);
	free(listing->offsets);
	free(listing->index);
	free(listing->beside);
	free(listing->order);
	free(listing->cookies);
	free(listing);
}

static bool is_dots(const char *name, size_t length)
{
	return name[0] == '.' && (length == 1 || (length == 2 && name[1] == '.'));
}

static bool row_is_sound(const struct row *row, size_t room)
{
	size_t needed, length;

	if (room < sizeof(*row))
		return false;
	length = row->length & ~(uint32_t)ROW_UNKNOWN;
	if (length > room || length % 8)
		return false;
	if ((row->length & ROW_UNKNOWN) && (row->target_length || row->attr.size))
		return false;
	needed = sizeof(*row) + row->name_length + row->target_length;
	return needed <= length && row->name_length >= 1 && row->name_length <= NAME_MAX &&
	       row->target_length < PATH_MAX && !memchr(row->name, '/', row->name_length) &&
	       !memchr(row->name, 0, row->name_length) && !is_dots(row->name, row->name_length);
}

struct listing *listing_open(const struct tables *t, const char *bytes, size_t size,
			     uint64_t fresh_until)
{
	struct listing_header header;
	struct listing *listing;
	size_t slots, at = sizeof(header);

	if (size < sizeof(header) || size > UINT32_MAX) {
		errno = EPROTO;
		return NULL;
	}
	memcpy(&header, bytes, sizeof(header));
	/* before memory is allocated for it */
	if (header.magic != LISTING_MAGIC ||
	    header.count > (size - sizeof(header)) / sizeof(struct row)) {
		errno = EPROTO;
		return NULL;
	}
	slots = index_slots(header.count);
	listing = calloc(1, sizeof(*listing));
	if (!listing)
		return NULL;
	listing->rows = malloc(size);
	listing->offsets = calloc(header.count + 1, sizeof(*listing->offsets));
	listing->index = calloc(slots, sizeof(*listing->index));
	if (!listing->rows || !listing->offsets || !listing->index) {
		listing_free(listing);
		errno = ENOMEM;
		return NULL;
	}
	memcpy(listing->rows, bytes, size);
	listing->bare = header.flags & LISTING_BARE;
	listing->fresh_until = fresh_until;
	listing->index_mask = (uint32_t)(slots - 1);
	for (uint32_t i = 0; i < header.count; i++) {
		const struct row *row = (const struct row *)(listing->rows + at);
		uint32_t slot;

		if (!row_is_sound(row, size - at)) {
			listing_free(listing);
			errno = EPROTO;
			return NULL;
		}
		listing->offsets[i] = (uint32_t)at;
		listing->count = i + 1;
		at += row->length & ~(uint32_t)ROW_UNKNOWN;
		if (listing_find(t, listing, row->name, row->name_length))
			continue; /* a duplicate name: the first one counts */
		slot = (uint32_t)hash_name(t, 0, row->name, row->name_length) &
		       listing->index_mask;
		while (listing->index[slot])
			slot = (slot + 1) & listing->index_mask;
		listing->index[slot] = i + 1;
	}
	if (!listing_order(listing)) {
		listing_free(listing);
		errno = ENOMEM;
		return NULL;
	}
	return listing;
}

void handle_unref(struct handle *handle)
{
	if (!handle || atomic_fetch_sub(&handle->refs, 1) != 1)
		return;
	close(handle->fd);
	free(handle);
}

/* Closing is a request to the server on some network filesystems. */
void inode_drop_handle(struct tables *t, struct inode *inode)
{
	struct handle *handle = inode->handle;

	if (!handle)
		return;
	inode->handle = NULL;
	handle->next_dropped = t->dropped;
	t->dropped = handle;
}

void tables_unlock(struct tables *t)
{
	struct handle *dropped = t->dropped;
	struct chunk *chunks = t->dropped_chunks;
	struct listing *listings = t->dropped_listings;
	struct blob *blobs = t->dropped_blobs;

	t->dropped = NULL;
	t->dropped_chunks = NULL;
	t->dropped_listings = NULL;
	t->dropped_blobs = NULL;
	pthread_mutex_unlock(&t->lock);
	chunks_free_dropped(chunks);
	while (listings) {
		struct listing *listing = listings;

		listings = listing->next_dropped;
		listing_free(listing);
	}
	while (blobs) {
		struct blob *blob = blobs;

		blobs = blob->next_dropped;
		blob_free(blob);
	}
	while (dropped) {
		struct handle *handle = dropped;

		dropped = handle->next_dropped;
		handle_unref(handle);
	}
}

bool same_version(const struct fuse_attr *a, const struct fuse_attr *b)
{
	return same_ino(version_ino(a), version_ino(b)) && a->size == b->size &&
	       a->mtime == b->mtime && a->mtimensec == b->mtimensec && a->ctime == b->ctime &&
	       a->ctimensec == b->ctimensec;
}

uint64_t shown_ino(const struct fuse_attr *a)
{
	uint64_t mixed = (a->flags & ATTR_FILESYSTEM) + 0x9e3779b97f4a7c15u;

	if (!(a->flags & ATTR_FILESYSTEM))
		return a->ino;
	mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
	mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
	return a->ino ^ mixed ^ (mixed >> 31);
}

struct fuse_attr shown(const struct fuse_attr *a)
{
	struct fuse_attr shown = *a;

	shown.ino = shown_ino(a);
	shown.flags = 0; /* no submounts, no DAX, whatever a listing says */
	return shown;
}

struct inode *inode_by_id(struct tables *t, uint64_t id)
{
	struct inode *inode = t->by_id[id & t->mask];

	while (inode && inode->id != id)
		inode = inode->next_by_id;
	return inode;
}

static struct inode **name_bucket(struct tables *t, uint64_t parent_id, const char *name,
				  size_t length)
{
	return &t->by_name[hash_name(t, parent_id, name, length) & t->mask];
}

struct inode *inode_by_name(struct tables *t, struct inode *parent, const char *name, size_t length)
{
	struct inode *inode = *name_bucket(t, parent->id, name, length);

	while (inode && !(inode->parent == parent && inode->name_length == length &&
			  !memcmp(inode->name, name, length)))
		inode = inode->next_by_name;
	return inode;
}

static void enter(struct inode **bucket, struct inode *inode, bool by_name)
{
	*(by_name ? &inode->next_by_name : &inode->next_by_id) = *bucket;
	*bucket = inode;
}

static void unlink_from(struct inode **bucket, struct inode *inode, bool by_name)
{
	while (*bucket != inode)
		bucket = by_name ? &(*bucket)->next_by_name : &(*bucket)->next_by_id;
	*bucket = by_name ? inode->next_by_name : inode->next_by_id;
}

/* A successor must know the inode, and the directories above it. */
static void record(struct tables *t, struct inode *inode)
{
	for (; connection_is_kept(&t->connection) && inode->parent && !inode->record;
	     inode = inode->parent) {
		struct inode_record like = {
			.head = { .id = inode->id, .length = inode->name_length },
			.parent = inode->parent->id, .nlookup = inode->nlookup,
			.negative = inode->negative, .attached = inode->attached,
			.attr = inode->attr,
		};

		inode->record = record_new(&t->connection, &like, inode->name);
	}
}

/* Its number still leads to it. */
static void detach(struct tables *t, struct inode *inode)
{
	if (!inode->attached)
		return;
	unlink_from(name_bucket(t, inode->parent->id, inode->name, inode->name_length), inode,
		    true);
	inode->attached = false;
	if (inode->record)
		inode->record->attached = false;
}

static void idle_remove(struct tables *t, struct inode *inode)
{
	if (!inode->idle)
		return;
	inode->idle_next->idle_previous = inode->idle_previous;
	inode->idle_previous->idle_next = inode->idle_next;
	inode->idle = false;
	t->idle_count--;
}

static void inode_drop_extents(struct inode *inode)
{
	free(inode->extents);
	inode->extents = NULL;
}

void inode_withdraw(struct tables *t, struct inode *inode)
{
	inode_set_listing(t, inode, NULL);
	inode_set_object(t, inode, NULL);
	inode_drop_handle(t, inode);
	inode_drop_extents(inode);
	inode_drop_chunks(t, inode);
}

/* Then frees each parent that only this inode needed. */
static void free_unneeded(struct tables *t, struct inode *inode)
{
	while (inode != t->root && !inode->nlookup && !inode->children && !inode->idle) {
		struct inode *parent = inode->parent;

		detach(t, inode);
		unlink_from(&t->by_id[inode->id & t->mask], inode, false);
		inode_withdraw(t, inode);
		if (inode->record)
			record_free(&t->connection, &inode->record->head);
		free(inode);
		t->inodes--;
		parent->children--;
		inode = parent;
	}
}

static void idle_drop_oldest(struct tables *t)
{
	struct inode *inode = t->idle.idle_next;

	idle_remove(t, inode);
	free_unneeded(t, inode);
}

/* The kernel does not refer to it yet, or it stands for a missing name. */
static void idle_append(struct tables *t, struct inode *inode)
{
	idle_remove(t, inode);
	inode->idle_next = &t->idle;
	inode->idle_previous = t->idle.idle_previous;
	inode->idle_previous->idle_next = inode;
	t->idle.idle_previous = inode;
	inode->idle = true;
	t->idle_count++;
}

static void limit_idle(struct tables *t)
{
	while (t->idle_count > t->idle_max)
		idle_drop_oldest(t);
}

/* The kernel can have forgotten the directory while the handlers were asked. It must not go with
 * the last of its children, nor as the oldest idle inode. Other inodes may be freed here. */
static void keep_directory(struct tables *t, struct inode *directory)
{
	if (directory == t->root || directory->nlookup)
		return;
	idle_append(t, directory);
	limit_idle(t);
}

enum { CHAIN_MAX = 8 };

/* Takes some 0.1 us for each inode. The kernel may refer to far more than inodes_max, such as
 * directories, which it is never told to forget. */
static bool grow(struct tables *t)
{
	uint32_t before = t->mask;
	size_t buckets = 2 * ((size_t)before + 1);
	struct inode **by_id = calloc(buckets, sizeof(*by_id));
	struct inode **by_name = calloc(buckets, sizeof(*by_name)), **old = t->by_id;

	if (!by_id || !by_name) {
		free(by_id);
		free(by_name);
		return false;
	}
	free(t->by_name);
	t->by_id = by_id;
	t->by_name = by_name;
	t->mask = (uint32_t)(buckets - 1);
	for (uint32_t i = 0; i <= before; i++)
		for (struct inode *inode = old[i], *next; inode; inode = next) {
			next = inode->next_by_id;
			enter(&t->by_id[inode->id & t->mask], inode, false);
			if (inode->attached)
				enter(name_bucket(t, inode->parent->id, inode->name,
						  inode->name_length), inode, true);
		}
	free(old);
	return true;
}

/* It has no place yet. */
static struct inode *inode_numbered(struct tables *t, uint64_t id, const char *name, size_t length)
{
	struct inode *inode;

	if (t->inodes / CHAIN_MAX > t->mask && !grow(t))
		return NULL;
	inode = calloc(1, sizeof(*inode) + length);
	if (!inode)
		return NULL;
	inode->id = id;
	inode->name_length = (uint16_t)length;
	memcpy(inode->name, name, length);
	enter(&t->by_id[id & t->mask], inode, false);
	t->inodes++;
	return inode;
}

static void inode_place(struct tables *t, struct inode *inode, struct inode *parent, bool attached)
{
	inode->parent = parent;
	parent->children++;
	inode->attached = attached;
	if (attached)
		enter(name_bucket(t, parent->id, inode->name, inode->name_length), inode, true);
}

static struct inode *inode_new(struct tables *t, struct inode *parent, const char *name,
			       size_t length)
{
	struct inode *inode = inode_numbered(t, t->next_id, name, length);

	if (!inode)
		return NULL;
	t->next_id++;
	if (parent)
		inode_place(t, inode, parent, true);
	return inode;
}

/* Readers that hold the inode keep its number. */
static void displace(struct tables *t, struct inode *inode)
{
	detach(t, inode);
	idle_remove(t, inode);
	free_unneeded(t, inode);
}

static bool same_times(const struct fuse_attr *a, const struct fuse_attr *b)
{
	return a->mtime == b->mtime && a->mtimensec == b->mtimensec && a->ctime == b->ctime &&
	       a->ctimensec == b->ctimensec;
}

/* A changed directory has other names, even if its listing counts as fresh. */
void inode_set_attributes(struct tables *t, struct inode *inode, const struct fuse_attr *attr)
{
	if (!same_times(&inode->attr, attr))
		inode_outdate_listing(t, inode);
	inode->attr = *attr;
	if (inode->record)
		inode->record->attr = *attr;
}

struct inode *inode_obtain(struct tables *t, struct inode *parent, const char *name,
			   size_t length, const struct fuse_attr *attr, const char *target,
			   size_t target_length, uint64_t fresh_until)
{
	struct inode *inode;

	keep_directory(t, parent);
	inode = inode_by_name(t, parent, name, length);
	if (inode) {
		bool directories = S_ISDIR(inode->attr.mode) && S_ISDIR(attr->mode);
		bool same_kind = (inode->attr.mode & S_IFMT) == (attr->mode & S_IFMT);

		/* A directory keeps its number while its contents change. */
		if (inode->negative || !same_kind ||
		    !(directories ? same_ino(version_ino(&inode->attr), version_ino(attr))
				  : same_version(&inode->attr, attr))) {
			displace(t, inode);
			inode = NULL;
		}
	}
	if (!inode) {
		inode = inode_new(t, parent, name, length);
		if (!inode)
			return NULL;
		if (target_length && S_ISLNK(attr->mode)) {
			inode->object = blob_new(target_length);
			if (inode->object)
				memcpy(inode->object->data, target, target_length);
		}
	}
	inode_set_attributes(t, inode, attr);
	/* a lookup of its own may have made it longer */
	if (fresh_until > inode->fresh_until)
		inode->fresh_until = fresh_until;
	if (!inode->nlookup)
		idle_append(t, inode);
	limit_idle(t); /* idle_max is at least two: neither the directory nor the inode goes */
	return inode;
}

struct inode *inode_reach(struct tables *t, const char *path, size_t length)
{
	struct inode *inode = t->root;

	for (const char *end = path + length; inode && path < end;) {
		const char *slash = memchr(path, '/', (size_t)(end - path));
		size_t size = (size_t)((slash ? slash : end) - path);
		struct listing *listing = inode->listing;
		const struct row *row = NULL;
		struct inode *child = NULL;

		if (listing)
			row = listing_find(t, listing, path, size);
		if (row && !row_tells(listing, row))
			row = NULL;
		/* the last name must be the one in the listing */
		if (slash || !row)
			child = inode_by_name(t, inode, path, size);
		if (child && child->negative)
			child = NULL;
		if (!child && row && t->inodes < t->inodes_max)
			child = inode_obtain(t, inode, path, size, &row->attr,
					     row->name + row->name_length, row->target_length,
					     listing->fresh_until);
		inode = child;
		path += size + 1;
	}
	return inode;
}

bool inode_negative(struct tables *t, struct inode *parent, const char *name, size_t length,
		    uint64_t fresh_until)
{
	struct inode *inode;

	keep_directory(t, parent);
	inode = inode_by_name(t, parent, name, length);
	if (inode && !inode->negative) {
		displace(t, inode);
		inode = NULL;
	}
	if (!inode) {
		/* The kernel never forgets this inode, so without room the oldest idle one goes */
		while (t->idle_count >= t->idle_max)
			idle_drop_oldest(t);
		inode = inode_new(t, parent, name, length);
		if (!inode)
			return false;
		inode->negative = true;
		record(t, inode);
	}
	inode->fresh_until = fresh_until;
	idle_append(t, inode);
	limit_idle(t);
	return true;
}

void inode_refer(struct tables *t, struct inode *inode)
{
	inode->nlookup++;
	record(t, inode);
	if (inode->record)
		inode->record->nlookup = inode->nlookup;
	idle_remove(t, inode);
}

void inode_forget(struct tables *t, uint64_t id, uint64_t nlookup)
{
	struct inode *inode = inode_by_id(t, id);

	if (!inode || inode == t->root)
		return;
	inode->nlookup -= nlookup < inode->nlookup ? nlookup : inode->nlookup;
	if (inode->record)
		inode->record->nlookup = inode->nlookup;
	free_unneeded(t, inode);
}

int inode_path(const struct inode *inode, char *path, size_t size)
{
	size_t length = 0;
	char *end;

	for (const struct inode *n = inode; n->parent; n = n->parent)
		length += n->name_length + 1;
	if (length > size)
		return -1;
	if (!length)
		return 0;
	end = path + length - 1;
	for (const struct inode *n = inode; n->parent; n = n->parent) {
		end -= n->name_length;
		memcpy(end, n->name, n->name_length);
		if (end > path)
			*--end = '/';
	}
	return (int)length - 1;
}

void inode_set_listing(struct tables *t, struct inode *inode, struct listing *listing)
{
	if (inode->listing) {
		inode->listing->next_dropped = t->dropped_listings;
		t->dropped_listings = inode->listing;
	}
	inode->listing = listing;
	if (listing)
		inode->awaits_names = false;
}

void inode_outdate_listing(struct tables *t, struct inode *inode)
{
	inode_set_listing(t, inode, NULL);
	inode->outdated = true;
}

void inode_set_object(struct tables *t, struct inode *inode, struct blob *object)
{
	/* a link's target belongs to its version and is never withdrawn */
	if (S_ISLNK(inode->attr.mode) && inode->object && !object && inode->nlookup)
		return;
	if (blob_let_go(inode->object)) {
		inode->object->next_dropped = t->dropped_blobs;
		t->dropped_blobs = inode->object;
	}
	inode->object = object;
}

void inode_set_handle(struct tables *t, struct inode *inode, struct handle *handle)
{
	if (t->handle_ids[inode->handle_slot] != inode->id) {
		uint32_t slot = t->handle_next++ % t->handle_max;
		struct inode *oldest = inode_by_id(t, t->handle_ids[slot]);

		if (oldest)
			inode_drop_handle(t, oldest);
		t->handle_ids[slot] = inode->id;
		inode->handle_slot = (uint16_t)slot;
	}
	inode_drop_handle(t, inode);
	inode->handle = handle;
}

void inode_set_extents(struct tables *t, struct inode *inode, struct extents *extents)
{
	if (t->extents_ids[inode->extents_slot] != inode->id) {
		uint32_t slot = t->extents_next++ % EXTENTS_INODES_MAX;
		struct inode *oldest = inode_by_id(t, t->extents_ids[slot]);

		if (oldest)
			inode_drop_extents(oldest);
		t->extents_ids[slot] = inode->id;
		inode->extents_slot = (uint8_t)slot;
	}
	inode_drop_extents(inode);
	inode->extents = extents;
}

void tables_clear(struct tables *t, uint64_t epoch)
{
	t->epoch = epoch;
	if (connection_is_kept(&t->connection))
		t->connection.header->epoch = epoch;
	for (uint32_t i = 0; i <= t->mask; i++)
		for (struct inode *inode = t->by_id[i]; inode; inode = inode->next_by_id) {
			inode_withdraw(t, inode);
			inode->fresh_until = 0;
			inode->outdated = true;
			inode->awaits_names = false;
		}
}

void tables_revoke_below(struct tables *t)
{
	for (uint32_t i = 0; i <= t->mask; i++)
		for (struct inode *inode = t->by_id[i]; inode; inode = inode->next_by_id)
			if (inode->listing)
				inode->listing->granted_below = false;
}

/* --- of another process --- */

static bool adopt_inode(struct inode_record *record, void *context)
{
	struct tables *t = context;
	struct inode *inode;

	/* a damaged one, or the root */
	if (record->head.id == FUSE_ROOT_ID || inode_by_id(t, record->head.id))
		return true;
	inode = inode_numbered(t, record->head.id, record->name, record->head.length);
	if (!inode)
		return false;
	inode->attr = record->attr;
	inode->nlookup = record->nlookup;
	inode->negative = record->negative;
	inode->record = record;
	return true;
}

struct orphans {
	struct tables *t;
	bool some;
};

/* Those without a parent have no path: their directories were left out for want of memory. They
 * answer ESTALE, as unknown numbers do. */
static bool drop_orphan(struct inode_record *record, void *context)
{
	struct orphans *orphans = context;
	struct tables *t = orphans->t;
	struct inode *inode = inode_by_id(t, record->head.id);

	if (!inode || inode->record != record || inode_by_id(t, record->parent))
		return true;
	unlink_from(&t->by_id[inode->id & t->mask], inode, false);
	record_free(&t->connection, &record->head);
	free(inode);
	t->inodes--;
	orphans->some = true;
	return true;
}

static bool adopt_place(struct inode_record *record, void *context)
{
	struct tables *t = context;
	struct inode *inode = inode_by_id(t, record->head.id);

	if (inode && inode->record == record)
		inode_place(t, inode, inode_by_id(t, record->parent), record->attached);
	return true;
}

static bool adopt_use(struct inode_record *record, void *context)
{
	struct tables *t = context;
	struct inode *inode = inode_by_id(t, record->head.id);

	if (inode && inode->negative)
		idle_append(t, inode);
	else if (inode)
		free_unneeded(t, inode);
	return true;
}

bool tables_adopt(struct tables *t)
{
	struct connection_state *c = &t->connection;
	struct orphans orphans = { .t = t };

	if (!records_each(c, adopt_inode, t))
		return false;
	do { /* what is below an orphan is one, too */
		orphans.some = false;
		records_each(c, drop_orphan, &orphans);
	} while (orphans.some);
	records_each(c, adopt_place, t);
	records_each(c, adopt_use, t);
	if (c->header->next_id > t->next_id)
		t->next_id = c->header->next_id;
	t->epoch = c->header->epoch;
	return true;
}

int tables_init(struct tables *t, uint32_t inodes_max, uint32_t handle_max)
{
	size_t buckets = 1024;

	memset(t, 0, sizeof(*t));
	/* chains of two at inodes_max; untouched pages take no memory */
	while (buckets * 2 < inodes_max)
		buckets *= 2;
	t->mask = (uint32_t)(buckets - 1);
	t->inodes_max = inodes_max;
	t->idle_max = inodes_max / 4 < 65536 ? inodes_max / 4 : 65536;
	if (t->idle_max < 2) /* a directory and a name in it: see keep_directory() */
		t->idle_max = 2;
	t->handle_max = handle_max;
	t->connection.fd = -1;
	t->next_id = FUSE_ROOT_ID;
	t->epoch = 1;
	t->idle.idle_next = t->idle.idle_previous = &t->idle;
	if (getrandom(&t->hash_seed, sizeof(t->hash_seed), 0) != (ssize_t)sizeof(t->hash_seed))
		return -1;
	t->by_id = calloc(buckets, sizeof(*t->by_id));
	t->by_name = calloc(buckets, sizeof(*t->by_name));
	t->by_chunk = calloc(CHUNK_BUCKETS, sizeof(*t->by_chunk));
	t->handle_ids = calloc(handle_max, sizeof(*t->handle_ids));
	if (!t->by_id || !t->by_name || !t->by_chunk || !t->handle_ids ||
	    pthread_mutex_init(&t->lock, NULL)) {
		free(t->by_id);
		free(t->by_name);
		free(t->by_chunk);
		free(t->handle_ids);
		errno = ENOMEM;
		return -1;
	}
	t->root = inode_new(t, NULL, "", 0);
	if (!t->root) {
		tables_destroy(t);
		return -1;
	}
	t->root->attr.mode = S_IFDIR;
	t->root->nlookup = 1;
	return 0;
}

void tables_destroy(struct tables *t)
{
	for (uint32_t i = 0; i <= t->mask; i++)
		while (t->by_id[i]) {
			struct inode *inode = t->by_id[i];

			t->by_id[i] = inode->next_by_id;
			inode->nlookup = 0; /* so that a link's target goes, too */
			inode_withdraw(t, inode);
			free(inode);
		}
	tables_lock(t);
	tables_unlock(t);
	free(t->by_id);
	free(t->by_name);
	free(t->by_chunk);
	free(t->handle_ids);
	connection_close(&t->connection);
	pthread_mutex_destroy(&t->lock);
}
