/*
 * Stress test of the whole front with all its threads, on a socketpair instead of /dev/fuse.
 *
 *   stress REQUESTS [memory]
 *
 * With `memory`, requests are read into memory that outlives the process (requests_in_hand.h).
 *
 * kernel     sends requests with up to WINDOW of them unanswered, and checks every reply: sound, to
 *            a waiting request, and only one. It forgets inodes, interrupts some requests, and
 *            keeps the counts of references.
 * handlers   answer misses: they publish and say RETRY, or an error, or bytes, or twice;
 *            files of one size come in chunks
 * disturber  publishes, withdraws, clears, sheds and invalidates all the time
 * sources    end the fetches that the front starts by itself
 *
 * At the end every request was answered, and after forgetting all inodes only the root is left. No
 * thread sleeps; counts bound everything.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ioctl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WINDOW = 64, IDS = 1 << 20, NAMES = 40, FRONT_THREADS = 3, SOURCES = 2,
       ALLOWANCE = 1000000, CHUNK = 8192, CHUNKED = 100001 };

static struct front *front;
static int kernel_fd, handlers_fd, control_fd, source_file, source_pipe[2];
static _Atomic bool done;
static char packed[NAMES * 512];
static size_t packed_size;

struct sent {
	bool waits;
	_Alignas(8) char request[512];
};
static struct sent sent[WINDOW];
static unsigned waiting;
static uint64_t rounds[WINDOW]; /* unique = 2 * (round * WINDOW + slot + 1) */
static uint32_t *references;
static uint64_t highest_id = 1, answered, succeeded;

/* A random number for each thread, the same in each run. */
static uint32_t random_of(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

/* Two chunks differ in every place. */
static char spread(uint64_t at) { return (char)(at + at / 4096 * 31); }
/* A compiled __init__ begins with the names that it mentions. */
enum { COMPILED = 4, ITSELF = 5, LIBRARY = 14 };
static const char mentioned[] = "\xa7\x0d\r\n\0\0\0\0\0\0\0\0\0\0\0\0"
				"c\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0NN"
				")\x03z\x06name12z\x09sub.name8\xda\x05lib14";
static char of_file(char seven_times, uint64_t at)
{
	if (seven_times == (char)((100 + ITSELF) * 7) && at < sizeof(mentioned))
		return mentioned[at];
	return (char)(seven_times + spread(at));
}
static char content(uint64_t ino, uint64_t at) { return of_file((char)(ino * 7), at); }

/* --- the names there are: directories, files to hold, files to bypass, links --- */

static void attributes_of(unsigned name, unsigned version, struct fuse_attr *attr)
{
	struct stat status;

	memset(attr, 0, sizeof(*attr));
	attr->ino = 100 + name;
	attr->nlink = 1;
	attr->mtime = version;
	if (name % 4 == 0) {
		attr->mode = S_IFDIR | 0755;
	} else if (name % 4 == 3) {
		attr->mode = S_IFLNK | 0777;
		attr->size = 3;
	} else if (name % 8 == 1) {
		CHECK(!fstat(source_file, &status));
		attr->mode = S_IFREG | 0644;
		attr->ino = 99;
		attr->size = (uint64_t)status.st_size;
		attr->mtime = (uint64_t)status.st_mtim.tv_sec;
		attr->mtimensec = (uint32_t)status.st_mtim.tv_nsec;
		attr->ctime = (uint64_t)status.st_ctim.tv_sec;
		attr->ctimensec = (uint32_t)status.st_ctim.tv_nsec;
	} else {
		attr->mode = S_IFREG | 0644;
		attr->size = name % 3 ? 3000 : 100000; /* malloc, mmap */
		if (name % 8 == 2)
			attr->size = CHUNKED;
	}
}

static size_t name_of(unsigned name, char *to)
{
	if (name == COMPILED)
		return (size_t)sprintf(to, "__pycache__");
	if (name == ITSELF)
		return (size_t)sprintf(to, "__init__.n");
	if (name % 4 == 0)
		return (size_t)sprintf(to, "name%u", name);
	return (size_t)sprintf(to, name == LIBRARY ? "lib%u.so" : "name%u.n", name);
}

static void pack_names(void)
{
	struct listing_header *header = (struct listing_header *)packed;

	*header = (struct listing_header){ LISTING_MAGIC, NAMES, 0, 0 };
	packed_size = sizeof(*header);
	for (unsigned i = 0; i < NAMES; i++) {
		struct row *row = (struct row *)(packed + packed_size);

		row->name_length = (uint16_t)name_of(i, row->name);
		attributes_of(i, 0, &row->attr);
		row->target_length = S_ISLNK(row->attr.mode) ? 3 : 0;
		memcpy(row->name + row->name_length, "to!", row->target_length);
		row->length = (uint32_t)((sizeof(*row) + row->name_length + row->target_length +
					  7) & ~(size_t)7);
		packed_size += row->length;
	}
}

/* --- publishing, as front_type.c does it --- */

static void publish_listing(uint64_t id, uint64_t *state)
{
	static const uint64_t lifetimes[] = { 0, 1000000, 1000000000 };
	struct listing *listing = listing_open(&front->tables, packed, packed_size,
					       now_ns() + lifetimes[random_of(state) % 3]);
	struct ending *ending;
	struct inode *inode;

	CHECK(listing);
	listing->granted = random_of(state) % 2;
	listing->granted_below = random_of(state) % 2;
	listing->read_ahead = random_of(state) % 2;
	/* two names of one listing are seldom requested together */
	ending = ending_find(front, listing, ".n", 2);
	CHECK(ending);
	ending->requested = listing_row(listing, 2);
	if (!front_publish_listing(front, id, listing))
		return;
	tables_lock(&front->tables);
	inode = inode_by_id(&front->tables, id);
	if (inode)
		inode->fresh_until = FRESH_FOREVER;
	tables_unlock(&front->tables);
}

static _Atomic uint64_t look_into;

/* The front then lists a directory by itself at the next lookup in it. */
static void grant_listing(uint64_t *state)
{
	struct tables *t = &front->tables;
	uint64_t id, parent = 0;
	struct inode *inode;

	tables_lock(t);
	id = t->next_id - 1 - random_of(state) % 256 % t->next_id;
	inode = inode_by_id(t, id);
	if (inode && inode->parent && S_ISDIR(inode->attr.mode))
		parent = inode->parent->id;
	tables_unlock(t);
	if (!parent)
		return;
	publish_listing(parent, state);
	tables_lock(t);
	inode = inode_by_id(t, id);
	if (inode) {
		inode_withdraw(t, inode);
		inode->awaits_names = false;
		if (inode->parent && inode->parent->listing) {
			inode->parent->listing->granted_below = true;
			look_into = id;
		}
	}
	tables_unlock(t);
}

static void publish_name(uint64_t id, const char *name, uint64_t *state)
{
	uint64_t fresh_until = random_of(state) % 4 ? FRESH_FOREVER : 0;
	struct fuse_attr attr;
	unsigned number = 0;
	bool is_there = sscanf(name, "name%u", &number) == 1 && random_of(state) % 8;

	if (is_there)
		attributes_of(number, random_of(state) % 3, &attr);
	front_publish_entry(front, id, name, strlen(name), is_there ? &attr : NULL, "to!", 3,
			    fresh_until);
}

static _Atomic unsigned chunks_published, chunks_taken;

/* Some extents in [offset, offset + size) are invalid on purpose. */
static void publish_chunks(uint64_t id, const struct fuse_attr *attr, uint64_t offset,
			   uint64_t size, uint64_t *state)
{
	uint64_t end = offset + size < attr->size ? offset + size : attr->size;

	for (uint64_t index = offset / CHUNK; index * CHUNK < end; index++) {
		uint64_t left = attr->size - index * CHUNK;
		size_t length = left < CHUNK ? left : CHUNK;
		bool sound = random_of(state) % 16;
		struct blob *blob = blob_new(length - !sound);
		struct chunk *chunk = blob ? chunk_new(index, blob) : NULL;
		struct inode *inode;
		bool taken;

		CHECK(chunk);
		for (size_t i = 0; i < blob->size; i++)
			blob->data[i] = content(attr->ino, index * CHUNK + i);
		tables_lock(&front->tables);
		inode = inode_by_id(&front->tables, id);
		taken = inode && inode_add_chunk(&front->tables, inode, CHUNK, chunk);
		tables_unlock(&front->tables);
		CHECK(!taken || sound);
		chunks_published += taken;
		if (!taken)
			chunk_free(chunk);
	}
}

static void disturb_chunks(uint64_t id, uint64_t *state)
{
	struct touched_chunk touched[8];
	struct fuse_attr attr = { 0 };
	struct inode *inode;

	tables_lock(&front->tables);
	chunks_taken += (unsigned)tables_take_touched(&front->tables, touched, 8);
	inode = inode_by_id(&front->tables, id);
	if (inode && random_of(state) % 2)
		inode_drop_chunk(&front->tables, inode, random_of(state) % (CHUNKED / CHUNK + 1));
	else if (inode)
		attr = inode->attr;
	tables_unlock(&front->tables);
	if (attr.size == CHUNKED)
		publish_chunks(id, &attr, random_of(state) % CHUNKED, 3 * CHUNK, state);
}

static void publish_content(uint64_t id)
{
	struct handle *handle = calloc(1, sizeof(*handle));
	struct blob *blob = NULL, *old = NULL;
	struct fuse_attr attr = { 0 };
	struct inode *inode;

	CHECK(handle);
	atomic_init(&handle->refs, 1);
	handle->fd = dup(source_file);
	tables_lock(&front->tables);
	inode = inode_by_id(&front->tables, id);
	if (inode)
		attr = inode->attr;
	tables_unlock(&front->tables);
	if (S_ISREG(attr.mode) && attr.ino != 99) {
		blob = blob_new(attr.size);
		CHECK(blob);
		for (uint64_t i = 0; i < attr.size; i++)
			blob->data[i] = content(attr.ino, i);
	}
	tables_lock(&front->tables);
	inode = inode_by_id(&front->tables, id);
	if (inode && blob) {
		old = inode->object;
		inode->object = blob;
		blob = NULL;
	} else if (inode && attr.ino == 99 && S_ISREG(attr.mode)) {
		handle->version = attr;
		inode_set_handle(&front->tables, inode, handle);
		handle = NULL;
	}
	tables_unlock(&front->tables);
	blob_unref(old);
	blob_unref(blob);
	handle_unref(handle);
}

/* --- the source's threads --- */

struct fetch {
	struct version version;
	reader_done *done;
	lister_done *done_names;
	seeker_done *done_extents;
	uint64_t tag, offset;
};

static _Atomic unsigned reads, lists, seeks, ahead, lists_ahead;

static bool start_fetch(const struct fetch *fetch, const char *path)
{
	*(fetch->done ? &reads : fetch->done_names ? &lists : &seeks) += 1;
	CHECK(*path && *path != '/');
	ahead += fetch->done && fetch->done != read_done;
	lists_ahead += fetch->done_names && fetch->done_names != list_done;
	if (fetch->tag % 16 == 0) {
		/* so that others join what never starts */
		for (int i = 0; i < 20; i++)
			sched_yield();
		return false;
	}
	/* a pipe takes so small a message in one piece, unless it is full */
	return write(source_pipe[1], fetch, sizeof(*fetch)) == sizeof(*fetch);
}

static bool start_read(void *pool, const char *path, const struct version *version,
		       reader_done *ended, void *context, uint64_t tag)
{
	struct fetch fetch = { .version = *version, .done = ended, .tag = tag };

	CHECK(!pool && context == front);
	return start_fetch(&fetch, path);
}

static bool start_list(void *pool, const char *path, const struct version *version,
		       lister_done *ended, void *context, uint64_t tag)
{
	struct fetch fetch = { .version = *version, .done_names = ended, .tag = tag };

	CHECK(!pool && context == front);
	return start_fetch(&fetch, path);
}

static bool start_seek(void *pool, const char *path, const struct version *version,
		       uint64_t offset, unsigned count, seeker_done *ended, void *context,
		       uint64_t tag)
{
	struct fetch fetch = { .version = *version, .done_extents = ended, .tag = tag,
			       .offset = offset };

	CHECK(!pool && context == front && count && offset < version->size);
	return start_fetch(&fetch, path);
}

/* Data up to the next multiple of 1000, or, if that is odd, a hole before it. Some fail. */
static void end_seek(const struct fetch *fetch)
{
	struct extents *extents = fetch->tag % 8 == 1 ? NULL
				  : malloc(sizeof(*extents) + sizeof(struct extent));
	uint64_t next = fetch->offset / 1000 * 1000 + 1000;

	if (next > fetch->version.size)
		next = fetch->version.size;
	if (extents) {
		*extents = (struct extents){ fetch->offset, next, 1 };
		extents->each[0] = (struct extent){ next % 2000 ? next - 1 : fetch->offset, next };
	}
	fetch->done_extents(front, fetch->tag, extents);
}

/* Some fail, some have no attributes, some have links to rewrite. */
static void end_list(const struct fetch *fetch)
{
	char *bytes = fetch->tag % 8 == 1 ? NULL : malloc(packed_size);
	struct listing_header *header = (struct listing_header *)bytes;

	if (bytes) {
		memcpy(bytes, packed, packed_size);
		header->flags = fetch->tag % 8 == 2;
		header->absolute_links = fetch->tag % 8 == 3;
	}
	fetch->done_names(front, fetch->tag, bytes, bytes ? packed_size : 0);
}

static void *source_main(void *unused)
{
	struct fetch fetch;

	(void)unused;
	while (read(source_pipe[0], &fetch, sizeof(fetch)) == sizeof(fetch)) {
		struct blob *blob;

		if (fetch.done_names) {
			end_list(&fetch);
			continue;
		}
		if (fetch.done_extents) {
			end_seek(&fetch);
			continue;
		}
		blob = fetch.tag % 8 == 1 ? NULL : blob_new(fetch.version.size);
		for (uint64_t i = 0; blob && i < fetch.version.size; i++)
			blob->data[i] = content(fetch.version.ino, i);
		fetch.done(front, fetch.tag, &fetch.version, blob);
	}
	return NULL;
}

/* --- the handlers --- */

static void handler_reply(int fd, uint64_t unique, int error, const void *data, size_t size)
{
	static _Alignas(8) char message[REPLY_MAX + 64];
	struct fuse_out_header *out = (struct fuse_out_header *)message;

	*out = (struct fuse_out_header){ (uint32_t)(sizeof(*out) + size), error, unique };
	if (size)
		memcpy(out + 1, data, size);
	/* may wait: the front's replier always takes these */
	CHECK(send(fd, message, out->len, MSG_NOSIGNAL) == (ssize_t)out->len);
}

static void publish_asked(uint64_t id, const struct fuse_read_in *read, uint64_t *state)
{
	struct fuse_attr attr = { 0 };
	struct inode *inode;

	tables_lock(&front->tables);
	inode = inode_by_id(&front->tables, id);
	if (inode)
		attr = inode->attr;
	tables_unlock(&front->tables);
	if (attr.size == CHUNKED)
		publish_chunks(id, &attr, read->offset, read->size, state);
	else
		publish_content(id);
}

static void handle_read(const struct fuse_in_header *in, uint64_t *state)
{
	static char bytes[REPLY_MAX];
	const struct fuse_read_in *read = (const struct fuse_read_in *)(in + 1);
	struct fuse_attr attr = { 0 };
	struct inode *inode;
	size_t size = 0;

	CHECK((read->fh & ~FRONT_WITH_BYTES) == in->nodeid);
	if (!(read->fh & FRONT_WITH_BYTES)) {
		publish_asked(in->nodeid, read, state);
		handler_reply(handlers_fd, in->unique, -FRONT_RETRY, NULL, 0);
		if (random_of(state) % 8 == 0) /* a stale one */
			handler_reply(handlers_fd, in->unique, -EIO, NULL, 0);
		return;
	}
	tables_lock(&front->tables);
	inode = inode_by_id(&front->tables, in->nodeid);
	if (inode)
		attr = inode->attr;
	tables_unlock(&front->tables);
	while (size < read->size && read->offset + size < attr.size) {
		bytes[size] = content(attr.ino, read->offset + size);
		size++;
	}
	handler_reply(handlers_fd, in->unique, inode ? 0 : -ESTALE, bytes, inode ? size : 0);
}

static void handle(const struct fuse_in_header *in, uint64_t *state)
{
	struct fuse_statfs_out statfs = { 0 };
	struct fuse_ioctl_out ioctl = { 0 };
	struct fuse_attr attr = { 0 };
	struct inode *inode;

	switch (in->opcode) {
	case FUSE_READ:
		handle_read(in, state);
		return;
	case FUSE_LOOKUP:
		if (random_of(state) % 2)
			publish_listing(in->nodeid, state);
		publish_name(in->nodeid, (const char *)(in + 1), state);
		break;
	case FUSE_READDIRPLUS:
		publish_listing(in->nodeid, state);
		break;
	case FUSE_GETATTR:
		tables_lock(&front->tables);
		inode = inode_by_id(&front->tables, in->nodeid);
		if (inode)
			attr = inode->attr;
		tables_unlock(&front->tables);
		front_publish_attributes(front, in->nodeid, &attr,
					 random_of(state) % 2 ? FRESH_FOREVER : 0);
		break;
	case FUSE_READLINK:
		handler_reply(handlers_fd, in->unique, 0, "to!", 3);
		return;
	case FUSE_STATFS:
		handler_reply(handlers_fd, in->unique, 0, &statfs, sizeof(statfs));
		return;
	case FUSE_IOCTL:
		handler_reply(control_fd, in->unique, 0, &ioctl, sizeof(ioctl));
		return;
	default:
		CHECK(!"the front forwards nothing else");
	}
	handler_reply(handlers_fd, in->unique, random_of(state) % 32 ? -FRONT_RETRY : -EACCES,
		      NULL, 0);
}

static void *handlers_main(void *unused)
{
	static _Alignas(8) char message[REQUEST_MAX];
	struct pollfd polled[] = { { .fd = handlers_fd, .events = POLLIN },
				   { .fd = control_fd, .events = POLLIN } };
	uint64_t state = 1;

	(void)unused;
	for (;;) {
		CHECK(poll(polled, 2, -1) > 0);
		for (int i = 0; i < 2; i++) {
			ssize_t size;

			if (!polled[i].revents)
				continue;
			size = recv(polled[i].fd, message, sizeof(message), MSG_DONTWAIT);
			if (size == 0)
				return NULL;
			if (size > 0)
				handle((const struct fuse_in_header *)message, &state);
		}
	}
}

/* --- the disturber --- */

static void take_fetched(void)
{
	struct fetched *fetched;

	pthread_mutex_lock(&front->fetched_lock);
	fetched = front->fetched_first;
	front->fetched_first = NULL;
	front->fetched_end = &front->fetched_first;
	pthread_mutex_unlock(&front->fetched_lock);
	while (fetched) {
		struct fetched *next = fetched->next;

		return_allowance(front, fetched->allowance);
		fetched_free(fetched);
		fetched = next;
	}
}

static void *disturber_main(void *unused)
{
	uint64_t state = 2;

	(void)unused;
	while (!done) {
		uint64_t id = 1 + random_of(&state) % (random_of(&state) % 2 ? 8 : 400);
		struct inode *inode;
		char name[32];

		name_of(random_of(&state) % (NAMES + 5), name);
		switch (random_of(&state) % 64) {
		case 0:
			tables_lock(&front->tables);
			tables_clear(&front->tables, front->tables.epoch + 1);
			tables_unlock(&front->tables);
			break;
		case 1:
			front_shed(front, 8);
			break;
		case 2:
			tables_lock(&front->tables);
			tables_check(&front->tables);
			tables_unlock(&front->tables);
			break;
		case 3: case 4: case 5: case 6:
			publish_listing(id, &state);
			break;
		case 7: case 8: case 9: case 10:
			publish_content(id);
			break;
		case 11: case 12:
			take_fetched();
			break;
		case 30: {
			uint64_t lost;
			size_t size;

			free(trace_take(front, &size, &lost));
			if (random_of(&state) % 16 == 0)
				trace_end(front);
			else
				CHECK(trace_begin(front, 1 << 16));
			break;
		}
		case 26: case 27: case 28: case 29:
			disturb_chunks(id, &state);
			break;
		case 13:
			front_invalidate_entry(front, id, name, strlen(name));
			break;
		case 14: case 15: case 16: case 17:
			publish_name(id, name, &state);
			break;
		case 18: case 19: case 20: case 21: case 22: case 23: case 24: case 25:
			grant_listing(&state);
			break;
		default:
			tables_lock(&front->tables);
			inode = inode_by_id(&front->tables, id);
			if (inode)
				inode_withdraw(&front->tables, inode);
			if (id == 8)
				tables_revoke_below(&front->tables);
			tables_unlock(&front->tables);
		}
	}
	return NULL;
}

/* --- the kernel --- */

static void remember(void *unused, uint64_t id)
{
	(void)unused;
	CHECK(id < IDS);
	references[id]++;
	if (id > highest_id)
		highest_id = id;
}

static bool is_of(char file, const char *data, size_t size, uint64_t offset)
{
	for (size_t i = 0; i < size; i++)
		if (data[i] != of_file(file, offset + i))
			return false;
	return true;
}

static void bytes_check(const struct sent *asked, const char *data, size_t size)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)asked->request;
	const struct fuse_read_in *read = (const struct fuse_read_in *)(in + 1);

	/* all of it belongs to one file */
	if (in->opcode == FUSE_READ && size)
		CHECK(is_of((char)((100 + ITSELF) * 7), data, size, read->offset) ||
		      is_of((char)(data[0] - spread(read->offset)), data, size, read->offset));
}

static uint32_t opcode_of(const struct sent *asked)
{
	return ((const struct fuse_in_header *)asked->request)->opcode;
}

static void take_reply(void)
{
	static _Alignas(8) char reply[REPLY_MAX + 4096];
	const struct fuse_out_header *out = (const struct fuse_out_header *)reply;
	ssize_t size = recv(kernel_fd, reply, sizeof(reply), 0);
	const char *data = reply + sizeof(*out);
	struct sent *asked;
	uint64_t number;

	CHECK(size >= (ssize_t)sizeof(*out) && out->len == size);
	if (!out->unique || out->unique & 1)
		return; /* a notification; an interrupt that came too late */
	number = out->unique / 2 - 1;
	asked = &sent[number % WINDOW];
	CHECK(asked->waits && number / WINDOW == rounds[number % WINDOW]);
	asked->waits = false;
	waiting--;
	answered++;
	succeeded += !out->error;
	CHECK(out->error != -ETIMEDOUT); /* all are answered long before */
	/* handlers always publish an answer for these */
	if (opcode_of(asked) == FUSE_LOOKUP || opcode_of(asked) == FUSE_GETATTR)
		CHECK(out->error != -EIO);
	reply_check(asked->request, out, data, remember, NULL);
	if (!out->error)
		bytes_check(asked, data, (size_t)size - sizeof(*out));
}

static void send_request(uint32_t opcode, uint64_t id, const void *body, size_t size)
{
	unsigned slot = 0;
	struct fuse_in_header *in;

	while (sent[slot].waits)
		slot++;
	in = (struct fuse_in_header *)sent[slot].request;
	*in = (struct fuse_in_header){ .len = (uint32_t)(sizeof(*in) + size), .opcode = opcode,
				       .nodeid = id, .pid = (uint32_t)getpid() };
	in->unique = 2 * (++rounds[slot] * WINDOW + slot + 1);
	memcpy(in + 1, body, size);
	sent[slot].waits = true;
	waiting++;
	CHECK(send(kernel_fd, in, in->len, 0) == (ssize_t)in->len);
}

static void send_alone(uint32_t opcode, uint64_t id, const void *body, size_t size)
{
	_Alignas(8) char request[512];
	struct fuse_in_header *in = (struct fuse_in_header *)request;

	*in = (struct fuse_in_header){ .len = (uint32_t)(sizeof(*in) + size), .opcode = opcode,
				       .nodeid = id, .unique = 3 };
	memcpy(in + 1, body, size);
	CHECK(send(kernel_fd, request, in->len, 0) == (ssize_t)in->len);
}

static uint64_t some_id(uint64_t *state)
{
	for (int i = 0; i < 8; i++) {
		uint64_t id = 1 + random_of(state) % highest_id;

		if (references[id])
			return id;
	}
	return FUSE_ROOT_ID;
}

static void forget_some(uint64_t *state)
{
	uint64_t id = some_id(state);
	struct fuse_forget_in forget = { .nlookup = references[id] };
	struct {
		struct fuse_batch_forget_in head;
		struct fuse_forget_one one;
	} batch = { { 1, 0 }, { id, references[id] } };

	if (id == FUSE_ROOT_ID)
		return;
	/* a reply that is under way may bring more references */
	references[id] = 0;
	if (random_of(state) % 2)
		send_alone(FUSE_FORGET, id, &forget, sizeof(forget));
	else
		send_alone(FUSE_BATCH_FORGET, 0, &batch, sizeof(batch));
}

static void send_some(uint64_t *state)
{
	static const uint64_t offsets[] = { 0, 100, 2999, 50000, 99999, 200000 };
	static const uint32_t opens[] = { FUSE_OPEN, FUSE_OPENDIR, FUSE_RELEASE, FUSE_STATFS,
					  FUSE_WRITE, FUSE_GETXATTR };
	struct fuse_read_in read = { .offset = offsets[random_of(state) % 6],
				     .size = random_of(state) % 2 ? 4096 : 65536 };
	struct fuse_ioctl_in ioctl = { .cmd = FRONT_IOCTL_TYPE << 8 };
	struct fuse_interrupt_in interrupt = { 0 };
	struct fuse_lseek_in lseek = { .whence = random_of(state) % 2 ? SEEK_DATA : SEEK_HOLE };
	uint64_t id;
	char name[32];

	switch (random_of(state) % 16) {
	case 0: case 1: case 2: case 3:
		id = look_into;
		if (random_of(state) % 2 || id >= IDS || !references[id])
			id = some_id(state);
		send_request(FUSE_LOOKUP, id, name, name_of(random_of(state) % (NAMES + 5), name) + 1);
		break;
	case 4: case 5:
		send_request(FUSE_GETATTR, some_id(state), &(struct fuse_getattr_in){ 0 },
			     sizeof(struct fuse_getattr_in));
		break;
	case 6: case 7: case 8: case 9:
		send_request(FUSE_READ, some_id(state), &read, sizeof(read));
		break;
	case 10: case 11:
		read.offset = random_of(state) % 4 * 10;
		send_request(random_of(state) % 2 ? FUSE_READDIR : FUSE_READDIRPLUS,
			     some_id(state), &read, sizeof(read));
		break;
	case 12:
		lseek.offset = random_of(state) % CHUNKED;
		if (random_of(state) % 2)
			send_request(FUSE_LSEEK, some_id(state), &lseek, sizeof(lseek));
		else
			send_request(FUSE_READLINK, some_id(state), "", 0);
		break;
	case 13:
		send_request(opens[random_of(state) % 6], some_id(state), "", 0);
		break;
	case 14:
		if (random_of(state) % 4)
			forget_some(state);
		else
			send_request(FUSE_IOCTL, 1, &ioctl, sizeof(ioctl));
		break;
	case 15:
		interrupt.unique = ((struct fuse_in_header *)
				    sent[random_of(state) % WINDOW].request)->unique;
		send_alone(FUSE_INTERRUPT, 0, &interrupt, sizeof(interrupt));
		break;
	}
}

/* Whether each kind of work was done that the threads' order decides about. */
static bool all_kinds_came(void)
{
	return reads && ahead && lists && lists_ahead && seeks && chunks_published && chunks_taken;
}

/* A slow machine gets more requests than were asked for, until each kind of work came. */
static void be_the_kernel(uint64_t requests)
{
	uint64_t state = 3, most = 10 * requests;

	while (answered + waiting < (all_kinds_came() ? requests : most)) {
		struct pollfd polled = { .fd = kernel_fd, .events = POLLIN };

		while (waiting == WINDOW || poll(&polled, 1, 0) > 0)
			take_reply();
		send_some(&state);
	}
	while (waiting)
		take_reply();
}

/* Forgets every inode that replies have named. */
static void forget_all(void)
{
	for (uint64_t id = 2; id <= highest_id; id++) {
		struct fuse_forget_in forget = { .nlookup = references[id] };

		if (references[id])
			send_alone(FUSE_FORGET, id, &forget, sizeof(forget));
	}
}

/* --- setting up --- */

static void pair(int *ours, int *theirs)
{
	int ends[2], bytes = 4 << 20;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	for (int i = 0; i < 2; i++)
		setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	*ours = ends[0];
	*theirs = ends[1];
}

static bool is_left(struct request_record *record, void *context)
{
	(void)record;
	(void)context;
	return false;
}

static void end_check(void)
{
	struct tables *t = &front->tables;

	tables_check(t);
	CHECK(!front->pending_count);
	if (connection_is_kept(&t->connection))
		CHECK(requests_each(&t->connection, is_left, NULL));
	CHECK(front->allowance == ALLOWANCE);
	while (t->idle_count) { /* those that only their age kept */
		struct fuse_attr attr = { .mode = S_IFREG };
		uint32_t before = t->idle_max;

		t->idle_max = 0;
		inode_obtain(t, t->root, "last", 4, &attr, NULL, 0, 0);
		t->idle_max = before;
	}
	CHECK(t->inodes == 1);
}

int main(int argc, char **argv)
{
	static const struct reader reader = { NULL, start_read, start_list, start_seek };
	pthread_t handlers, disturber, sources[SOURCES];
	uint64_t requests = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;

	signal(SIGPIPE, SIG_IGN); /* /dev/fuse gives none */
	references = calloc(IDS, sizeof(*references));
	front = calloc(1, sizeof(*front));
	CHECK(references && front);
	source_file = memfd_create("source", MFD_CLOEXEC);
	for (int i = 0; i < 20000; i++) {
		char byte = content(99, (uint64_t)i);

		CHECK(write(source_file, &byte, 1) == 1);
	}
	pack_names();
	CHECK(!pipe2(source_pipe, O_CLOEXEC));
	CHECK(!front_init(front, 2000));
	if (argc > 2)
		CHECK(front_keep_connection(front, memfd_create("connection", MFD_CLOEXEC), false, false, true));
	pair(&kernel_fd, &front->fuse_fd);
	pair(&handlers_fd, &front->miss_fd);
	pair(&control_fd, &front->control_fd);
	/* room for a few messages: the others take the detour of hazard 4 */
	CHECK(!setsockopt(front->miss_fd, SOL_SOCKET, SO_SNDBUF, &(int){ 4096 }, sizeof(int)));
	front->threads_count = FRONT_THREADS;
	front->kernel_cache = true;
	front->deadline_ns = 120000000000u;
	front->reader = &reader;
	front->whole_max = 100000; /* for files in chunks the source is asked for holes */
	front->finds_holes = true;
	front->allowance = front->allowance_max = ALLOWANCE;
	front->ahead_max = 3;
	front->tables.root->attr.mode = S_IFDIR | 0755;
	CHECK(trace_begin(front, 1 << 20));
	CHECK(!front_start(front));
	for (int i = 0; i < SOURCES; i++)
		CHECK(!pthread_create(&sources[i], NULL, source_main, NULL));
	CHECK(!pthread_create(&handlers, NULL, handlers_main, NULL));
	CHECK(!pthread_create(&disturber, NULL, disturber_main, NULL));

	be_the_kernel(requests);
	done = true;
	forget_all();
	/* the disturber may block in a write to us: read until the other end is shut */
	shutdown(kernel_fd, SHUT_WR);
	for (int i = 0; i < FRONT_THREADS; i++)
		CHECK(!pthread_join(front->threads[i], NULL));
	shutdown(kernel_fd, SHUT_RD);
	CHECK(!pthread_join(disturber, NULL));
	front_stop(front);
	for (unsigned i = 0; i < front->bypass_threads; i++)
		CHECK(!pthread_join(front->bypass_thread[i], NULL));
	close(source_pipe[1]);
	for (int i = 0; i < SOURCES; i++)
		CHECK(!pthread_join(sources[i], NULL));
	shutdown(front->miss_fd, SHUT_RDWR);
	CHECK(!pthread_join(handlers, NULL));
	take_fetched();
	end_check();
	printf("%lu requests, %lu succeeded, %lu misses, %lu overflows, %u bypass threads, "
	       "%u reads, %u of them ahead, %u lists, %u ahead, and %u seeks on the allowance, %u chunks "
	       "published, %u taken as used\n",
	       (unsigned long)answered, (unsigned long)succeeded,
	       (unsigned long)front->statistics.handler_requests,
	       (unsigned long)front->statistics.overflows, front->bypass_threads, reads, ahead, lists, lists_ahead,
	       seeks, chunks_published, chunks_taken);
	/* the threads' order may let one out in this run; its caller repeats it */
	if (!all_kinds_came())
		printf("not all kinds came\n");
	CHECK(!front->tables.chunks && !front->tables.touched);
	CHECK(succeeded > requests / 4);
	front_destroy(front);
	close(front->fuse_fd);
	free(front);
	free(references);
	return 0;
}
