/*
 * erasure.h for Python. Counts, positions and overlaps are checked here, because memory depends on
 * them. erasure/reed_solomon.py checks that each buffer has the length that its chunk should have.
 */
#include "python.h"

#include <stdint.h>

#include "erasure.h"

/* Fewer bytes take less time (6 us) than another thread may keep the GIL from us (5 ms). */
enum { WITH_GIL_BYTES = 64 << 10 };

struct shards {
	unsigned count;
	struct shard shard[POSITIONS_MAX];
	Py_buffer view[POSITIONS_MAX];
};

static void release(struct shards *shards)
{
	for (unsigned i = 0; i < shards->count; i++)
		PyBuffer_Release(&shards->view[i]);
}

/* From a list of items of a dictionary: an object that gives a buffer may run Python, and change
 * the dictionary. *seen* has a bit for each position. False with an exception set. */
static bool take(struct shards *shards, PyObject *items, unsigned positions, int flags,
		 uint64_t *seen)
{
	bool done = true;

	for (Py_ssize_t i = 0; done && i < PyList_GET_SIZE(items); i++) {
		PyObject *item = PyList_GET_ITEM(items, i);
		Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(item, 0));
		Py_buffer *view = &shards->view[shards->count];

		done = false;
		if (position == -1 && PyErr_Occurred())
			break;
		if (position < 0 || position >= (Py_ssize_t)positions) {
			PyErr_Format(PyExc_ValueError, "there is no position %zd among %u chunks",
				     position, positions);
			break;
		}
		if (*seen & UINT64_C(1) << position) {
			PyErr_Format(PyExc_ValueError, "chunk %zd is given twice", position);
			break;
		}
		*seen |= UINT64_C(1) << position;
		if (PyObject_GetBuffer(PyTuple_GET_ITEM(item, 1), view, flags)) {
			if (PyErr_ExceptionMatches(PyExc_BufferError))
				PyErr_Format(PyExc_ValueError,
					     "the buffer of chunk %zd is not contiguous%s", position,
					     flags & PyBUF_WRITABLE ? ", or read-only" : "");
			break;
		}
		shards->shard[shards->count++] = (struct shard){
			.position = (unsigned)position,
			.bytes = view->buf,
			.length = (size_t)view->len,
		};
		done = true;
	}
	return done;
}

static bool overlap(const struct shard *one, const struct shard *other)
{
	uintptr_t begin = (uintptr_t)one->bytes, other_begin = (uintptr_t)other->bytes;

	return one->length && other->length && begin < other_begin + other->length &&
	       other_begin < begin + one->length;
}

/* False with an exception set. */
static bool are_apart(const struct shards *known, const struct shards *lost)
{
	for (unsigned i = 0; i < lost->count; i++) {
		const struct shard *one = &lost->shard[i];

		for (unsigned j = 0; j < known->count + i; j++) {
			const struct shard *other = j < known->count ?
							    &known->shard[j] :
							    &lost->shard[j - known->count];

			if (overlap(one, other)) {
				PyErr_Format(PyExc_ValueError,
					     "the buffers of chunks %u and %u overlap", one->position,
					     other->position);
				return false;
			}
		}
	}
	return true;
}

static bool rebuild(unsigned data, unsigned parity, const struct shards *known,
		    const struct shards *lost)
{
	size_t bytes = 0;
	bool done;

	for (unsigned i = 0; i < known->count; i++)
		bytes += known->shard[i].length;
	if (bytes < WITH_GIL_BYTES)
		return erasure_rebuild(data, parity, known->shard, lost->shard, lost->count);
	Py_BEGIN_ALLOW_THREADS
	done = erasure_rebuild(data, parity, known->shard, lost->shard, lost->count);
	Py_END_ALLOW_THREADS
	return done;
}

PyDoc_STRVAR(rebuild_doc,
"rebuild_chunks(data, parity, known, lost)\n"
"--\n\n"
"Fill the buffers of *lost* from *data* others. Both are dictionaries by position in the group;\n"
"a known buffer that is shorter counts as if zeroes followed. Raises ValueError.");

static PyObject *rebuild_items(unsigned data, unsigned parity, PyObject *known_items,
			       PyObject *lost_items)
{
	struct shards known = { 0 }, lost = { 0 };
	PyObject *result = NULL;
	uint64_t seen = 0;

	if (PyList_GET_SIZE(known_items) != data || PyList_GET_SIZE(lost_items) > parity)
		return PyErr_Format(PyExc_ValueError,
				    "%u known chunks give at most %u lost ones; here are %zd and %zd",
				    data, parity, PyList_GET_SIZE(known_items),
				    PyList_GET_SIZE(lost_items));
	if (take(&known, known_items, data + parity, PyBUF_SIMPLE, &seen) &&
	    take(&lost, lost_items, data + parity, PyBUF_WRITABLE, &seen) &&
	    are_apart(&known, &lost)) {
		if (rebuild(data, parity, &known, &lost))
			result = Py_NewRef(Py_None);
		else
			PyErr_SetString(PyExc_AssertionError, "a Cauchy matrix has no inverse");
	}
	release(&known);
	release(&lost);
	return result;
}

static PyObject *rebuild_chunks(PyObject *module, PyObject *args)
{
	PyObject *known, *lost, *known_items, *lost_items, *result = NULL;
	const char *missing = erasure_load();
	int data, parity;

	(void)module;
	if (!PyArg_ParseTuple(args, "iiO!O!", &data, &parity, &PyDict_Type, &known, &PyDict_Type,
			      &lost))
		return NULL;
	if (missing)
		return PyErr_Format(PyExc_ValueError, "%s", missing);
	if (data < 1 || data > DATA_MAX || parity < 1 || parity > PARITY_MAX)
		return PyErr_Format(PyExc_ValueError,
				    "a group has 1 to %d data and 1 to %d parity chunks, not %d and %d",
				    DATA_MAX, PARITY_MAX, data, parity);
	known_items = PyDict_Items(known);
	lost_items = PyDict_Items(lost);
	if (known_items && lost_items)
		result = rebuild_items((unsigned)data, (unsigned)parity, known_items, lost_items);
	Py_XDECREF(known_items);
	Py_XDECREF(lost_items);
	return result;
}

PyDoc_STRVAR(missing_doc,
"erasure_missing()\n"
"--\n\n"
"None if rebuild_chunks() can be used; otherwise a sentence that says what to install.");

static PyObject *erasure_missing(PyObject *module, PyObject *args)
{
	const char *missing = erasure_load();

	(void)module, (void)args;
	return missing ? PyUnicode_FromString(missing) : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
	{ "rebuild_chunks", rebuild_chunks, METH_VARARGS, rebuild_doc },
	{ "erasure_missing", erasure_missing, METH_NOARGS, missing_doc },
	{ NULL, NULL, 0, NULL },
};

bool add_erasure(PyObject *module)
{
	return PyModule_AddFunctions(module, methods) == 0 &&
	       PyModule_AddIntConstant(module, "ERASURE_DATA_MAX", DATA_MAX) == 0 &&
	       PyModule_AddIntConstant(module, "ERASURE_PARITY_MAX", PARITY_MAX) == 0;
}
