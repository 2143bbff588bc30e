#define _GNU_SOURCE
#include "world.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

struct world *world;
static int source_file = -1;

uint8_t take_byte(struct input *in)
{
	uint8_t byte = in->size ? *in->bytes : 0;

	in->bytes += in->size > 0;
	in->size -= in->size > 0;
	return byte;
}

size_t take_bytes(struct input *in, void *to, size_t wanted)
{
	size_t size = wanted < in->size ? wanted : in->size;

	memset(to, 0, wanted);
	if (size)
		memcpy(to, in->bytes, size);
	in->bytes += size;
	in->size -= size;
	return size;
}

/* --- contents of files --- */

static char content(const struct fuse_attr *attr, uint64_t at)
{
	return (char)(attr->ino * 7 + at + at / 4096 * 31);
}

static struct blob *piece_blob(const struct fuse_attr *attr, uint64_t offset, size_t size)
{
	struct blob *blob = blob_new(size);

	for (size_t i = 0; i < size; i++)
		blob->data[i] = content(attr, offset + i);
	return blob;
}

static struct blob *content_blob(const struct fuse_attr *attr)
{
	return piece_blob(attr, 0, attr->size);
}

/* --- the kernel --- */

static void remember(void *context, uint64_t id)
{
	(void)context;
	CHECK(id < NODES_KNOWN);
	CHECK(inode_by_id(&world->front.tables, id));
	world->references[id]++;
}

static void bytes_check(const struct asked_for *asked, const char *data, size_t size)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)asked->request;
	const struct fuse_read_in *read = (const struct fuse_read_in *)(in + 1);
	const struct inode *inode = inode_by_id(&world->front.tables, in->nodeid);

	if (in->opcode != FUSE_READ || asked->by_handler || !inode)
		return;
	CHECK(!size || read->offset + size <= inode->attr.size);
	for (size_t i = 0; i < size; i++)
		CHECK(data[i] == content(&inode->attr, read->offset + i));
}

/* The source's large files have data in the first half of each of these, unless their inode
 * number forbids that. */
enum { DATA_EVERY = 1000 };

static bool is_data(const struct fuse_attr *attr, uint64_t offset)
{
	return attr->ino != 3 && offset % DATA_EVERY < DATA_EVERY / 2;
}

static bool is_looked_at(const struct fuse_attr *attr)
{
	return attr->size > world->front.whole_max && !attr->blocks;
}

/* A hole may go unreported, and nothing else. */
static void seek_check(const struct asked_for *asked, const struct fuse_lseek_out *out)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)asked->request;
	const struct fuse_lseek_in *lseek = (const struct fuse_lseek_in *)(in + 1);
	const struct inode *inode = inode_by_id(&world->front.tables, in->nodeid);
	bool wants_data = lseek->whence == SEEK_DATA;

	if (!inode)
		return;
	CHECK(S_ISREG(inode->attr.mode) && (wants_data || lseek->whence == SEEK_HOLE));
	CHECK(out->offset >= lseek->offset && lseek->offset < inode->attr.size);
	CHECK(out->offset < inode->attr.size + !wants_data);
	if (!is_looked_at(&inode->attr))
		CHECK(out->offset == (wants_data ? lseek->offset : inode->attr.size));
	for (uint64_t at = lseek->offset; wants_data && at < out->offset; at++)
		CHECK(!is_data(&inode->attr, at));
	if (!wants_data && out->offset < inode->attr.size)
		CHECK(!is_data(&inode->attr, out->offset));
}

ssize_t world_writev(int fd, const struct iovec *parts, int count);
ssize_t world_writev(int fd, const struct iovec *parts, int count)
{
	static char whole[REPLY_MAX + 4096];
	const struct fuse_out_header *out = (const struct fuse_out_header *)whole;
	bool fails = world->writev_fails;
	size_t size = 0;

	(void)fd;
	for (int i = 0; i < count; i++) {
		CHECK(size + parts[i].iov_len <= sizeof(whole));
		if (parts[i].iov_len) /* a notification may have no body */
			memcpy(whole + size, parts[i].iov_base, parts[i].iov_len);
		size += parts[i].iov_len;
	}
	CHECK(size >= sizeof(*out) && out->len == size);
	if (!out->unique) { /* a notification */
		CHECK(out->error > 0);
		return (ssize_t)size;
	}
	if (out->unique & 1) { /* to an interrupt: ask me again */
		CHECK(out->error == -EAGAIN && size == sizeof(*out));
		return (ssize_t)size;
	}
	world->writev_fails = false;
	for (unsigned i = 0; i < world->asked_count; i++) {
		struct asked_for *asked = &world->asked[i];

		if (asked->unique != out->unique)
			continue;
		if (!fails) {
			reply_check(asked->request, out, whole + sizeof(*out), remember, NULL);
			bytes_check(asked, whole + sizeof(*out), size - sizeof(*out));
			if (((struct fuse_in_header *)asked->request)->opcode == FUSE_LSEEK &&
			    !out->error)
				seek_check(asked, (struct fuse_lseek_out *)(whole + sizeof(*out)));
		}
		*asked = world->asked[--world->asked_count];
		errno = ENOENT;
		return fails ? -1 : (ssize_t)size;
	}
	CHECK(!"a reply to nothing");
	return -1;
}

void world_ask(uint32_t opcode, uint64_t id, const void *body, size_t size)
{
	struct asked_for *asked = &world->asked[world->asked_count];
	struct fuse_in_header in = { .opcode = opcode, .nodeid = id };
	_Alignas(8) char request[512];
	bool answered = opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET &&
			opcode != FUSE_INTERRUPT && opcode != FUSE_NOTIFY_REPLY;

	if (world->asked_count == REQUESTS_KNOWN || size > sizeof(request) - sizeof(in))
		return;
	in.len = (uint32_t)(sizeof(in) + size);
	in.unique = world->next_unique += 2;
	if (opcode == FUSE_INTERRUPT)
		in.unique |= 1;
	in.pid = (uint32_t)getpid();
	memcpy(request, &in, sizeof(in));
	if (size)
		memcpy(request + sizeof(in), body, size);
	if (answered) {
		asked->unique = in.unique;
		asked->by_handler = false;
		asked->size = in.len;
		memcpy(asked->request, request, in.len);
		world->asked_count++;
	}
	front_request(&world->front, request, in.len, world->scratch);
}

static void drop_references(uint64_t id, uint64_t count)
{
	if (id >= NODES_KNOWN || id == FUSE_ROOT_ID)
		return;
	world->references[id] -= count < world->references[id] ? count : world->references[id];
}

/* --- the handlers --- */

ssize_t world_send(int fd, const void *message, size_t size, int flags);
ssize_t world_send(int fd, const void *message, size_t size, int flags)
{
	const struct fuse_in_header *in = message;

	(void)fd;
	(void)flags;
	CHECK(size >= sizeof(*in) && in->len == size);
	if (world->send_fails) {
		world->send_fails = false;
		errno = EAGAIN;
		return -1;
	}
	return (ssize_t)size;
}

void world_reply(const void *reply, size_t size)
{
	char *copy = aligned_alloc(8, (size + 24) & ~(size_t)7);
	struct fuse_out_header out = { 0 };

	memcpy(copy, reply, size);
	memcpy(&out, reply, size < sizeof(out) ? size : sizeof(out));
	for (unsigned i = 0; i < world->asked_count; i++)
		if (world->asked[i].unique == out.unique && size > sizeof(out))
			world->asked[i].by_handler = true;
	front_handler_reply(&world->front, copy, size, world->scratch);
	free(copy);
}

static void answer_one(struct input *in)
{
	_Alignas(8) char reply[256] = { 0 };
	struct fuse_out_header *out = (struct fuse_out_header *)reply;
	size_t size = sizeof(*out);
	uint8_t how;

	if (!world->asked_count)
		return;
	out->unique = world->asked[take_byte(in) % world->asked_count].unique;
	how = take_byte(in);
	if (how < 100)
		out->error = -FRONT_RETRY;
	else if (how < 200)
		out->error = -(how - 98);
	else
		size += take_bytes(in, out + 1, how - 200);
	out->len = (uint32_t)size;
	world_reply(reply, size);
}

/* --- threads: a bypass worker runs on command, until it has nothing to do --- */

int world_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
			 void *(*start)(void *), void *argument);
int world_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
			 void *(*start)(void *), void *argument)
{
	(void)thread;
	(void)attributes;
	(void)argument;
	world->worker = start;
	return EAGAIN;
}

int world_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int world_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
	(void)condition;
	(void)mutex;
	world->front.ended = true;
	return 0;
}

static void run_bypass(void)
{
	if (world->worker)
		world->worker(&world->front);
	world->front.ended = false;
}

/* --- the source's threads --- */

static size_t pack(struct input *in, char *packed);

/* An entry that was listed before the last clear must be gone. */
static void end_listing(const struct fetch *fetch, struct input *in, bool well)
{
	struct tables *t = &world->front.tables;
	char *packed = well ? malloc(PACKED_MAX) : NULL;
	size_t size = packed ? pack(in, packed) : 0;
	bool links = packed && ((struct listing_header *)packed)->absolute_links;
	const struct inode *inode = inode_by_id(t, fetch->tag);
	bool had_one = inode && inode->listing;

	fetch->done_names(&world->front, fetch->tag, packed, size);
	inode = inode_by_id(t, fetch->tag);
	CHECK(!inode || !inode->listing || had_one || (well && fetch->epoch == t->epoch));
	if (inode && inode->listing && !had_one) {
		CHECK(!inode->listing->bare && !links && inode->listing->granted_below);
		CHECK(inode->parent->listing && inode->parent->listing->granted_below);
	}
}

static void end_one(const struct fetch *fetch, struct input *in, bool well)
{
	struct fuse_attr attr = { .size = fetch->version.size, .ino = fetch->version.ino };

	if (fetch->done_names)
		end_listing(fetch, in, well);
	else
		fetch->done(&world->front, fetch->tag, &fetch->version,
			    well ? content_blob(&attr) : NULL);
}

static bool start_fetch(struct fetch fetch, const char *path)
{
	if (world->reader_refuses || world->fetches_count == FETCHES)
		return false;
	CHECK(*path && *path != '/');
	for (unsigned i = 0; i < world->fetches_count; i++)
		CHECK(world->fetches[i].tag != fetch.tag); /* never twice at a time */
	fetch.epoch = world->front.tables.epoch;
	snprintf(fetch.path, sizeof(fetch.path), "%s", path);
	if (world->reader_is_quick)
		end_one(&fetch, world->input, true);
	else
		world->fetches[world->fetches_count++] = fetch;
	return true;
}

static bool read_file(void *pool, const char *path, const struct version *version,
		      reader_done *done, void *context, uint64_t tag)
{
	(void)pool;
	(void)context;
	return start_fetch((struct fetch){ .version = *version, .done = done, .tag = tag }, path);
}

static bool list_directory(void *pool, const char *path, const struct version *version,
			   lister_done *done, void *context, uint64_t tag)
{
	(void)pool;
	(void)context;
	return start_fetch(
		(struct fetch){ .version = *version, .done_names = done, .tag = tag }, path);
}

static void end_fetch(struct input *in, unsigned which, bool well)
{
	struct fetch fetch = world->fetches[which];

	world->fetches[which] = world->fetches[--world->fetches_count];
	end_one(&fetch, in, well);
}

static void end_seek(const struct seek *seek, bool well)
{
	struct fuse_attr attr = { .ino = seek->version.ino };
	struct extents *found = well ? malloc(sizeof(*found) + seek->count *
					      sizeof(struct extent)) : NULL;
	uint64_t at = seek->offset, size = seek->version.size;

	if (found)
		*found = (struct extents){ .from = at };
	while (found && found->count < seek->count && at < size) {
		struct extent *extent = &found->each[found->count];

		while (at < size && !is_data(&attr, at))
			at++;
		extent->data = at;
		while (at < size && is_data(&attr, at))
			at++;
		extent->hole = at;
		found->count += extent->data < size;
	}
	if (found)
		found->until = at;
	seek->done(&world->front, seek->unique, found);
}

static bool seek_file(void *pool, const char *path, const struct version *version,
		      uint64_t offset, unsigned count, seeker_done *done, void *context,
		      uint64_t tag)
{
	struct seek seek = { *version, offset, tag, count, done };

	(void)pool;
	(void)context;
	CHECK(*path && *path != '/' && count >= 1 && count <= EXTENTS_MAX);
	CHECK(version->size > world->front.whole_max && offset < version->size);
	if (world->reader_refuses || world->seeks_count == FETCHES)
		return false;
	if (world->reader_is_quick)
		end_seek(&seek, true);
	else
		world->seeks[world->seeks_count++] = seek;
	return true;
}

static void end_one_seek(unsigned which, bool well)
{
	struct seek seek = world->seeks[which];

	world->seeks[which] = world->seeks[--world->seeks_count];
	end_seek(&seek, well);
}

/* --- steps --- */

static uint64_t pick_inode(struct input *in)
{
	return take_byte(in) % (world->front.tables.next_id + 1);
}

static size_t pick_name(struct input *in, char *name)
{
	uint8_t which = take_byte(in) % 12;

	memset(name, 'n', 256);
	name[0] = (char)('a' + which);
	name[1] = '.'; /* an ending, where it is long enough */
	return which == 11 ? 255 : which == 10 ? 120 : 1;
}

static void pick_attributes(struct input *in, struct fuse_attr *attr)
{
	static const uint32_t kinds[] = { S_IFDIR, S_IFREG, S_IFREG, S_IFLNK, S_IFIFO, S_IFREG };
	uint8_t which = take_byte(in);
	struct stat status;

	memset(attr, 0, sizeof(*attr));
	attr->mode = kinds[which % 6] | 0755;
	attr->ino = 2 + which / 6 % 3;
	attr->mtime = which / 18;
	attr->size = which % 2 ? 100 : which < 180 ? 5000 : 50000;
	if (which % 6 == 5 && !fstat(source_file, &status)) {
		attr->ino = 99;
		attr->size = (uint64_t)status.st_size;
		attr->mtime = (uint64_t)status.st_mtim.tv_sec;
		attr->mtimensec = (uint32_t)status.st_mtim.tv_nsec;
		attr->ctime = (uint64_t)status.st_ctim.tv_sec;
		attr->ctimensec = (uint32_t)status.st_ctim.tv_nsec;
	}
}

static uint64_t pick_fresh(struct input *in)
{
	return take_byte(in) % 4 ? FRESH_FOREVER : 0;
}

/* front_type.c does the rest for the handlers. */

static size_t pack(struct input *in, char *packed)
{
	struct listing_header *header = (struct listing_header *)packed;
	uint8_t flags = take_byte(in);
	uint8_t count = take_byte(in) % 16;
	size_t size = sizeof(*header);

	*header = (struct listing_header){ LISTING_MAGIC, count, flags & 1, flags >> 7 };
	memset(packed + size, 0, PACKED_MAX - size);
	for (uint8_t i = 0; i < count; i++) {
		struct row *row = (struct row *)(packed + size);
		size_t target;

		row->name_length = (uint16_t)pick_name(in, row->name);
		pick_attributes(in, &row->attr);
		target = S_ISLNK(row->attr.mode) || flags & 2 ? 3 : 0;
		memset(row->name + row->name_length, 't', target + 8);
		row->target_length = (uint16_t)target;
		row->length = (uint32_t)((sizeof(*row) + row->name_length + target + 7) &
					 ~(size_t)7);
		size += row->length;
		if (flags & 4 && !target && i % 2) {
			row->length |= ROW_UNKNOWN;
			row->attr.size = 0;
			row->attr.nlink = UNKNOWN_LINKS;
		}
	}
	return size;
}

static void publish_listing(struct input *in)
{
	static char packed[PACKED_MAX];
	uint64_t id = pick_inode(in);
	size_t size = pack(in, packed);
	uint8_t granted;
	struct listing *listing;

	listing = listing_open(&world->front.tables, packed, size, pick_fresh(in));
	CHECK(listing);
	granted = take_byte(in);
	listing->granted = granted & 1;
	listing->granted_below = granted & 2;
	listing->read_ahead = granted & 4;
	front_publish_listing(&world->front, id, listing);
}

static void publish_entry(struct input *in)
{
	uint64_t parent = pick_inode(in);
	char name[256];
	size_t length = pick_name(in, name);
	bool negative = take_byte(in) % 3 == 0;
	struct fuse_attr attr;

	pick_attributes(in, &attr);
	front_publish_entry(&world->front, parent, name, length, negative ? NULL : &attr, "to", 2,
			    inode_by_id(&world->front.tables, parent) ? pick_fresh(in) : 0);
}

static void publish_content(struct input *in, bool object)
{
	struct tables *t = &world->front.tables;
	struct handle *handle = calloc(1, sizeof(*handle));
	struct inode *inode;

	atomic_init(&handle->refs, 1);
	handle->fd = dup(source_file);
	tables_lock(t);
	inode = inode_by_id(t, pick_inode(in));
	if (inode && S_ISREG(inode->attr.mode) && object) {
		blob_unref(inode->object);
		inode->object = content_blob(&inode->attr);
	} else if (inode && S_ISREG(inode->attr.mode)) {
		handle->version = inode->attr;
		inode_set_handle(t, inode, handle);
		handle = NULL;
	}
	tables_unlock(t);
	handle_unref(handle);
}

static void publish_chunk(struct input *in)
{
	struct tables *t = &world->front.tables;
	uint8_t index = take_byte(in) % 16, how = take_byte(in);
	uint32_t chunk_bytes = how % 8 == 0 ? 1 : how % 8 < 6 ? 4096 : 12288;
	struct chunk *chunk = NULL;
	struct inode *inode;

	tables_lock(t);
	inode = inode_by_id(t, pick_inode(in));
	if (inode) {
		uint64_t begin = (uint64_t)index * chunk_bytes;
		size_t size = inode_cut(inode, begin, chunk_bytes) + (how >= 250);

		chunk = chunk_new(index, piece_blob(&inode->attr, begin, size));
		CHECK(chunk);
		if (inode_add_chunk(t, inode, chunk_bytes, chunk)) {
			CHECK(size && how % 8 && how < 250);
			chunk = NULL;
		}
	}
	tables_unlock(t);
	chunk_free(chunk);
}

static void withdraw_chunk(struct input *in)
{
	struct tables *t = &world->front.tables;
	struct touched_chunk touched[4];
	struct inode *inode;
	size_t count;

	tables_lock(t);
	if (take_byte(in) % 4 == 0) {
		count = tables_take_touched(t, touched, 4);
		for (size_t i = 0; i < count; i++)
			CHECK(chunk_find(t, inode_by_id(t, touched[i].id), touched[i].index));
		CHECK(count == 4 || !t->touched);
	} else {
		inode = inode_by_id(t, pick_inode(in));
		if (inode)
			inode_drop_chunk(t, inode, take_byte(in) % 16);
	}
	tables_unlock(t);
}

static void withdraw(struct input *in)
{
	struct tables *t = &world->front.tables;
	struct inode *inode;

	tables_lock(t);
	inode = inode_by_id(t, pick_inode(in));
	if (inode)
		inode_withdraw(t, inode);
	tables_unlock(t);
}

static void forget(struct input *in)
{
	struct {
		struct fuse_batch_forget_in head;
		struct fuse_forget_one one[3];
	} batch = { .head = { .count = 3 } };
	struct fuse_forget_in one = { .nlookup = take_byte(in) % 4 };
	uint64_t id = pick_inode(in);

	if (take_byte(in) % 2) {
		drop_references(id, one.nlookup);
		world_ask(FUSE_FORGET, id, &one, sizeof(one));
		return;
	}
	for (int i = 0; i < 3; i++) {
		batch.one[i] = (struct fuse_forget_one){ pick_inode(in), one.nlookup };
		drop_references(batch.one[i].nodeid, one.nlookup);
	}
	world_ask(FUSE_BATCH_FORGET, 0, &batch, sizeof(batch));
}

static void ask_read(struct input *in)
{
	static const uint64_t offsets[] = { 0, 1, 99, 100, 4999, 5000, 1 << 20, UINT64_MAX };
	static const uint32_t sizes[] = { 0, 1, 100, 4096, 131072, REPLY_MAX, REPLY_MAX + 1,
					  UINT32_MAX };
	struct fuse_read_in read = { .offset = offsets[take_byte(in) % 8],
				     .size = sizes[take_byte(in) % 8] };

	world_ask(FUSE_READ, pick_inode(in), &read, sizeof(read));
}

static void ask_read_anywhere(struct input *in)
{
	struct fuse_read_in read = { .offset = take_byte(in) * 256u + take_byte(in) };

	read.size = take_byte(in) * 256u;
	world_ask(FUSE_READ, pick_inode(in), &read, sizeof(read));
}

static void ask_names(struct input *in)
{
	static const uint64_t offsets[] = { 0, 0, 1, 2, 3, 5, 17, 18, UINT64_MAX, 1ull << 32 };
	static const uint32_t sizes[] = { 0, 24, 160, 200, 560, 4096, REPLY_MAX, UINT32_MAX };
	struct fuse_read_in read = { .offset = offsets[take_byte(in) % 10],
				     .size = sizes[take_byte(in) % 8] };
	uint32_t opcode = take_byte(in) % 3 ? FUSE_READDIRPLUS : FUSE_READDIR;

	world_ask(opcode, pick_inode(in), &read, sizeof(read));
}

static void ask_name(struct input *in)
{
	char name[257];
	size_t length = pick_name(in, name);

	name[length] = 0;
	world_ask(FUSE_LOOKUP, pick_inode(in), name, length + 1);
}

static void ask_anything(struct input *in)
{
	_Alignas(8) char body[400];
	uint32_t opcode = take_byte(in);
	uint64_t id = pick_inode(in);
	size_t size = take_bytes(in, body, take_byte(in));

	if (opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET)
		return; /* forget() does; these references would go uncounted */
	world_ask(opcode, id, body, size);
}

static void interrupt(struct input *in)
{
	struct fuse_interrupt_in body = { .unique = 12 };

	if (world->asked_count)
		body.unique = world->asked[take_byte(in) % world->asked_count].unique;
	world_ask(FUSE_INTERRUPT, 0, &body, sizeof(body));
}

static void ask_seek(struct input *in)
{
	uint8_t how = take_byte(in);
	struct fuse_lseek_in lseek = { .whence = how % 16 ? SEEK_DATA + how % 2 : how };

	lseek.offset = take_byte(in) * 256u + take_byte(in);
	if (how > 250)
		lseek.offset -= 300; /* some are negative */
	world_ask(FUSE_LSEEK, pick_inode(in), &lseek, sizeof(lseek));
}

static void ask_ioctl(struct input *in)
{
	struct fuse_ioctl_in body = { .cmd = FRONT_IOCTL_TYPE << 8, .out_size = take_byte(in) };

	world_ask(FUSE_IOCTL, pick_inode(in), &body, sizeof(body));
}

/* The node's actions once it knows of them. */
static void take_fetched(void)
{
	struct front *f = &world->front;

	while (f->fetched_first) {
		struct fetched *fetched = f->fetched_first;

		f->fetched_first = fetched->next;
		f->allowance += fetched->allowance;
		CHECK(fetched->epoch <= f->tables.epoch);
		fetched_free(fetched);
	}
	f->fetched_end = &f->fetched_first;
}

void world_step(struct input *in)
{
	struct front *f = &world->front;
	uint8_t flags;

	world->input = in;
	switch (take_byte(in) % 24) {
	case 0: case 1: case 2: ask_name(in); break;
	case 3: world_ask(FUSE_GETATTR, pick_inode(in), &(struct fuse_getattr_in){ 0 },
			  sizeof(struct fuse_getattr_in)); break;
	case 4: case 5: ask_read(in); break;
	case 6: case 7: ask_names(in); break;
	case 8: world_ask(FUSE_READLINK, pick_inode(in), NULL, 0); break;
	case 9: ask_anything(in); break;
	case 10: interrupt(in); break;
	case 11:
		if (take_byte(in) % 4)
			ask_seek(in);
		else
			ask_ioctl(in);
		break;
	case 12: case 13: forget(in); break;
	case 14: publish_listing(in); break;
	case 15: publish_entry(in); break;
	case 16: publish_content(in, true); break;
	case 17: publish_content(in, false); break;
	case 18: withdraw(in); break;
	case 19:
		flags = take_byte(in);
		if (flags % 8 == 0) {
			tables_lock(&f->tables);
			tables_clear(&f->tables, f->tables.epoch + 1);
			tables_unlock(&f->tables);
		} else if (flags % 8 == 1) {
			struct later later;

			front_invalidate_all(f, &later);
			front_invalidate_later(f, &later);
		} else if (flags % 8 == 2) {
			front_shed(f, flags);
		} else if (flags % 8 == 3) {
			take_fetched();
		} else if (flags % 8 == 4) {
			tables_lock(&f->tables);
			tables_revoke_below(&f->tables);
			tables_unlock(&f->tables);
		} else if (flags % 8 == 5) {
			publish_chunk(in);
		} else if (flags % 8 == 6) {
			withdraw_chunk(in);
		} else {
			ask_read_anywhere(in);
		}
		break;
	case 20: case 21: answer_one(in); break;
	case 22: run_bypass(); break;
	case 23:
		flags = take_byte(in);
		world->writev_fails = flags & 1;
		world->send_fails = flags & 2;
		world->reader_refuses = flags & 4;
		world->reader_is_quick = flags & 8;
		if (flags & 64 && world->seeks_count)
			end_one_seek(flags % world->seeks_count, flags & 32);
		else if (flags & 16 && world->fetches_count)
			end_fetch(in, flags % world->fetches_count, flags & 32);
		break;
	}
}

/* --- a life --- */

void world_begin(unsigned inodes_max)
{
	static const struct reader reader = { NULL, read_file, list_directory, seek_file };
	struct front *f;

	if (source_file < 0) {
		source_file = memfd_create("source", MFD_CLOEXEC);
		for (int i = 0; i < 3000; i++) {
			struct fuse_attr attr = { .ino = 99 };
			char byte = content(&attr, (uint64_t)i);

			CHECK(write(source_file, &byte, 1) == 1);
		}
	}
	world = calloc(1, sizeof(*world));
	world->scratch = malloc(REPLY_MAX);
	f = &world->front;
	CHECK(!front_init(f, inodes_max));
	f->tables.hash_seed = 1; /* the same input has to do the same */
	f->fuse_fd = f->miss_fd = f->control_fd = 0;
	f->kernel_cache = true;
	f->reader = &reader;
	f->whole_max = 5000;
	f->finds_holes = true;
	f->allowance = f->allowance_max = ALLOWANCE;
	f->ahead_max = 3;
	f->deadline_ns = UINT64_MAX;
	f->tables.root->attr.mode = S_IFDIR | 0755;
	CHECK(trace_begin(f, 2000)); /* soon full */
}

/* Every record is whole, and its path within it. */
static void check_trace(struct front *f)
{
	uint64_t lost;
	size_t size, at = 0;
	char *records = trace_take(f, &size, &lost);

	while (records && at < size) {
		uint16_t length;

		CHECK(size - at >= 32);
		memcpy(&length, records + at + 24, sizeof(length));
		at += 32 + length;
	}
	CHECK(!records || at == size);
	free(records);
}

void world_check(void)
{
	struct tables *t = &world->front.tables;

	tables_check(t);
	for (uint32_t i = 0; i <= t->mask; i++)
		for (const struct inode *n = t->by_id[i]; n; n = n->next_by_id)
			CHECK(n == t->root || n->nlookup == world->references[n->id]);
	CHECK(world->front.pending_count == world->asked_count);
}

void world_end(void)
{
	struct input nothing = { (const uint8_t *)"", 0 };

	world->reader_is_quick = false;
	while (world->fetches_count)
		end_fetch(&nothing, 0, true);
	while (world->seeks_count)
		end_one_seek(0, true);
	take_fetched();
	CHECK(world->front.allowance == ALLOWANCE);
	run_bypass();
	world_check();
	/* a request without an answer must still be waiting */
	for (unsigned i = 0; i < world->asked_count; i++) {
		struct pending *pending = pending_claim(&world->front, world->asked[i].unique);

		CHECK(pending);
		pending_free(&world->front, pending);
	}
	check_trace(&world->front);
	bypass_stop(&world->front);
	front_destroy(&world->front);
	free(world->scratch);
	free(world);
	world = NULL;
}
