/*
 * The program copperfs.
 *
 * `copperfs run` is started by each rank of a job. Only the first one on a node needs Python; the
 * others join it (join.c), and read nothing of copperfs but this program.
 *
 * All other commands, and the first run, are Python. Started from a shared filesystem, Python would
 * ask it for thousands of names, so what a run and its daemon import lies in one file, the bundle
 * (bundle.py). This program reads it in a few large pieces into memory, and starts the interpreter
 * of which the environment was made (interpreter.c). Without a bundle (an editable installation) it
 * executes a script, as other Python programs are.
 */
#define _GNU_SOURCE
#include "program.h"
#include "keeper.h"

#include "interpreter.h"
#include "memory_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const PACKAGES[] = {
	"lib/" PYTHON "/site-packages",
	"lib64/" PYTHON "/site-packages", /* Fedora, SUSE */
	"lib/" PYTHON "/dist-packages",	  /* Debian */
};

static struct installation here;

bool join_path(char *result, const char *directory, const char *below)
{
	return snprintf(result, PATH_MAX, "%s/%s", directory, below) < PATH_MAX;
}

static bool find_ourselves(void)
{
	ssize_t length = readlink("/proc/self/exe", here.program, sizeof(here.program) - 1);
	char *slash;

	if (length <= 0)
		return false;
	here.program[length] = 0;
	memcpy(here.prefix, here.program, (size_t)length + 1);
	for (int i = 0; i < 2; i++) {
		slash = strrchr(here.prefix, '/');
		if (!slash)
			return false;
		*slash = 0;
	}
	return true;
}

static int open_bundle(void)
{
	for (size_t i = 0; i < sizeof(PACKAGES) / sizeof(*PACKAGES); i++) {
		char path[PATH_MAX];
		int file;

		if (!join_path(here.packages, here.prefix, PACKAGES[i]) ||
		    !join_path(path, here.packages, "copperfs/startup/bundle"))
			return -1;
		file = open_direct(path);
		if (file >= 0)
			return file;
	}
	return -1;
}

/* The script that any installer of Python packages would have made. */
static void start_without_bundle(char **words)
{
	char script[PATH_MAX];

	if (join_path(script, here.prefix, SCRIPT))
		execv(script, words);
}

int main(int count, char **words)
{
	int listener = -1, file, bundle = -1, code;
	char number[16];

	if (count && !strcmp(words[0], KEEPER))
		return keeper_main(count, words);
	if (!find_ourselves() || !count) {
		fprintf(stderr, "copperfs: /proc is not mounted, so copperfs cannot find its files\n");
		return FAILED;
	}
	if (count > 1 && !strcmp(words[1], "--python"))
		start_from_memory(&here, words + 2);
	unsetenv("COPPERFS_JOIN_SOCKET");
	if (count > 2 && !strcmp(words[1], "run")) {
		code = join_run(words + 2, here.program, &listener);
		if (code >= 0)
			return code;
	}
	if (listener >= 0) {
		snprintf(number, sizeof(number), "%d", listener);
		setenv("COPPERFS_JOIN_SOCKET", number, 1);
	}
	file = open_bundle();
	if (file >= 0)
		bundle = bundle_in_memory(file);
	if (bundle >= 0) {
		start_with_bundle(&here, bundle, words + 1);
		close(bundle);
	}
	start_without_bundle(words);
	fprintf(stderr, "copperfs: %s/" SCRIPT " cannot be started (%s); install copperfs again\n",
		here.prefix, strerror(errno));
	return NOT_FOUND;
}
