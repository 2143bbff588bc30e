/*
 * The program copperfs.
 *
 * `copperfs run` is started by each rank of a job. Only the first one on a node needs Python; the
 * others join it (join.c), and read nothing of copperfs but this program.
 *
 * All other commands, and the first run, are Python. Started from a shared filesystem, Python would
 * ask it for thousands of names, so what a run and its daemon import lies in one file, the bundle
 * (bundle.py). This program reads it in a few large pieces into memory, and starts the interpreter
 * of which the environment was made. Without a bundle (an editable installation) it starts the
 * environment's own Python.
 */
#define _GNU_SOURCE
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE "copperfs.cli.main"
/* A read of this size is one request to most filesystems, or a few. */
#define PIECE ((size_t)4 << 20)
#define ALIGNED 4096

static char program[PATH_MAX];	 /* /env/bin/copperfs */
static char prefix[PATH_MAX];	 /* /env */
static char python[PATH_MAX];	 /* /env/bin/python3.11 */

static bool join_path(char *result, const char *directory, const char *below)
{
	return snprintf(result, PATH_MAX, "%s/%s", directory, below) < PATH_MAX;
}

static bool find_ourselves(void)
{
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
	char *slash;

	if (length <= 0)
		return false;
	program[length] = 0;
	memcpy(prefix, program, (size_t)length + 1);
	for (int i = 0; i < 2; i++) {
		slash = strrchr(prefix, '/');
		if (!slash)
			return false;
		*slash = 0;
	}
	return join_path(python, prefix, "bin/python" PYTHON_VERSION);
}

static bool write_all(int fd, const char *data, size_t size)
{
	while (size) {
		ssize_t written = write(fd, data, size);

		if (written < 0 && errno != EINTR)
			return false;
		if (written > 0) {
			data += written;
			size -= (size_t)written;
		}
	}
	return true;
}

/*
 * A copy of the bundle in memory, or -1. Without O_DIRECT the kernel would read 128 KiB at a time
 * at first; a filesystem that cannot is read as usual. The copy is sealed: a run passes it to the
 * daemon.
 */
static int bundle_in_memory(void)
{
	char path[PATH_MAX];
	void *piece = NULL;
	bool complete = false;
	int file, copy;

	if (!join_path(path, prefix,
		       "lib/python" PYTHON_VERSION "/site-packages/copperfs/startup/bundle"))
		return -1;
	file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (file < 0 && errno == EINVAL)
		file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return -1;
	copy = memfd_create("copperfs-bundle", MFD_ALLOW_SEALING);
	if (copy >= 0 && !posix_memalign(&piece, ALIGNED, PIECE)) {
		for (;;) {
			ssize_t got = read(file, piece, PIECE);

			if (got < 0 && errno == EINVAL && fcntl(file, F_SETFL, 0) == 0)
				continue;
			if (got < 0 && errno == EINTR)
				continue;
			complete = got == 0;
			if (got <= 0 || !write_all(copy, piece, (size_t)got))
				break;
		}
	}
	free(piece);
	close(file);
	if (copy >= 0 && (!complete || fcntl(copy, F_ADD_SEALS,
					     F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK))) {
		close(copy);
		return -1;
	}
	return copy;
}

/*
 * The interpreter from which the environment was made: a venv's own is a link that would be
 * followed, and makes Python read pyvenv.cfg once more. Without a pyvenv.cfg it is our neighbour.
 */
static const char *base_python(char *found)
{
	char path[PATH_MAX], line[PATH_MAX + 16];
	FILE *file;

	if (!join_path(path, prefix, "pyvenv.cfg"))
		return python;
	file = fopen(path, "re");
	if (!file)
		return python;
	*found = 0;
	while (fgets(line, sizeof(line), file)) {
		char home[PATH_MAX];

		if (sscanf(line, " home = %4095[^\n]", home) == 1 &&
		    !join_path(found, home, "python" PYTHON_VERSION))
			*found = 0;
	}
	fclose(file);
	return *found && !access(found, X_OK) ? found : python;
}

/* Python as it is in the environment; if copperfs is installed for one user, by PATH. */
static void start_without_bundle(int count, char **words)
{
	char **command = calloc((size_t)count + 4, sizeof(*command));
	int length = 0;

	if (!command)
		return;
	command[length++] = python;
	command[length++] = "-P";
	command[length++] = "-m";
	command[length++] = MODULE;
	memcpy(command + length, words + 1, (size_t)count * sizeof(*words)); /* with its NULL */
	execv(python, command);
	command[0] = "python" PYTHON_VERSION;
	execute(command);
	free(command);
}

static void start_with_bundle(int bundle, int count, char **words)
{
	char base[PATH_MAX], file[64], **command = calloc((size_t)count + 5, sizeof(*command));
	int length = 0;

	if (!command)
		return;
	snprintf(file, sizeof(file), "/proc/self/fd/%d", bundle);
	command[length++] = (char *)base_python(base);
	command[length++] = "-I";
	command[length++] = "-S";
	command[length++] = file;
	command[length++] = program;
	memcpy(command + length, words + 1, (size_t)count * sizeof(*words));
	execv(command[0], command);
	command[0] = "python" PYTHON_VERSION;
	execute(command);
	free(command);
}

int main(int count, char **words)
{
	int door = -1, bundle, code;
	char number[16];

	if (!find_ourselves() || !count) {
		fprintf(stderr, "copperfs: /proc is not mounted, so copperfs cannot find its files\n");
		return FAILED;
	}
	unsetenv("COPPERFS_DOOR");
	if (count > 2 && !strcmp(words[1], "run")) {
		code = join_run(words + 2, program, &door);
		if (code >= 0)
			return code;
	}
	if (door >= 0) {
		snprintf(number, sizeof(number), "%d", door);
		setenv("COPPERFS_DOOR", number, 1);
	}
	bundle = bundle_in_memory();
	if (bundle >= 0) {
		start_with_bundle(bundle, count, words);
		close(bundle);
	}
	start_without_bundle(count, words);
	fprintf(stderr, "copperfs: %s cannot be started (%s); install copperfs again\n", python,
		strerror(errno));
	return NOT_FOUND;
}
