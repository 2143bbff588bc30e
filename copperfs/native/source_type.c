/*
 * The Python type of the source's threads. An eventfd is readable when submitted jobs have ended;
 * drain() returns their outcomes.
 */
#include "python.h"

#include <stdlib.h>
#include <string.h>

#include "source/pool.h"

struct source_pool {
	PyObject_HEAD
	struct pool *pool;
};

static PyObject *source_pool_create(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	unsigned long long device;
	unsigned concurrency;
	Py_ssize_t listing_max;
	const char *root;
	double deadline_s;
	struct source_pool *self;

	if ((kwargs && PyDict_GET_SIZE(kwargs)) ||
	    !PyArg_ParseTuple(args, "yIKnd", &root, &concurrency, &device, &listing_max,
			      &deadline_s))
		return NULL;
	self = (struct source_pool *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	self->pool = pool_new(root, concurrency, device, (size_t)listing_max, deadline_s);
	if (!self->pool) {
		PyErr_SetFromErrno(PyExc_OSError);
		Py_DECREF(self);
		return NULL;
	}
	return (PyObject *)self;
}

static void source_pool_dealloc(PyObject *object)
{
	struct pool *pool = ((struct source_pool *)object)->pool;

	if (pool) {
		pool_close(pool);
		pool_unref(pool);
	}
	Py_TYPE(object)->tp_free(object);
}

static PyObject *py_close(PyObject *object, PyObject *unused)
{
	(void)unused;
	pool_close(((struct source_pool *)object)->pool);
	Py_RETURN_NONE;
}

static PyObject *py_fileno(PyObject *object, PyObject *unused)
{
	(void)unused;
	return PyLong_FromLong(((struct source_pool *)object)->pool->event_fd);
}

static bool copy_names(struct job *job, PyObject *tuple)
{
	Py_ssize_t count = PyTuple_GET_SIZE(tuple);

	job->untouchable = calloc((size_t)count + 1, sizeof(*job->untouchable));
	if (!job->untouchable) {
		PyErr_NoMemory();
		return false;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		const char *name = PyBytes_AsString(PyTuple_GET_ITEM(tuple, i));

		if (!name)
			return false;
		job->untouchable[i] = strdup(name);
		if (!job->untouchable[i]) {
			PyErr_NoMemory();
			return false;
		}
	}
	return true;
}

/* Bytes beyond the names' end are not ours. */
static bool copy_looked_for(struct job *job, const char *packed, Py_ssize_t size)
{
	Py_ssize_t at = 0;

	for (; at < size && packed[at]; at += 1 + (unsigned char)packed[at])
		job->looked_for_count++;
	if (size && at != size - 1) {
		PyErr_SetString(PyExc_ValueError, "expected names with their lengths, and a zero");
		return false;
	}
	if (!job->looked_for_count)
		return true;
	job->looked_for = malloc((size_t)size);
	if (!job->looked_for) {
		PyErr_NoMemory();
		return false;
	}
	memcpy(job->looked_for, packed, (size_t)size);
	return true;
}

static PyObject *py_submit(PyObject *object, PyObject *args)
{
	struct pool *pool = ((struct source_pool *)object)->pool;
	unsigned long long id, size = 0, ino = 0, offset = 0, length = 0;
	const char *looked_for = NULL;
	Py_ssize_t looked_for_size = 0;
	long long mtime_ns = 0, ctime_ns = 0;
	PyObject *untouchable;
	const char *path;
	struct job *job;
	int kind;

	if (!PyArg_ParseTuple(args, "Kiy(KLLK)O!|KKy#", &id, &kind, &path, &size, &mtime_ns,
			      &ctime_ns, &ino, &PyTuple_Type, &untouchable, &offset, &length, &looked_for,
			      &looked_for_size))
		return NULL;
	job = pool_job(pool, (enum job_kind)kind, path,
		       &(struct version){ size, mtime_ns, ctime_ns, ino }, id);
	if (!job)
		return PyErr_NoMemory();
	job->offset = offset;
	job->length = (size_t)length;
	if (!copy_names(job, untouchable) ||
	    !copy_looked_for(job, looked_for, looked_for_size)) {
		job_free(job);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	pool_submit(pool, job);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static PyObject *outcome(struct job *job)
{
	struct blob *blob = job->blob;
	int fd = job->fd;

	if (job->kind == LOOK && job->error == ENOENT)
		return Py_BuildValue("(KiO)", job->id, 0, Py_None);
	if (job->error)
		return Py_BuildValue("(KiO)", job->id, job->error, Py_None);
	switch (job->kind) {
	case SCAN: /* the directory's own attributes, and the listing */
	case LOOK: /* a file's attributes, and its target */
		return Py_BuildValue("(Ki(y#y#))", job->id, 0, (const char *)&job->attributes,
				     (Py_ssize_t)sizeof(job->attributes),
				     job->buffer.bytes ? job->buffer.bytes : "",
				     (Py_ssize_t)job->buffer.used);
	case READ: /* the bytes, and which of the names are mentioned */
		job->blob = NULL; /* Python owns it now */
		return Py_BuildValue("(Ki(Ny#))", job->id, 0, blob_to_python(blob),
				     job->mentioned ? (const char *)job->mentioned : "",
				     job->mentioned ? (Py_ssize_t)job->looked_for_count : 0);
	case CHUNK:
		job->blob = NULL;
		return Py_BuildValue("(KiN)", job->id, 0, blob_to_python(blob));
	case OPEN:
		job->fd = -1;
		return Py_BuildValue("(Kii)", job->id, 0, fd);
	case SEEK:
	case CLOSE: /* Python is not told */
		break;
	}
	Py_UNREACHABLE();
}

static PyObject *py_drain(PyObject *object, PyObject *unused)
{
	struct pool *pool = ((struct source_pool *)object)->pool;
	PyObject *outcomes = PyList_New(0);
	struct job *done;

	(void)unused;
	if (!outcomes)
		return NULL;
	done = pool_drain(pool);
	while (done) {
		struct job *job = done;
		PyObject *each = outcome(job);

		done = job->next;
		job_free(job);
		if (!each || PyList_Append(outcomes, each)) {
			Py_XDECREF(each);
			jobs_free(done);
			Py_DECREF(outcomes);
			return NULL;
		}
		Py_DECREF(each);
	}
	return outcomes;
}

static PyObject *py_counts(PyObject *object, PyObject *unused)
{
	const struct source_counts *counts = &((struct source_pool *)object)->pool->counts;

	(void)unused;
	return Py_BuildValue("{sKsKsKsKsKsK}", "open", (unsigned long long)counts->open, "read",
			     (unsigned long long)counts->read, "read_bytes",
			     (unsigned long long)counts->read_bytes, "stat",
			     (unsigned long long)counts->stat, "scandir",
			     (unsigned long long)counts->scandir, "seek",
			     (unsigned long long)counts->seek);
}

static PyObject *py_reset_counts(PyObject *object, PyObject *unused)
{
	struct source_counts *counts = &((struct source_pool *)object)->pool->counts;

	(void)unused;
	counts->open = counts->read = counts->read_bytes = counts->stat = counts->scandir = 0;
	counts->seek = 0;
	Py_RETURN_NONE;
}

static PyObject *py_count_stats(PyObject *object, PyObject *arg)
{
	unsigned long more = PyLong_AsUnsignedLong(arg);

	if (more == (unsigned long)-1 && PyErr_Occurred())
		return NULL;
	((struct source_pool *)object)->pool->counts.stat += more;
	Py_RETURN_NONE;
}

static PyObject *py_watch_mounts(PyObject *object, PyObject *unused)
{
	(void)unused;
	return PyBool_FromLong(pool_watch_mounts(((struct source_pool *)object)->pool));
}

static PyObject *py_trust_mounts(PyObject *object, PyObject *unused)
{
	(void)unused;
	pool_trust_mounts(((struct source_pool *)object)->pool);
	Py_RETURN_NONE;
}

static PyObject *py_ignore_inodes(PyObject *object, PyObject *unused)
{
	(void)unused;
	filesystems_ignore_inodes(((struct source_pool *)object)->pool->filesystems);
	Py_RETURN_NONE;
}

static void reader_gone(PyObject *capsule)
{
	Py_DECREF((PyObject *)PyCapsule_GetContext(capsule));
}

/* The capsule keeps the pool. */
static PyObject *py_reader(PyObject *object, PyObject *arg)
{
	struct pool *pool = ((struct source_pool *)object)->pool;
	uint64_t own_device = PyLong_AsUnsignedLongLong(arg);
	PyObject *capsule;

	if (own_device == (uint64_t)-1 && PyErr_Occurred())
		return NULL;
	pool->own_device = own_device;
	capsule = PyCapsule_New(&pool->reader, READER_CAPSULE, reader_gone);
	if (capsule && PyCapsule_SetContext(capsule, object) == 0)
		Py_INCREF(object);
	return capsule;
}

static PyObject *py_replace_stuck(PyObject *object, PyObject *unused)
{
	(void)unused;
	pool_replace_stuck(((struct source_pool *)object)->pool);
	Py_RETURN_NONE;
}

static PyObject *py_close_unused(PyObject *object, PyObject *arg)
{
	double for_s = PyFloat_AsDouble(arg);

	if (for_s == -1.0 && PyErr_Occurred())
		return NULL;
	pool_close_unused(((struct source_pool *)object)->pool, for_s);
	Py_RETURN_NONE;
}

static PyObject *py_statistics(PyObject *object, PyObject *unused)
{
	struct pool *pool = ((struct source_pool *)object)->pool;
	unsigned threads, busy, queued, stuck;

	(void)unused;
	pthread_mutex_lock(&pool->lock);
	threads = pool->threads;
	busy = pool->busy;
	queued = pool->queued;
	stuck = pool->stuck;
	pthread_mutex_unlock(&pool->lock);
	return Py_BuildValue("(IIII)", threads, busy, queued, stuck);
}

static PyMethodDef methods[] = {
	{ "submit", py_submit, METH_VARARGS,
	  "submit(id, kind, path, version, untouchable, offset=0, length=0, looked_for=b''): "
	  "do it in a thread." },
	{ "drain", py_drain, METH_NOARGS, "drain() -> [(id, errno, result)] of what has ended." },
	{ "fileno", py_fileno, METH_NOARGS, "fileno(): readable when there is something to drain." },
	{ "close", py_close, METH_NOARGS, "close(): start nothing more." },
	{ "counts", py_counts, METH_NOARGS, "counts() -> what reached the source, by kind." },
	{ "reset_counts", py_reset_counts, METH_NOARGS, "reset_counts()" },
	{ "count_stats", py_count_stats, METH_O, "count_stats(more): names looked at in a scan." },
	{ "ignore_inodes", py_ignore_inodes, METH_NOARGS,
	  "ignore_inodes(): leave inode numbers out of versions from now on." },
	{ "replace_stuck", py_replace_stuck, METH_NOARGS,
	  "replace_stuck(): start threads for those that hang, if there is work." },
	{ "close_unused", py_close_unused, METH_O,
	  "close_unused(for_s): close files that were kept open, and not used for so long." },
	{ "reader", py_reader, METH_O,
	  "reader(own_device) -> capsule: for the front on that mount, see reader.h." },
	{ "watch_mounts", py_watch_mounts, METH_NOARGS,
	  "watch_mounts() -> bool: nothing is listed for the front; notice mounts from now on." },
	{ "trust_mounts", py_trust_mounts, METH_NOARGS,
	  "trust_mounts(): list for the front until something is mounted." },
	{ "statistics", py_statistics, METH_NOARGS, "statistics() -> (threads, busy, queued, stuck)" },
	{ NULL, NULL, 0, NULL },
};

static PyTypeObject source_pool_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "copperfs.native.SourcePool",
	.tp_basicsize = sizeof(struct source_pool),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_doc = "SourcePool(root, concurrency, device, listing_max, deadline_s): threads that wait.",
	.tp_new = source_pool_create,
	.tp_dealloc = source_pool_dealloc,
	.tp_methods = methods,
};

static const struct {
	const char *name;
	enum job_kind kind;
} kinds[] = {
	{ "SCAN", SCAN }, { "LOOK", LOOK }, { "READ", READ }, { "OPEN", OPEN }, { "CHUNK", CHUNK },
};

bool add_source(PyObject *module)
{
	PyObject *names = PyDict_New();

	for (size_t i = 0; names && i < sizeof(kinds) / sizeof(*kinds); i++) {
		PyObject *kind = PyLong_FromLong(kinds[i].kind);

		if (!kind || PyDict_SetItemString(names, kinds[i].name, kind))
			Py_CLEAR(names);
		Py_XDECREF(kind);
	}
	source_pool_type.tp_dict = names;
	return names && PyType_Ready(&source_pool_type) == 0 &&
	       PyModule_AddObjectRef(module, "SourcePool", (PyObject *)&source_pool_type) == 0;
}
