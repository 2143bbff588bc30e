/*
 * Shared by the C files that know Python. The others know nothing of it.
 */
#ifndef COPPERFS_PYTHON_H
#define COPPERFS_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "blob.h"

/* A new reference; NULL with TypeError set. */
struct blob *blob_of_python(PyObject *object);
/* Sealed. Takes the reference, also on failure. */
PyObject *blob_to_python(struct blob *blob);

/* False with an exception set. */
bool add_blob(PyObject *module);
bool add_erasure(PyObject *module);
bool add_front(PyObject *module);
bool add_load(PyObject *module);
bool add_source(PyObject *module);

#endif
