/*
 * Joining: a further `copperfs run` of a node learns from the daemon what the first one found out,
 * and runs its command the same way.
 *
 * The first process binds the door, a Unix socket in the abstract namespace that is named after the
 * user, the launch, the working directory, the options and the program. It becomes Python, which gives the
 * door to the daemon once the mount can be used. The others connect, and wait:
 *
 *     process  "1", token, working directory, number of arguments, arguments, environment
 *     daemon   "run", descriptors of the namespaces, and what take_reply() takes
 *          or  "python": something differs, for which only Python knows what to do
 *          or  "error", a sentence
 *     process  "bye", when the command has ended
 *     daemon   "1" if it was the last, and lines to show; then the connection ends with the daemon
 *
 * A message is its length in 4 bytes, and strings that end with a 0. launch/door.py has the other
 * end. A connection that ends without an answer means that the first process failed: another one
 * may be the first.
 */
#define _GNU_SOURCE
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum {
	TRIES_MAX = 20, /* as in cli/run.py */
	BACKLOG = 1024,
	FDS_MAX = 2,
	MESSAGE_MAX = 16 << 20,
	PARENT_EVERY_MS = 1000,
	AGAIN_MS = 10,	/* another process has bound, and does not listen yet */
	CROWD_MS = 100, /* more processes come than the backlog takes */
};

/* Nodes may wait for each other. After this time Python waits, which knows for how long. */
#define ANSWERED_WITHIN_MS (300 * 1000)
#define ANSWERS_BYE_WITHIN_MS (10 * 1000)
#define ENDS_WITHIN_MS (30 * 1000) /* launch/shared_mount_client.py has both */
#define COMMAND_ENDS_WITHIN_MS (5 * 1000)

/* They tell apart two launches of the same command (launch/launcher_variables.py). */
static const char *const LAUNCH[] = { "SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID",
				      "PALS_APID",    "FLUX_JOB_ID",   "LSB_JOBID",
				      "PMIX_NAMESPACE" };

struct message {
	char *data;
	size_t size, room;
	const char *next; /* of a received message: what was not taken yet */
};

struct reply {
	const char *mountpoint;
	bool in_place, remove, with_parent; /* as in cli/run.py */
	char **words;			    /* the command */
	int fds[FDS_MAX], fds_count;	    /* namespaces of mounts and users */
};

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* --- messages --- */

static bool add(struct message *message, const char *text)
{
	size_t length = strlen(text) + 1;

	if (message->size + length > message->room) {
		size_t room = 2 * (message->size + length);
		char *data = realloc(message->data, room);

		if (!data)
			return false;
		message->data = data;
		message->room = room;
	}
	memcpy(message->data + message->size, text, length);
	message->size += length;
	return true;
}

static const char *take(struct message *message)
{
	const char *text = message->next, *end = message->data + message->size;

	if (!text || text >= end)
		return NULL;
	message->next = text + strlen(text) + 1; /* the last byte is a 0 */
	return text;
}

static bool take_true(struct message *message)
{
	const char *text = take(message);

	return text && !strcmp(text, "1");
}

static long take_count(struct message *message)
{
	const char *text = take(message);

	return text ? strtol(text, NULL, 10) : 0;
}

static void pause_ms(long ms)
{
	struct timespec pause = { .tv_nsec = ms * 1000000 };

	nanosleep(&pause, NULL);
}

/* Whether *sock* is ready for *events* before *until_ms*. */
static bool wait_ready(int sock, short events, uint64_t until_ms)
{
	for (uint64_t now; (now = now_ms()) < until_ms;) {
		struct pollfd polled = { .fd = sock, .events = events };

		if (poll(&polled, 1, (int)(until_ms - now)) > 0)
			return true;
	}
	return false;
}

/* As receive_bytes(). */
static int send_bytes(int sock, const void *data, size_t size, uint64_t until_ms)
{
	while (size) {
		ssize_t sent;

		if (!wait_ready(sock, POLLOUT, until_ms))
			return -1;
		sent = send(sock, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 && errno != EINTR && errno != EAGAIN)
			return 0;
		if (sent > 0) {
			data = (const char *)data + sent;
			size -= (size_t)sent;
		}
	}
	return 1;
}

static int send_message(int sock, const struct message *message, uint64_t until_ms)
{
	uint32_t size = (uint32_t)message->size;
	int sent = send_bytes(sock, &size, sizeof(size), until_ms);

	return sent == 1 ? send_bytes(sock, message->data, size, until_ms) : sent;
}

/* 1, 0 at the end of the connection, -1 if it took too long. Descriptors come with any byte. */
static int receive_bytes(int sock, void *data, size_t size, uint64_t until_ms, int *fds, int *count)
{
	while (size) {
		union {
			struct cmsghdr header;
			char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
		} control;
		struct iovec part = { data, size };
		struct msghdr header = { .msg_iov = &part,
					 .msg_iovlen = 1,
					 .msg_control = control.room,
					 .msg_controllen = sizeof(control.room) };
		ssize_t got;

		if (!wait_ready(sock, POLLIN, until_ms))
			return -1;
		got = recvmsg(sock, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got <= 0)
			return 0;
		for (struct cmsghdr *each = CMSG_FIRSTHDR(&header); each;
		     each = CMSG_NXTHDR(&header, each)) {
			size_t came = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);

			for (size_t i = 0; each->cmsg_type == SCM_RIGHTS && i < came; i++) {
				int fd;

				memcpy(&fd, CMSG_DATA(each) + i * sizeof(int), sizeof(int));
				if (fds && *count < FDS_MAX)
					fds[(*count)++] = fd;
				else
					close(fd);
			}
		}
		data = (char *)data + got;
		size -= (size_t)got;
	}
	return 1;
}

static int receive_message(int sock, struct message *message, uint64_t until_ms, int *fds,
			   int *count)
{
	uint32_t size;
	int got = receive_bytes(sock, &size, sizeof(size), until_ms, fds, count);

	if (got != 1)
		return got;
	if (!size || size > MESSAGE_MAX)
		return 0;
	*message = (struct message){ .data = malloc(size), .size = size };
	if (!message->data)
		return 0;
	got = receive_bytes(sock, message->data, size, until_ms, fds, count);
	if (got != 1 || message->data[size - 1]) {
		free(message->data);
		return got == 1 ? 0 : got;
	}
	message->next = message->data;
	return 1;
}

/* --- the door --- */

static void mix(uint64_t hash[2], const char *text)
{
	/* FNV-1a, from two starts. The daemon compares all that is mixed, so collisions only cost time */
	for (const char *at = text;; at++) {
		for (int i = 0; i < 2; i++)
			hash[i] = (hash[i] ^ (unsigned char)*at) * 0x100000001b3u;
		if (!*at)
			return;
	}
}

static socklen_t door_address(struct sockaddr_un *address, char **words, const char *cwd)
{
	uint64_t hash[2] = { 0xcbf29ce484222325u, 0x84222325cbf29ce4u };
	bool at_program = false;
	struct stat space;
	char number[24];
	int length;

	if (stat("/proc/self/ns/mnt", &space))
		space.st_ino = 0;
	snprintf(number, sizeof(number), "%llu", (unsigned long long)space.st_ino);
	mix(hash, number); /* a container has another view of all paths */
	for (size_t i = 0; i < sizeof(LAUNCH) / sizeof(*LAUNCH); i++) {
		const char *value = getenv(LAUNCH[i]);

		mix(hash, value ? value : "");
	}
	mix(hash, cwd);
	for (bool is_last = false; *words && !is_last; words++) {
		mix(hash, *words);
		is_last = at_program;
		at_program = !strcmp(*words, "--");
	}
	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1,
			  "copperfs/door/%u/%016llx%016llx", (unsigned)getuid(),
			  (unsigned long long)hash[0], (unsigned long long)hash[1]);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Any user may bind such a name. */
static bool is_own(int sock)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return !getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == getuid();
}

/* A connection, or -1. *door: it is ours. Neither: another user has it, or it took too long. */
static int come(const struct sockaddr_un *address, socklen_t size, int *door)
{
	uint64_t begun = now_ms();

	for (;;) {
		bool is_crowd;
		int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

		if (sock < 0)
			return -1;
		if (!connect(sock, (const struct sockaddr *)address, size)) {
			fcntl(sock, F_SETFL, 0);
			if (is_own(sock))
				return sock;
			close(sock);
			return -1;
		}
		if (errno == ECONNREFUSED && !bind(sock, (const struct sockaddr *)address, size) &&
		    !listen(sock, BACKLOG)) {
			fcntl(sock, F_SETFL, 0);
			fcntl(sock, F_SETFD, 0); /* Python gets it */
			*door = sock;
			return -1;
		}
		is_crowd = errno == EAGAIN;
		close(sock);
		if (now_ms() > begun + (is_crowd ? ANSWERED_WITHIN_MS : ENDS_WITHIN_MS))
			return -1;
		pause_ms(is_crowd ? CROWD_MS : AGAIN_MS);
	}
}

static bool make_token(char token[33])
{
	unsigned char random[16];

	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return false;
	for (int i = 0; i < 16; i++)
		sprintf(token + 2 * i, "%02x", random[i]);
	return true;
}

static int ask(int sock, char **words, const char *cwd, const char *token, uint64_t until_ms)
{
	struct message message = { 0 };
	char number[16];
	int count = 0, sent = -1;
	bool done;

	while (words[count])
		count++;
	snprintf(number, sizeof(number), "%d", count);
	done = add(&message, "1") && add(&message, token) && add(&message, cwd) &&
	       add(&message, number);
	for (int i = 0; done && i < count; i++)
		done = add(&message, words[i]);
	for (char **each = environ; done && *each; each++)
		done = add(&message, *each);
	if (done)
		sent = send_message(sock, &message, until_ms);
	free(message.data);
	return sent;
}

static bool take_reply(struct message *message, struct reply *reply)
{
	long count;

	reply->mountpoint = take(message);
	reply->in_place = take_count(message) > 0;
	reply->remove = take_true(message);
	reply->with_parent = take_true(message);
	count = take_count(message);
	if (!reply->mountpoint || count < 1 || (size_t)count > message->size)
		return false;
	reply->words = calloc((size_t)count + 1, sizeof(*reply->words));
	for (long i = 0; reply->words && i < count; i++) {
		reply->words[i] = (char *)take(message);
		if (!reply->words[i])
			return false;
	}
	/* NAME=VALUE sets a variable; the message stays in memory */
	for (const char *each; (each = take(message));)
		if (putenv((char *)each))
			return false;
	return reply->words && (!reply->in_place || reply->fds_count);
}

/* --- the command: as in cli/child_command.py --- */

void execute(char **words)
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

/* What it tells its parent: 0 and errno, or 1 if it could not enter. */
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
	struct timespec pause = { .tv_sec = PARENT_EVERY_MS / 1000 };
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

static int run_command(const struct reply *reply, const char *cwd)
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

/* --- the end --- */

/* Whether *child* ended before *until_ms*; else it is killed. */
static bool reap(pid_t child, uint64_t until_ms)
{
	while (waitpid(child, NULL, WNOHANG) == 0) {
		if (now_ms() > until_ms) {
			kill(child, SIGKILL);
			return false;
		}
		pause_ms(AGAIN_MS);
	}
	return true;
}

/*
 * The daemon had ended, so its mount is cleaned up as the command for that does; but not that of
 * another daemon, which was mounted there since. A child looks, because that may hang.
 */
static void clean_up(const struct reply *reply, const char *program)
{
	char *words[] = { (char *)program, "umount", (char *)reply->mountpoint, NULL };
	pid_t child = fork();

	if (child == 0) {
		int nowhere = open("/dev/null", O_RDWR);
		struct statvfs status; /* the kernel may know the attributes still */
		sigset_t none;

		if (statvfs(reply->mountpoint, &status) && errno != ENOENT) {
			dup2(nowhere, STDOUT_FILENO);
			dup2(nowhere, STDERR_FILENO);
			sigemptyset(&none);
			sigprocmask(SIG_SETMASK, &none, NULL);
			execv(program, words);
		}
		_exit(NOT_FOUND);
	}
	if (child > 0 && reap(child, now_ms() + ENDS_WITHIN_MS) && reply->remove)
		rmdir(reply->mountpoint); /* fails if another process has mounted there */
}

static void leave(int sock, const struct reply *reply, const char *program)
{
	uint64_t until_ms = now_ms() + ANSWERS_BYE_WITHIN_MS;
	struct message bye = { 0 }, message;
	const char *line;
	char byte;
	int got = 0;

	signal(SIGPIPE, SIG_IGN); /* nobody may read what is said now */
	if (add(&bye, "bye"))
		got = send_message(sock, &bye, until_ms);
	if (got == 1)
		got = receive_message(sock, &message, until_ms, NULL, NULL);
	free(bye.data);
	if (got == 1) {
		bool is_last = take_true(&message);

		while ((line = take(&message)))
			fprintf(stderr, "%s\n", line);
		free(message.data);
		if (is_last && receive_bytes(sock, &byte, 1, now_ms() + ENDS_WITHIN_MS, NULL, NULL))
			got = -1;
	} else if (!got) {
		fprintf(stderr, "copperfs: the daemon of %s had ended before the command did\n",
			reply->mountpoint);
		if (!reply->in_place)
			clean_up(reply, program);
	}
	if (got < 0)
		fprintf(stderr,
			"copperfs: the daemon of %s did not answer in time; if the mount stays, end it "
			"with: copperfs umount %s\n",
			reply->mountpoint, reply->mountpoint);
}

/* -1: Python has to do it. -2: the connection ended, try again. */
static int join(int sock, char **words, const char *cwd, const char *program)
{
	uint64_t until_ms = now_ms() + ANSWERED_WITHIN_MS;
	struct reply reply = { 0 };
	struct message message;
	const char *status;
	static char variable[64]; /* of the environment from then on */
	char token[33];
	int got, code = -1;

	if (!make_token(token))
		return -1;
	got = ask(sock, words, cwd, token, until_ms);
	if (got == 1)
		got = receive_message(sock, &message, until_ms, reply.fds, &reply.fds_count);
	if (got != 1)
		return got ? -1 : -2;
	status = take(&message);
	if (!strcmp(status, "error")) {
		const char *sentence = take(&message);

		fprintf(stderr, "copperfs: %s\n", sentence ? sentence : "the mount of this node failed");
		code = FAILED;
	} else if (!strcmp(status, "run") && take_reply(&message, &reply)) {
		snprintf(variable, sizeof(variable), "COPPERFS_RUN=%s", token);
		putenv(variable);
		code = run_command(&reply, cwd);
		leave(sock, &reply, program);
	}
	free(reply.words);
	/* the environment has parts of the message, so it stays */
	return code;
}

int join_run(char **words, const char *program, int *door)
{
	struct sockaddr_un address;
	socklen_t size;
	char cwd[PATH_MAX];

	if (!getcwd(cwd, sizeof(cwd)) || *cwd != '/')
		return -1;
	size = door_address(&address, words, cwd);
	for (int i = 0; i < TRIES_MAX; i++) {
		int sock = come(&address, size, door), code;

		if (sock < 0)
			return -1;
		code = join(sock, words, cwd, program);
		close(sock);
		if (code != -2)
			return code;
	}
	return -1;
}
