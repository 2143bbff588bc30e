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
 *                     'S' a descriptor: the log, which may have been opened anew
 *                     'E' it ends, and needs none
 *                     'U' HANG_MS TAKEOVERS_MAX COMMAND..., each with a 0 at its end, and the
 *                     descriptors of 'H': an upgrade is wanted, with standbys that this starts
 *                     'L' it ends for the upgrade; the descriptors are what its successor needs
 *   to the daemon     'A' again, please: the descriptors of 'H' or 'S' could not be taken
 *                     'B' 1: the standbys end by themselves, and are started more seldom;
 *                     0: one is ready again
 *                     'G' a standby of the upgrade can go on, and waits for 'L'
 *                     'F' SENTENCE: there is no upgrade, and why
 *   from a standby    'R' it is ready; after 'C': it can go on with these
 *                     'N' SENTENCE: it cannot
 *   to the standby    'C' and the descriptors of 'U': whether it can go on with these
 *                     'T' CAUSE HOW_MANY_TAKEOVERS SINCE_NS, and the descriptors of 'H' or 'L'
 *
 * The mount survives an upgrade that fails. Until the successor has given what its own successor
 * needs, the keeper has the command and the descriptors from before, and goes back to them should
 * the successor end.
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
#include <sys/ioctl.h>
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
	TELLS_WITHIN_MS = 200,
	/* A killed process may take this long to end, unless its threads hang in the kernel. */
	ENDS_WITHIN_MS = 1000,
	/* An ioctl has 8 KiB. */
	MESSAGE_MAX = 16384,
	COMMAND_WORDS_MAX = 256,
};
/* A successor reads the source's root, which may be slow. */
#define BEGINS_WITHIN_NS (60 * 1000000000ull)
/* A standby of another installation may be imported from a slow filesystem. */
#define UPGRADES_WITHIN_NS (60 * 1000000000ull)
/* A job's start is a storm by itself, and many mounts end sooner. */
#define STANDBY_AFTER_NS (2 * 1000000000ull)
/* While standbys end by themselves. */
#define STANDBYS_EVERY_NS (30 * 1000000000ull)
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

/* How standbys are started, and when. */
struct plan {
	uint64_t hang_ns;
	unsigned takeovers_most;
	char **command;
	int words;
	/* Of an upgrade: what the command points into. */
	char *text;
};

/* What a successor needs. */
struct descriptors {
	int fds[DESCRIPTORS_MAX];
	int count;
};

/* Of an upgrade. */
enum trial {
	NO_TRIAL,
	STARTING, /* a standby of the new plan */
	ASKED,	  /* it has got 'C' */
	AGREED,	  /* the daemon has got 'G' */
	ENDING,	  /* the daemon has said 'L' */
};

struct keeper {
	struct process daemon, standby;
	/* They end by themselves, and the log says so. */
	bool standbys_fail;
	/* Before this time a standby is started only when the daemon has died. */
	uint64_t standby_from_ns;
	/* It has given what its successor needs. */
	bool serves;
	/* Too few descriptors are free, and the log says so. */
	bool is_short;
	struct descriptors left;
	const struct connection_header *state;
	uint64_t signs, last_sign_ns, looked_ns;
	struct often takeovers, standbys;
	unsigned taken_over;
	struct plan plan;
	enum trial trial;
	uint64_t trial_since_ns;
	/* Of the trial. */
	struct plan proposed;
	struct descriptors offered;
	/* Before the upgrade, until its successor serves; without a command there was none. */
	struct plan before;
	struct descriptors left_before;
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

/* `is_cut`: some descriptors could not be taken, and none is. */
static ssize_t receive(int channel, char *text, size_t room, int *fds, int *count, bool *is_cut)
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
	*is_cut = size > 0 && (message.msg_flags & MSG_CTRUNC);
	if (size <= 0)
		return size;
	for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
		int some = (int)((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));

		if (each->cmsg_type != SCM_RIGHTS || *count + some > DESCRIPTORS_MAX)
			continue;
		memcpy(fds + *count, CMSG_DATA(each), (size_t)some * sizeof(int));
		*count += some;
	}
	while (*is_cut && *count)
		close(fds[--*count]);
	return size;
}

static bool send_with(int channel, const char *text, const struct descriptors *what)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))] = { 0 };
	size_t length = strlen(text), size = (size_t)what->count * sizeof(int);
	struct iovec part = { (char *)text, length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = CMSG_SPACE(size) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	ssize_t sent;

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(header), what->fds, size);
	do
		sent = sendmsg(channel, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)length;
}

static bool hand_over(const struct keeper *k, const char *cause, uint64_t since)
{
	char text[128];

	snprintf(text, sizeof(text), "T%s %u %llu", cause, k->taken_over, (unsigned long long)since);
	return send_with(k->standby.channel, text, &k->left);
}

/* --- the standby --- */

static void end_standby(struct keeper *k);

static void set_standbys_fail(struct keeper *k, bool fail)
{
	k->standbys_fail = fail;
	if (k->daemon.channel >= 0)
		send(k->daemon.channel, fail ? "B1" : "B0", 2, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void start_standby(struct keeper *k)
{
	const struct plan *plan = k->trial ? &k->proposed : &k->plan;
	char number[16], *words[plan->words + 2];
	int ends[2];
	pid_t pid;

	/* Each trial was asked for. */
	if (!k->trial && is_too_often(&k->standbys) && !k->standbys_fail) {
		tell("the standby daemons end by themselves: from now on one is started every 30 s");
		set_standbys_fail(k, true);
	}
	if (k->standbys_fail)
		k->standby_from_ns = now() + STANDBYS_EVERY_NS;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return;
	memcpy(words, plan->command, (size_t)plan->words * sizeof(*words));
	snprintf(number, sizeof(number), "%d", ends[1]);
	words[plan->words] = number;
	words[plan->words + 1] = NULL;
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
	if (k->standby.pidfd < 0) { /* nobody would see its end */
		tell("a standby daemon cannot be watched: %s", strerror(errno));
		end_standby(k);
	}
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
		if (k->standby.pidfd >= 0)
			has_ended(&k->standby, ENDS_WITHIN_MS);
		for (int tries = 0; !waitpid(k->standby.pid, NULL, WNOHANG); tries++) {
			if (k->standby.pidfd >= 0 || tries == ENDS_WITHIN_MS / 10)
				break;
			poll(NULL, 0, 10);
		}
	}
	let_go(&k->standby);
}

/* --- the daemon's end --- */

static bool read_line(const char *path, char *text, size_t room)
{
	FILE *file = fopen(path, "re");
	bool found = file && fgets(text, (int)room, file);

	if (file)
		fclose(file);
	return found;
}

/* Of /proc/PID/stat. */
static char state_in(const char *text)
{
	const char *end = strrchr(text, ')');

	return end && end[1] ? end[2] : 0;
}

/* "R" and so on; 0: there is no such thread. */
static char state_of(pid_t pid, const char *thread)
{
	char path[300], text[1024];

	snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", pid, thread);
	return read_line(path, text, sizeof(text)) ? state_in(text) : 0;
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

/* It was killed, and a thread hangs in the kernel. */
static bool cannot_end(const struct process *process)
{
	char leader[16];

	snprintf(leader, sizeof(leader), "%d", process->pid);
	return state_of(process->pid, leader) == 'Z' && !has_ended(process, ENDS_WITHIN_MS) &&
	       only_hangs(process->pid);
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

/* Threads that hang in the kernel, or are stopped, write no stack themselves. */
static void tell_where_threads_stand(pid_t pid)
{
	char path[300], where[64];
	struct dirent *each;
	int stopped = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	while (tasks && (each = readdir(tasks))) {
		char state = each->d_name[0] == '.' ? 0 : state_of(pid, each->d_name);

		stopped += state == 'T';
		if (state != 'D')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/wchan", pid, each->d_name);
		if (!read_line(path, where, sizeof(where)))
			where[0] = 0;
		tell("its thread %s hangs in the kernel, in %s", each->d_name, where);
	}
	if (stopped)
		tell("%d of its threads are stopped", stopped);
	if (tasks)
		closedir(tasks);
}

static bool is_hung(struct keeper *k)
{
	uint64_t at = now();
	uint64_t signs = k->state ? k->state->signs_of_life : 0;
	/* This process did not run either: the machine is at its limit, or was asleep. */
	bool late = at - k->looked_ns > 4 * LOOK_EVERY_MS * 1000000ull;

	k->looked_ns = at;
	/* It has only to end. */
	if (k->trial == ENDING)
		return at - k->trial_since_ns > ENDS_WITHIN_MS * 1000000ull;
	if (signs != k->signs || late || !k->plan.hang_ns) {
		k->signs = signs;
		k->last_sign_ns = at;
		return false;
	}
	if (at - k->last_sign_ns < k->plan.hang_ns + (k->serves ? 0 : BEGINS_WITHIN_NS))
		return false;
	if (is_traced(k->daemon.pid)) {
		k->last_sign_ns = at;
		return false;
	}
	return true;
}

/* Of the first daemon, which is no child of this process. -1: it is not known. */
static int status_of_another(const struct process *process)
{
	/* linux/pidfd.h of 6.15 */
	struct {
		uint64_t mask, cgroup;
		uint32_t ids[11];
		int32_t exit_code;
	} info = { .mask = 1 << 3 };
	char path[64], text[1024];

	/* as long as its parent has not asked */
	snprintf(path, sizeof(path), "/proc/%d/stat", process->pid);
	if (read_line(path, text, sizeof(text)) && state_in(text) == 'Z')
		return atoi(strrchr(text, ' '));
	if (!ioctl(process->pidfd, _IOWR(0xFF, 11, info), &info) && info.mask & 1 << 3)
		return info.exit_code;
	return -1;
}

static void describe_end(const struct process *process, char *cause, size_t room)
{
	siginfo_t info = { 0 };
	int status;

	if (!waitid((idtype_t)P_PIDFD, (id_t)process->pidfd, &info, WEXITED | WNOHANG) && info.si_pid) {
		snprintf(cause, room, info.si_code == CLD_EXITED ? "exit-%d" : "signal-%d",
			 info.si_status);
		return;
	}
	status = status_of_another(process);
	if (status < 0)
		snprintf(cause, room, "death");
	else if (WIFSIGNALED(status))
		snprintf(cause, room, "signal-%d", WTERMSIG(status));
	else
		snprintf(cause, room, "exit-%d", WEXITSTATUS(status));
}

/* --- what a successor needs --- */

static void close_all(struct descriptors *these)
{
	for (int i = 0; i < these->count; i++)
		close(these->fds[i]);
	these->count = 0;
}

static void take_descriptors(struct keeper *k, const struct descriptors *these)
{
	void *mapped;

	if (k->state)
		munmap((void *)k->state, sizeof(*k->state));
	k->state = NULL;
	k->left = *these;
	if (!these->count)
		return;
	mapped = mmap(NULL, sizeof(*k->state), PROT_READ, MAP_SHARED, these->fds[0], 0);
	k->state = mapped == MAP_FAILED ? NULL : mapped;
}

/* --- upgrade --- */

static void drop_plan(struct plan *plan)
{
	if (plan->text) { /* else it is of argv */
		free(plan->command);
		free(plan->text);
	}
	*plan = (struct plan){ 0 };
}

static bool bound_takeovers(struct often *often, unsigned most)
{
	uint64_t *at = most ? calloc(most, sizeof(*at)) : NULL;

	if (!at)
		return false;
	free(often->at);
	*often = (struct often){ .most = most, .at = at };
	return true;
}

static bool follow(struct keeper *k, struct plan plan)
{
	if (!bound_takeovers(&k->takeovers, plan.takeovers_most) ||
	    !bound_takeovers(&k->standbys, STANDBYS_MAX + plan.takeovers_most))
		return false;
	k->standbys_fail = false;
	k->standby_from_ns = 0;
	k->plan = plan;
	return true;
}

/* The standby of the new plan is no successor. */
static void end_trial(struct keeper *k)
{
	if (!k->trial)
		return;
	end_standby(k);
	close_all(&k->offered);
	drop_plan(&k->proposed);
	k->trial = NO_TRIAL;
}

static void refuse(struct keeper *k, const char *why)
{
	char text[1024];
	int length = snprintf(text, sizeof(text), "F%s", why);

	if (length > 0 && k->daemon.channel >= 0)
		send(k->daemon.channel, text, strnlen(text, sizeof(text)), MSG_DONTWAIT | MSG_NOSIGNAL);
	end_trial(k);
}

/* Takes `these`. `text` ends with a 0. */
static void begin_trial(struct keeper *k, const char *text, size_t size, const struct descriptors *these)
{
	struct plan plan = { .text = malloc(size), .command = calloc(COMMAND_WORDS_MAX, sizeof(char *)) };
	char *parts[COMMAND_WORDS_MAX + 2];
	int count = 0;

	k->offered = *these;
	if (plan.text && plan.command) {
		memcpy(plan.text, text, size);
		for (char *each = plan.text; each < plan.text + size && count < COMMAND_WORDS_MAX;
		     each += strlen(each) + 1)
			parts[count++] = each;
	}
	k->trial = STARTING;
	k->trial_since_ns = now();
	k->proposed = plan;
	if (count < 3 || count == COMMAND_WORDS_MAX) {
		refuse(k, "its command cannot be read");
		return;
	}
	k->proposed.hang_ns = strtoull(parts[0], NULL, 10) * 1000000;
	k->proposed.takeovers_most = (unsigned)strtoul(parts[1], NULL, 10);
	k->proposed.words = count - 2;
	memcpy(k->proposed.command, parts + 2, (size_t)(count - 2) * sizeof(*parts));
	end_standby(k);
	start_standby(k);
	if (!k->standby.pid)
		refuse(k, "no process can be started");
}

/* The daemon ends now, and its successor goes on with `these`. */
static void agree(struct keeper *k, struct descriptors *these)
{
	struct plan before = k->plan;

	if (!follow(k, k->proposed)) {
		refuse(k, "there is no memory");
		close_all(these); /* the daemon ends all the same, and the plan stays */
		return;
	}
	drop_plan(&k->before);
	close_all(&k->left_before);
	k->before = before;
	k->left_before = k->left;
	k->proposed = (struct plan){ 0 };
	close_all(&k->offered);
	take_descriptors(k, these);
	k->trial = ENDING;
	k->trial_since_ns = now();
}

/* The successor has not come to serve. */
static void go_back(struct keeper *k)
{
	struct descriptors failed = k->left;

	tell("the successor of the upgrade has ended: the mount goes on as before");
	if (!follow(k, k->before))
		return;
	k->before = (struct plan){ 0 };
	end_standby(k);
	take_descriptors(k, &k->left_before);
	k->left_before.count = 0;
	close_all(&failed);
}

/* --- takeover --- */

static bool take_over(struct keeper *k, const char *cause, uint64_t since)
{
	bool upgrades = k->trial == ENDING;

	let_go(&k->daemon);
	if (upgrades)
		k->trial = NO_TRIAL;
	else
		end_trial(k);
	if (!upgrades && k->before.command && !k->serves)
		go_back(k);
	if (!upgrades && is_too_often(&k->takeovers)) {
		tell("the daemon has ended more than %u times within a minute: there is no further successor",
		     k->takeovers.most);
		return false;
	}
	for (int tries = 0;; tries++) {
		if (!k->standby.pid)
			start_standby(k);
		if (!k->standby.pid || tries == STANDBYS_MAX) {
			tell("no standby daemon can be started: the mount ends");
			return false;
		}
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
	k->serves = k->standbys_fail = false;
	return true;
}

static bool hear_daemon(struct keeper *k);

static bool succeed_dead(struct keeper *k)
{
	char cause[32];

	describe_end(&k->daemon, cause, sizeof(cause));
	return k->trial == ENDING ? take_over(k, "upgrade", k->trial_since_ns) : take_over(k, cause, now());
}

static bool succeed_undying(struct keeper *k)
{
	tell("the daemon was killed, and cannot end: its threads hang in the kernel");
	if (k->daemon.channel >= 0 && !hear_daemon(k))
		return false;
	return succeed_dead(k);
}

static bool succeed_hung(struct keeper *k)
{
	uint64_t since = k->trial == ENDING ? k->trial_since_ns : k->last_sign_ns;

	tell("the daemon %s for %llu ms, and is killed",
	     k->trial == ENDING ? "was to end" : "has shown no sign of life",
	     (unsigned long long)((now() - since) / 1000000));
	/* It writes where each of its threads stands (succession.py), unless it cannot run at all. */
	syscall(SYS_pidfd_send_signal, k->daemon.pidfd, SIGUSR2, NULL, 0);
	if (!has_ended(&k->daemon, TELLS_WITHIN_MS))
		tell_where_threads_stand(k->daemon.pid);
	syscall(SYS_pidfd_send_signal, k->daemon.pidfd, SIGKILL, NULL, 0);
	while (!has_ended(&k->daemon, ENDS_WITHIN_MS) && !only_hangs(k->daemon.pid))
		;
	waitpid(k->daemon.pid, NULL, WNOHANG);
	/* it may have gone on just before */
	if (k->daemon.channel >= 0 && !hear_daemon(k))
		return false;
	return take_over(k, k->trial == ENDING ? "upgrade" : "hang", since);
}

/* --- */

/* A limit of descriptors is reached. What was taken before stays. */
static void not_taken(struct keeper *k, char message)
{
	if (message == 'U')
		refuse(k, "the keeper of the mount has too few free descriptors (ulimit -n)");
	if (!k->is_short)
		tell("a message of the daemon is not taken for now, because there are too few free "
		     "descriptors (ulimit -n): a successor might not know of all runs");
	k->is_short = true;
	if (message == 'H' || message == 'S')
		send(k->daemon.channel, "A", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* False: the daemon ends. */
static bool hear_daemon(struct keeper *k)
{
	static char text[MESSAGE_MAX];
	struct descriptors these, old;
	ssize_t size;
	bool is_cut;

	while ((size = receive(k->daemon.channel, text, sizeof(text) - 1, these.fds, &these.count,
			       &is_cut)) > 0) {
		text[size] = 0;
		if (is_cut) {
			not_taken(k, text[0]);
			continue;
		}
		k->is_short = k->is_short && text[0] != 'H';
		if (text[0] == 'E')
			return false;
		if (text[0] == 'S' && these.count)
			dup2(these.fds[0], 2);
		if (text[0] == 'U' && k->trial != ENDING) {
			end_trial(k); /* the daemon has given that one up */
			begin_trial(k, text + 1, (size_t)size, &these);
			continue;
		}
		if (text[0] == 'L' && k->trial == AGREED) {
			agree(k, &these);
			continue;
		}
		if (text[0] != 'H') {
			close_all(&these);
			continue;
		}
		old = k->left;
		take_descriptors(k, &these);
		close_all(&old);
		drop_plan(&k->before);
		close_all(&k->left_before);
		k->serves = true;
	}
	if (size == 0 || (size < 0 && errno != EAGAIN)) {
		/* it is dying: its pidfd will tell */
		close(k->daemon.channel);
		k->daemon.channel = -1;
	}
	return true;
}

static void hear_standby(struct keeper *k)
{
	char text[1024];
	struct descriptors none;
	bool is_cut;
	ssize_t size = receive(k->standby.channel, text, sizeof(text) - 1, none.fds, &none.count, &is_cut);

	if (size > 0)
		text[size] = 0;
	if (size > 0 && text[0] == 'R') {
		if (k->standbys_fail && !k->trial) {
			tell("a standby daemon is ready again");
			set_standbys_fail(k, false);
		}
		if (k->trial == ASKED) {
			k->trial = AGREED;
			send(k->daemon.channel, "G", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		}
		if (k->trial == STARTING) {
			k->trial = ASKED;
			if (!send_with(k->standby.channel, "C", &k->offered))
				refuse(k, "the daemon that was started for it has ended");
		}
	}
	if (size > 0 && text[0] == 'N' && k->trial)
		refuse(k, text + 1);
	if (size == 0 || (size < 0 && errno != EAGAIN)) {
		if (k->trial && k->trial != ENDING)
			refuse(k, "the daemon that was started for it has ended; the log may say why");
		else
			end_standby(k);
	}
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
		/* Its last word comes before its end. */
		if (k->daemon.channel >= 0 && (polled[0].revents || polled[1].revents) && !hear_daemon(k))
			return;
		/* else it was another one */
		if (polled[2].revents && k->standby.channel == polled[2].fd)
			hear_standby(k);
		if (!k->left.count) {
			if (polled[0].revents)
				return; /* it has given nothing yet */
			continue;
		}
		if (polled[0].revents) {
			if (!succeed_dead(k))
				return;
		} else if (k->state && k->state->signs_of_life == k->signs && cannot_end(&k->daemon)) {
			if (!succeed_undying(k))
				return;
		} else if (is_hung(k) && !succeed_hung(k)) {
			return;
		}
		if (k->trial && k->trial != ENDING && now() - k->trial_since_ns > UPGRADES_WITHIN_NS)
			refuse(k, "the daemon that was started for it was not ready within 60 s");
		/* Not while a successor begins: it is in more of a hurry. */
		if (!k->standby.pid && k->serves && !k->trial && now() >= k->standby_from_ns)
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
	if (!follow(&k, (struct plan){ .hang_ns = strtoull(argv[3], NULL, 10) * 1000000,
				       .takeovers_most = (unsigned)strtoul(argv[4], NULL, 10),
				       .command = argv + 5,
				       .words = argc - 5 }))
		return 2;
	k.looked_ns = k.last_sign_ns = now();
	k.standby_from_ns = now() + STANDBY_AFTER_NS;
	if (k.daemon.pidfd < 0)
		tell("pidfd_open: %s; it needs Linux 5.3", strerror(errno));
	/* It has died meanwhile, and nobody else knows the mount. */
	if (k.daemon.pidfd < 0 || k.daemon.pid != atoi(argv[2]) || getppid() != k.daemon.pid)
		return 1;
	keep(&k);
	end_standby(&k);
	return 0;
}
