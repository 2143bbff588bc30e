/*
 * Interpreter: finds the Python of the environment, and starts it with the bundle.
 *
 * Where Python is on a shared filesystem, too, its start costs hundreds of operations: pages of the
 * interpreter in pieces of 128 KiB, landmarks from which it finds its directories, and the standard
 * library. So it is started from memory there:
 *
 *     the interpreter  a memory file, of which the kernel starts it
 *     libpython        a memory file; by LD_PRELOAD, so that nothing looks for it
 *     its directories  by PYTHONHOME, and by a name of the program beside which there is nothing
 *     encodings        which it imports first: in a zip file, by PYTHONPATH
 *     other modules    byte code and extension modules of a second bundle, which has the zip file
 *                      at its end (write_bundle.py)
 *
 * The user's variables of Python must not matter to it, and have to reach the command. They come
 * with SAVED before their names, and bundle.py gives them their names again. It also compares the
 * versions, and starts Python as usual if the second bundle is another one's.
 */
#define _GNU_SOURCE
#include "interpreter.h"

#include "elf_image.h"
#include "memory_file.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

extern char **environ;

#define SAVED "COPPERFS_SAVED_"
#define FILES "COPPERFS_FILES"
/* No such file, and no directory that is asked by the network. */
#define NAMED "/proc/self/" PYTHON
#define FD_PATH "/proc/self/fd/%d"

/* path_policy_from_mounts.py has them, too. On others, reading costs more than copying. */
static const char *const LOCAL_FILESYSTEMS[] = {
	"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "bcachefs", "f2fs", "jfs", "reiserfs",
	"nilfs2", "tmpfs", "ramfs", "rootfs", "overlay", "aufs", "squashfs", "erofs",
	"iso9660", "udf", "vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk",
	"fuse.fuse-overlayfs", "fuse.squashfuse",
};

/* --- where it is --- */

/* From pyvenv.cfg: the interpreter from which the environment was made. */
static bool base_of_venv(const struct installation *here, char *found)
{
	char path[PATH_MAX], line[PATH_MAX + 16], home[PATH_MAX];
	bool is_there = false;
	FILE *file;

	if (!join_path(path, here->prefix, "pyvenv.cfg"))
		return false;
	file = fopen(path, "re");
	if (!file)
		return false;
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, " home = %4095[^\n]", home) == 1)
			is_there = join_path(found, home, PYTHON) && !access(found, X_OK);
	fclose(file);
	return is_there;
}

/* From the first line of our script, unless that is too long for the kernel and names a shell. */
static bool python_of_script(const struct installation *here, char *found)
{
	char path[PATH_MAX], line[PATH_MAX];
	FILE *file;
	bool done;

	if (!join_path(path, here->prefix, SCRIPT))
		return false;
	file = fopen(path, "re");
	if (!file)
		return false;
	done = fgets(line, sizeof(line), file) && sscanf(line, "#!%4095[^\n]", found) == 1 &&
	       strstr(found, "python") && !strchr(found, ' ');
	fclose(file);
	return done;
}

/*
 * A venv's own interpreter is a link that would be followed, and reads pyvenv.cfg itself. Without a
 * pyvenv.cfg (conda, /usr) it is our neighbour; the script knows where else it is (pip --user).
 */
static bool find_python(const struct installation *here, char *found)
{
	return base_of_venv(here, found) ||
	       (join_path(found, here->prefix, "bin/" PYTHON) && !access(found, X_OK)) ||
	       python_of_script(here, found);
}

/* By the table of mounts, since statfs() is an operation as well. */
static bool is_shared(const char *path)
{
	bool found = false, is_local = true;
	struct stat status;
	char *line = NULL;
	size_t room = 0;
	FILE *table;

	if (stat(path, &status))
		return false;
	table = fopen("/proc/self/mountinfo", "re");
	if (!table)
		return false;
	while (!found && getline(&line, &room, table) > 0) {
		unsigned major_number, minor_number;
		char type[64];
		const char *rest = strstr(line, " - "); /* paths have no spaces there */

		found = sscanf(line, "%*s %*s %u:%u", &major_number, &minor_number) == 2 && rest &&
			makedev(major_number, minor_number) == status.st_dev &&
			sscanf(rest, " - %63s", type) == 1;
		if (!found)
			continue;
		is_local = false;
		for (size_t i = 0; i < sizeof(LOCAL_FILESYSTEMS) / sizeof(*LOCAL_FILESYSTEMS); i++)
			is_local |= !strcmp(type, LOCAL_FILESYSTEMS[i]);
	}
	free(line);
	fclose(table);
	return !is_local; /* also if it is in no line: a subvolume of btrfs, a container's overlay */
}

/* --- starting it from its files --- */

static char **command_of(const char *first, const char *const *options, int bundle,
			 const struct installation *here, char **words)
{
	static char file[32];
	size_t count = 0, length = 0;
	char **command;

	while (words[count])
		count++;
	command = calloc(count + 9, sizeof(*command));
	if (!command)
		return NULL;
	snprintf(file, sizeof(file), FD_PATH, bundle);
	command[length++] = (char *)first;
	while (*options)
		command[length++] = (char *)*options++;
	command[length++] = file;
	command[length++] = (char *)here->program;
	command[length++] = (char *)here->packages;
	memcpy(command + length, words, count * sizeof(*words));
	return command;
}

static void start_as_usual(const struct installation *here, const char *python, int bundle,
			   char **words)
{
	static const char *const options[] = { "-I", "-S", NULL };
	char **command = command_of(python, options, bundle, here, words);

	if (command)
		execv(python, command);
	free(command);
}

/* --- starting it from memory --- */

/* Descriptors of memory files, or -1. */
struct files {
	int bundle, library; /* ours, and that of the standard library */
	int python, libpython;
	const char *path; /* of the interpreter */
};

/* Other encodings than UTF-8 are modules, which Python would look for in the zip file alone. */
static bool is_utf8(void)
{
	const char *name;

	setlocale(LC_CTYPE, "");
	name = nl_langinfo(CODESET);
	/* the one of "C", for which Python takes UTF-8 */
	return !strcmp(name, "UTF-8") || !strcmp(name, "ANSI_X3.4-1968");
}

/* Of its own prefix. Elsewhere the dynamic linker finds it. */
static int libpython_in_memory(int python, const char *prefix)
{
	char name[NAME_MAX], path[PATH_MAX], file[PATH_MAX];
	struct stat status;
	bool is_needed;
	char *begin;

	if (fstat(python, &status))
		return -1;
	begin = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, python, 0);
	if (begin == MAP_FAILED)
		return -1;
	is_needed = elf_needs_libpython(begin, (size_t)status.st_size, name, sizeof(name));
	munmap(begin, (size_t)status.st_size);
	if (!is_needed || !join_path(path, prefix, "lib") || !join_path(file, path, name))
		return -1;
	return program_in_memory(file);
}

static char *joined(const char *name, const char *value)
{
	char *line;

	return asprintf(&line, "%s%s", name, value) < 0 ? NULL : line;
}

/* The process ends or becomes Python, so nothing is freed. */
static char **environment_of(const struct files *files, const char *prefix)
{
	size_t count = 0, length = 0;
	const char *preloaded = getenv("LD_PRELOAD");
	char **result, value[PATH_MAX + 64];

	while (environ[count])
		count++;
	result = calloc(count + 5, sizeof(*result));
	if (!result)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		bool is_pythons = !strncmp(environ[i], "PYTHON", 6);
		bool is_linkers = files->libpython >= 0 && !strncmp(environ[i], "LD_PRELOAD=", 11);

		result[length++] = is_pythons || is_linkers ? joined(SAVED, environ[i]) : environ[i];
	}
	result[length++] = joined("PYTHONHOME=", prefix);
	snprintf(value, sizeof(value), "PYTHONPATH=" FD_PATH, files->library);
	result[length++] = strdup(value);
	snprintf(value, sizeof(value), FILES "=%d:%d:%d:%s", files->library, files->python,
		 files->libpython, files->path);
	result[length++] = strdup(value);
	if (files->libpython >= 0) {
		snprintf(value, sizeof(value), "LD_PRELOAD=" FD_PATH "%s", files->libpython,
			 preloaded && *preloaded ? ":" : "");
		result[length++] = joined(value, preloaded ? preloaded : "");
	}
	for (size_t i = 0; i < length; i++)
		if (!result[i])
			return NULL;
	return result;
}

/*
 * Ubuntu's AppArmor may let only programs of certain paths make user namespaces, Python among them. A
 * memory file has no path.
 */
static bool needs_its_name(void)
{
	FILE *file = fopen("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "re");
	int first;

	if (!file)
		return false;
	first = fgetc(file);
	fclose(file);
	return first == '1' && geteuid() != 0;
}

static void start(const struct installation *here, const struct files *files, const char *prefix,
		  char **words)
{
	static const char *const options[] = { "-P", "-s", "-S", NULL };
	char **command = command_of(NAMED, options, files->bundle, here, words);
	char **environment = environment_of(files, prefix);
	char file[32];

	snprintf(file, sizeof(file), FD_PATH, files->python);
	if (command && environment)
		execve(needs_its_name() ? files->path : file, command, environment);
	free(command);
}

/* /base, of /base/bin/python3.11. False if Python would take it for two directories. */
static bool prefix_of(const char *python, char *prefix)
{
	char *slash;

	if (!realpath(python, prefix) || strchr(prefix, ':'))
		return false;
	for (int i = 0; i < 2; i++) {
		slash = strrchr(prefix, '/');
		if (!slash)
			return false;
		*slash = 0;
	}
	return *prefix;
}

static void read_and_start(const struct installation *here, const char *python, int bundle,
			   char **words)
{
	struct files files = { .bundle = bundle, .library = -1, .python = -1, .libpython = -1 };
	char path[PATH_MAX], prefix[PATH_MAX];
	int file = -1;

	if (!is_shared(python) || !is_utf8() || !prefix_of(python, prefix))
		return;
	files.path = python;
	if (join_path(path, here->packages, "copperfs/startup/standard_library"))
		file = open_direct(path);
	if (file >= 0)
		files.library = bundle_in_memory(file);
	if (files.library >= 0)
		files.python = program_in_memory(python);
	if (files.python >= 0) {
		files.libpython = libpython_in_memory(files.python, prefix);
		start(here, &files, prefix, words);
	}
	/* noexec for memory files, for instance */
	for (int i = 0; i < 3; i++) {
		int each = i == 0 ? files.library : i == 1 ? files.python : files.libpython;

		if (each >= 0)
			close(each);
	}
}

void start_with_bundle(const struct installation *here, int bundle, char **words)
{
	char python[PATH_MAX];

	if (!find_python(here, python))
		return;
	read_and_start(here, python, bundle, words);
	start_as_usual(here, python, bundle, words);
}

void start_from_memory(const struct installation *here, char **words)
{
	struct installation itself = *here;
	struct files files;
	char prefix[PATH_MAX];
	int length = 0;

	if (!words[0] || !words[1] || strlen(words[1]) >= sizeof(itself.packages) ||
	    sscanf(words[0], "%d:%d:%d:%d:%n", &files.bundle, &files.library, &files.python,
		   &files.libpython, &length) != 4 ||
	    !length)
		return;
	files.path = words[0] + length;
	strcpy(itself.packages, words[1]);
	if (prefix_of(files.path, prefix))
		start(&itself, &files, prefix, words + 2);
	start_as_usual(&itself, files.path, files.bundle, words + 2);
}
