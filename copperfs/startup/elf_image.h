/* Programs and libraries as bytes: what of them is mapped, and which libraries they need. */
#ifndef COPPERFS_ELF_IMAGE_H
#define COPPERFS_ELF_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

/* Where the last byte is that is mapped, by the first page; what follows is for debuggers. 0: it is
 * no program of this machine. */
size_t elf_mapped_size(const char *begin, size_t size);

/* The name of libpython, if the program needs it. */
bool elf_needs_libpython(const char *begin, size_t size, char *name, size_t room);

/*
 * If the program needs only libpython and libraries of the C library, it need not look for them
 * below its own prefix, where the dynamic linker tries a dozen directories. libpython is loaded
 * by then.
 */
void elf_forget_run_path(char *begin, size_t size);

#endif
