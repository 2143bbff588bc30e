/* The Python of the environment in which copperfs is installed. */
#ifndef COPPERFS_INTERPRETER_H
#define COPPERFS_INTERPRETER_H

#include "program.h"

/* Returns if Python cannot be started with the bundle. *words*: those of the command, NULL last. */
void start_with_bundle(const struct installation *here, int bundle, char **words);

/*
 * `copperfs --python FILES PACKAGES -m MODULE ...`, which the daemon and others are started by
 * (bundle.py, python_of). Returns if it cannot be started.
 */
void start_from_memory(const struct installation *here, char **words);

#endif
