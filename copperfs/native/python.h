/*
 * The functions that the C files share that know Python. All other C files know nothing of Python.
 */
#ifndef COPPERFS_PYTHON_H
#define COPPERFS_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "blob.h"

/* A new reference to the blob behind a Python Blob; NULL with TypeError set. */
struct blob *blob_of_python(PyObject *object);
/* A sealed Python Blob. Takes the reference, also on failure. */
PyObject *blob_to_python(struct blob *blob);

/* Each adds types, functions and constants to the module; false with an exception set. */
bool add_blob(PyObject *module);
bool add_front(PyObject *module);
bool add_load(PyObject *module);
bool add_source(PyObject *module);

#endif
