/* Messages at the join socket, and waiting with a deadline. */
#ifndef COPPERFS_MESSAGE_H
#define COPPERFS_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FDS_MAX = 2 };

struct message {
	char *data;
	size_t size, room;
	const char *next; /* of a received message: what was not taken yet */
};

uint64_t now_ms(void);
void pause_ms(long ms);

bool message_add(struct message *message, const char *text);

/* The next string of a received message, or NULL. */
const char *message_take(struct message *message);
bool message_take_true(struct message *message);
long message_take_count(struct message *message);

/* These return 1, 0 at the end of the connection, -1 if it took too long. */
int message_send(int sock, const struct message *message, uint64_t until_ms);
int message_receive(int sock, struct message *message, uint64_t until_ms, int *fds, int *count);

/* Descriptors come with any byte. */
int receive_bytes(int sock, void *data, size_t size, uint64_t until_ms, int *fds, int *count);

#endif
