/* Request dispatch: answers requests of the kernel from the tables, refuses, or forwards them.
 *
 * Long, because all kinds of requests share the ways to answer. */
#include "front.h"

#include <errno.h>
#include <linux/ioctl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* QUEUED: a bypass worker reads. FETCHING: content is being fetched, or now fetched from `path`,
 * which only a node does that is a job by itself (solo_fetches.c); in a larger job it is MISSED.
 * SEEKING: the source is asked where the file has data. */
enum verdict { ANSWERED, MISSED, QUEUED, FETCHING, SEEKING };

struct request {
	struct front *front;
	const struct fuse_in_header *in;
	const char *body;
	size_t body_size;
	char *scratch;
	uint64_t started_ns;
	struct pending *retried; /* or NULL */
	struct request_record *record; /* of one without a pending, or NULL */
	struct handle *handle;
	char *path;		 /* to be fetched, unless a fetch is under way */
	struct version version;
	unsigned extents;
};

static enum verdict answer_error(const struct request *req, int error)
{
	front_reply(req->front, req->in->unique, error, NULL, 0);
	return ANSWERED;
}

static void set_validity(const struct front *f, uint64_t fresh_until, uint64_t now,
			 uint64_t *seconds, uint32_t *nanoseconds)
{
	uint64_t left = fresh_until > now ? fresh_until - now : 0;

	if (!f->kernel_cache)
		left = 0;
	if (fresh_until == FRESH_FOREVER && left)
		left = 10ull * 365 * 24 * 3600 * 1000000000;
	*seconds = left / 1000000000;
	*nanoseconds = (uint32_t)(left % 1000000000);
}

/* In a user namespace the kernel knows one group. Files of the user's others are shown as its, so
 * that the kernel's check comes out as outside. */
static struct fuse_attr shown_here(const struct front *f, const struct fuse_attr *a)
{
	struct fuse_attr attr = shown(a);

	for (unsigned i = 0; i < f->groups_count; i++)
		if (f->groups[i] == attr.gid)
			attr.gid = f->shown_group;
	return attr;
}

static void fill_entry(const struct front *f, struct fuse_entry_out *out,
		       const struct inode *inode, uint64_t now)
{
	memset(out, 0, sizeof(*out));
	out->nodeid = inode->id;
	out->attr = shown_here(f, &inode->attr);
	set_validity(f, inode->fresh_until, now, &out->entry_valid, &out->entry_valid_nsec);
	out->attr_valid = out->entry_valid;
	out->attr_valid_nsec = out->entry_valid_nsec;
}

static bool tells(const struct request *req, uint64_t fresh_until, uint64_t published_ns,
		  uint64_t now)
{
	return fresh_until > now || published_ns >= req->started_ns;
}

/* False: the tables cannot tell. */
static bool find_entry(const struct request *req, struct inode *directory, const char *name,
		       size_t length, struct fuse_entry_out *entry)
{
	struct front *f = req->front;
	struct listing *listing = directory->listing;
	uint64_t now = now_ns(), fresh_until;
	const struct row *row = NULL;
	struct inode *inode = NULL;
	bool listed, known;

	if (listing && tells(req, listing->fresh_until, listing->published_ns, now)) {
		directory->touched = true;
		row = listing_find(&f->tables, listing, name, length);
	} else {
		listing = NULL;
	}
	listed = row && row_tells(listing, row);
	if (listed)
		inode = inode_obtain(&f->tables, directory, name, length, &row->attr,
				     row->name + row->name_length, row->target_length,
				     listing->fresh_until);
	else if (!listing || row)
		inode = inode_by_name(&f->tables, directory, name, length);
	known = listed || (inode && tells(req, inode->fresh_until, inode->published_ns, now));
	if (inode && known && !inode->negative) {
		fill_entry(f, entry, inode, now);
		inode_refer(&f->tables, inode);
		return true;
	}
	if (inode ? !(inode->negative && known) : !listing || row)
		return false;
	/* There is no such name. Below the root denied names are recorded: nothing else makes the
	 * kernel forget them. Others go with their directory. */
	fresh_until = inode ? inode->fresh_until : listing->fresh_until;
	if (!inode && directory == f->tables.root &&
	    !inode_negative(&f->tables, directory, name, length, fresh_until))
		fresh_until = 0;
	memset(entry, 0, sizeof(*entry));
	set_validity(f, fresh_until, now, &entry->entry_valid, &entry->entry_valid_nsec);
	return true;
}

/* False: the handlers have to list. Tried once; then they know what to do. */
static bool await_names(struct request *req, struct inode *directory)
{
	bool joined = directory->fetching && S_ISDIR(directory->attr.mode);

	if (req->retried)
		return false;
	if (!joined)
		req->path = list_begin(req->front, directory, &req->version);
	return joined || req->path;
}

static enum verdict lookup(struct request *req)
{
	struct front *f = req->front;
	struct fuse_entry_out entry;
	struct denial denial;
	size_t length = strnlen(req->body, req->body_size);
	struct inode *directory;
	bool found, denied, fetching = false, crowded;

	if (length == req->body_size || !length)
		return answer_error(req, EINVAL);
	if (length > 255)
		return answer_error(req, ENAMETOOLONG);
	tables_lock(&f->tables);
	directory = inode_by_id(&f->tables, req->in->nodeid);
	found = directory && find_entry(req, directory, req->body, length, &entry);
	denied = found && !entry.nodeid && (entry.entry_valid || entry.entry_valid_nsec);
	if (denied)
		denial_begin(f, &denial);
	if (directory && !found)
		fetching = await_names(req, directory);
	crowded = f->tables.inodes > f->tables.inodes_max;
	tables_unlock(&f->tables);
	if (crowded)
		front_tell_crowded(f);
	if (!directory)
		return answer_error(req, ESTALE);
	if (!found)
		return fetching ? FETCHING : MISSED;
	if (!entry.nodeid) {
		atomic_fetch_add_explicit(&f->statistics.negative, 1, memory_order_relaxed);
		/* the kernel caches "not found" only as an entry without a number */
		if (!denied)
			return answer_error(req, ENOENT);
		front_reply(f, req->in->unique, 0, &entry, sizeof(entry));
		denial_end(f, &denial);
		return ANSWERED;
	}
	if (!front_reply(f, req->in->unique, 0, &entry, sizeof(entry))) {
		tables_lock(&f->tables);
		inode_forget(&f->tables, entry.nodeid, 1);
		tables_unlock(&f->tables);
	}
	return ANSWERED;
}

static enum verdict getattr(struct request *req)
{
	struct front *f = req->front;
	struct fuse_attr_out out = { 0 };
	uint64_t now = now_ns();
	bool fresh = false;
	struct inode *inode;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, req->in->nodeid);
	/* A file's number stands for a version, which does not change. */
	if (inode && (!S_ISDIR(inode->attr.mode) ||
		      tells(req, inode->fresh_until, inode->published_ns, now))) {
		fresh = true;
		out.attr = shown_here(f, &inode->attr);
		set_validity(f, inode->fresh_until, now, &out.attr_valid, &out.attr_valid_nsec);
	}
	tables_unlock(&f->tables);
	if (!inode)
		return answer_error(req, ESTALE);
	if (!fresh)
		return MISSED;
	front_reply(f, req->in->unique, 0, &out, sizeof(out));
	return ANSWERED;
}

static enum verdict readlink_(struct request *req)
{
	struct front *f = req->front;
	struct blob *target = NULL;
	struct inode *inode;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, req->in->nodeid);
	if (inode && S_ISLNK(inode->attr.mode) && inode->object)
		target = blob_ref(inode->object);
	tables_unlock(&f->tables);
	if (!inode)
		return answer_error(req, ESTALE);
	if (!target)
		return MISSED;
	front_reply(f, req->in->unique, 0, target->data, target->size);
	blob_unref(target);
	return ANSWERED;
}

/* Before the reply, after which the reader may ask for the counts. */
static void count_read_hit(struct front *f, size_t size)
{
	atomic_fetch_add_explicit(&f->statistics.read_bytes[SERVED_HIT], size,
				  memory_order_relaxed);
}

/* Takes the pieces' references. */
static enum verdict answer_pieces(const struct request *req, const struct piece *pieces, int count)
{
	struct iovec parts[1 + PIECES_MAX];
	size_t size = 0;

	for (int i = 0; i < count; i++) {
		parts[1 + i] = (struct iovec){ pieces[i].blob->data + pieces[i].at,
					       pieces[i].length };
		size += pieces[i].length;
	}
	count_read_hit(req->front, size);
	front_reply_parts(req->front, req->in->unique, parts, 1 + count);
	for (int i = 0; i < count; i++)
		blob_unref(pieces[i].blob);
	return ANSWERED;
}

/* This thread has waited for the same file until its deadline. */
static bool hung_just_now(const struct request *req, const struct inode *inode)
{
	return inode->hung.until && !req->retried && inode->hung.thread == req->in->pid &&
	       inode->hung.seek == (req->in->opcode == FUSE_LSEEK) && inode->hung.until > now_ns();
}

static enum verdict read_(struct request *req)
{
	struct front *f = req->front;
	const struct fuse_read_in *read = (const struct fuse_read_in *)req->body;
	struct blob *object = NULL;
	struct handle *handle = NULL;
	struct iovec parts[2];
	struct piece pieces[PIECES_MAX];
	bool fetching = false, hung = false;
	struct inode *inode;
	size_t size = 0;
	int count = -1;

	if (req->body_size < sizeof(*read) || read->size > REPLY_MAX)
		return answer_error(req, EINVAL);
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, req->in->nodeid);
	if (inode && !S_ISLNK(inode->attr.mode)) {
		if (inode->object)
			object = blob_ref(inode->object);
		else if (inode->chunk_bytes)
			count = inode_pieces(&f->tables, inode, read->offset,
					     inode_cut(inode, read->offset, read->size), pieces);
		if (object || count >= 0) {
			/* all of it is here */
		} else if (hung_just_now(req, inode)) {
			hung = true;
		} else if (inode->handle) {
			handle = inode->handle;
			atomic_fetch_add(&handle->refs, 1);
		} else if (!req->retried && !inode->chunk_bytes) {
			/* once, as in await_names() */
			fetching = inode->fetching;
			req->path = read_begin(f, inode, &req->version);
		}
		inode->touched = true;
	}
	tables_unlock(&f->tables);
	if (!inode)
		return answer_error(req, ESTALE);
	if (object) {
		if (read->offset < object->size)
			size = object->size - read->offset;
		if (size > read->size)
			size = read->size;
		parts[1] = (struct iovec){ object->data + (size ? read->offset : 0), size };
		count_read_hit(f, size);
		front_reply_parts(f, req->in->unique, parts, size ? 2 : 1);
		blob_unref(object);
		return ANSWERED;
	}
	if (count >= 0)
		return answer_pieces(req, pieces, count);
	if (hung)
		return answer_error(req, ETIMEDOUT);
	if (!handle)
		return fetching || req->path ? FETCHING : MISSED;
	if (req->scratch && bypass_read_nowait(f, handle, req->in, read, req->scratch)) {
		handle_unref(handle);
		return ANSWERED;
	}
	req->handle = handle;
	return QUEUED;
}

static size_t add_name(char *reply, size_t room, bool plus, const char *name, size_t length,
		       uint64_t ino, uint32_t mode, uint64_t next,
		       const struct fuse_entry_out *entry)
{
	size_t prefix = plus ? sizeof(struct fuse_entry_out) : 0;
	size_t size = FUSE_REC_ALIGN(prefix + FUSE_NAME_OFFSET + length);
	struct fuse_dirent *dirent = (struct fuse_dirent *)(reply + prefix);

	if (size > room)
		return 0;
	memset(reply, 0, size);
	if (plus && entry)
		memcpy(reply, entry, sizeof(*entry));
	dirent->ino = ino;
	dirent->off = next;
	dirent->namelen = (uint32_t)length;
	dirent->type = (mode & S_IFMT) >> 12;
	memcpy(dirent->name, name, length);
	return size;
}

/* A name with attributes gets an inode and a reference; the kernel looks the others up. */
static size_t add_rows(struct front *f, struct inode *directory, uint64_t offset, bool plus,
		       char *reply, size_t room)
{
	struct listing *listing = directory->listing;
	uint64_t now = now_ns();
	size_t used = 0, added;

	/* zero: no offset follows the largest one */
	for (uint64_t next = offset + 1; next && next <= COOKIE_DOTS; next++) {
		const struct inode *dots = next == COOKIE_DOTS && directory->parent
						  ? directory->parent : directory;

		added = add_name(reply + used, room - used, plus, "..", next,
				 shown_ino(&dots->attr), S_IFDIR, next, NULL);
		if (!added)
			return used;
		used += added;
	}
	for (uint32_t at = listing_after(listing, offset); at < listing->names; at++) {
		uint64_t cookie;
		const struct row *row = listing_given(listing, at, &cookie);
		struct fuse_entry_out entry;
		struct inode *inode = NULL;

		/* when the tables are full, the name comes without its inode */
		if (plus && row_tells(listing, row) && f->tables.inodes < f->tables.inodes_max &&
		    room - used >= sizeof(entry) + FUSE_NAME_OFFSET + 256)
			inode = inode_obtain(&f->tables, directory, row->name, row->name_length,
					     &row->attr, row->name + row->name_length,
					     row->target_length, listing->fresh_until);
		if (inode)
			fill_entry(f, &entry, inode, now);
		added = add_name(reply + used, room - used, plus, row->name, row->name_length,
				 shown_ino(&row->attr), row->attr.mode, cookie,
				 inode ? &entry : NULL);
		if (!added)
			break;
		if (inode)
			inode_refer(&f->tables, inode);
		used += added;
	}
	return used;
}

/* The kernel holds no references to names that it did not take. */
static void take_back(struct front *f, const char *reply, size_t size)
{
	tables_lock(&f->tables);
	for (size_t at = 0; at < size;) {
		const struct fuse_direntplus *plus = (const struct fuse_direntplus *)(reply + at);

		if (plus->entry_out.nodeid)
			inode_forget(&f->tables, plus->entry_out.nodeid, 1);
		at += FUSE_DIRENTPLUS_SIZE(plus);
	}
	tables_unlock(&f->tables);
}

static enum verdict readdir(struct request *req)
{
	struct front *f = req->front;
	const struct fuse_read_in *read = (const struct fuse_read_in *)req->body;
	bool plus = req->in->opcode == FUSE_READDIRPLUS, known = false, fetching = false;
	struct inode *inode;
	size_t used = 0;

	if (req->body_size < sizeof(*read))
		return answer_error(req, EINVAL);
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, req->in->nodeid);
	if (inode && inode->listing &&
	    /* a walk continues even after its listing has expired */
	    (read->offset ||
	     tells(req, inode->listing->fresh_until, inode->listing->published_ns, now_ns()))) {
		known = true;
		inode->touched = true;
		used = add_rows(f, inode, read->offset, plus, req->scratch,
				read->size < REPLY_MAX ? read->size : REPLY_MAX);
	} else if (inode) {
		fetching = await_names(req, inode);
	}
	tables_unlock(&f->tables);
	if (!inode)
		return answer_error(req, ESTALE);
	if (!known)
		return fetching ? FETCHING : MISSED;
	if (!front_reply(f, req->in->unique, 0, req->scratch, used) && plus)
		take_back(f, req->scratch, used);
	return ANSWERED;
}

static enum verdict lseek_(struct request *req)
{
	struct front *f = req->front;
	const struct fuse_lseek_in *lseek = (const struct fuse_lseek_in *)req->body;
	struct fuse_lseek_out out = { 0 };
	int error = ESTALE;
	struct inode *inode;

	if (req->body_size < sizeof(*lseek))
		return answer_error(req, EINVAL);
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, req->in->nodeid);
	if (inode)
		error = hole_find(f, inode, lseek, req->retried || hung_just_now(req, inode),
				  &out.offset);
	if (inode && error == EAGAIN) {
		req->path = seek_begin(inode, lseek->offset, &req->version, &req->extents);
		if (!req->path) /* as if there were no holes */
			error = hole_find(f, inode, lseek, true, &out.offset);
	}
	tables_unlock(&f->tables);
	if (error == EAGAIN)
		return SEEKING;
	if (error)
		return answer_error(req, error);
	front_reply(f, req->in->unique, 0, &out, sizeof(out));
	return ANSWERED;
}

static enum verdict statfs_(struct request *req)
{
	struct fuse_statfs_out statfs;

	if (!atomic_load(&req->front->statfs_known))
		return MISSED;
	tables_lock(&req->front->tables);
	statfs = req->front->statfs;
	tables_unlock(&req->front->tables);
	front_reply(req->front, req->in->unique, 0, &statfs, sizeof(statfs));
	return ANSWERED;
}

/* An open never asks the node: a nodeid names one version already. */
static enum verdict open_(struct request *req)
{
	struct fuse_open_out out = { .fh = req->in->nodeid };

	/* ENOSYS: the kernel never asks again */
	if (req->front->kernel_skips_opens)
		return answer_error(req, ENOSYS);
	out.open_flags = FOPEN_KEEP_CACHE;
	if (req->in->opcode == FUSE_OPENDIR)
		out.open_flags |= FOPEN_CACHE_DIR;
	front_reply(req->front, req->in->unique, 0, &out, sizeof(out));
	return ANSWERED;
}

static enum verdict ioctl_(struct request *req)
{
	const struct fuse_ioctl_in *ioctl = (const struct fuse_ioctl_in *)req->body;

	if (req->body_size < sizeof(*ioctl))
		return answer_error(req, EINVAL);
	/* CPython calls isatty() on every file that it opens */
	if (_IOC_TYPE(ioctl->cmd) != FRONT_IOCTL_TYPE || req->front->control_fd < 0)
		return answer_error(req, ENOTTY);
	return MISSED;
}

/* Gives others a turn with the lock. */
static void forget_locked(struct front *f, const struct request *req)
{
	const struct fuse_forget_in *one = (const struct fuse_forget_in *)req->body;
	const struct fuse_batch_forget_in *batch = (const struct fuse_batch_forget_in *)req->body;
	const struct fuse_forget_one *each = (const struct fuse_forget_one *)(batch + 1);

	atomic_fetch_add_explicit(&f->statistics.forgets, 1, memory_order_relaxed);
	if (req->in->opcode == FUSE_FORGET) {
		if (req->body_size >= sizeof(*one))
			inode_forget(&f->tables, req->in->nodeid, one->nlookup);
	} else if (req->body_size >= sizeof(*batch)) {
		size_t sent = (req->body_size - sizeof(*batch)) / sizeof(*each);

		for (size_t i = 0; i < batch->count && i < sent; i++) {
			if (i && i % FORGOTTEN_AT_ONCE == 0) {
				tables_unlock(&f->tables);
				tables_lock(&f->tables);
			}
			inode_forget(&f->tables, each[i].nodeid, each[i].nlookup);
		}
	}
}

static void forget(struct front *f, const struct request *req)
{
	tables_lock(&f->tables);
	forget_locked(f, req);
	tables_unlock(&f->tables);
}

static enum verdict answer(struct request *req)
{
	switch (req->in->opcode) {
	case FUSE_LOOKUP:
		return lookup(req);
	case FUSE_GETATTR:
		return getattr(req);
	case FUSE_READ:
		return read_(req);
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		return readdir(req);
	case FUSE_READLINK:
		return readlink_(req);
	case FUSE_LSEEK:
		return lseek_(req);
	case FUSE_STATFS:
		return statfs_(req);
	case FUSE_IOCTL:
		return ioctl_(req);
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		return open_(req);
	case FUSE_INIT:
		return MISSED;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_DESTROY:
		return answer_error(req, 0);
	case FUSE_SETATTR: case FUSE_SYMLINK: case FUSE_MKNOD: case FUSE_MKDIR:
	case FUSE_UNLINK: case FUSE_RMDIR: case FUSE_RENAME: case FUSE_RENAME2:
	case FUSE_LINK: case FUSE_WRITE: case FUSE_CREATE: case FUSE_FALLOCATE:
	case FUSE_SETXATTR: case FUSE_REMOVEXATTR: case FUSE_COPY_FILE_RANGE:
	case FUSE_TMPFILE:
		return answer_error(req, EROFS);
	default: /* extended attributes, flush, access, poll, statx, and future requests */
		return answer_error(req, ENOSYS);
	}
}

static void interrupt(struct front *f, const struct request *req)
{
	const struct fuse_interrupt_in *in = (const struct fuse_interrupt_in *)req->body;

	if (req->body_size >= sizeof(*in))
		pending_interrupt(f, req->in->unique, in->unique);
}

/* For a successor. False: there is no memory. */
static bool record(struct request *req)
{
	struct front *f = req->front;

	if (req->record || !f->records_requests)
		return true;
	tables_lock(&f->tables);
	req->record = request_record_new(&f->tables.connection, (const char *)req->in,
					 sizeof(*req->in) + req->body_size);
	tables_unlock(&f->tables);
	return req->record;
}

static struct pending *keep_new(struct request *req)
{
	struct pending *pending = pending_new((const char *)req->in,
					      sizeof(*req->in) + req->body_size, req->started_ns);

	if (!pending || !record(req)) {
		free(pending);
		return NULL;
	}
	pending->record = req->record;
	pending->interrupted = req->record && req->record->head.interrupted;
	return pending;
}

static struct pending *keep(struct request *req, enum served_by served_by)
{
	struct pending *pending = req->retried ? req->retried : keep_new(req);

	if (pending) {
		pending->served_by = served_by;
		return pending;
	}
	atomic_fetch_add(&req->front->statistics.no_room, 1);
	answer_error(req, ENOMEM);
	request_answered(req->front, req->record);
	return NULL;
}

static bool is_being_fetched(struct front *f, uint64_t id)
{
	struct inode *inode;
	bool fetching;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	fetching = inode && inode->fetching;
	tables_unlock(&f->tables);
	return fetching;
}

/* The end of a fetch answers all pendings of its inode, so the pending is kept first, and answered
 * again if the fetch has ended meanwhile. */
static void wait_for_fetch(struct request *req, struct pending *pending)
{
	struct front *f = req->front;
	uint64_t id = req->in->nodeid, unique = req->in->unique;
	bool kept = pending && pending_add(f, pending);

	if (req->path && req->in->opcode == FUSE_READ)
		read_start(f, id, req->path, &req->version);
	else if (req->path)
		list_start(f, id, req->path, &req->version);
	if (req->path) {
		ahead_start(f); /* after the request's own */
		return;
	}
	if (!kept || is_being_fetched(f, id))
		return;
	pending = pending_claim(f, unique);
	if (pending)
		front_retry(f, pending, req->scratch);
}

static void conclude(struct request *req, enum verdict verdict)
{
	struct pending *pending;

	if (verdict == ANSWERED) {
		front_count(req->front, req->in,
			    req->retried ? req->retried->served_by : SERVED_HIT, req->started_ns);
		if (req->retried)
			pending_free(req->front, req->retried);
		else
			request_answered(req->front, req->record);
		return;
	}
	/* publish.c answers the second try, and handlers answer a read with its bytes. So this is a
	 * bug, or there is no memory for an inode. */
	if (verdict == MISSED && req->retried && req->retried->tries > TRIES_MAX) {
		atomic_fetch_add(&req->front->statistics.unanswered, 1);
		answer_error(req, EIO);
		pending_free(req->front, req->retried);
		return;
	}
	pending = keep(req, verdict == QUEUED || verdict == SEEKING ? SERVED_BYPASS
			  : verdict == FETCHING ? SERVED_FETCH : SERVED_MISS);
	if (verdict == QUEUED && pending)
		bypass_queue(req->front, req->handle, pending);
	else if (verdict == QUEUED)
		handle_unref(req->handle);
	else if (verdict == FETCHING)
		wait_for_fetch(req, pending);
	else if (pending && verdict == SEEKING)
		seek_start(req->front, pending, req->path, &req->version, req->extents);
	else if (pending)
		miss_forward(req->front, pending);
	if (verdict == SEEKING)
		free(req->path);
}

void front_request(struct front *f, const char *request, size_t size, char *scratch)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)request;
	struct request req = { .front = f, .in = in, .scratch = scratch, .started_ns = now_ns() };

	if (size < sizeof(*in) || in->len != size) {
		atomic_fetch_add(&f->statistics.protocol_errors, 1);
		return;
	}
	req.body = request + sizeof(*in);
	req.body_size = size - sizeof(*in);
	if (in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET)
		forget(f, &req);
	else if (in->opcode == FUSE_INTERRUPT)
		interrupt(f, &req);
	else if (size > REQUEST_MAX)
		answer_error(&req, EROFS); /* only what writes is as long */
	else if (in->opcode != FUSE_NOTIFY_REPLY)
		conclude(&req, answer(&req));
}

void front_retry(struct front *f, struct pending *pending, char *scratch)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)pending->request;
	struct request req = {
		.front = f, .in = in, .scratch = scratch, .started_ns = pending->started_ns,
		.body = pending->request + sizeof(*in),
		.body_size = pending->size - sizeof(*in), .retried = pending,
	};

	pending->tries++;
	conclude(&req, answer(&req));
}

/* --- requests of a dead process, in any order --- */

struct left {
	struct request_record **records;
	size_t count, room;
};

static bool count_left(struct request_record *record, void *context)
{
	(void)record;
	((struct left *)context)->room++;
	return true;
}

static bool add_left(struct request_record *record, void *context)
{
	struct left *left = context;

	left->records[left->count++] = record;
	return true;
}

/* With the tables locked. */
static void forget_left(const char *request, size_t size, void *context)
{
	struct request req = { .front = context, .in = (const struct fuse_in_header *)request };

	if (size < sizeof(*req.in))
		return;
	req.body = request + sizeof(*req.in);
	req.body_size = size - sizeof(*req.in);
	forget_locked(context, &req);
}

static bool gather_left(struct front *f, struct left *left)
{
	struct connection_state *c = &f->tables.connection;
	bool gathered;

	tables_lock(&f->tables);
	gathered = requests_gather(c, forget_left, f);
	requests_each(c, count_left, left);
	left->records = malloc((left->room + 1) * sizeof(*left->records));
	if (left->records)
		requests_each(c, add_left, left);
	tables_unlock(&f->tables);
	return gathered && left->records;
}

/* Its record goes with it. */
static void take_up(struct front *f, struct request_record *record, char *scratch)
{
	/* a copy, because the replier may free the record from the first answer on */
	_Alignas(8) char request[READING_ROOM];
	const struct fuse_in_header *in = (const struct fuse_in_header *)request;
	size_t size = record->head.length;
	struct request req = {
		.front = f, .in = in, .scratch = scratch, .started_ns = now_ns(), .record = record,
		.body = request + sizeof(*in), .body_size = size - sizeof(*in),
	};

	memcpy(request, record->request, size);
	/* only what writes is longer than its place */
	conclude(&req, in->len > size ? answer_error(&req, EROFS) : answer(&req));
}

static void drop_left(struct front *f, const struct left *left)
{
	tables_lock(&f->tables);
	for (size_t i = 0; i < left->count; i++)
		record_free(&f->tables.connection, &left->records[i]->head);
	tables_unlock(&f->tables);
}

bool front_take_up(struct front *f)
{
	struct left left = { 0 };
	char *scratch = malloc(REPLY_MAX);
	bool gathered = scratch && gather_left(f, &left);

	if (gathered && !f->records_requests) /* the kernel gives them back */
		drop_left(f, &left);
	for (size_t i = 0; gathered && f->records_requests && i < left.count; i++)
		take_up(f, left.records[i], scratch);
	if (gathered)
		f->tables.connection.header->readers = f->threads_count;
	else
		errno = ENOMEM;
	free(left.records);
	free(scratch);
	return gathered;
}
