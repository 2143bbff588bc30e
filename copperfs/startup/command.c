/*
 * Runs the command of a run as if this process were not there: as cli/child_command.py does, which
 * says why.
 */
#define _GNU_SOURCE
#include "command.h"

#include "message.h"
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdnoreturn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PARENT_EVERY_S 1
#define COMMAND_ENDS_WITHIN_MS (5 * 1000)

/* By PATH if there is no slash. errno if it returns. */
static void execute(char **words)
{
	const char *path = getenv("PATH"), *end;
	int error = ENOENT;

	if (strchr(words[0], '/')) {
		execv(words[0], words);
		return;
	}
	for (path = path ? path : "/bin:/usr/bin"; path; path = *end ? end + 1 : NULL) {
		char file[PATH_MAX];

		end = strchrnul(path, ':');
		if (snprintf(file, sizeof(file), "%.*s%s%s", (int)(end - path), path,
			     end == path ? "" : "/", words[0]) >= (int)sizeof(file))
			continue;
		execv(file, words);
		if (errno != ENOENT && errno != ENOTDIR)
			error = errno;
	}
	errno = error;
}

static bool is_inside(int mounts_fd)
{
	struct stat its, ours;

	return !fstat(mounts_fd, &its) && !stat("/proc/self/ns/mnt", &ours) &&
	       its.st_ino == ours.st_ino;
}

static bool enter(const struct reply *reply, const char *cwd)
{
	if (!reply->in_place || is_inside(reply->fds[0]))
		return true; /* a run in a run */
	return (reply->fds_count < 2 || !setns(reply->fds[1], CLONE_NEWUSER)) &&
	       !setns(reply->fds[0], CLONE_NEWNS) && !chdir(cwd);
}

/* The child tells its parent 0 and errno, or 1 if it could not enter. */
static noreturn void be_the_command(const struct reply *reply, const char *cwd, pid_t parent,
				    const sigset_t *before, int failure)
{
	int told[2] = { 0, 0 };

	if (!enter(reply, cwd)) {
		told[0] = 1;
	} else {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* after that: a change of rights takes it back */
		if (getppid() != parent)
			raise(SIGKILL);
		sigprocmask(SIG_SETMASK, before, NULL);
		signal(SIGPIPE, SIG_DFL); /* as Python's subprocess does */
		signal(SIGXFSZ, SIG_DFL);
		execute(reply->words);
		told[1] = errno;
	}
	while (write(failure, told, sizeof(told)) < 0 && errno == EINTR)
		;
	_exit(NOT_FOUND);
}

static int wait_for(pid_t child, pid_t grandparent, bool with_parent, const sigset_t *waited_for)
{
	struct timespec pause = { .tv_sec = PARENT_EVERY_S };
	uint64_t lost_at = 0;
	int status = 0;

	while (waitpid(child, &status, WNOHANG) == 0) {
		siginfo_t said;
		int number = sigtimedwait(waited_for, &said, &pause);

		if (number < 0) {
			if (with_parent && !lost_at && getppid() != grandparent) {
				lost_at = now_ms();
				kill(child, SIGTERM);
			} else if (lost_at && now_ms() > lost_at + COMMAND_ENDS_WITHIN_MS) {
				kill(child, SIGKILL);
			}
		} else if (number != SIGCHLD && said.si_code != SI_KERNEL) {
			kill(child, number); /* the terminal's the command gets as well */
		}
	}
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int run_command(const struct reply *reply, const char *cwd)
{
	static const int passed_on[] = { SIGTERM, SIGINT,  SIGHUP,  SIGQUIT,
					 SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH };
	pid_t grandparent = getppid(), parent = getpid(), child;
	sigset_t waited_for, before;
	int failure[2], told[2];
	ssize_t got;

	signal(SIGCHLD, SIG_DFL); /* some launchers ignore it */
	sigemptyset(&waited_for);
	sigaddset(&waited_for, SIGCHLD);
	for (size_t i = 0; i < sizeof(passed_on) / sizeof(*passed_on); i++)
		sigaddset(&waited_for, passed_on[i]);
	sigprocmask(SIG_BLOCK, &waited_for, &before);
	if (pipe2(failure, O_CLOEXEC) || (child = fork()) < 0) {
		fprintf(stderr, "copperfs: %s cannot be started: %s\n", reply->words[0],
			strerror(errno));
		return NOT_EXECUTABLE;
	}
	if (!child)
		be_the_command(reply, cwd, parent, &before, failure[1]);
	close(failure[1]);
	/* the namespace ends with its last process, and not with this one */
	while ((got = read(failure[0], told, sizeof(told))) < 0 && errno == EINTR)
		;
	close(failure[0]);
	for (int i = 0; i < reply->fds_count; i++)
		close(reply->fds[i]);
	if (got == sizeof(told)) {
		waitpid(child, NULL, 0);
		if (told[0]) {
			fprintf(stderr, "copperfs: the command's process could not enter the namespace of "
					"this node's runs; is the working directory gone? copperfs run "
					"--in-place never does without\n");
			return FAILED;
		}
		fprintf(stderr, "copperfs: %s cannot be started: %s\n", reply->words[0],
			strerror(told[1]));
		return told[1] == ENOENT ? NOT_FOUND : NOT_EXECUTABLE;
	}
	return wait_for(child, grandparent, reply->with_parent, &waited_for);
}
