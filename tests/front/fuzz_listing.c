/* Fuzzer of packed listings of any bytes: they are refused, or sound in every later read. */
#include "check.h"

#include <errno.h>

static void rows_check(const struct tables *t, const struct listing *listing)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < listing->count; i++) {
		const struct row *row = listing_row(listing, i);
		const struct row *found = listing_find(t, listing, row->name, row->name_length);

		CHECK(found && found->name_length == row->name_length);
		for (size_t j = 0; j < (size_t)row->name_length + row->target_length; j++)
			sum += (unsigned char)row->name[j]; /* readable */
		sum += row->attr.flags;
		CHECK(row_tells(listing, row) || listing->bare ||
		      !(row->target_length || row->attr.size));
	}
	CHECK(sum < UINT64_MAX);
	CHECK(!listing_find(t, listing, "/", 1));
}

static bool is_named(const struct row *row, const struct row *other)
{
	return row->name_length == other->name_length &&
	       !memcmp(row->name, other->name, row->name_length);
}

/* A walk gives every name once, by rising cookies, and continues from each of them. */
static void walk_check(const struct tables *t, const struct listing *listing)
{
	uint64_t cookie = COOKIE_DOTS, next;
	uint32_t firsts = 0;

	CHECK(listing->names <= listing->count);
	for (uint32_t at = 0; at < listing->names; at++, cookie = next) {
		const struct row *row = listing_given(listing, at, &next);

		CHECK(next > cookie && next <= INT64_MAX);
		CHECK(listing_after(listing, cookie) == at);
		CHECK(listing_after(listing, next - 1) == at);
		/* the row that is looked up, and never one name's second */
		CHECK(listing_find(t, listing, row->name, row->name_length) == row);
	}
	for (uint32_t i = 0; i < listing->count; i++) {
		const struct row *row = listing_row(listing, i);

		firsts += listing_find(t, listing, row->name, row->name_length) == row;
	}
	CHECK(firsts == listing->names);
	CHECK(listing_after(listing, COOKIE_START) == 0);
	CHECK(listing_after(listing, cookie) == listing->names);
	CHECK(listing_after(listing, UINT64_MAX) == listing->names);
}

/* When one name is removed a walk gives the others as before, with the same cookies unless names
 * share them. */
static void removal_check(const struct tables *t, const char *bytes, size_t size, uint32_t removed)
{
	struct listing *whole = listing_open(t, bytes, size, FRESH_FOREVER), *rest;
	char *copy = malloc(size);
	struct listing_header header;
	const struct row *gone;
	size_t at, length;
	uint64_t before, after;
	uint32_t left = 0;

	CHECK(whole && copy);
	removed %= whole->count;
	gone = listing_row(whole, removed);
	at = (size_t)((const char *)gone - whole->rows);
	length = gone->length & ~(uint32_t)ROW_UNKNOWN;
	memcpy(copy, bytes, at);
	memcpy(copy + at, bytes + at + length, size - at - length);
	memcpy(&header, copy, sizeof(header));
	header.count--;
	memcpy(copy, &header, sizeof(header));
	rest = listing_open(t, copy, size - length, FRESH_FOREVER);
	CHECK(rest);
	for (uint32_t i = 0; i < whole->names; i++) {
		const struct row *row = listing_given(whole, i, &before), *same;

		if (is_named(row, gone) && !listing_find(t, rest, row->name, row->name_length))
			continue;
		CHECK(left < rest->names);
		same = listing_given(rest, left++, &after);
		CHECK(is_named(row, same));
		CHECK(before == after || whole->cookies);
	}
	CHECK(left == rest->names);
	listing_free(rest);
	listing_free(whole);
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct tables t;
	struct listing *listing;

	CHECK(!tables_init(&t, 16, 4));
	t.hash_seed = 1;
	listing = listing_open(&t, (const char *)bytes, size, FRESH_FOREVER);
	if (listing) {
		rows_check(&t, listing);
		walk_check(&t, listing);
		if (listing->count)
			removal_check(&t, (const char *)bytes, size, bytes[size - 1]);
	} else {
		CHECK(errno == EPROTO); /* too few bytes to exhaust memory */
	}
	listing_free(listing);
	tables_destroy(&t);
	return 0;
}
