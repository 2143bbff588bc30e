/*
 * The Python type of the front. The methods only convert arguments and results.
 *
 * A method that takes the tables' lock releases the GIL first, whose delays would reach every
 * reader. Methods that write to /dev/fuse (invalidate_*, shed) may wait for the handlers, so a
 * worker thread calls them.
 */
#include "python.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "front/front.h"

static const char *const kind_names[KINDS] = {
	"lookup", "getattr", "readlink", "read", "readdir", "statfs", "open", "ioctl",
	"refused", "other",
};
static const char *const answer_names[SERVED_KINDS] = { "hit", "fetch", "miss", "bypass" };

struct front_object {
	PyObject_HEAD
	struct front *front;
	PyObject *reader; /* the capsule, which keeps the source's threads */
	bool started;
};

static struct front *front_of(PyObject *object)
{
	return ((struct front_object *)object)->front;
}

static uint64_t fresh_until(double seconds)
{
	/* centuries, or NaN, do not fit into nanoseconds */
	if (!(seconds >= 0 && seconds < 1e9))
		return FRESH_FOREVER;
	return now_ns() + (uint64_t)(seconds * 1e9);
}

static PyObject *front_create(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "fuse_fd", "miss_fd", "control_fd", "threads", "inodes_max",
				 "deadline_s", "kernel_cache", NULL };
	int fuse_fd, miss_fd, control_fd, kernel_cache = 1;
	unsigned threads, inodes_max;
	double deadline;
	struct front_object *self;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiiIId|p", names, &fuse_fd, &miss_fd,
					 &control_fd, &threads, &inodes_max, &deadline,
					 &kernel_cache))
		return NULL;
	self = (struct front_object *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	self->front = calloc(1, sizeof(*self->front));
	if (!self->front || front_init(self->front, inodes_max)) {
		free(self->front);
		self->front = NULL;
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	self->front->fuse_fd = fuse_fd;
	self->front->miss_fd = miss_fd;
	self->front->control_fd = control_fd;
	self->front->threads_count = threads;
	self->front->kernel_cache = kernel_cache;
	self->front->deadline_ns = (uint64_t)(deadline * 1e9);
	return (PyObject *)self;
}

static void front_dealloc(PyObject *object)
{
	struct front_object *self = (struct front_object *)object;

	/* threads in read() continue to use it: see front_stop() */
	if (self->front && !self->started) {
		front_destroy(self->front);
		free(self->front);
		Py_XDECREF(self->reader);
	}
	Py_TYPE(object)->tp_free(object);
}

static PyObject *py_start(PyObject *object, PyObject *unused)
{
	(void)unused;
	((struct front_object *)object)->started = true;
	if (front_start(front_of(object)))
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}

static PyObject *py_stop(PyObject *object, PyObject *unused)
{
	(void)unused;
	if (!((struct front_object *)object)->started)
		Py_RETURN_NONE; /* there is no thread to join */
	Py_BEGIN_ALLOW_THREADS
	front_stop(front_of(object));
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static PyObject *py_inode(PyObject *object, PyObject *arg)
{
	struct front *f = front_of(object);
	uint64_t id = PyLong_AsUnsignedLongLong(arg);
	struct fuse_attr attr;
	char path[65536];
	struct inode *inode;
	int length = 0;

	if (id == (uint64_t)-1 && PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id & ~FRONT_WITH_BYTES);
	if (inode) {
		attr = inode->attr;
		length = inode_path(inode, path, sizeof(path));
	}
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	if (!inode || length < 0)
		Py_RETURN_NONE;
	return Py_BuildValue("(y#y#)", path, (Py_ssize_t)length, (const char *)&attr,
			     (Py_ssize_t)sizeof(attr));
}

static PyObject *py_is_untouched(PyObject *object, PyObject *arg)
{
	struct front *f = front_of(object);
	uint64_t id = PyLong_AsUnsignedLongLong(arg);
	struct inode *inode;
	bool untouched;

	if (PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	untouched = inode && !inode->children && !inode->listing;
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(untouched);
}

static PyObject *py_is_attached(PyObject *object, PyObject *arg)
{
	struct front *f = front_of(object);
	uint64_t id = PyLong_AsUnsignedLongLong(arg);
	struct inode *inode;
	bool attached;

	if (PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	attached = inode;
	for (; attached && inode->parent; inode = inode->parent)
		attached = inode->attached;
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(attached);
}

static PyObject *py_find(PyObject *object, PyObject *arg)
{
	struct front *f = front_of(object);
	const char *path = PyBytes_AsString(arg);
	struct inode *inode;
	uint64_t id = 0;

	if (!path)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = f->tables.root;
	while (inode && *path) {
		size_t length = strcspn(path, "/");

		inode = inode_by_name(&f->tables, inode, path, length);
		path += length + (path[length] == '/');
	}
	if (inode)
		id = inode->id;
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	if (!id)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(id);
}

static PyObject *py_touched(PyObject *object, PyObject *arg)
{
	struct front *f = front_of(object);
	PyObject *touched = PyList_New(0), *iterator = PyObject_GetIter(arg), *item;

	if (!touched || !iterator)
		goto failed;
	while ((item = PyIter_Next(iterator))) {
		uint64_t id = PyLong_AsUnsignedLongLong(item);
		struct inode *inode;
		bool was = false;

		Py_BEGIN_ALLOW_THREADS
		tables_lock(&f->tables);
		inode = inode_by_id(&f->tables, id);
		if (inode) {
			was = inode->touched;
			inode->touched = false;
		}
		tables_unlock(&f->tables);
		Py_END_ALLOW_THREADS
		if (was && PyList_Append(touched, item)) {
			Py_DECREF(item);
			goto failed;
		}
		Py_DECREF(item);
	}
	Py_DECREF(iterator);
	if (!PyErr_Occurred())
		return touched;
	iterator = NULL;
failed:
	Py_XDECREF(iterator);
	Py_XDECREF(touched);
	return NULL;
}

/* --- publishing; False: the kernel has forgotten the inode meanwhile --- */

static PyObject *py_publish_listing(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	unsigned long long id;
	Py_buffer packed;
	double fresh_s;
	struct listing *listing;
	bool known = false;
	int error = 0, granted, granted_below, read_ahead;

	if (!PyArg_ParseTuple(args, "Ky*dppp", &id, &packed, &fresh_s, &granted, &granted_below,
			      &read_ahead))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	listing = listing_open(&f->tables, packed.buf, (size_t)packed.len,
			       fresh_until(fresh_s));
	error = errno;
	if (listing) {
		listing->granted = granted;
		listing->granted_below = granted_below;
		listing->read_ahead = read_ahead;
		known = front_publish_listing(f, id, listing);
		error = 0;
	}
	Py_END_ALLOW_THREADS
	PyBuffer_Release(&packed);
	if (error) {
		errno = error;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	return PyBool_FromLong(known);
}

static PyObject *py_publish_entry(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	unsigned long long parent_id;
	const char *name, *target;
	Py_ssize_t name_length, target_length;
	Py_buffer attr;
	double fresh_s;
	bool known;

	if (!PyArg_ParseTuple(args, "Ky#z*y#d", &parent_id, &name, &name_length, &attr, &target,
			      &target_length, &fresh_s))
		return NULL;
	if (name_length < 1 || name_length > 255 || target_length > 4096 ||
	    (attr.buf && attr.len != sizeof(struct fuse_attr))) {
		PyBuffer_Release(&attr);
		PyErr_SetString(PyExc_ValueError, "not the shape of an entry");
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	known = front_publish_entry(f, parent_id, name, (size_t)name_length, attr.buf, target,
				    (size_t)target_length, fresh_until(fresh_s));
	Py_END_ALLOW_THREADS
	PyBuffer_Release(&attr);
	return PyBool_FromLong(known);
}

static PyObject *py_publish_attributes(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	unsigned long long id;
	Py_buffer attr;
	double fresh_s;
	bool known = false;

	if (!PyArg_ParseTuple(args, "Ky*d", &id, &attr, &fresh_s))
		return NULL;
	if (attr.len == sizeof(struct fuse_attr)) {
		Py_BEGIN_ALLOW_THREADS
		known = front_publish_attributes(f, id, attr.buf, fresh_until(fresh_s));
		Py_END_ALLOW_THREADS
	}
	PyBuffer_Release(&attr);
	return PyBool_FromLong(known);
}

static PyObject *py_publish_object(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	unsigned long long id;
	PyObject *python_blob;
	struct blob *blob;
	struct inode *inode;

	if (!PyArg_ParseTuple(args, "KO", &id, &python_blob))
		return NULL;
	blob = blob_of_python(python_blob);
	if (!blob)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	if (inode && S_ISREG(inode->attr.mode) && inode->attr.size == blob->size) {
		struct blob *old = inode->object;

		inode->object = blob;
		blob = old;
	}
	tables_unlock(&f->tables);
	blob_unref(blob);
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(inode != NULL);
}

static PyObject *py_publish_chunk(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	unsigned long long id, index;
	unsigned chunk_bytes;
	PyObject *python_blob;
	struct chunk *chunk;
	struct blob *blob;
	struct inode *inode;
	bool published;

	if (!PyArg_ParseTuple(args, "KKIO", &id, &index, &chunk_bytes, &python_blob))
		return NULL;
	blob = blob_of_python(python_blob);
	if (!blob)
		return NULL;
	chunk = chunk_new(index, blob);
	if (!chunk) {
		blob_unref(blob);
		return PyErr_NoMemory();
	}
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	published = inode && inode_add_chunk(&f->tables, inode, chunk_bytes, chunk);
	tables_unlock(&f->tables);
	if (!published)
		chunk_free(chunk);
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(published);
}

static PyObject *py_withdraw_chunk(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	unsigned long long id, index;
	struct inode *inode;
	uint32_t left = 0;

	if (!PyArg_ParseTuple(args, "KK", &id, &index))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	if (inode) {
		inode_drop_chunk(&f->tables, inode, index);
		left = inode->chunk_count;
	}
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	return PyLong_FromUnsignedLong(left);
}

enum { MISSING_MAX = PIECES_MAX };

static PyObject *py_missing_chunks(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	unsigned long long id, offset, size;
	uint64_t missing[MISSING_MAX], chunk_bytes = 0;
	PyObject *offsets;
	struct inode *inode;
	int count = 0;

	if (!PyArg_ParseTuple(args, "KKK", &id, &offset, &size))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	size = inode ? inode_cut(inode, offset, size) : 0;
	chunk_bytes = inode ? inode->chunk_bytes : 0;
	for (uint64_t at = offset; chunk_bytes && at < offset + size && count < MISSING_MAX;
	     at += chunk_bytes - at % chunk_bytes)
		if (!chunk_find(&f->tables, inode, at / chunk_bytes))
			missing[count++] = at;
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	offsets = PyList_New(count);
	for (int i = 0; offsets && i < count; i++) {
		PyObject *number = PyLong_FromUnsignedLongLong(missing[i]);

		if (!number)
			Py_CLEAR(offsets);
		else
			PyList_SET_ITEM(offsets, i, number);
	}
	return offsets;
}

enum { TOUCHED_AT_ONCE = 256 };

static PyObject *py_touched_chunks(PyObject *object, PyObject *unused)
{
	struct front *f = front_of(object);
	PyObject *list = PyList_New(0);
	size_t count;

	(void)unused;
	do {
		struct touched_chunk taken[TOUCHED_AT_ONCE];

		Py_BEGIN_ALLOW_THREADS
		tables_lock(&f->tables);
		count = tables_take_touched(&f->tables, taken, TOUCHED_AT_ONCE);
		tables_unlock(&f->tables);
		Py_END_ALLOW_THREADS
		for (size_t i = 0; list && i < count; i++) {
			PyObject *each = Py_BuildValue("(KK)", (unsigned long long)taken[i].id,
						       (unsigned long long)taken[i].index);

			if (!each || PyList_Append(list, each))
				Py_CLEAR(list);
			Py_XDECREF(each);
		}
	} while (list && count == TOUCHED_AT_ONCE);
	return list;
}

/* --- publishing before a request; None: the front does not know the directory --- */

static PyObject *number_or_none(uint64_t id)
{
	if (!id)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(id);
}

static PyObject *py_publish_file(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	const char *path;
	Py_ssize_t length;
	unsigned long long size, ino;
	long long mtime_ns, ctime_ns;
	PyObject *python_blob;
	struct blob *blob;
	struct inode *inode;
	uint64_t id = 0;

	if (!PyArg_ParseTuple(args, "y#(KLLK)O", &path, &length, &size, &mtime_ns, &ctime_ns,
			      &ino, &python_blob))
		return NULL;
	blob = blob_of_python(python_blob);
	if (!blob)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_reach(&f->tables, path, (size_t)length);
	if (inode && S_ISREG(inode->attr.mode) && inode->attr.size == size &&
	    inode->attr.size == blob->size && same_ino(version_ino(&inode->attr), ino) &&
	    attr_nanoseconds(inode->attr.mtime, inode->attr.mtimensec) == mtime_ns &&
	    attr_nanoseconds(inode->attr.ctime, inode->attr.ctimensec) == ctime_ns) {
		id = inode->id;
		if (!inode->object) {
			inode->object = blob;
			blob = NULL;
		}
	}
	tables_unlock(&f->tables);
	blob_unref(blob);
	Py_END_ALLOW_THREADS
	return number_or_none(id);
}

static PyObject *py_publish_directory(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	const char *path;
	Py_ssize_t length;
	Py_buffer packed;
	struct listing *listing;
	struct inode *inode;
	uint64_t id = 0;

	if (!PyArg_ParseTuple(args, "y#y*", &path, &length, &packed))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	listing = listing_open(&f->tables, packed.buf, (size_t)packed.len, FRESH_FOREVER);
	if (listing) {
		tables_lock(&f->tables);
		inode = inode_reach(&f->tables, path, (size_t)length);
		if (inode && S_ISDIR(inode->attr.mode)) {
			id = inode->id;
			if (!inode->listing) {
				inode_set_listing(&f->tables, inode, listing);
				listing = NULL;
			}
		}
		tables_unlock(&f->tables);
		listing_free(listing);
	}
	Py_END_ALLOW_THREADS
	PyBuffer_Release(&packed);
	return number_or_none(id);
}

/* Takes the descriptor, also on failure. */
static PyObject *py_publish_handle(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	unsigned long long id;
	struct handle *handle;
	struct inode *inode;
	int fd;

	if (!PyArg_ParseTuple(args, "Ki", &id, &fd))
		return NULL;
	handle = calloc(1, sizeof(*handle));
	if (!handle) {
		close(fd);
		return PyErr_NoMemory();
	}
	atomic_init(&handle->refs, 1);
	handle->fd = fd;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	if (inode && S_ISREG(inode->attr.mode)) {
		handle->version = inode->attr;
		inode_set_handle(&f->tables, inode, handle);
		handle = NULL;
	}
	tables_unlock(&f->tables);
	handle_unref(handle);
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(inode != NULL);
}

static PyObject *py_publish_statfs(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	unsigned long long blocks, bfree, bavail, files, ffree;
	unsigned bsize, namelen, frsize;

	if (!PyArg_ParseTuple(args, "KKKKKIII", &blocks, &bfree, &bavail, &files, &ffree, &bsize,
			      &namelen, &frsize))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	f->statfs.st = (struct fuse_kstatfs){
		.blocks = blocks, .bfree = bfree, .bavail = bavail, .files = files,
		.ffree = ffree, .bsize = bsize, .namelen = namelen, .frsize = frsize,
	};
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	atomic_store(&f->statfs_known, true);
	Py_RETURN_NONE;
}

static PyObject *py_withdraw_statfs(PyObject *object, PyObject *unused)
{
	(void)unused;
	atomic_store(&front_of(object)->statfs_known, false);
	Py_RETURN_NONE;
}

static PyObject *py_withdraw(PyObject *object, PyObject *arg)
{
	struct front *f = front_of(object);
	uint64_t id = PyLong_AsUnsignedLongLong(arg);
	struct inode *inode;

	if (id == (uint64_t)-1 && PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	if (inode)
		inode_withdraw(&f->tables, inode);
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(inode != NULL);
}

static PyObject *py_clear(PyObject *object, PyObject *arg)
{
	struct front *f = front_of(object);
	uint64_t epoch = PyLong_AsUnsignedLongLong(arg);

	if (PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	tables_clear(&f->tables, epoch);
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static PyObject *py_keep_connection(PyObject *object, PyObject *args)
{
	struct front *f = front_of(object);
	int fd, inherited, may_resend, may_record;
	bool kept;

	if (!PyArg_ParseTuple(args, "ippp", &fd, &inherited, &may_resend, &may_record))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	kept = front_keep_connection(f, fd, inherited, may_resend, may_record);
	Py_END_ALLOW_THREADS
	if (!kept)
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}

static PyObject *py_connection(PyObject *object, PyObject *unused)
{
	struct front *f = front_of(object);
	const struct connection_header *header = f->tables.connection.header;
	uint64_t epoch, told, left_out;

	(void)unused;
	if (!header)
		Py_RETURN_NONE;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	epoch = header->epoch;
	told = header->told_epoch;
	left_out = header->left_out;
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	return Py_BuildValue("(KKKi)", (unsigned long long)epoch,
			     (unsigned long long)told, (unsigned long long)left_out,
			     (int)front_takeover_by(f));
}

static PyObject *py_resend(PyObject *object, PyObject *unused)
{
	int error;

	(void)unused;
	Py_BEGIN_ALLOW_THREADS
	error = front_resend(front_of(object));
	Py_END_ALLOW_THREADS
	if (error) {
		errno = error;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	Py_RETURN_NONE;
}

static PyObject *py_sign_of_life(PyObject *object, PyObject *unused)
{
	(void)unused;
	Py_BEGIN_ALLOW_THREADS
	front_sign_of_life(front_of(object));
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static PyObject *py_revoke_below(PyObject *object, PyObject *unused)
{
	struct front *f = front_of(object);

	(void)unused;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	tables_revoke_below(&f->tables);
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static PyObject *py_trace(PyObject *object, PyObject *wanted)
{
	struct front *f = front_of(object);
	int on = PyObject_IsTrue(wanted);

	if (on < 0)
		return NULL;
	if (on && !trace_begin(f, TRACE_MAX))
		return PyErr_NoMemory();
	if (!on)
		trace_end(f);
	Py_RETURN_NONE;
}

static PyObject *py_traced(PyObject *object, PyObject *unused)
{
	unsigned long long lost;
	uint64_t lost_count;
	size_t size;
	char *records = trace_take(front_of(object), &size, &lost_count);
	PyObject *result;

	(void)unused;
	lost = lost_count;
	result = Py_BuildValue("(y#K)", records ? records : "", (Py_ssize_t)(records ? size : 0),
			       lost);
	free(records);
	return result;
}

static PyObject *py_set_in_place(PyObject *object, PyObject *args)
{
	struct front_object *self = (struct front_object *)object;
	struct front *f = self->front;
	PyObject *groups;
	unsigned shown;
	int below_overlay;
	Py_ssize_t count;

	if (!PyArg_ParseTuple(args, "O!Ip", &PyList_Type, &groups, &shown, &below_overlay))
		return NULL;
	if (self->started || f->groups) {
		PyErr_SetString(PyExc_ValueError, "groups are set once, and before the start");
		return NULL;
	}
	count = PyList_GET_SIZE(groups);
	f->groups = calloc((size_t)count + 1, sizeof(*f->groups));
	if (!f->groups)
		return PyErr_NoMemory();
	for (Py_ssize_t i = 0; i < count; i++)
		f->groups[i] = (uint32_t)PyLong_AsUnsignedLongMask(PyList_GET_ITEM(groups, i));
	if (PyErr_Occurred())
		return NULL;
	f->groups_count = (unsigned)count;
	f->shown_group = shown;
	f->below_overlay = below_overlay;
	Py_RETURN_NONE;
}

static PyObject *py_set_reader(PyObject *object, PyObject *args)
{
	struct front_object *self = (struct front_object *)object;
	unsigned long long whole_max, allowance;
	unsigned ahead_max;
	int finds_holes;
	PyObject *capsule;

	if (!PyArg_ParseTuple(args, "OKKIp", &capsule, &whole_max, &allowance, &ahead_max,
			      &finds_holes))
		return NULL;
	if (self->reader || self->started) {
		PyErr_SetString(PyExc_ValueError, "the reader is set once, before the start");
		return NULL;
	}
	self->front->reader = PyCapsule_GetPointer(capsule, READER_CAPSULE);
	if (!self->front->reader)
		return NULL;
	self->reader = Py_NewRef(capsule);
	self->front->whole_max = whole_max;
	self->front->allowance = self->front->allowance_max = allowance;
	self->front->ahead_max = ahead_max;
	self->front->finds_holes = finds_holes;
	Py_RETURN_NONE;
}

static PyObject *py_add_allowance(PyObject *object, PyObject *arg)
{
	struct front *f = front_of(object);
	uint64_t bytes = PyLong_AsUnsignedLongLong(arg);

	if (bytes == (uint64_t)-1 && PyErr_Occurred())
		return NULL;
	return_allowance(f, bytes);
	Py_BEGIN_ALLOW_THREADS
	ahead_start(f);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static PyObject *py_fetched_fileno(PyObject *object, PyObject *unused)
{
	(void)unused;
	return PyLong_FromLong(front_of(object)->fetched_fd);
}

static PyObject *content_of(struct fetched *fetched)
{
	if (!fetched->blob)
		return PyBytes_FromStringAndSize(fetched->packed, (Py_ssize_t)fetched->packed_size);
	return blob_to_python(blob_ref(fetched->blob));
}

/* Back to the head of the queue. */
static void put_back(struct front *f, struct fetched *fetched)
{
	struct fetched *last = fetched;
	uint64_t one = 1;

	while (last->next)
		last = last->next;
	pthread_mutex_lock(&f->fetched_lock);
	last->next = f->fetched_first;
	if (!f->fetched_first)
		f->fetched_end = &last->next;
	f->fetched_first = fetched;
	pthread_mutex_unlock(&f->fetched_lock);
	if (write(f->fetched_fd, &one, sizeof(one)) < 0)
		return; /* it is signalled already */
}

/* The allowance comes back once the handlers have it. An entry that finds no memory waits for the
 * next call. */
static PyObject *py_fetched(PyObject *object, PyObject *unused)
{
	struct front *f = front_of(object);
	PyObject *list = PyList_New(0);
	struct fetched *fetched;
	uint64_t ignored;

	(void)unused;
	if (!list)
		return NULL;
	pthread_mutex_lock(&f->fetched_lock);
	fetched = f->fetched_first;
	f->fetched_first = NULL;
	f->fetched_end = &f->fetched_first;
	if (read(f->fetched_fd, &ignored, sizeof(ignored)) < 0)
		ignored = 0; /* the later signal does no harm */
	pthread_mutex_unlock(&f->fetched_lock);
	while (fetched) {
		struct fetched *next = fetched->next;
		PyObject *each = Py_BuildValue("(Ky#y#NKKNN)", (unsigned long long)fetched->id,
			fetched->path, (Py_ssize_t)fetched->path_length,
			(const char *)&fetched->attr, (Py_ssize_t)sizeof(fetched->attr),
			content_of(fetched), (unsigned long long)fetched->epoch,
			(unsigned long long)fetched->allowance,
			PyBool_FromLong(fetched->ahead), PyBool_FromLong(fetched->used));
		bool added = each && !PyList_Append(list, each);

		Py_XDECREF(each);
		if (!added) {
			put_back(f, fetched);
			break;
		}
		fetched_free(fetched);
		fetched = next;
	}
	if (fetched && !PyList_GET_SIZE(list))
		Py_CLEAR(list);
	else
		PyErr_Clear();
	return list;
}

/* --- telling the kernel; these may block --- */

static PyObject *py_invalidate_all(PyObject *object, PyObject *unused)
{
	struct later later;
	long told;

	(void)unused;
	Py_BEGIN_ALLOW_THREADS
	told = front_invalidate_all(front_of(object), &later);
	Py_END_ALLOW_THREADS
	return Py_BuildValue("(ly#)", told, later.some ? (const char *)&later : NULL,
			     (Py_ssize_t)sizeof(later));
}

static PyObject *py_invalidate_later(PyObject *object, PyObject *arg)
{
	struct later later;
	char *bytes;
	Py_ssize_t size;
	long told;

	if (PyBytes_AsStringAndSize(arg, &bytes, &size))
		return NULL;
	if (size != sizeof(later)) {
		PyErr_SetString(PyExc_ValueError, "not what invalidate_all has left");
		return NULL;
	}
	memcpy(&later, bytes, sizeof(later));
	Py_BEGIN_ALLOW_THREADS
	told = front_invalidate_later(front_of(object), &later);
	Py_END_ALLOW_THREADS
	return PyLong_FromLong(told);
}

/* The handlers know only the inode's number. */
static PyObject *py_invalidate_name_of(PyObject *object, PyObject *arg)
{
	struct front *f = front_of(object);
	uint64_t id = PyLong_AsUnsignedLongLong(arg), parent = 0;
	struct inode *inode;
	char name[256];
	size_t length = 0;

	if (id == (uint64_t)-1 && PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, id);
	if (inode && inode->parent && inode->attached) {
		parent = inode->parent->id;
		length = inode->name_length;
		memcpy(name, inode->name, length);
		/* the next lookup must ask for the name, whatever its listing says */
		inode_outdate_listing(&f->tables, inode->parent);
		inode->fresh_until = 0;
	}
	tables_unlock(&f->tables);
	if (length)
		front_invalidate_entry(f, parent, name, length);
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(length != 0);
}

static PyObject *py_shed(PyObject *object, PyObject *arg)
{
	unsigned long count = PyLong_AsUnsignedLong(arg);
	long told;

	if (count == (unsigned long)-1 && PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	told = front_shed(front_of(object), (uint32_t)count);
	Py_END_ALLOW_THREADS
	return PyLong_FromLong(told);
}

/* The descriptor signals new ones again. */
static PyObject *py_crowded(PyObject *object, PyObject *unused)
{
	uint64_t more;

	(void)unused;
	Py_BEGIN_ALLOW_THREADS
	more = front_take_crowded(front_of(object));
	Py_END_ALLOW_THREADS
	return PyLong_FromUnsignedLongLong(more);
}

static PyObject *py_crowded_fileno(PyObject *object, PyObject *unused)
{
	(void)unused;
	return PyLong_FromLong(front_of(object)->crowded_fd);
}

static PyObject *py_own_errors(PyObject *object, PyObject *unused)
{
	struct front_statistics *s = &front_of(object)->statistics;

	(void)unused;
	return Py_BuildValue("(KKKK)", (unsigned long long)s->unanswered,
			     (unsigned long long)s->protocol_errors,
			     (unsigned long long)s->no_room, (unsigned long long)s->overdue);
}

static int put(PyObject *dict, const char *name, uint64_t value)
{
	PyObject *number = PyLong_FromUnsignedLongLong(value);
	int failed = !number || PyDict_SetItemString(dict, name, number);

	Py_XDECREF(number);
	return failed;
}

static int put_owned(PyObject *dict, const char *name, PyObject *value)
{
	int failed = !value || PyDict_SetItemString(dict, name, value);

	Py_XDECREF(value);
	return failed;
}

static PyObject *histogram(_Atomic uint64_t *buckets)
{
	PyObject *dict = PyDict_New();

	for (int i = 0; dict && i < LATENCY_BUCKETS; i++) {
		PyObject *key, *value;

		if (!buckets[i])
			continue;
		/* the bucket's lower end: (4 + quarter) / 4 of its octave, in ns */
		key = PyLong_FromUnsignedLongLong((4ull + (unsigned)i % 4) << (i / 4) >> 2);
		value = PyLong_FromUnsignedLongLong(buckets[i]);
		if (!key || !value || PyDict_SetItem(dict, key, value))
			Py_CLEAR(dict);
		Py_XDECREF(key);
		Py_XDECREF(value);
	}
	return dict;
}

static PyObject *py_statistics(PyObject *object, PyObject *unused)
{
	struct front *f = front_of(object);
	struct front_statistics *s = &f->statistics;
	PyObject *all = PyDict_New(), *kinds = PyDict_New();
	uint32_t inodes, idle;

	(void)unused;
	if (!all || !kinds)
		goto failed;
	Py_BEGIN_ALLOW_THREADS
	tables_lock(&f->tables);
	inodes = f->tables.inodes;
	idle = f->tables.idle_count;
	tables_unlock(&f->tables);
	Py_END_ALLOW_THREADS
	for (int kind = 0; kind < KINDS; kind++) {
		PyObject *of_kind = PyDict_New();

		if (!of_kind || PyDict_SetItemString(kinds, kind_names[kind], of_kind)) {
			Py_XDECREF(of_kind);
			goto failed;
		}
		Py_DECREF(of_kind);
		for (int answer = 0; answer < SERVED_KINDS; answer++) {
			PyObject *pair = Py_BuildValue("(KN)",
				(unsigned long long)s->answers[kind][answer],
				histogram(s->latency[kind][answer]));

			if (put_owned(of_kind, answer_names[answer], pair))
				goto failed;
		}
	}
	Py_INCREF(kinds);
	if (put_owned(all, "kinds", kinds) || put(all, "negative", s->negative) ||
	    put(all, "hit_bytes", s->read_bytes[SERVED_HIT]) ||
	    put(all, "miss_bytes", s->read_bytes[SERVED_MISS]) ||
	    put(all, "bypass_bytes", s->read_bytes[SERVED_BYPASS]) ||
	    put(all, "forgets", s->forgets) || put(all, "interrupts", s->interrupts) ||
	    put(all, "killed", s->killed) || put(all, "overdue", s->overdue) ||
	    put(all, "overflows", s->overflows) ||
	    put(all, "protocol_errors", s->protocol_errors) ||
	    put(all, "unanswered", s->unanswered) || put(all, "no_room", s->no_room) ||
	    put(all, "full_replies", s->full_replies) ||
	    put(all, "notifications", s->notifications) ||
	    put(all, "handler_requests", s->handler_requests) || put(all, "nodes", inodes) ||
	    put(all, "idle_nodes", idle) || put(all, "nodes_max", f->tables.inodes_max) ||
	    put(all, "pending", f->pending_count) || put(all, "max_pages", f->max_pages) ||
	    put(all, "bypass_threads", f->bypass_threads))
		goto failed;
	Py_DECREF(kinds);
	return all;
failed:
	Py_XDECREF(kinds);
	Py_XDECREF(all);
	return NULL;
}

static PyObject *py_reset_statistics(PyObject *object, PyObject *unused)
{
	/* a concurrent count may survive */
	_Atomic uint64_t *counters = (_Atomic uint64_t *)&front_of(object)->statistics;

	(void)unused;
	for (size_t i = 0; i < sizeof(struct front_statistics) / sizeof(*counters); i++)
		atomic_store_explicit(&counters[i], 0, memory_order_relaxed);
	Py_RETURN_NONE;
}

static PyMethodDef front_methods[] = {
	{ "start", py_start, METH_NOARGS, "start(): begin to answer the kernel." },
	{ "stop", py_stop, METH_NOARGS, "stop(): answer nothing any more." },
	{ "inode", py_inode, METH_O, "inode(id) -> (path, attributes) or None." },
	{ "is_untouched", py_is_untouched, METH_O,
	  "is_untouched(id): no name in this directory has been shown." },
	{ "is_attached", py_is_attached, METH_O,
	  "is_attached(id): its path leads to no newer inode, as far as is known." },
	{ "find", py_find, METH_O, "find(path) -> id or None: what the path leads to now." },
	{ "touched", py_touched, METH_O, "touched(ids) -> those used since last asked." },
	{ "publish_listing", py_publish_listing, METH_VARARGS,
	  "publish_listing(id, packed, fresh_s, granted, granted_below, read_ahead) -> bool; "
	  "fresh_s < 0 is forever." },
	{ "publish_entry", py_publish_entry, METH_VARARGS,
	  "publish_entry(parent_id, name, attributes or None, target, fresh_s) -> bool" },
	{ "publish_attributes", py_publish_attributes, METH_VARARGS,
	  "publish_attributes(id, attributes, fresh_s) -> bool" },
	{ "publish_object", py_publish_object, METH_VARARGS, "publish_object(id, blob) -> bool" },
	{ "publish_chunk", py_publish_chunk, METH_VARARGS,
	  "publish_chunk(id, index, chunk_bytes, blob) -> bool" },
	{ "withdraw_chunk", py_withdraw_chunk, METH_VARARGS,
	  "withdraw_chunk(id, index) -> how many of its chunks are left." },
	{ "missing_chunks", py_missing_chunks, METH_VARARGS,
	  "missing_chunks(id, offset, size) -> where to read the chunks that are missing; "
	  "nothing if it has had none so far." },
	{ "touched_chunks", py_touched_chunks, METH_NOARGS,
	  "touched_chunks() -> [(id, index)] of those used since last asked." },
	{ "publish_handle", py_publish_handle, METH_VARARGS,
	  "publish_handle(id, fd) -> bool; takes the descriptor." },
	{ "publish_statfs", py_publish_statfs, METH_VARARGS, "publish_statfs(...)" },
	{ "withdraw_statfs", py_withdraw_statfs, METH_NOARGS,
	  "withdraw_statfs(): let the handlers be asked for it." },
	{ "publish_file", py_publish_file, METH_VARARGS,
	  "publish_file(path, version, blob) -> id or None" },
	{ "publish_directory", py_publish_directory, METH_VARARGS,
	  "publish_directory(path, packed) -> id or None" },
	{ "set_in_place", py_set_in_place, METH_VARARGS,
	  "set_in_place(groups, as_group, below_overlay): show files of these groups as files of "
	  "one; before the start." },
	{ "set_reader", py_set_reader, METH_VARARGS,
	  "set_reader(capsule, whole_max, allowance, ahead_max, finds_holes): fetch with it what was "
	  "granted, and look for holes in larger files." },
	{ "add_allowance", py_add_allowance, METH_O, "add_allowance(bytes)" },
	{ "fetched_fileno", py_fetched_fileno, METH_NOARGS,
	  "fetched_fileno(): readable when there is something in fetched()." },
	{ "fetched", py_fetched, METH_NOARGS,
	  "fetched() -> [(id, path, attributes, blob or packed listing, epoch, allowance, ahead, "
	  "used)] of what the handlers were not asked for." },
	{ "trace", py_trace, METH_O, "trace(on): begin to record requests, or end it." },
	{ "crowded", py_crowded, METH_NOARGS,
	  "crowded() -> how many names more than inodes_max there are." },
	{ "crowded_fileno", py_crowded_fileno, METH_NOARGS,
	  "crowded_fileno(): readable when there are more than inodes_max." },
	{ "own_errors", py_own_errors, METH_NOARGS,
	  "own_errors() -> (unanswered, protocol_errors, no_room, overdue)" },
	{ "traced", py_traced, METH_NOARGS,
	  "traced() -> (records, how many were lost since the beginning); see trace.c." },
	{ "revoke_below", py_revoke_below, METH_NOARGS,
	  "revoke_below(): list nothing without asking, until a listing is granted again." },
	{ "withdraw", py_withdraw, METH_O, "withdraw(id) -> bool: forget its content." },
	{ "clear", py_clear, METH_O,
	  "clear(epoch): forget all content; nothing is fresh. The epoch is the node's." },
	{ "keep_connection", py_keep_connection, METH_VARARGS,
	  "keep_connection(fd, inherited, may_resend, may_record): before the start; the memory in "
	  "which the connection's state outlives this process, whether another process had it, and "
	  "how a successor may get the requests that were not answered." },
	{ "connection", py_connection, METH_NOARGS,
	  "connection() -> (epoch, epoch of which the kernel was told, names left out, how a "
	  "successor gets requests: TAKEOVER_UNDECIDED before the kernel has negotiated, "
	  "TAKEOVER_BY_RESEND, TAKEOVER_BY_MEMORY, or NO_TAKEOVER)" },
	{ "resend", py_resend, METH_NOARGS,
	  "resend(): the kernel gives back what was not answered." },
	{ "sign_of_life", py_sign_of_life, METH_NOARGS, "sign_of_life(): for the keeper." },
	{ "invalidate_all", py_invalidate_all, METH_NOARGS,
	  "invalidate_all() -> (names the kernel was told to forget, what is left for "
	  "invalidate_later or None). Blocks." },
	{ "invalidate_later", py_invalidate_later, METH_O,
	  "invalidate_later(left) -> names in directories with lookups under way. Blocks for as "
	  "long as those." },
	{ "invalidate_name_of", py_invalidate_name_of, METH_O,
	  "invalidate_name_of(id) -> bool: have its name looked up again. Blocks." },
	{ "shed", py_shed, METH_O, "shed(count) -> names the kernel was told to forget. Blocks." },
	{ "statistics", py_statistics, METH_NOARGS, "statistics() -> dict" },
	{ "reset_statistics", py_reset_statistics, METH_NOARGS, "reset_statistics()" },
	{ NULL, NULL, 0, NULL },
};

static PyTypeObject front_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "copperfs.native.Front",
	.tp_basicsize = sizeof(struct front_object),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_doc = "Threads that own /dev/fuse and answer what is already known.",
	.tp_new = front_create,
	.tp_dealloc = front_dealloc,
	.tp_methods = front_methods,
};

bool add_front(PyObject *module)
{
	return PyType_Ready(&front_type) == 0 &&
	       PyModule_AddObjectRef(module, "Front", (PyObject *)&front_type) == 0 &&
	       PyModule_AddIntConstant(module, "RETRY", FRONT_RETRY) == 0 &&
	       PyModule_AddIntConstant(module, "CONNECTION_MAGIC", CONNECTION_MAGIC) == 0 &&
	       PyModule_AddIntConstant(module, "CONNECTION_VERSION", CONNECTION_VERSION) == 0 &&
	       PyModule_AddIntMacro(module, TAKEOVER_UNDECIDED) == 0 &&
	       PyModule_AddIntMacro(module, TAKEOVER_BY_RESEND) == 0 &&
	       PyModule_AddIntMacro(module, TAKEOVER_BY_MEMORY) == 0 &&
	       PyModule_AddIntMacro(module, NO_TAKEOVER) == 0;
}
