#include "requests_in_hand.h"

#include <string.h>

/* What a place has of it for certain. */
enum { PAGE = 4096 };

struct wanted {
	uint64_t unique;
	struct request_record *found;
};

static bool is_wanted(struct request_record *record, void *context)
{
	struct wanted *wanted = context;

	if (record->head.id == wanted->unique)
		wanted->found = record;
	return !wanted->found;
}

static struct request_record *find(struct connection_state *c, uint64_t unique)
{
	struct wanted wanted = { .unique = unique };

	requests_each(c, is_wanted, &wanted);
	return wanted.found;
}

static void forget_once(char *place, forget_again *forget, void *context)
{
	_Alignas(8) char request[PAGE];
	struct fuse_in_header *in = (struct fuse_in_header *)request;

	memcpy(request, place, sizeof(request));
	if (in->len > sizeof(request))
		in->len = sizeof(request);
	place_empty(place);
	forget(request, in->len, context);
}

static bool gather_one(struct connection_state *c, char *place, forget_again *forget, void *context)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)place;
	size_t size = in->len < READING_ROOM ? in->len : READING_ROOM;

	if (in->len && is_forget(place)) {
		forget_once(place, forget, context);
		return true;
	}
	if (in->opcode == FUSE_INTERRUPT)
		return true; /* of one that has no record yet */
	if (size >= sizeof(*in) && in->unique && in->opcode != FUSE_INIT &&
	    !find(c, in->unique) && !request_record_new(c, place, size))
		return false;
	place_empty(place);
	return true;
}

static void gather_interrupt(struct connection_state *c, char *place)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)place;
	const struct fuse_interrupt_in *interrupt = (const struct fuse_interrupt_in *)(in + 1);
	struct request_record *record = NULL;

	if (in->len >= sizeof(*in) + sizeof(*interrupt))
		record = find(c, interrupt->unique);
	if (record)
		record->head.interrupted = true;
	place_empty(place);
}

bool requests_gather(struct connection_state *c, forget_again *forget, void *context)
{
	for (unsigned i = 0; i < c->header->readers; i++)
		if (!gather_one(c, reading_place(c, i), forget, context))
			return false;
	for (unsigned i = 0; i < c->header->readers; i++)
		gather_interrupt(c, reading_place(c, i));
	return true;
}
