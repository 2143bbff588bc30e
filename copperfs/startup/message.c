/* Messages at the join socket (join.c): a length in 4 bytes, and strings that end with a 0. */
#define _GNU_SOURCE
#include "message.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_MAX = 16 << 20 };

uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

bool message_add(struct message *message, const char *text)
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

const char *message_take(struct message *message)
{
	const char *text = message->next, *end = message->data + message->size;

	if (!text || text >= end)
		return NULL;
	message->next = text + strlen(text) + 1; /* the last byte is a 0 */
	return text;
}

bool message_take_true(struct message *message)
{
	const char *text = message_take(message);

	return text && !strcmp(text, "1");
}

long message_take_count(struct message *message)
{
	const char *text = message_take(message);

	return text ? strtol(text, NULL, 10) : 0;
}

void pause_ms(long ms)
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

int message_send(int sock, const struct message *message, uint64_t until_ms)
{
	uint32_t size = (uint32_t)message->size;
	int sent = send_bytes(sock, &size, sizeof(size), until_ms);

	return sent == 1 ? send_bytes(sock, message->data, size, until_ms) : sent;
}

int receive_bytes(int sock, void *data, size_t size, uint64_t until_ms, int *fds, int *count)
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

int message_receive(int sock, struct message *message, uint64_t until_ms, int *fds, int *count)
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
