/*
 * The Python type of blob.h: writable until seal(size). Blob.adopt(buffer) has the bytes of another
 * object.
 */
#include "python.h"

#include <stdlib.h>
#include <string.h>

#include "bytecode_names.h"

struct blob_object {
	PyObject_HEAD
	struct blob *blob;
	bool sealed;
};

static PyTypeObject blob_type;

/* An object that an adopted blob borrows from. The last reference to the blob may go in a thread
 * without the GIL; the object is then released when the next blob is made or freed. */
struct loan {
	struct loan *next;
	Py_buffer view;
};

static struct loan *_Atomic returned;

static void give_back(void *lender)
{
	struct loan *loan = lender;

	loan->next = atomic_load(&returned);
	while (!atomic_compare_exchange_weak(&returned, &loan->next, loan))
		;
}

static void end_loans(void)
{
	struct loan *loan = atomic_exchange(&returned, NULL);

	while (loan) {
		struct loan *next = loan->next;

		PyBuffer_Release(&loan->view);
		free(loan);
		loan = next;
	}
}

static PyObject *blob_create(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	Py_ssize_t capacity;
	struct blob_object *self;

	if ((kwargs && PyDict_GET_SIZE(kwargs)) || !PyArg_ParseTuple(args, "n", &capacity))
		return NULL;
	if (capacity < 0) {
		PyErr_SetString(PyExc_ValueError, "a blob cannot be smaller than nothing");
		return NULL;
	}
	end_loans();
	self = (struct blob_object *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	self->blob = blob_new_pooled((size_t)capacity);
	if (!self->blob) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	return (PyObject *)self;
}

static void blob_dealloc(PyObject *object)
{
	blob_unref(((struct blob_object *)object)->blob);
	Py_TYPE(object)->tp_free(object);
	end_loans();
}

static int blob_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
	struct blob_object *self = (struct blob_object *)object;

	return PyBuffer_FillInfo(view, object, self->blob->data, (Py_ssize_t)self->blob->size,
				 self->sealed, flags);
}

static Py_ssize_t blob_length(PyObject *object)
{
	return (Py_ssize_t)((struct blob_object *)object)->blob->size;
}

static PyObject *blob_seal(PyObject *object, PyObject *arg)
{
	struct blob_object *self = (struct blob_object *)object;
	Py_ssize_t size = PyLong_AsSsize_t(arg);

	if (size == -1 && PyErr_Occurred())
		return NULL;
	if (self->sealed || size < 0 || (size_t)size > self->blob->capacity) {
		PyErr_SetString(PyExc_ValueError, "a blob is sealed once, within its capacity");
		return NULL;
	}
	self->blob->size = (size_t)size;
	self->sealed = true;
	Py_RETURN_NONE;
}

/* An empty name, as ".x.so" has, is never mentioned. */
static bool may_be_mentioned(PyObject *name)
{
	return PyBytes_GET_SIZE(name) > 0 && PyBytes_GET_SIZE(name) <= 255;
}

/* In the format of bytecode_names.c; NULL with an exception set. */
static char *packed_names(PyObject *tuple)
{
	size_t room = 1;
	char *packed, *end;

	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
		Py_ssize_t length = PyBytes_Size(PyTuple_GET_ITEM(tuple, i));

		if (length < 0)
			return NULL;
		room += 1 + (size_t)length;
	}
	end = packed = malloc(room);
	if (!packed) {
		PyErr_NoMemory();
		return NULL;
	}
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
		PyObject *name = PyTuple_GET_ITEM(tuple, i);
		size_t length = (size_t)PyBytes_GET_SIZE(name);

		if (!may_be_mentioned(name))
			continue;
		*end++ = (char)(unsigned char)length;
		memcpy(end, PyBytes_AS_STRING(name), length);
		end += length;
	}
	*end = 0;
	return packed;
}

/* Without the GIL: the caller holds a reference. Returns a flag for each packed name; NULL with an
 * exception set. */
static bool *look_for(PyObject *object, PyObject *names, size_t *steps)
{
	const struct blob *blob = ((struct blob_object *)object)->blob;
	char *packed;
	bool *found;

	if (!PyTuple_Check(names)) {
		PyErr_SetString(PyExc_TypeError, "expected a tuple of names");
		return NULL;
	}
	packed = packed_names(names);
	if (!packed)
		return NULL;
	found = calloc((size_t)PyTuple_GET_SIZE(names) + 1, sizeof(*found));
	if (found) {
		Py_BEGIN_ALLOW_THREADS
		*steps = find_mentioned(blob->data, blob->size, packed, found);
		Py_END_ALLOW_THREADS
	} else {
		PyErr_NoMemory();
	}
	free(packed);
	return found;
}

static PyObject *blob_mentioned(PyObject *object, PyObject *names)
{
	PyObject *list = NULL, *tuple = NULL;
	size_t packed_count = 0, steps;
	bool *found = look_for(object, names, &steps);

	if (!found)
		return NULL;
	list = PyList_New(0);
	for (Py_ssize_t i = 0; list && i < PyTuple_GET_SIZE(names); i++) {
		PyObject *name = PyTuple_GET_ITEM(names, i);

		if (may_be_mentioned(name) && found[packed_count++] &&
		    PyList_Append(list, name) < 0)
			goto out;
	}
	if (list)
		tuple = PyList_AsTuple(list);
out:
	Py_XDECREF(list);
	free(found);
	return tuple;
}

static PyObject *blob_steps_for(PyObject *object, PyObject *names)
{
	size_t steps;
	bool *found = look_for(object, names, &steps);

	free(found);
	return found ? PyLong_FromSize_t(steps) : NULL;
}

static PyObject *blob_adopt(PyObject *type, PyObject *lender)
{
	struct blob_object *self;
	struct loan *loan;

	end_loans();
	self = (struct blob_object *)((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
	if (!self)
		return NULL;
	loan = calloc(1, sizeof(*loan));
	self->blob = loan ? blob_new(0) : NULL;
	if (!self->blob) {
		free(loan);
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	if (PyObject_GetBuffer(lender, &loan->view, PyBUF_SIMPLE)) {
		free(loan);
		Py_DECREF(self);
		return NULL;
	}
	self->blob->data = loan->view.buf;
	self->blob->capacity = self->blob->size = (size_t)loan->view.len;
	self->blob->lender = loan;
	self->blob->give_back = give_back;
	self->sealed = true;
	return (PyObject *)self;
}

static PyObject *blob_view(PyObject *object, void *closure)
{
	(void)closure;
	return PyMemoryView_FromObject(object);
}

struct blob *blob_of_python(PyObject *object)
{
	if (!PyObject_TypeCheck(object, &blob_type)) {
		PyErr_SetString(PyExc_TypeError, "expected a Blob");
		return NULL;
	}
	return blob_ref(((struct blob_object *)object)->blob);
}

PyObject *blob_to_python(struct blob *blob)
{
	struct blob_object *self = (struct blob_object *)blob_type.tp_alloc(&blob_type, 0);

	if (!self) {
		blob_unref(blob);
		return NULL;
	}
	self->blob = blob;
	self->sealed = true;
	return (PyObject *)self;
}

static PyBufferProcs blob_buffer = { .bf_getbuffer = blob_getbuffer };
static PySequenceMethods blob_sequence = { .sq_length = blob_length };
static PyMethodDef blob_methods[] = {
	{ "seal", blob_seal, METH_O, "seal(size): cut to size and make immutable." },
	{ "mentioned", blob_mentioned, METH_O,
	  "mentioned(names) -> names: those that this compiled Python file mentions." },
	{ "steps_for", blob_steps_for, METH_O,
	  "steps_for(names) -> int: what it takes to look for these; for tests." },
	{ "adopt", blob_adopt, METH_O | METH_CLASS,
	  "adopt(buffer): a blob of these bytes, which nobody changes any more." },
	{ NULL, NULL, 0, NULL },
};
static PyGetSetDef blob_getset[] = {
	{ "view", blob_view, NULL, "A memoryview of the bytes.", NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyTypeObject blob_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "copperfs.native.Blob",
	.tp_basicsize = sizeof(struct blob_object),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_doc = "Bytes outside the Python heap, shared with C threads.",
	.tp_new = blob_create,
	.tp_dealloc = blob_dealloc,
	.tp_as_buffer = &blob_buffer,
	.tp_as_sequence = &blob_sequence,
	.tp_methods = blob_methods,
	.tp_getset = blob_getset,
};

bool add_blob(PyObject *module)
{
	return PyType_Ready(&blob_type) == 0 &&
	       PyModule_AddObjectRef(module, "Blob", (PyObject *)&blob_type) == 0;
}
