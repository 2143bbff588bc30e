/*
 * copperfs.source._native: a pool of threads that do the source's work without the GIL.
 *
 * Fetcher.submit(...) queues a job and returns at once; when jobs end, an eventfd becomes
 * readable, and drain() returns their outcomes.  A fixed number of threads work at a time.
 * One that hangs in the source longer than its job's deadline no longer counts, and
 * another is started in its place, up to a limit; beyond that further jobs fail with EIO.
 */
#define _GNU_SOURCE /* asprintf */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum kind { SCAN, LOOK, READ, OPEN };
enum { STUCK_MAX = 128 };

static const struct blob_api *blob_api;

struct job {
	struct job *next;
	struct job *running_next, **running_link;
	unsigned long long id;
	enum kind kind;
	char *path;
	struct version version;
	char **untouchable; /* NULL-terminated */
	double deadline_s, started_s;
	bool given_up; /* its thread hangs and does not count */
	/* who is told, instead of Python: one of these */
	reader_done *told;
	lister_done *told_names;
	void *told_context;
	uint64_t trust; /* of the mounts, when it was asked for */
	/* the outcome */
	int error;
	struct blob *blob;
	struct buffer buffer; /* a listing, or a link's target */
	struct attributes attributes;
	int fd;
};

/* Threads may outlive the Python object: whoever lets go last frees this. */
struct pool {
	_Atomic unsigned refs;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct job *first, **end;
	struct job *done, **done_end;
	struct job *running;
	int event_fd;
	unsigned concurrency, threads, idle, stuck, queued, busy;
	bool closed;
	uint64_t device;
	size_t listing_max;
	char *root; /* with a slash at its end */
	double deadline_s;
	struct source_counts counts;
	struct reader reader;
	/* The kernel flags this descriptor when anything is mounted. Then directories are
	 * listed for Python alone, until it has seen what was mounted where. */
	int mounts_fd;
	uint64_t trust, trust_last; /* 0: not now */
};

struct fetcher {
	PyObject_HEAD
	struct pool *pool;
};

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void job_free(struct job *job)
{
	for (char **each = job->untouchable; each && *each; each++)
		free(*each);
	free(job->untouchable);
	free(job->path);
	free(job->buffer.bytes);
	blob_unref(job->blob);
	if (job->fd >= 0)
		close(job->fd);
	free(job);
}

static void jobs_free(struct job *job)
{
	while (job) {
		struct job *next = job->next;

		job_free(job);
		job = next;
	}
}

static void pool_unref(struct pool *pool)
{
	if (atomic_fetch_sub(&pool->refs, 1) != 1)
		return;
	jobs_free(pool->first);
	jobs_free(pool->done);
	close(pool->event_fd);
	if (pool->mounts_fd >= 0)
		close(pool->mounts_fd);
	free(pool->root);
	pthread_mutex_destroy(&pool->lock);
	pthread_cond_destroy(&pool->work);
	free(pool);
}

/* --- the threads --- */

static bool is_for_the_front(const struct job *job) { return job->told || job->told_names; }

/* Whether anything was mounted since this was last asked. */
static bool mounts_changed(struct pool *pool)
{
	struct pollfd polled = { .fd = pool->mounts_fd, .events = POLLPRI };

	return poll(&polled, 1, 0) != 0;
}

static bool mounts_are_as_trusted(struct pool *pool, const struct job *job)
{
	bool as_trusted;

	pthread_mutex_lock(&pool->lock); /* the flag is shown to one only */
	if (pool->trust && mounts_changed(pool))
		pool->trust = 0;
	as_trusted = pool->trust && pool->trust == job->trust;
	pthread_mutex_unlock(&pool->lock);
	return as_trusted;
}

/* What fails here is asked for again by Python, which counts it then. */
static int list(struct pool *pool, struct job *job)
{
	static const char *const none[] = { NULL };
	struct listing_head head;
	int fd, error;

	if (!mounts_are_as_trusted(pool, job))
		return EAGAIN;
	error = source_open_directory(job->path, pool->device, &fd, &job->attributes);
	if (error)
		return error;
	if (!is_version(&job->attributes, &job->version)) {
		close(fd);
		return ESTALE;
	}
	pool->counts.scandir++;
	error = source_scan(fd, pool->listing_max, pool->device, none, &job->buffer);
	if (error)
		return error;
	memcpy(&head, job->buffer.bytes, sizeof(head));
	if (!(head.flags & LISTING_IS_BARE))
		pool->counts.stat += head.count;
	return 0;
}

static void run(struct pool *pool, struct job *job)
{
	int fd;

	switch (job->kind) {
	case SCAN:
		if (job->told_names) {
			job->error = list(pool, job);
			break;
		}
		pool->counts.scandir++;
		job->error = source_open_directory(job->path, pool->device, &fd,
						   &job->attributes);
		if (!job->error)
			job->error = source_scan(fd, pool->listing_max, pool->device,
						 (const char *const *)job->untouchable,
						 &job->buffer);
		break;
	case LOOK:
		job->error = source_look(job->path, pool->device, &job->attributes,
					 &job->buffer, &pool->counts);
		break;
	case READ:
		job->error = source_read(job->path, &job->version, pool->device, &job->blob,
					 &pool->counts);
		break;
	case OPEN:
		job->error = source_open(job->path, &job->version, pool->device, &job->fd,
					 &pool->counts);
		if (job->error)
			job->fd = -1;
		break;
	}
}

static struct job *take(struct pool *pool)
{
	struct job *job = pool->first;

	pool->first = job->next;
	if (!pool->first)
		pool->end = &pool->first;
	pool->queued--;
	pool->busy++;
	job->next = NULL;
	job->started_s = now_s();
	job->running_next = pool->running;
	job->running_link = &pool->running;
	if (pool->running)
		pool->running->running_link = &job->running_next;
	pool->running = job;
	return job;
}

/* True if there are enough threads without this one. */
static bool put_back(struct pool *pool, struct job *job)
{
	uint64_t one = 1;

	*job->running_link = job->running_next;
	if (job->running_next)
		job->running_next->running_link = job->running_link;
	if (job->given_up)
		pool->stuck--;
	else
		pool->busy--;
	if (is_for_the_front(job)) {
		job_free(job);
	} else {
		*pool->done_end = job;
		pool->done_end = &job->next;
		if (write(pool->event_fd, &one, sizeof(one)) < 0)
			abort(); /* cannot be: it is our own */
	}
	return pool->threads - pool->stuck > pool->concurrency;
}

static void tell(struct job *job)
{
	if (job->told) {
		job->told(job->told_context, job->id, &job->version, job->blob);
		job->blob = NULL;
	} else if (job->told_names) {
		job->told_names(job->told_context, job->id, job->buffer.bytes, job->buffer.used);
		job->buffer.bytes = NULL;
	}
}

static void *thread_main(void *argument)
{
	struct pool *pool = argument;
	bool surplus = false;

	pthread_mutex_lock(&pool->lock);
	while (!surplus && !pool->closed) {
		struct job *job;

		if (!pool->first) {
			pool->idle++;
			pthread_cond_wait(&pool->work, &pool->lock);
			pool->idle--;
			continue;
		}
		job = take(pool);
		pthread_mutex_unlock(&pool->lock);
		run(pool, job);
		tell(job);
		pthread_mutex_lock(&pool->lock);
		surplus = put_back(pool, job);
	}
	pool->threads--;
	pthread_mutex_unlock(&pool->lock);
	pool_unref(pool);
	return NULL;
}

static void start_thread(struct pool *pool)
{
	sigset_t all, before;
	pthread_t thread;

	if (pool->threads - pool->stuck >= pool->concurrency)
		return;
	sigfillset(&all); /* signals are Python's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	atomic_fetch_add(&pool->refs, 1);
	if (pthread_create(&thread, NULL, thread_main, pool)) {
		atomic_fetch_sub(&pool->refs, 1);
	} else {
		pthread_detach(thread);
		pool->threads++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Threads that hang beyond their jobs' deadlines are replaced. */
static void give_up_on_stuck(struct pool *pool)
{
	double now = now_s();

	for (struct job *job = pool->running; job; job = job->running_next)
		if (!job->given_up && now - job->started_s > job->deadline_s) {
			job->given_up = true;
			pool->stuck++;
			pool->busy--;
		}
}

/* False, and the job is gone: somebody else is to be told, but nobody can do it. */
static bool enqueue(struct pool *pool, struct job *job)
{
	uint64_t one = 1;
	bool taken = true;

	pthread_mutex_lock(&pool->lock);
	give_up_on_stuck(pool);
	if (pool->closed || (pool->stuck >= STUCK_MAX && !pool->idle)) {
		job->error = EIO;
		taken = !is_for_the_front(job);
	}
	if (!taken) {
		job_free(job);
	} else if (job->error) {
		*pool->done_end = job;
		pool->done_end = &job->next;
		if (write(pool->event_fd, &one, sizeof(one)) < 0)
			abort();
	} else {
		*pool->end = job;
		pool->end = &job->next;
		pool->queued++;
		for (unsigned i = pool->idle; i < pool->queued; i++)
			start_thread(pool);
		pthread_cond_signal(&pool->work);
	}
	pthread_mutex_unlock(&pool->lock);
	return taken;
}

static struct job *job_for(struct pool *pool, enum kind kind, const char *path,
			   const struct version *version, void *context, uint64_t tag)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->fd = -1;
	job->id = tag;
	job->kind = kind;
	job->version = *version;
	job->deadline_s = pool->deadline_s;
	job->told_context = context;
	if (asprintf(&job->path, "%s%s", pool->root, path) < 0) {
		job->path = NULL;
		job_free(job);
		return NULL;
	}
	return job;
}

/* struct reader: a file that the front wants. */
static bool read_for(void *context, const char *path, const struct version *version,
		     reader_done *done, void *done_context, uint64_t tag)
{
	struct job *job = job_for(context, READ, path, version, done_context, tag);

	if (!job)
		return false;
	job->told = done;
	return enqueue(context, job);
}

/* And a directory. */
static bool list_for(void *context, const char *path, const struct version *version,
		     lister_done *done, void *done_context, uint64_t tag)
{
	struct pool *pool = context;
	struct job *job = job_for(pool, SCAN, path, version, done_context, tag);

	if (!job)
		return false;
	job->told_names = done;
	pthread_mutex_lock(&pool->lock);
	job->trust = pool->trust;
	pthread_mutex_unlock(&pool->lock);
	if (!job->trust) {
		job_free(job);
		return false;
	}
	return enqueue(pool, job);
}

/* --- Python --- */

static PyObject *fetcher_create(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	unsigned long long device;
	unsigned concurrency;
	Py_ssize_t listing_max;
	const char *root;
	double deadline_s;
	struct fetcher *self;

	if ((kwargs && PyDict_GET_SIZE(kwargs)) ||
	    !PyArg_ParseTuple(args, "yIKnd", &root, &concurrency, &device, &listing_max,
			      &deadline_s))
		return NULL;
	self = (struct fetcher *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	self->pool = calloc(1, sizeof(*self->pool));
	if (!self->pool) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	atomic_init(&self->pool->refs, 1);
	self->pool->concurrency = concurrency;
	self->pool->device = device;
	self->pool->listing_max = (size_t)listing_max;
	self->pool->root = strdup(root);
	self->pool->deadline_s = deadline_s;
	self->pool->reader = (struct reader){ self->pool, read_for, list_for };
	/* where there is none, nothing is ever trusted */
	self->pool->mounts_fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	self->pool->end = &self->pool->first;
	self->pool->done_end = &self->pool->done;
	pthread_mutex_init(&self->pool->lock, NULL);
	pthread_cond_init(&self->pool->work, NULL);
	self->pool->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (self->pool->event_fd < 0 || !self->pool->root) {
		PyErr_SetFromErrno(PyExc_OSError);
		Py_DECREF(self);
		return NULL;
	}
	return (PyObject *)self;
}

static void close_pool(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->closed = true;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
}

static void fetcher_dealloc(PyObject *object)
{
	struct pool *pool = ((struct fetcher *)object)->pool;

	if (pool) {
		close_pool(pool);
		pool_unref(pool);
	}
	Py_TYPE(object)->tp_free(object);
}

static PyObject *py_close(PyObject *object, PyObject *unused)
{
	(void)unused;
	close_pool(((struct fetcher *)object)->pool);
	Py_RETURN_NONE;
}

static PyObject *py_fileno(PyObject *object, PyObject *unused)
{
	(void)unused;
	return PyLong_FromLong(((struct fetcher *)object)->pool->event_fd);
}

/* Copies a tuple of bytes; false with an exception set. */
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

static PyObject *py_submit(PyObject *object, PyObject *args)
{
	struct pool *pool = ((struct fetcher *)object)->pool;
	unsigned long long id, size = 0, ino = 0;
	long long mtime_ns = 0, ctime_ns = 0;
	PyObject *untouchable;
	const char *path;
	struct job *job;
	int kind;

	if (!PyArg_ParseTuple(args, "Kiy(KLLK)O!", &id, &kind, &path, &size, &mtime_ns,
			      &ctime_ns, &ino, &PyTuple_Type, &untouchable))
		return NULL;
	job = calloc(1, sizeof(*job));
	if (!job)
		return PyErr_NoMemory();
	job->fd = -1;
	job->id = id;
	job->kind = (enum kind)kind;
	job->deadline_s = pool->deadline_s;
	job->version = (struct version){ size, mtime_ns, ctime_ns, ino };
	if (asprintf(&job->path, "%s%s", pool->root, path) < 0)
		job->path = NULL;
	if (!job->path || !copy_names(job, untouchable)) {
		job_free(job);
		return PyErr_Occurred() ? NULL : PyErr_NoMemory();
	}
	Py_BEGIN_ALLOW_THREADS
	enqueue(pool, job);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

/* The outcome as Python sees it: an errno, or what was asked for. */
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
	case READ:
		job->blob = NULL; /* the Python object has it now */
		return Py_BuildValue("(KiN)", job->id, 0, blob_api->wrap(blob));
	case OPEN:
		job->fd = -1;
		return Py_BuildValue("(Kii)", job->id, 0, fd);
	}
	Py_UNREACHABLE();
}

static PyObject *py_drain(PyObject *object, PyObject *unused)
{
	struct pool *pool = ((struct fetcher *)object)->pool;
	PyObject *outcomes = PyList_New(0);
	struct job *done;
	uint64_t ignored;

	(void)unused;
	if (!outcomes)
		return NULL;
	pthread_mutex_lock(&pool->lock);
	done = pool->done;
	pool->done = NULL;
	pool->done_end = &pool->done;
	if (read(pool->event_fd, &ignored, sizeof(ignored)) < 0)
		ignored = 0; /* woken for nothing */
	pthread_mutex_unlock(&pool->lock);
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
	const struct source_counts *counts = &((struct fetcher *)object)->pool->counts;

	(void)unused;
	return Py_BuildValue("{sKsKsKsKsK}", "open", (unsigned long long)counts->open, "read",
			     (unsigned long long)counts->read, "read_bytes",
			     (unsigned long long)counts->read_bytes, "stat",
			     (unsigned long long)counts->stat, "scandir",
			     (unsigned long long)counts->scandir);
}

static PyObject *py_reset_counts(PyObject *object, PyObject *unused)
{
	struct source_counts *counts = &((struct fetcher *)object)->pool->counts;

	(void)unused;
	counts->open = counts->read = counts->read_bytes = counts->stat = counts->scandir = 0;
	Py_RETURN_NONE;
}

static PyObject *py_count_stats(PyObject *object, PyObject *arg)
{
	unsigned long more = PyLong_AsUnsignedLong(arg);

	if (more == (unsigned long)-1 && PyErr_Occurred())
		return NULL;
	((struct fetcher *)object)->pool->counts.stat += more;
	Py_RETURN_NONE;
}

static PyObject *py_watch_mounts(PyObject *object, PyObject *unused)
{
	struct pool *pool = ((struct fetcher *)object)->pool;
	bool untrusted;

	(void)unused;
	pthread_mutex_lock(&pool->lock);
	untrusted = !pool->trust && pool->mounts_fd >= 0;
	if (untrusted)
		mounts_changed(pool); /* from now on */
	pthread_mutex_unlock(&pool->lock);
	return PyBool_FromLong(untrusted);
}

static PyObject *py_trust_mounts(PyObject *object, PyObject *unused)
{
	struct pool *pool = ((struct fetcher *)object)->pool;

	(void)unused;
	pthread_mutex_lock(&pool->lock);
	pool->trust = ++pool->trust_last;
	pthread_mutex_unlock(&pool->lock);
	Py_RETURN_NONE;
}

static void reader_gone(PyObject *capsule)
{
	Py_DECREF((PyObject *)PyCapsule_GetContext(capsule));
}

/* The capsule keeps the pool. */
static PyObject *py_reader(PyObject *object, PyObject *unused)
{
	struct pool *pool = ((struct fetcher *)object)->pool;
	PyObject *capsule = PyCapsule_New(&pool->reader, READER_CAPSULE, reader_gone);

	(void)unused;
	if (capsule && PyCapsule_SetContext(capsule, object) == 0)
		Py_INCREF(object);
	return capsule;
}

static PyObject *py_replace_stuck(PyObject *object, PyObject *unused)
{
	struct pool *pool = ((struct fetcher *)object)->pool;

	(void)unused;
	pthread_mutex_lock(&pool->lock);
	give_up_on_stuck(pool);
	for (unsigned i = pool->idle; i < pool->queued && !pool->closed; i++)
		start_thread(pool);
	pthread_mutex_unlock(&pool->lock);
	Py_RETURN_NONE;
}

static PyObject *py_statistics(PyObject *object, PyObject *unused)
{
	struct pool *pool = ((struct fetcher *)object)->pool;
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
	  "submit(id, kind, path, version, untouchable): do it in a thread." },
	{ "drain", py_drain, METH_NOARGS, "drain() -> [(id, errno, result)] of what has ended." },
	{ "fileno", py_fileno, METH_NOARGS, "fileno(): readable when there is something to drain." },
	{ "close", py_close, METH_NOARGS, "close(): start nothing more." },
	{ "counts", py_counts, METH_NOARGS, "counts() -> what reached the source, by kind." },
	{ "reset_counts", py_reset_counts, METH_NOARGS, "reset_counts()" },
	{ "count_stats", py_count_stats, METH_O, "count_stats(more): names looked at in a scan." },
	{ "replace_stuck", py_replace_stuck, METH_NOARGS,
	  "replace_stuck(): start threads for those that hang, if there is work." },
	{ "reader", py_reader, METH_NOARGS, "reader() -> capsule: for the front, see reader.h." },
	{ "watch_mounts", py_watch_mounts, METH_NOARGS,
	  "watch_mounts() -> bool: nothing is listed for the front; notice mounts from now on." },
	{ "trust_mounts", py_trust_mounts, METH_NOARGS,
	  "trust_mounts(): list for the front until something is mounted." },
	{ "statistics", py_statistics, METH_NOARGS, "statistics() -> (threads, busy, queued, stuck)" },
	{ NULL, NULL, 0, NULL },
};

static PyTypeObject fetcher_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "copperfs.source._native.Fetcher",
	.tp_basicsize = sizeof(struct fetcher),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_doc = "Fetcher(root, concurrency, device, listing_max, deadline_s): threads that wait.",
	.tp_new = fetcher_create,
	.tp_dealloc = fetcher_dealloc,
	.tp_methods = methods,
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "copperfs.source._native",
	.m_doc = "The source's work without the GIL.",
	.m_size = -1,
};

PyMODINIT_FUNC PyInit__native(void)
{
	PyObject *module;

	blob_api = PyCapsule_Import(BLOB_API_CAPSULE, 0);
	if (!blob_api || PyType_Ready(&fetcher_type) < 0)
		return NULL;
	module = PyModule_Create(&definition);
	if (!module)
		return NULL;
	if (PyModule_AddObjectRef(module, "Fetcher", (PyObject *)&fetcher_type) < 0 ||
	    PyModule_AddIntConstant(module, "SCAN", SCAN) < 0 ||
	    PyModule_AddIntConstant(module, "LOOK", LOOK) < 0 ||
	    PyModule_AddIntConstant(module, "READ", READ) < 0 ||
	    PyModule_AddIntConstant(module, "OPEN", OPEN) < 0) {
		Py_DECREF(module);
		return NULL;
	}
	return module;
}
