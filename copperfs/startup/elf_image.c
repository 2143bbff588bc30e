/* ELF images (elf_image.h): reads the few fields of /usr/include/elf.h that are needed. */
#define _GNU_SOURCE
#include "elf_image.h"

#include <elf.h>
#include <link.h>
#include <string.h>

/* The dynamic linker leaves out tags that it does not know. */
#define DT_NOTHING DT_LOOS

static const char LIBPYTHON[] = "libpython";
static const char *const OF_C_LIBRARY[] = { "libc.so.",	      "libm.so.",    "libdl.so.",
					    "libpthread.so.", "libutil.so.", "librt.so.",
					    "ld-linux" };

static const ElfW(Phdr) * parts_of(const char *begin, size_t size, size_t *count)
{
	const ElfW(Ehdr) *header = (const void *)begin;

	*count = 0;
	if (size < sizeof(*header) || memcmp(header->e_ident, ELFMAG, SELFMAG) ||
	    header->e_phentsize != sizeof(ElfW(Phdr)) || header->e_phoff > size ||
	    (size - header->e_phoff) / sizeof(ElfW(Phdr)) < header->e_phnum)
		return NULL;
	*count = header->e_phnum;
	return (const void *)(begin + header->e_phoff);
}

size_t elf_mapped_size(const char *begin, size_t size)
{
	size_t count, end = 0;
	const ElfW(Phdr) *part = parts_of(begin, size, &count);

	for (; count; count--, part++)
		if (part->p_type == PT_LOAD && part->p_offset + part->p_filesz > end)
			end = part->p_offset + part->p_filesz;
	return end;
}

static ElfW(Dyn) * dynamic_of(const char *begin, size_t size, size_t *entries)
{
	size_t count;
	const ElfW(Phdr) *part = parts_of(begin, size, &count);

	*entries = 0;
	for (; count; count--, part++)
		if (part->p_type == PT_DYNAMIC && part->p_offset < size &&
		    part->p_filesz <= size - part->p_offset) {
			*entries = part->p_filesz / sizeof(ElfW(Dyn));
			return (void *)(begin + part->p_offset);
		}
	return NULL;
}

/* Where the bytes are in the file that are mapped at *address*; 0 if they are not there. */
static size_t offset_of(const char *begin, size_t size, ElfW(Addr) address)
{
	size_t count;
	const ElfW(Phdr) *part = parts_of(begin, size, &count);

	for (; count; count--, part++)
		if (part->p_type == PT_LOAD && address >= part->p_vaddr &&
		    address - part->p_vaddr < part->p_filesz)
			return part->p_offset + (address - part->p_vaddr);
	return 0;
}

/* The name of a library that an entry says is needed, or NULL. */
static const char *name_in(const char *begin, size_t size, const ElfW(Dyn) * entry)
{
	size_t entries, at = 0;
	const ElfW(Dyn) *each = dynamic_of(begin, size, &entries);

	if (entry->d_tag != DT_NEEDED)
		return NULL;
	for (; entries; entries--, each++)
		if (each->d_tag == DT_STRTAB)
			at = offset_of(begin, size, each->d_un.d_ptr);
	at += entry->d_un.d_val;
	return at < size && memchr(begin + at, 0, size - at) ? begin + at : NULL;
}

bool elf_needs_libpython(const char *begin, size_t size, char *name, size_t room)
{
	size_t entries;
	const ElfW(Dyn) *each = dynamic_of(begin, size, &entries);

	for (; entries && each->d_tag != DT_NULL; entries--, each++) {
		const char *needed = name_in(begin, size, each);

		if (needed && !strncmp(needed, LIBPYTHON, strlen(LIBPYTHON)) &&
		    strlen(needed) < room) {
			strcpy(name, needed);
			return true;
		}
	}
	return false;
}

static bool is_common(const char *name)
{
	if (!strncmp(name, LIBPYTHON, strlen(LIBPYTHON)))
		return true;
	for (size_t i = 0; i < sizeof(OF_C_LIBRARY) / sizeof(*OF_C_LIBRARY); i++)
		if (!strncmp(name, OF_C_LIBRARY[i], strlen(OF_C_LIBRARY[i])))
			return true;
	return false;
}

void elf_forget_run_path(char *begin, size_t size)
{
	size_t entries;
	ElfW(Dyn) *each = dynamic_of(begin, size, &entries);

	for (size_t i = 0; i < entries && each[i].d_tag != DT_NULL; i++) {
		const char *needed = name_in(begin, size, each + i);

		if (each[i].d_tag == DT_NEEDED && (!needed || !is_common(needed)))
			return;
	}
	for (; entries && each->d_tag != DT_NULL; entries--, each++)
		if (each->d_tag == DT_RPATH || each->d_tag == DT_RUNPATH)
			each->d_tag = DT_NOTHING;
}
