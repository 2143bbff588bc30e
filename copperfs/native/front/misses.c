/*
 * Miss path: keeps requests that the front cannot answer as pendings, sends them to the handlers,
 * and takes the replies.
 *
 * No send blocks: with 700 misses outstanding, front threads did block, and hits stalled for
 * seconds. Messages wait in a list for room in their socket.
 */
#include "front.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct overflow {
	struct overflow *next;
	int fd;
	size_t size;
	char message[];
};

struct pending *pending_new(const char *request, size_t size, uint64_t started_ns)
{
	struct pending *pending = malloc(sizeof(*pending) + size);

	if (!pending)
		return NULL;
	memset(pending, 0, sizeof(*pending));
	pending->unique = ((const struct fuse_in_header *)request)->unique;
	pending->started_ns = started_ns;
	pending->size = size;
	memcpy(pending->request, request, size);
	return pending;
}

void request_answered(struct front *f, struct request_record *record)
{
	if (!record)
		return;
	tables_lock(&f->tables);
	record_free(&f->tables.connection, &record->head);
	tables_unlock(&f->tables);
}

void pending_free(struct front *f, struct pending *pending)
{
	request_answered(f, pending->record);
	free(pending);
}

/* The kernel repeats a failed read-ahead, and a program asks for a hole after data: the second try
 * must not wait as long as the first. */
static void note_hung(struct front *f, const struct fuse_in_header *in)
{
	struct inode *inode;

	tables_lock(&f->tables);
	inode = inode_by_id(&f->tables, in->nodeid);
	if (inode) {
		inode->hung.until = now_ns() + HUNG_NS;
		inode->hung.thread = in->pid;
		inode->hung.seek = in->opcode == FUSE_LSEEK;
	}
	tables_unlock(&f->tables);
}

static void fail(struct front *f, struct pending *pending, int error)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)pending->request;

	if (error == ETIMEDOUT && in->opcode == FUSE_READ)
		note_hung(f, in);
	front_reply(f, pending->unique, error, NULL, 0);
	front_count(f, (const struct fuse_in_header *)pending->request, pending->served_by,
		    pending->started_ns);
	pending_free(f, pending);
}

/* The kernel counts unique IDs in steps of two. */
static struct pending **pending_bucket(struct front *f, uint64_t unique)
{
	return &f->pending[unique / 2 % PENDING_BUCKETS];
}

static uint64_t inode_of(const struct pending *pending)
{
	return ((const struct fuse_in_header *)pending->request)->nodeid;
}

/* Its first answer was gone before it could be used. */
static bool is_sent_again(const struct pending *pending)
{
	return pending->tries && pending->served_by == SERVED_MISS;
}

static struct pending **waiter_bucket(struct front *f, const struct pending *pending)
{
	if (pending->served_by != SERVED_FETCH && !is_sent_again(pending))
		return NULL;
	return &f->waiters[inode_of(pending) % WAITER_BUCKETS];
}

static void count_looks(struct front *f, const struct pending *pending, unsigned change)
{
	uint32_t opcode = ((const struct fuse_in_header *)pending->request)->opcode;

	if (opcode == FUSE_LOOKUP || opcode == FUSE_READDIR || opcode == FUSE_READDIRPLUS)
		atomic_fetch_add(&f->looked_into[inode_of(pending) % LOOKED_INTO], change);
}

/* The pending may be answered and freed at once. False: no room, and the kernel has an error. */
bool pending_add(struct front *f, struct pending *pending)
{
	struct pending **waiters = waiter_bucket(f, pending);
	struct pending **bucket = pending_bucket(f, pending->unique);
	bool room;

	pthread_mutex_lock(&f->pending_lock);
	room = f->pending_count < PENDING_MAX;
	if (room) {
		pending->next = *bucket;
		*bucket = pending;
		if (waiters) {
			pending->next_waiter = *waiters;
			*waiters = pending;
		}
		f->pending_count++;
		f->sent_again += is_sent_again(pending);
		count_looks(f, pending, 1);
		f->interrupted_count += pending->interrupted;
	}
	pthread_mutex_unlock(&f->pending_lock);
	if (!room) {
		atomic_fetch_add(&f->statistics.no_room, 1);
		fail(f, pending, ENOMEM);
	}
	return room;
}

static struct pending *take_out(struct front *f, struct pending **link)
{
	struct pending *pending = *link, **waiters = waiter_bucket(f, pending);

	*link = pending->next;
	while (waiters && *waiters != pending)
		waiters = &(*waiters)->next_waiter;
	if (waiters)
		*waiters = pending->next_waiter;
	f->pending_count--;
	f->sent_again -= is_sent_again(pending);
	count_looks(f, pending, -1u);
	f->interrupted_count -= pending->interrupted;
	return pending;
}

struct pending *pending_claim(struct front *f, uint64_t unique)
{
	struct pending **link = pending_bucket(f, unique), *pending = NULL;

	pthread_mutex_lock(&f->pending_lock);
	while (*link && (*link)->unique != unique)
		link = &(*link)->next;
	if (*link)
		pending = take_out(f, link);
	pthread_mutex_unlock(&f->pending_lock);
	return pending;
}

struct pending *pending_claim_waiters(struct front *f, uint64_t id, waiter_wanted *wanted,
				      const void *context)
{
	struct pending *claimed = NULL, **waiters = &f->waiters[id % WAITER_BUCKETS];

	pthread_mutex_lock(&f->pending_lock);
	while (*waiters) {
		struct pending *pending = *waiters, **link = pending_bucket(f, pending->unique);

		if (inode_of(pending) != id || !wanted(pending, context)) {
			waiters = &pending->next_waiter;
			continue;
		}
		while (*link != pending)
			link = &(*link)->next;
		take_out(f, link);
		pending->next_waiter = claimed;
		claimed = pending;
	}
	pthread_mutex_unlock(&f->pending_lock);
	return claimed;
}

static void wake_replier(struct front *f)
{
	uint64_t one = 1;

	while (write(f->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* The replier checks whether the signal is fatal. For a request that is not kept yet the kernel
 * must ask again (EAGAIN); for one that was answered it drops the reply. */
void pending_interrupt(struct front *f, uint64_t interrupt_unique, uint64_t unique)
{
	struct pending *pending;

	atomic_fetch_add(&f->statistics.interrupts, 1);
	pthread_mutex_lock(&f->pending_lock);
	pending = *pending_bucket(f, unique);
	while (pending && pending->unique != unique)
		pending = pending->next;
	if (pending && !pending->interrupted) {
		pending->interrupted = true;
		if (pending->record)
			pending->record->head.interrupted = true;
		f->interrupted_count++;
	}
	pthread_mutex_unlock(&f->pending_lock);
	if (pending)
		wake_replier(f);
	else
		front_reply(f, interrupt_unique, EAGAIN, NULL, 0);
}

/* Up to 65,536 groups of the process come before the line. False: there is no such process. */
static bool read_to_line(int fd, const char *wanted, char *text, size_t room, char **line)
{
	size_t kept = 0, most = strlen(wanted) + 32;
	ssize_t size;

	while ((size = read(fd, text + kept, room - kept - 1)) > 0) {
		size_t there = kept + (size_t)size;

		text[there] = 0;
		*line = strstr(text, wanted);
		if (*line && strchr(*line + strlen(wanted), '\n'))
			return true;
		kept = there < most ? there : most;
		memmove(text, text + there - kept, kept);
	}
	*line = NULL;
	return !size && kept;
}

/* Only a fatal signal may fail a request: programs do not expect EINTR of files, and page faults
 * answer with SIGBUS. */
static bool being_killed(uint32_t thread)
{
	char path[64], status[4096], *line;
	bool there;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/status", thread);
	if (!thread)
		return false; /* a thread of another pid namespace */
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT;
	there = read_to_line(fd, "\nSigPnd:\t", status, sizeof(status), &line);
	close(fd);
	if (!there)
		return true;
	return line && strtoull(line + 9, NULL, 16) & (1u << 8); /* SIGKILL is 9 */
}

static uint64_t deadline_of(const struct front *f, const struct pending *pending)
{
	return f->deadline_ns + (pending->served_by == SERVED_MISS ? GRACE_S * 1000000000ull : 0);
}

/* A request whose deadline has passed fails. Only a seek for data or a hole is answered, as if the
 * whole file were data: that answer is always correct. */
static void give_up(struct front *f, struct pending *pending)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)pending->request;

	atomic_fetch_add(&f->statistics.overdue, 1);
	if (in->opcode != FUSE_LSEEK) {
		fail(f, pending, ETIMEDOUT);
		return;
	}
	note_hung(f, in);
	front_retry(f, pending, NULL);
}

static void expire_pendings(struct front *f)
{
	uint64_t now = now_ns();

	for (unsigned i = 0; i < PENDING_BUCKETS; i++) {
		struct pending *killed = NULL, *overdue = NULL, **link;

		pthread_mutex_lock(&f->pending_lock);
		for (link = &f->pending[i]; *link;) {
			struct pending *pending = *link, **list = NULL;

			/* it may have been added after the clock was read */
			if (now > pending->started_ns &&
			    now - pending->started_ns > deadline_of(f, pending))
				list = &overdue;
			else if (pending->interrupted &&
				 being_killed(((struct fuse_in_header *)pending->request)->pid))
				list = &killed;
			if (!list) {
				link = &pending->next;
				continue;
			}
			take_out(f, link);
			pending->next = *list;
			*list = pending;
		}
		pthread_mutex_unlock(&f->pending_lock);
		while (killed) {
			struct pending *pending = killed;

			killed = pending->next;
			atomic_fetch_add(&f->statistics.killed, 1);
			fail(f, pending, EINTR);
		}
		while (overdue) {
			struct pending *pending = overdue;

			overdue = pending->next;
			give_up(f, pending);
		}
	}
}

/* --- to the handlers --- */

/* False: no room. After any other error the handlers are gone, and the deadline answers. */
static bool try_send(int fd, const char *message, size_t size)
{
	ssize_t sent;

	do
		sent = send(fd, message, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent >= 0 || (errno != EAGAIN && errno != ENOBUFS);
}

static void send_or_keep(struct front *f, int fd, const char *message, size_t size)
{
	struct overflow *overflow;

	pthread_mutex_lock(&f->overflow_lock);
	if (f->overflow_first || !try_send(fd, message, size)) {
		overflow = malloc(sizeof(*overflow) + size);
		if (overflow) {
			*overflow = (struct overflow){ .fd = fd, .size = size };
			memcpy(overflow->message, message, size);
			*f->overflow_end = overflow;
			f->overflow_end = &overflow->next;
			atomic_fetch_add(&f->statistics.overflows, 1);
		}
		wake_replier(f);
	}
	pthread_mutex_unlock(&f->overflow_lock);
}

static void flush_overflow(struct front *f)
{
	pthread_mutex_lock(&f->overflow_lock);
	while (f->overflow_first) {
		struct overflow *overflow = f->overflow_first;

		if (!try_send(overflow->fd, overflow->message, overflow->size))
			break;
		f->overflow_first = overflow->next;
		if (!f->overflow_first)
			f->overflow_end = &f->overflow_first;
		free(overflow);
	}
	pthread_mutex_unlock(&f->overflow_lock);
}

/* Takes the pending. */
void miss_forward(struct front *f, struct pending *pending)
{
	_Alignas(8) char message[REQUEST_MAX];
	struct fuse_in_header *in = (struct fuse_in_header *)message;
	size_t size = pending->size;
	bool retried = pending->tries > 0;

	memcpy(message, pending->request, size);
	switch (in->opcode) {
	case FUSE_INIT:
		init_edit_request(f, message, size);
		break;
	case FUSE_READDIR:
		in->opcode = FUSE_READDIRPLUS; /* pyfuse3 has no other */
		/* fall through */
	case FUSE_READDIRPLUS:
	case FUSE_READ:
		/* no open preceded it: the handle is the file's number */
		((struct fuse_read_in *)(in + 1))->fh =
			in->nodeid | (retried ? FRONT_WITH_BYTES : 0);
		break;
	}
	/* a copy, because the pending may be freed from here on */
	if (!pending_add(f, pending))
		return;
	if (in->opcode != FUSE_IOCTL)
		atomic_fetch_add(&f->statistics.handler_requests, 1);
	send_or_keep(f, in->opcode == FUSE_IOCTL ? f->control_fd : f->miss_fd, message, size);
}

/* --- from the handlers --- */

static bool reply_is_sound(const struct pending *pending, size_t data_size)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)pending->request;
	const struct fuse_read_in *read = (const struct fuse_read_in *)(in + 1);
	const struct fuse_ioctl_in *ioctl = (const struct fuse_ioctl_in *)(in + 1);

	switch (in->opcode) {
	case FUSE_READ:
		return data_size <= read->size;
	case FUSE_READLINK:
		return data_size > 0 && data_size <= 4096;
	case FUSE_STATFS:
		return data_size == sizeof(struct fuse_statfs_out);
	case FUSE_IOCTL:
		return data_size >= sizeof(struct fuse_ioctl_out) &&
		       data_size - sizeof(struct fuse_ioctl_out) <= ioctl->out_size;
	case FUSE_INIT:
		return true;
	default: /* entries and attributes come only from the tables */
		return false;
	}
}

void front_handler_reply(struct front *f, char *reply, size_t size, char *scratch)
{
	struct fuse_out_header *out = (struct fuse_out_header *)reply;
	struct pending *pending;
	size_t data_size = size - sizeof(*out);
	int error;

	if (size < sizeof(*out) || out->len != size || !out->unique) {
		atomic_fetch_add(&f->statistics.protocol_errors, 1);
		return;
	}
	pending = pending_claim(f, out->unique);
	if (!pending)
		return; /* interrupted or overdue */
	if (out->error == -FRONT_RETRY && size == sizeof(*out)) {
		front_retry(f, pending, scratch);
		return;
	}
	/* errors are negative there; anything else becomes EIO below */
	error = out->error < -FRONT_RETRY ? FRONT_RETRY : -out->error;
	if (((struct fuse_in_header *)pending->request)->opcode == FUSE_INIT) {
		if (f->inherited) { /* the kernel had its reply from another process */
			pending_free(f, pending);
			return;
		}
		if (!init_edit_reply(f, reply, size))
			error = EPROTO;
	}
	if (error ? error < 0 || error >= 512 || size != sizeof(*out)
		  : !reply_is_sound(pending, data_size)) {
		atomic_fetch_add(&f->statistics.protocol_errors, 1);
		error = EIO;
	}
	if (error) {
		fail(f, pending, error);
		return;
	}
	if (((struct fuse_in_header *)pending->request)->opcode == FUSE_READ) {
		atomic_fetch_add(&f->statistics.full_replies, 1);
		atomic_fetch_add(&f->statistics.read_bytes[SERVED_MISS], data_size);
	}
	front_reply(f, out->unique, 0, out + 1, data_size);
	front_count(f, (const struct fuse_in_header *)pending->request, pending->served_by,
		    pending->started_ns);
	pending_free(f, pending);
}

static bool drain_socket(struct front *f, int fd, char *buffer, size_t room, char *scratch)
{
	/* bounded, so that the other socket gets its turn */
	for (int i = 0; i < 64; i++) {
		ssize_t size = recv(fd, buffer, room, MSG_DONTWAIT);

		if (size < 0 && errno == EINTR)
			continue;
		if (size < 0)
			return errno == EAGAIN;
		if (size == 0)
			return false;
		front_handler_reply(f, buffer, (size_t)size, scratch);
	}
	return true;
}

void *replier_main(void *argument)
{
	struct front *f = argument;
	size_t room = REPLY_MAX + 4096;
	char *buffer = malloc(room), *scratch = malloc(REPLY_MAX);
	struct pollfd polled[3] = { { .fd = f->miss_fd }, { .fd = f->control_fd },
				    { .fd = f->wake_fd, .events = POLLIN } };
	uint64_t last_look = now_ns(), ignored;

	while (buffer && scratch && !f->ended) {
		int full = -1; /* the socket without room */
		bool interrupted;

		pthread_mutex_lock(&f->overflow_lock);
		if (f->overflow_first)
			full = f->overflow_first->fd;
		pthread_mutex_unlock(&f->overflow_lock);
		pthread_mutex_lock(&f->pending_lock);
		interrupted = f->interrupted_count > 0;
		pthread_mutex_unlock(&f->pending_lock);
		for (int i = 0; i < 2; i++)
			polled[i].events = POLLIN | (polled[i].fd == full ? POLLOUT : 0);
		if (poll(polled, 3, interrupted ? 20 : 1000) < 0 && errno != EINTR)
			break;
		if (polled[2].revents && read(f->wake_fd, &ignored, sizeof(ignored)) < 0 &&
		    errno != EAGAIN && errno != EINTR)
			break;
		flush_overflow(f);
		/* the peer of this socket is gone */
		for (int i = 0; i < 2; i++)
			if (polled[i].revents & (POLLIN | POLLHUP | POLLERR) &&
			    !drain_socket(f, polled[i].fd, buffer, room, scratch))
				polled[i].fd = -1;
		if (interrupted || now_ns() - last_look > 500000000u) {
			last_look = now_ns();
			expire_pendings(f);
		}
	}
	free(buffer);
	free(scratch);
	return NULL;
}

void misses_destroy(struct front *f)
{
	for (unsigned i = 0; i < PENDING_BUCKETS; i++)
		while (f->pending[i])
			free(take_out(f, &f->pending[i]));
	while (f->overflow_first) {
		struct overflow *overflow = f->overflow_first;

		f->overflow_first = overflow->next;
		free(overflow);
	}
}
