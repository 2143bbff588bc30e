/*
 * copperfs.native._native: all C code of copperfs, as one Python module.
 */
#include "python.h"

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "copperfs.native._native",
	.m_doc = "Blobs, the front, the threads of the source, loading from a disk, erasure coding.",
	.m_size = -1,
};

PyMODINIT_FUNC PyInit__native(void)
{
	PyObject *module = PyModule_Create(&definition);

	if (module && add_blob(module) && add_front(module) && add_load(module) &&
	    add_source(module) && add_erasure(module))
		return module;
	Py_XDECREF(module);
	return NULL;
}
