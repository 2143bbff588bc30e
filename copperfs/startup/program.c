/*
 * The program copperfs.
 *
 * `copperfs run` is started by each rank of a job. Only the first one on a node needs Python; the
 * others join it (join.c), and read nothing of copperfs but this program.
 *
 * All other commands, and the first run, are Python. Started from a shared filesystem, Python would
 * ask it for thousands of names, so what a run and its daemon import lies in one file, the bundle
 * (bundle.py). This program reads it in a few large pieces into memory, and starts the interpreter
 * of which the environment was made. Without a bundle (an editable installation) it executes a
 * script, as other Python programs are.
 */
#define _GNU_SOURCE
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A read of this size is one request to most filesystems, or a few. */
#define PIECE ((size_t)4 << 20)
#define ALIGNED 4096
/* The bundle ends with where its index begins, its own length, and this word (bundle.py). */
#define LAST_WORD "copperfs"
/* A script whose first line the installer made name the interpreter. */
#define SCRIPT "bin/copperfs-start"

static const char *const PACKAGES[] = {
	"lib/" PYTHON "/site-packages",
	"lib64/" PYTHON "/site-packages", /* Fedora, SUSE */
	"lib/" PYTHON "/dist-packages",	  /* Debian */
};

static char program[PATH_MAX];	/* /env/bin/copperfs */
static char prefix[PATH_MAX];	/* /env */
static char packages[PATH_MAX]; /* /env/lib/python3.11/site-packages */

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
	return true;
}

static bool write_all(int fd, const char *data, size_t size)
{
	while (size) {
		ssize_t written = write(fd, data, size);

		if (written == 0 || (written < 0 && errno != EINTR))
			return false;
		if (written > 0) {
			data += written;
			size -= (size_t)written;
		}
	}
	return true;
}

static int open_bundle(void)
{
	for (size_t i = 0; i < sizeof(PACKAGES) / sizeof(*PACKAGES); i++) {
		char path[PATH_MAX];
		int file;

		if (!join_path(packages, prefix, PACKAGES[i]) ||
		    !join_path(path, packages, "copperfs/startup/bundle"))
			return -1;
		file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
		if (file < 0 && errno == EINVAL)
			file = open(path, O_RDONLY | O_CLOEXEC);
		if (file >= 0)
			return file;
	}
	return -1;
}

static bool copy_file(int file, int copy)
{
	bool direct = true;
	ssize_t got = -1;
	void *piece;

	if (posix_memalign(&piece, ALIGNED, PIECE))
		return false;
	for (;;) {
		got = read(file, piece, PIECE);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EINVAL && direct) {
			direct = false;
			if (!fcntl(file, F_SETFL, 0))
				continue;
		}
		if (got <= 0 || !write_all(copy, piece, (size_t)got))
			break;
	}
	free(piece);
	return got == 0;
}

/* An interrupted copy of an installation, or a full disk, leaves a part of it. */
static bool is_whole(int copy)
{
	char end[8 + sizeof(LAST_WORD) - 1];
	struct stat status;
	uint64_t length;

	if (fstat(copy, &status) || (size_t)status.st_size < sizeof(end) ||
	    pread(copy, end, sizeof(end), status.st_size - (off_t)sizeof(end)) != sizeof(end))
		return false;
	memcpy(&length, end, sizeof(length));
	return length == (uint64_t)status.st_size && !memcmp(end + 8, LAST_WORD, sizeof(end) - 8);
}

/*
 * A copy of the bundle in memory, or -1. Without O_DIRECT the kernel would read 128 KiB at a time
 * at first; a filesystem that cannot is read as usual. The copy is sealed: a run passes it to the
 * daemon.
 */
static int bundle_in_memory(void)
{
	int file = open_bundle(), copy;
	void (*before)(int);
	bool done;

	if (file < 0)
		return -1;
	copy = memfd_create("copperfs-bundle", MFD_ALLOW_SEALING);
	before = signal(SIGXFSZ, SIG_IGN); /* a limit of files counts for memory files, too */
	done = copy >= 0 && copy_file(file, copy) && is_whole(copy) &&
	       !fcntl(copy, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK);
	signal(SIGXFSZ, before);
	close(file);
	if (copy >= 0 && !done)
		close(copy);
	return done ? copy : -1;
}

/* From pyvenv.cfg: the interpreter from which the environment was made. */
static bool base_of_venv(char *found)
{
	char path[PATH_MAX], line[PATH_MAX + 16], home[PATH_MAX];
	bool is_there = false;
	FILE *file;

	if (!join_path(path, prefix, "pyvenv.cfg"))
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
static bool python_of_script(char *found)
{
	char path[PATH_MAX], line[PATH_MAX];
	FILE *file;
	bool done;

	if (!join_path(path, prefix, SCRIPT))
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
static bool find_python(char *found)
{
	return base_of_venv(found) ||
	       (join_path(found, prefix, "bin/" PYTHON) && !access(found, X_OK)) ||
	       python_of_script(found);
}

static void start_with_bundle(int bundle, int count, char **words)
{
	char python[PATH_MAX], file[64], **command = calloc((size_t)count + 6, sizeof(*command));
	int length = 0;

	if (!command || !find_python(python)) {
		free(command);
		return;
	}
	snprintf(file, sizeof(file), "/proc/self/fd/%d", bundle);
	command[length++] = python;
	command[length++] = "-I";
	command[length++] = "-S";
	command[length++] = file;
	command[length++] = program;
	command[length++] = packages;
	memcpy(command + length, words + 1, (size_t)count * sizeof(*words)); /* with its NULL */
	execv(python, command);
	free(command);
}

/* The script that any installer of Python packages would have made. */
static void start_without_bundle(char **words)
{
	char script[PATH_MAX];

	if (join_path(script, prefix, SCRIPT))
		execv(script, words);
}

int main(int count, char **words)
{
	int listener = -1, bundle, code;
	char number[16];

	if (!find_ourselves() || !count) {
		fprintf(stderr, "copperfs: /proc is not mounted, so copperfs cannot find its files\n");
		return FAILED;
	}
	unsetenv("COPPERFS_JOIN_SOCKET");
	if (count > 2 && !strcmp(words[1], "run")) {
		code = join_run(words + 2, program, &listener);
		if (code >= 0)
			return code;
	}
	if (listener >= 0) {
		snprintf(number, sizeof(number), "%d", listener);
		setenv("COPPERFS_JOIN_SOCKET", number, 1);
	}
	bundle = bundle_in_memory();
	if (bundle >= 0) {
		start_with_bundle(bundle, count, words);
		close(bundle);
	}
	start_without_bundle(words);
	fprintf(stderr, "copperfs: %s/" SCRIPT " cannot be started (%s); install copperfs again\n",
		prefix, strerror(errno));
	return NOT_FOUND;
}
