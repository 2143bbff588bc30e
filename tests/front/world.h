/*
 * Deterministic front for the fuzzers, without threads, sockets or /dev/fuse: this file is the
 * kernel, the handlers' socket, the source's threads and the scheduler.
 *
 * The front's files are compiled with writev, send, pthread_create and pthread_cond_wait renamed to
 * the functions below, so that one input always does the same.
 *
 * After each step the tables' invariants hold, every request is answered once or pending, and the
 * front counts as many references to each inode as it gave to the kernel.
 */
#ifndef WORLD_H
#define WORLD_H

#include "check.h"

enum {
	NODES_KNOWN = 8192,
	REQUESTS_KNOWN = 512,
	FETCHES = 16,
	PACKED_MAX = 64 * 512,
	ALLOWANCE = 100000,
};

/* The rest of an input. Reads as zeros after its end. */
struct input {
	const uint8_t *bytes;
	size_t size;
};

struct asked_for { /* a request of the kernel without an answer */
	uint64_t unique;
	bool by_handler; /* its bytes were the handlers' own */
	size_t size;
	_Alignas(8) char request[512];
};

struct fetch { /* of a file, or of a directory's names */
	char path[300];
	struct version version;
	uint64_t tag;
	reader_done *done;
	lister_done *done_names;
	uint64_t epoch; /* when it began */
};

struct seek { /* for where a file has data */
	struct version version;
	uint64_t offset, unique;
	unsigned count;
	seeker_done *done;
};

struct world {
	struct front front;
	char *scratch;
	uint64_t next_unique;
	struct asked_for asked[REQUESTS_KNOWN];
	unsigned asked_count;
	uint64_t references[NODES_KNOWN]; /* as the kernel counts them */
	struct fetch fetches[FETCHES];
	unsigned fetches_count;
	struct seek seeks[FETCHES];
	unsigned seeks_count;
	bool writev_fails, send_fails, reader_refuses, reader_is_quick;
	struct input *input; /* of the step, for the results of fetches */
	void *(*worker)(void *);
};

extern struct world *world;

uint8_t take_byte(struct input *in);
size_t take_bytes(struct input *in, void *to, size_t wanted);

void world_begin(unsigned inodes_max);
void world_end(void);
void world_check(void);
/* Requests and everything that changes the tables, chosen by the input. */
void world_step(struct input *in);
void world_ask(uint32_t opcode, uint64_t id, const void *body, size_t size);
/* One reply of the handlers, as it is. */
void world_reply(const void *reply, size_t size);

#endif
