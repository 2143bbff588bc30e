/*
 * Joining: a further `copperfs run` of a node learns from the daemon what the first one found out,
 * and runs its command the same way.
 *
 * The first process binds the join socket, a Unix socket in the abstract namespace that is named
 * after the user, the launch, the working directory, the options and the program. It becomes
 * Python, which gives the socket to the daemon once the mount can be used. The others connect, and
 * wait:
 *
 *     process  "1", token, working directory, number of arguments, arguments, environment
 *     daemon   "run", descriptors of the namespaces, and what take_reply() takes
 *          or  "python": something differs, for which only Python knows what to do
 *          or  "error", a sentence
 *     process  "bye", when the command has ended
 *     daemon   "1" if it was the last, and lines to show; then the connection ends with the daemon
 *
 * A message is its length in 4 bytes, and strings that end with a 0. launch/join_socket.py has the
 * other end. A connection that ends without an answer means that the first process failed: another
 * one may be the first.
 */
#define _GNU_SOURCE
#include "command.h"
#include "message.h"
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum {
	TRIES_MAX = 20, /* as in cli/run.py */
	BACKLOG = 1024,
	AGAIN_MS = 10,	/* another process has bound, and does not listen yet */
	CROWD_MS = 100, /* more processes come than the backlog takes */
};

/* Nodes may wait for each other. After this time Python waits, which knows for how long. */
#define ANSWERED_WITHIN_MS (300 * 1000)
#define ANSWERS_BYE_WITHIN_MS (10 * 1000)
#define ENDS_WITHIN_MS (30 * 1000) /* launch/shared_mount_client.py has both */

/* They tell apart two launches of the same command (launch/launcher_variables.py). */
static const char *const LAUNCH[] = { "SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID",
				      "PALS_APID",    "FLUX_JOB_ID",   "LSB_JOBID",
				      "PMIX_NAMESPACE" };

/* --- the join socket --- */

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

static socklen_t join_address(struct sockaddr_un *address, char **words, const char *cwd)
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
			  "copperfs/join/%u/%016llx%016llx", (unsigned)getuid(),
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

/* A connection, or -1. *listener: it is ours. Neither: another user has it, or it took too long. */
static int come(const struct sockaddr_un *address, socklen_t size, int *listener)
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
			*listener = sock;
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
	done = message_add(&message, "1") && message_add(&message, token) && message_add(&message, cwd) &&
	       message_add(&message, number);
	for (int i = 0; done && i < count; i++)
		done = message_add(&message, words[i]);
	for (char **each = environ; done && *each; each++)
		done = message_add(&message, *each);
	if (done)
		sent = message_send(sock, &message, until_ms);
	free(message.data);
	return sent;
}

static bool take_reply(struct message *message, struct reply *reply)
{
	long count;

	reply->mountpoint = message_take(message);
	reply->in_place = message_take_count(message) > 0;
	reply->remove = message_take_true(message);
	reply->with_parent = message_take_true(message);
	count = message_take_count(message);
	if (!reply->mountpoint || count < 1 || (size_t)count > message->size)
		return false;
	reply->words = calloc((size_t)count + 1, sizeof(*reply->words));
	for (long i = 0; reply->words && i < count; i++) {
		reply->words[i] = (char *)message_take(message);
		if (!reply->words[i])
			return false;
	}
	/* NAME=VALUE sets a variable; the message stays in memory */
	for (const char *each; (each = message_take(message));)
		if (putenv((char *)each))
			return false;
	return reply->words && (!reply->in_place || reply->fds_count);
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

	signal(SIGPIPE, SIG_IGN); /* the reader of standard error may have ended */
	if (message_add(&bye, "bye"))
		got = message_send(sock, &bye, until_ms);
	if (got == 1)
		got = message_receive(sock, &message, until_ms, NULL, NULL);
	free(bye.data);
	if (got == 1) {
		bool is_last = message_take_true(&message);

		while ((line = message_take(&message)))
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
		got = message_receive(sock, &message, until_ms, reply.fds, &reply.fds_count);
	if (got != 1)
		return got ? -1 : -2;
	status = message_take(&message);
	if (!strcmp(status, "error")) {
		const char *sentence = message_take(&message);

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

int join_run(char **words, const char *program, int *listener)
{
	struct sockaddr_un address;
	socklen_t size;
	char cwd[PATH_MAX];

	if (!getcwd(cwd, sizeof(cwd)) || *cwd != '/')
		return -1;
	size = join_address(&address, words, cwd);
	for (int i = 0; i < TRIES_MAX; i++) {
		int sock = come(&address, size, listener), code;

		if (sock < 0)
			return -1;
		code = join(sock, words, cwd, program);
		close(sock);
		if (code != -2)
			return code;
	}
	return -1;
}
