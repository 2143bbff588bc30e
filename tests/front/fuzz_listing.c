/* Packed listings of any bytes: refused, or sound in all that is later read of them. */
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

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct tables t;
	struct listing *listing;

	CHECK(!tables_init(&t, 16, 4));
	t.hash_seed = 1;
	listing = listing_open(&t, (const char *)bytes, size, FRESH_FOREVER);
	if (listing)
		rows_check(&t, listing);
	else
		CHECK(errno == EPROTO || errno == ENOMEM);
	listing_free(listing);
	tables_destroy(&t);
	return 0;
}
