/* Writes replies and notifications to /dev/fuse, and counts them. */
#include "front.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* parts[0] is left for the header. False: the request was aborted, or the mount is gone. */
bool front_reply_parts(struct front *f, uint64_t unique, struct iovec *parts, int count)
{
	struct fuse_out_header out = { .unique = unique, .len = sizeof(out) };
	ssize_t written;

	for (int i = 1; i < count; i++)
		out.len += (uint32_t)parts[i].iov_len;
	parts[0] = (struct iovec){ &out, sizeof(out) };
	do
		written = writev(f->fuse_fd, parts, count);
	while (written < 0 && errno == EINTR);
	return written == (ssize_t)out.len;
}

bool front_reply(struct front *f, uint64_t unique, int error, const void *data, size_t size)
{
	struct fuse_out_header out = { .unique = unique, .error = -error };
	struct iovec parts[2] = { { &out, sizeof(out) }, { (void *)data, size } };
	ssize_t written;

	out.len = (uint32_t)(sizeof(out) + size);
	do
		written = writev(f->fuse_fd, parts, size ? 2 : 1);
	while (written < 0 && errno == EINTR);
	return written == (ssize_t)out.len;
}

static enum kind kind_of(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_LOOKUP: return KIND_LOOKUP;
	case FUSE_GETATTR: return KIND_GETATTR;
	case FUSE_READLINK: return KIND_READLINK;
	case FUSE_READ: return KIND_READ;
	case FUSE_READDIR: case FUSE_READDIRPLUS: return KIND_READDIR;
	case FUSE_STATFS: return KIND_STATFS;
	case FUSE_OPEN: case FUSE_OPENDIR: case FUSE_RELEASE: case FUSE_RELEASEDIR:
	case FUSE_FLUSH: return KIND_OPEN;
	case FUSE_IOCTL: return KIND_IOCTL;
	case FUSE_SETATTR: case FUSE_SYMLINK: case FUSE_MKNOD: case FUSE_MKDIR:
	case FUSE_UNLINK: case FUSE_RMDIR: case FUSE_RENAME: case FUSE_RENAME2:
	case FUSE_LINK: case FUSE_WRITE: case FUSE_CREATE: case FUSE_FALLOCATE:
	case FUSE_SETXATTR: case FUSE_REMOVEXATTR: case FUSE_COPY_FILE_RANGE:
	case FUSE_TMPFILE: return KIND_REFUSED;
	default: return KIND_OTHER;
	}
}

void front_count(struct front *f, const struct fuse_in_header *in, enum served_by served_by,
		 uint64_t started_ns)
{
	uint64_t ns = now_ns() - started_ns + 1;
	unsigned octave = 63 - (unsigned)__builtin_clzll(ns);
	unsigned quarter = octave >= 2 ? (unsigned)(ns >> (octave - 2)) & 3 : 0;
	unsigned bucket = octave * 4 + quarter;
	enum kind kind = kind_of(in->opcode);

	if (bucket >= LATENCY_BUCKETS)
		bucket = LATENCY_BUCKETS - 1;
	atomic_fetch_add_explicit(&f->statistics.answers[kind][served_by], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&f->statistics.latency[kind][served_by][bucket], 1,
				  memory_order_relaxed);
	if (atomic_load_explicit(&f->tracing, memory_order_relaxed))
		trace_note(f, in, kind, served_by, started_ns, ns);
}

/* --- notifications: they may wait for replies that only Python can give, so a worker thread sends
 * them, without the GIL or a lock --- */

/* Newer than the headers. */
enum { NOTIFY_RESEND = 7, NOTIFY_INC_EPOCH = 8 };

static int notify(struct front *f, int code, const void *body, size_t body_size,
		  const char *name, size_t name_size)
{
	struct fuse_out_header out = { .error = code };
	struct iovec parts[3] = {
		{ &out, sizeof(out) }, { (void *)body, body_size }, { (void *)name, name_size }
	};

	out.len = (uint32_t)(sizeof(out) + body_size + name_size);
	atomic_fetch_add(&f->statistics.notifications, 1);
	while (writev(f->fuse_fd, parts, 1 + !!body_size + !!name_size) < 0)
		if (errno != EINTR)
			return errno;
	return 0;
}

int front_invalidate_entry(struct front *f, uint64_t parent, const char *name, size_t length)
{
	struct fuse_notify_inval_entry_out body = { .parent = parent,
						    .namelen = (uint32_t)length };
	char terminated[256] = { 0 }; /* the kernel wants the zero byte */

	if (length >= sizeof(terminated))
		return ENAMETOOLONG;
	memcpy(terminated, name, length);
	return notify(f, FUSE_NOTIFY_INVAL_ENTRY, &body, sizeof(body), terminated, length + 1);
}

int front_invalidate_inode(struct front *f, uint64_t id)
{
	struct fuse_notify_inval_inode_out body = { .ino = id };

	return notify(f, FUSE_NOTIFY_INVAL_INODE, &body, sizeof(body), NULL, 0);
}

int front_resend(struct front *f)
{
	return notify(f, NOTIFY_RESEND, NULL, 0, NULL, 0);
}

struct name {
	uint64_t parent;
	uint64_t directory; /* its own number, if it is a directory */
	uint16_t length;
	char name[256];
};

/* Copies names out, so that no lock is held while the kernel is notified. */
static size_t names_in_bucket(struct tables *t, uint32_t bucket, struct name *names, size_t room)
{
	size_t count = 0;

	for (struct inode *inode = t->by_id[bucket]; inode && count < room;
	     inode = inode->next_by_id) {
		if (!inode->parent || !inode->attached || (!inode->nlookup && !inode->negative))
			continue;
		names[count].parent = inode->parent->id;
		names[count].directory = S_ISDIR(inode->attr.mode) ? inode->id : 0;
		names[count].length = inode->name_length;
		memcpy(names[count++].name, inode->name, inode->name_length);
	}
	return count;
}

enum { NAMES_AT_ONCE = 64, DENIALS_WITHIN_S = 10 };

/* A clear passes `later`, which collects directories that it would wait for, and then passes them
 * as `only`. To shed, both are NULL. */
static bool tell_now(struct front *f, const struct name *name, struct later *later,
		     const struct later *only)
{
	unsigned slot = (unsigned)(name->parent % LOOKED_INTO);
	bool waits = atomic_load(&f->looked_into[slot]);

	if (only)
		return only->slots[slot];
	if (later && waits)
		later->some = later->slots[slot] = true;
	return !waits && (later || !name->directory);
}

static long invalidate_bucket(struct front *f, uint32_t bucket, struct later *later,
			      const struct later *only)
{
	struct name names[NAMES_AT_ONCE];
	size_t count;
	long told = 0;

	tables_lock(&f->tables);
	count = names_in_bucket(&f->tables, bucket, names, NAMES_AT_ONCE);
	tables_unlock(&f->tables);
	for (size_t i = 0; i < count; i++) {
		if (!tell_now(f, &names[i], later, only))
			continue;
		/* a directory's cached contents go with its pages */
		if (names[i].directory)
			front_invalidate_inode(f, names[i].directory);
		if (!front_invalidate_entry(f, names[i].parent, names[i].name, names[i].length))
			told++;
	}
	return told;
}

/* --- negative entries that the kernel may cache ---
 *
 * An existing name has an inode, and its notification waits for a lookup under way. Missing names
 * have no inode (except below the root) and go with their directory. So an answer found before a
 * clear must be written before any notification, or the kernel would cache it. */

void denial_begin(struct front *f, struct denial *denial)
{
	*denial = (struct denial){ .next = f->denials, .link = &f->denials,
				   .epoch = f->tables.epoch };
	if (f->denials)
		f->denials->link = &denial->next;
	f->denials = denial;
}

void denial_end(struct front *f, struct denial *denial)
{
	tables_lock(&f->tables);
	*denial->link = denial->next;
	if (denial->next)
		denial->next->link = denial->link;
	if (f->denials_awaited)
		pthread_cond_broadcast(&f->denial_written);
	tables_unlock(&f->tables);
}

static bool is_denied_since_before(const struct front *f, uint64_t epoch)
{
	for (const struct denial *each = f->denials; each; each = each->next)
		if (each->epoch < epoch)
			return true;
	return false;
}

/* Those of before this epoch, which it returns. A write to /dev/fuse never waits; the deadline is
 * for the unforeseen. */
static uint64_t await_denials(struct front *f)
{
	struct timespec until;
	uint64_t epoch;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += DENIALS_WITHIN_S;
	tables_lock(&f->tables);
	epoch = f->tables.epoch;
	f->denials_awaited++;
	while (is_denied_since_before(f, epoch))
		if (pthread_cond_timedwait(&f->denial_written, &f->tables.lock, &until))
			break;
	f->denials_awaited--;
	tables_unlock(&f->tables);
	return epoch;
}

/* A successor need not tell the kernel once more. */
static void note_told(struct front *f, uint64_t epoch)
{
	struct connection_state *c = &f->tables.connection;

	tables_lock(&f->tables);
	if (connection_is_kept(c) && !f->ended && epoch > c->header->told_epoch)
		c->header->told_epoch = epoch;
	tables_unlock(&f->tables);
}

/* The pages of files stay: a changed file gets a new number, and SIGBUS would kill a program that
 * maps an unchanged one which cannot be read now. Directories with a lookup under way, which may
 * hang, are left to front_invalidate_later(). */
long front_invalidate_all(struct front *f, struct later *later)
{
	long told = 0;

	*later = (struct later){ .epoch = await_denials(f) };
	/* From Linux 6.16 on this also invalidates answers that the kernel has not stored yet.
	 * Older kernels refuse it. */
	if (!f->below_overlay)
		notify(f, NOTIFY_INC_EPOCH, NULL, 0, NULL, 0);
	front_invalidate_inode(f, FUSE_ROOT_ID);
	for (uint32_t bucket = 0; bucket <= f->tables.mask && !f->ended; bucket++)
		told += invalidate_bucket(f, bucket, later, NULL);
	if (!later->some)
		note_told(f, later->epoch);
	return told;
}

long front_invalidate_later(struct front *f, const struct later *later)
{
	long told = 0;

	for (uint32_t bucket = 0; later->some && bucket <= f->tables.mask && !f->ended; bucket++)
		told += invalidate_bucket(f, bucket, NULL, later);
	note_told(f, later->epoch);
	return told;
}

/* Not in directories with a lookup under way. */
long front_shed(struct front *f, uint32_t count)
{
	long told = 0;

	for (uint32_t seen = 0; seen <= f->tables.mask && told < (long)count && !f->ended; seen++)
		told += invalidate_bucket(f, f->tables.shed_hand++ & f->tables.mask, NULL, NULL);
	return told;
}

void front_tell_crowded(struct front *f)
{
	uint64_t one = 1;

	if (!atomic_exchange(&f->crowded, true) && write(f->crowded_fd, &one, sizeof(one)) < 0)
		return; /* it is signalled already */
}

/* The signal is taken first: one that came in between would be lost, and be the last. */
uint64_t front_take_crowded(struct front *f)
{
	uint64_t ignored, more;

	if (read(f->crowded_fd, &ignored, sizeof(ignored)) < 0)
		ignored = 0; /* called without a signal */
	f->crowded = false;
	tables_lock(&f->tables);
	more = f->tables.inodes > f->tables.inodes_max ? f->tables.inodes - f->tables.inodes_max : 0;
	tables_unlock(&f->tables);
	return more;
}
