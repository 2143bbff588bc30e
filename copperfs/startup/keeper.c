/*
 * The keeper: holds a mount while its daemon is dead, and lets a successor go on with it.
 *
 * It is the program copperfs under another name, started by the daemon: copperfs-keeper CHANNEL
 * PID HANG_MS TAKEOVERS_MAX COMMAND... It has what the daemon gave it by CHANNEL: /dev/fuse, the connection's state
 * (connection_state.h), and other descriptors that it does not look at. COMMAND, with the number of
 * a descriptor as one more argument, starts a standby: a daemon that has imported all it needs and
 * waits.
 *
 * When the daemon dies, or shows no sign of life for HANG_MS, the standby gets the descriptors and is
 * the daemon from then on, and another standby is started. Requests that were not answered stay with
 * the kernel until the successor asks for them.
 *
 * Messages by the channels have one byte and more, and descriptors:
 *   from the daemon   'H' what a successor needs; the first descriptor is the connection's state
 *                     'E' it ends, and needs none
 *   from a standby    'R' it is ready
 *   to the standby    'T' CAUSE HOW_MANY_TAKEOVERS SINCE_NS, and the descriptors of 'H'
 */
#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../native/front/connection_state.h"

enum {
	DESCRIPTORS_MAX = 250, /* handover.py */
	STANDBYS_MAX = 10,
	LOOK_EVERY_MS = 250,
	/* A killed process may take this long to end, unless its threads hang in the kernel. */
	ENDS_WITHIN_MS = 1000,
};
/* A successor reads the source's root, which may be slow. */
#define BEGINS_WITHIN_NS (60 * 1000000000ull)
/* More deaths than the most in this time are no accident. */
#define WITHIN_NS (60 * 1000000000ull)

struct process {
	pid_t pid;
	int pidfd;
	int channel;
};

/* What must not happen too often. */
struct often {
	unsigned most, next;
	uint64_t *at;
};

struct keeper {
	struct process daemon, standby;
	bool standby_ready, standbys_fail;
	/* It has given what its successor needs. */
	bool serves;
	int fds[DESCRIPTORS_MAX];
	int count;
	const struct connection_header *state;
	uint64_t hang_ns;
	uint64_t signs, last_sign_ns, looked_ns;
	struct often takeovers, standbys;
	unsigned taken_over;
	char **command;
	int words;
};

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* To the daemon's log, if there is one. */
__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...)
{
	char line[512];
	va_list values;
	int length;

	va_start(values, format);
	length = vsnprintf(line, sizeof(line), format, values);
	va_end(values);
	if (length > 0)
		dprintf(2, "copperfs-keeper: %s\n", line);
}

static bool is_too_often(struct often *often)
{
	uint64_t at = now(), oldest = often->at[often->next];

	often->at[often->next] = at;
	often->next = (often->next + 1) % often->most;
	return oldest && at - oldest < WITHIN_NS;
}

static int open_pid(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

static void let_go(struct process *process)
{
	if (process->pidfd >= 0)
		close(process->pidfd);
	if (process->channel >= 0)
		close(process->channel);
	*process = (struct process){ .pid = 0, .pidfd = -1, .channel = -1 };
}

/* --- messages --- */

static ssize_t receive(int channel, char *text, size_t room, int *fds, int *count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
	struct iovec part = { text, room };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	ssize_t size;

	do
		size = recvmsg(channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (size < 0 && errno == EINTR);
	*count = 0;
	if (size <= 0)
		return size;
	for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
		int some = (int)((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));

		if (each->cmsg_type != SCM_RIGHTS || *count + some > DESCRIPTORS_MAX)
			continue;
		memcpy(fds + *count, CMSG_DATA(each), (size_t)some * sizeof(int));
		*count += some;
	}
	return size;
}

static bool hand_over(const struct keeper *k, const char *cause, uint64_t since)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))] = { 0 };
	char text[128];
	int length = snprintf(text, sizeof(text), "T%s %u %llu", cause, k->taken_over,
			      (unsigned long long)since);
	struct iovec part = { text, (size_t)length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = CMSG_SPACE((size_t)k->count * sizeof(int)) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	ssize_t sent;

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN((size_t)k->count * sizeof(int));
	memcpy(CMSG_DATA(header), k->fds, (size_t)k->count * sizeof(int));
	do
		sent = sendmsg(k->standby.channel, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent == length;
}

/* --- the standby --- */

static void start_standby(struct keeper *k)
{
	char number[16], *words[k->words + 2];
	int ends[2];
	pid_t pid;

	if (k->standbys_fail)
		return;
	k->standbys_fail = is_too_often(&k->standbys);
	if (k->standbys_fail) {
		tell("the standby daemons end by themselves; there will be no takeover");
		return;
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return;
	memcpy(words, k->command, (size_t)k->words * sizeof(*words));
	snprintf(number, sizeof(number), "%d", ends[1]);
	words[k->words] = number;
	words[k->words + 1] = NULL;
	pid = vfork();
	if (!pid) {
		sigset_t none;

		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		if (fcntl(ends[1], F_SETFD, 0) == 0)
			execv(words[0], words);
		_exit(127);
	}
	close(ends[1]);
	if (pid < 0) {
		close(ends[0]);
		return;
	}
	k->standby = (struct process){ .pid = pid, .pidfd = open_pid(pid), .channel = ends[0] };
	k->standby_ready = false;
}

static bool has_ended(const struct process *process, int within_ms)
{
	struct pollfd polled = { .fd = process->pidfd, .events = POLLIN };

	return poll(&polled, 1, within_ms) == 1;
}

/* It may hang in the kernel, where its programs are. */
static void end_standby(struct keeper *k)
{
	if (k->standby.pid) {
		kill(k->standby.pid, SIGKILL);
		has_ended(&k->standby, ENDS_WITHIN_MS);
		waitpid(k->standby.pid, NULL, WNOHANG);
	}
	let_go(&k->standby);
}

/* --- the daemon's end --- */

/* "R" and so on; 0: there is no such thread. */
static char state_of(pid_t pid, const char *thread)
{
	char path[300], text[512], *end;
	FILE *file;
	size_t size;

	snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", pid, thread);
	file = fopen(path, "re");
	if (!file)
		return 0;
	size = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[size] = 0;
	end = strrchr(text, ')');
	return end && end[1] ? end[2] : 0;
}

/* Of a killed process. Threads that hang in the kernel never come back from it, so no thread answers
 * requests any more. */
static bool only_hangs(pid_t pid)
{
	char path[64];
	struct dirent *each;
	bool others = false;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	if (!tasks)
		return true;
	while (!others && (each = readdir(tasks))) {
		char state = each->d_name[0] == '.' ? 0 : state_of(pid, each->d_name);

		others = state && state != 'Z' && state != 'X' && state != 'D';
	}
	closedir(tasks);
	return !others;
}

/* A debugger has stopped it. */
static bool is_traced(pid_t pid)
{
	char path[64], line[128];
	bool traced = false;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "re");
	while (file && !traced && fgets(line, sizeof(line), file))
		traced = !strncmp(line, "TracerPid:", 10) && atoi(line + 10) > 0;
	if (file)
		fclose(file);
	return traced;
}

static bool is_hung(struct keeper *k)
{
	uint64_t at = now(), signs = k->state ? k->state->signs_of_life : 0;
	/* This process did not run either: the machine is at its limit, or was asleep. */
	bool late = at - k->looked_ns > 4 * LOOK_EVERY_MS * 1000000ull;

	k->looked_ns = at;
	if (signs != k->signs || late || !k->hang_ns) {
		k->signs = signs;
		k->last_sign_ns = at;
		return false;
	}
	if (at - k->last_sign_ns < (k->serves ? k->hang_ns : k->hang_ns + BEGINS_WITHIN_NS))
		return false;
	if (is_traced(k->daemon.pid)) {
		k->last_sign_ns = at;
		return false;
	}
	return true;
}

static void describe_end(const struct process *process, char *cause, size_t room)
{
	siginfo_t info = { 0 };

	if (!waitid((idtype_t)P_PIDFD, (id_t)process->pidfd, &info, WEXITED | WNOHANG) && info.si_pid)
		snprintf(cause, room, info.si_code == CLD_EXITED ? "exit-%d" : "signal-%d",
			 info.si_status);
	else
		snprintf(cause, room, "death");
}

/* --- the daemon's words --- */

static void take_descriptors(struct keeper *k, const int *fds, int count)
{
	void *mapped;

	if (k->state)
		munmap((void *)k->state, sizeof(*k->state));
	k->state = NULL;
	for (int i = 0; i < k->count; i++)
		close(k->fds[i]);
	memcpy(k->fds, fds, (size_t)count * sizeof(*fds));
	k->count = count;
	if (!count)
		return;
	mapped = mmap(NULL, sizeof(*k->state), PROT_READ, MAP_SHARED, fds[0], 0);
	k->state = mapped == MAP_FAILED ? NULL : mapped;
}

/* All that it has said: its last word may stay behind others, and counts after its death. False: it
 * ends. */
static bool hear_daemon(struct keeper *k)
{
	char text[64];
	int fds[DESCRIPTORS_MAX], count;
	ssize_t size;

	while ((size = receive(k->daemon.channel, text, sizeof(text), fds, &count)) > 0) {
		if (text[0] == 'E')
			return false;
		if (text[0] == 'H') {
			take_descriptors(k, fds, count);
			k->serves = true;
		}
	}
	if (size == 0 || errno != EAGAIN) {
		/* it is dying: its pidfd will tell */
		close(k->daemon.channel);
		k->daemon.channel = -1;
	}
	return true;
}

/* --- takeover --- */

static bool take_over(struct keeper *k, const char *cause, uint64_t since)
{
	let_go(&k->daemon);
	if (is_too_often(&k->takeovers)) {
		tell("the daemon has ended more than %u times within a minute: there is no further successor",
		     k->takeovers.most);
		return false;
	}
	for (;;) {
		if (!k->standby.pid)
			start_standby(k);
		if (!k->standby.pid)
			return false;
		k->taken_over++;
		if (hand_over(k, cause, since))
			break;
		tell("a standby daemon has ended: %s", strerror(errno));
		k->taken_over--;
		end_standby(k);
	}
	tell("the daemon has ended (%s): %d goes on", cause, k->standby.pid);
	k->daemon = k->standby;
	k->standby = (struct process){ .pid = 0, .pidfd = -1, .channel = -1 };
	k->looked_ns = k->last_sign_ns = now();
	k->serves = false;
	return true;
}

static bool succeed_dead(struct keeper *k)
{
	char cause[32];

	describe_end(&k->daemon, cause, sizeof(cause));
	return take_over(k, cause, now());
}

static bool succeed_hung(struct keeper *k)
{
	uint64_t since = k->last_sign_ns;

	tell("the daemon has shown no sign of life for %llu ms, and is killed",
	     (unsigned long long)((now() - since) / 1000000));
	syscall(SYS_pidfd_send_signal, k->daemon.pidfd, SIGKILL, NULL, 0);
	while (!has_ended(&k->daemon, ENDS_WITHIN_MS) && !only_hangs(k->daemon.pid))
		;
	waitpid(k->daemon.pid, NULL, WNOHANG);
	/* it may have gone on just before */
	if (k->daemon.channel >= 0 && !hear_daemon(k))
		return false;
	return take_over(k, "hang", since);
}

/* --- */

static void hear_standby(struct keeper *k)
{
	char text[64];
	int fds[DESCRIPTORS_MAX], count;
	ssize_t size = receive(k->standby.channel, text, sizeof(text), fds, &count);

	if (size > 0 && text[0] == 'R')
		k->standby_ready = true;
	if (size == 0 || (size < 0 && errno != EAGAIN))
		end_standby(k);
}

static void keep(struct keeper *k)
{
	while (true) {
		struct pollfd polled[] = {
			{ .fd = k->daemon.pidfd, .events = POLLIN },
			{ .fd = k->daemon.channel, .events = POLLIN },
			{ .fd = k->standby.channel, .events = POLLIN },
		};

		if (poll(polled, 3, LOOK_EVERY_MS) < 0 && errno != EINTR)
			return;
		/* Its last word comes before its end, which may have come after poll() looked there. */
		if ((polled[0].revents || polled[1].revents) && k->daemon.channel >= 0 &&
		    !hear_daemon(k))
			return;
		if (polled[2].revents)
			hear_standby(k);
		if (!k->count) {
			if (polled[0].revents)
				return; /* it has given nothing yet */
			continue;
		}
		if (polled[0].revents ? !succeed_dead(k) : is_hung(k) && !succeed_hung(k))
			return;
		/* Not while a successor begins: it is in more of a hurry. */
		if (!k->standby.pid && k->serves)
			start_standby(k);
	}
}

int keeper_main(int argc, char **argv)
{
	struct keeper k = { .daemon = { .pidfd = -1, .channel = -1 },
			    .standby = { .pidfd = -1, .channel = -1 } };
	sigset_t most;

	if (argc < 6)
		return 2;
	/* Who ends a job ends the daemon, which tells. */
	sigfillset(&most);
	sigprocmask(SIG_SETMASK, &most, NULL);
	prctl(PR_SET_NAME, "copperfs-keeper");
	k.daemon = (struct process){ .pid = getppid(), .pidfd = open_pid(getppid()),
				     .channel = atoi(argv[1]) };
	fcntl(k.daemon.channel, F_SETFD, FD_CLOEXEC);
	k.hang_ns = strtoull(argv[3], NULL, 10) * 1000000;
	k.takeovers.most = (unsigned)strtoul(argv[4], NULL, 10);
	k.standbys.most = STANDBYS_MAX + k.takeovers.most;
	k.command = argv + 5;
	k.words = argc - 5;
	k.takeovers.at = calloc(k.takeovers.most, sizeof(*k.takeovers.at));
	k.standbys.at = calloc(k.standbys.most, sizeof(*k.standbys.at));
	if (!k.takeovers.most || !k.takeovers.at || !k.standbys.at)
		return 2;
	k.looked_ns = k.last_sign_ns = now();
	/* It has died meanwhile, and nobody else knows the mount. */
	if (k.daemon.pidfd < 0 || k.daemon.pid != atoi(argv[2]) || getppid() != k.daemon.pid)
		return 1;
	start_standby(&k);
	keep(&k);
	end_standby(&k);
	return 0;
}
