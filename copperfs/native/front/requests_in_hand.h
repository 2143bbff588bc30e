/*
 * Requests in hand: what the kernel has given to this process and has no reply to, in the memory of
 * the connection. A successor finds them there where the kernel does not resend (before Linux 6.9).
 *
 * Each thread of the front reads into a place of its own. A request that cannot be answered at once
 * is copied into a record, which lasts until its reply is written. So the thread reads on, and
 * records grow with the requests that wait.
 *
 * The process may be killed between any two instructions, and the kernel's copying counts as one:
 * - The length in a place is zeroed before each read, so it tells whether a request has come. It
 *   stays until the next read, when the request was answered or has a record.
 * - A request may be both in its place and in a record, and is taken once.
 * - A request may be there although its reply was written. The kernel refuses the second reply
 *   (ENOENT), and the front takes back what it counted for it.
 * - A forget is marked as done before it is done. It is lost at worst, and a record of an inode stays
 *   that nobody needs.
 * - An interrupt is noted in the record of its request.
 *
 * The kernel copies pages one by one, and a kill can end its copying only between two of them, if
 * the next one is not there. Then it has answered the request itself.
 */
#ifndef COPPERFS_REQUESTS_IN_HAND_H
#define COPPERFS_REQUESTS_IN_HAND_H

#include "connection_state.h"

static inline char *reading_place(const struct connection_state *c, unsigned reader)
{
	return c->reading + (size_t)reader * READING_ROOM;
}

/* From here on nothing is in the place. */
static inline void place_empty(char *place)
{
	((struct fuse_in_header *)place)->len = 0;
	atomic_signal_fence(memory_order_seq_cst);
}

static inline bool is_forget(const char *request)
{
	uint32_t opcode = ((const struct fuse_in_header *)request)->opcode;

	return opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET;
}

/* Brings all that a dead process left in its places into records. A forget is passed to `forget`,
 * and counts as done. False: there is no memory. With the tables' lock, which `forget` has too. */
typedef void forget_again(const char *request, size_t size, void *context);
bool requests_gather(struct connection_state *c, forget_again *forget, void *context);

#endif
