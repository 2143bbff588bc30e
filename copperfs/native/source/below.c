/*
 * Opens files and directories below the source's root, and nowhere else (decision 81): a directory
 * that another user has replaced by a symbolic link must not lead anywhere, because the daemon
 * opens with its own rights. Where openat2() (Linux 5.6) is refused, the path is walked name by
 * name.
 *
 * Each operation opens the root anew: a kept descriptor would keep the source from being unmounted.
 */
#define _GNU_SOURCE
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_openat2 /* kernel headers before Linux 5.6 */
#define SYS_openat2 437
#endif

enum {
	/* With O_DIRECTORY the lookup itself triggers an automount (autofs). */
	WALK = O_PATH | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW,
	ROOT = O_PATH | O_CLOEXEC | O_DIRECTORY,
	/* <linux/openat2.h> */
	NO_MAGICLINKS = 0x02,
	NO_SYMLINKS = 0x04,
	BENEATH = 0x08, /* crosses mount points */
	/* a rename kept the kernel from being sure */
	UNSURE_TRIES = 8,
	STALE_TRIES = 2,
};

static _Atomic bool refused; /* by the kernel or seccomp */

static int open_at_once(int root, const char *path, int flags, int *fd)
{
	struct {
		uint64_t flags, mode, resolve;
	} how = { (uint64_t)(flags | O_NOFOLLOW | O_CLOEXEC), 0,
		  BENEATH | NO_SYMLINKS | NO_MAGICLINKS };

	for (int i = 0; i < UNSURE_TRIES; i++) {
		*fd = (int)syscall(SYS_openat2, root, path, &how, sizeof(how));
		if (*fd >= 0)
			return 0;
		if (errno != EAGAIN)
			break;
	}
	return errno;
}

/* A link on the way gives ENOTDIR, as any non-directory does; a link at the end gives ELOOP. */
static int open_by_names(int root, const char *path, int flags, int *fd)
{
	char name[NAME_MAX + 1];
	int directory = root;

	for (;;) {
		const char *end = strchrnul(path, '/');
		size_t length = (size_t)(end - path);
		int onward, error = ENAMETOOLONG;

		if (length <= NAME_MAX) {
			memcpy(name, path, length);
			name[length] = 0;
			onward = openat(directory, name,
					*end ? WALK : flags | O_NOFOLLOW | O_CLOEXEC);
			error = onward < 0 ? errno : 0;
		}
		if (directory != root)
			close(directory);
		if (error)
			return error;
		directory = *fd = onward;
		if (!*end)
			return 0;
		path = end + 1;
	}
}

static bool leads_up(const char *path)
{
	for (;; path++) {
		const char *end = strchrnul(path, '/');

		if (end - path == 2 && path[0] == '.' && path[1] == '.')
			return true;
		if (!*end)
			return false;
		path = end;
	}
}

static int open_from(int root, const char *path, int flags, int *fd)
{
	int error = ENOSYS, by_names;

	if (!refused)
		error = open_at_once(root, path, flags, fd);
	switch (error) {
	case ENOSYS: /* Linux before 5.6 */
	case EPERM: /* a container's filter, or a filesystem that refuses the walk, too */
		by_names = open_by_names(root, path, flags, fd);
		if (error == ENOSYS || by_names != EPERM)
			refused = true;
		return by_names;
	case EAGAIN:
	case ELOOP: /* on the way, or at the end? */
	case ENAMETOOLONG: /* a name, or only the whole path? */
		return open_by_names(root, path, flags, fd);
	default:
		return error;
	}
}

int open_below(const char *root, const char *path, int flags, int *fd)
{
	int error = ESTALE, directory;

	if (!*path) {
		*fd = openat(AT_FDCWD, root, (flags | O_CLOEXEC) & ~O_NOFOLLOW);
		return *fd < 0 ? errno : 0;
	}
	if (leads_up(path))
		return EXDEV;
	/* a network filesystem notices only now that a name leads elsewhere */
	for (int i = 0; i < STALE_TRIES && error == ESTALE; i++) {
		directory = openat(AT_FDCWD, root, ROOT);
		if (directory < 0)
			return errno;
		error = open_from(directory, path, flags, fd);
		close(directory);
	}
	return error;
}
