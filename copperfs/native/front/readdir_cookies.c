/*
 * Directory offsets: the order in which a readdir gets its names, and the cookies between them
 * (decision 83).
 *
 * An offset is the *cookie* of the last name that was given, a hash of it. So a walk continues in
 * any later listing, and the front keeps no state for it. Only the rows of a listing keep the
 * source's order. A listing is ordered when it is opened: never under the lock.
 */
#include "tables.h"

#include <stdlib.h>
#include <string.h>

struct place {
	uint64_t cookie;
	const struct row *row;
};

/* FNV-1a, whose bits MurmurHash3's finalizer mixes. Leaves room below for the dots, and above for
 * names that move up because others have their cookie. */
static uint64_t cookie_of(const struct row *row)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < row->name_length; i++)
		hash = (hash ^ (unsigned char)row->name[i]) * 0x100000001b3u;
	hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdu;
	hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53u;
	hash = (hash ^ (hash >> 33)) >> (64 - COOKIE_BITS);
	if (hash > INT64_MAX - (uint64_t)UINT32_MAX)
		hash -= UINT32_MAX;
	return hash < COOKIE_NAMES ? COOKIE_NAMES : hash;
}

static int compare_names(const struct row *a, const struct row *b)
{
	size_t common = a->name_length < b->name_length ? a->name_length : b->name_length;
	int order = memcmp(a->name, b->name, common);

	return order ? order : (int)a->name_length - (int)b->name_length;
}

/* Of two rows with one name the first counts, as for lookups. */
static int compare_places(const void *one, const void *other)
{
	const struct place *a = one, *b = other;
	int order;

	if (a->cookie != b->cookie)
		return a->cookie < b->cookie ? -1 : 1;
	order = compare_names(a->row, b->row);
	return order ? order : a->row < b->row ? -1 : a->row > b->row;
}

/* Sorts by the cookies' first bits into one bucket for each name, and then within each. */
static bool sort_places(const struct listing *listing, struct place *places)
{
	unsigned shift = COOKIE_BITS;
	uint32_t *ends, begin = 0;

	while (shift && (1ull << (COOKIE_BITS - shift)) < listing->count)
		shift--;
	ends = calloc(((size_t)1 << (COOKIE_BITS - shift)) + 2, sizeof(*ends));
	if (!ends)
		return false;
	for (uint32_t i = 0; i < listing->count; i++)
		ends[(cookie_of(listing_row(listing, i)) >> shift) + 2]++;
	for (uint64_t i = 2; i < (1ull << (COOKIE_BITS - shift)) + 2; i++)
		ends[i] += ends[i - 1];
	for (uint32_t i = 0; i < listing->count; i++) {
		const struct row *row = listing_row(listing, i);
		uint64_t cookie = cookie_of(row);

		places[ends[(cookie >> shift) + 1]++] = (struct place){ cookie, row };
	}
	for (uint64_t i = 1; i < (1ull << (COOKIE_BITS - shift)) + 1; begin = ends[i++])
		if (ends[i] - begin > 1)
			qsort(places + begin, ends[i] - begin, sizeof(*places), compare_places);
	free(ends);
	return true;
}

/* The second of two names with one cookie gets the next: in one of ten million directories of a
 * million names. */
bool listing_order(struct listing *listing)
{
	struct place *places = malloc(((size_t)listing->count + 1) * sizeof(*places));
	uint64_t last = COOKIE_NAMES - 1;
	bool moved = false, done;

	listing->order = calloc((size_t)listing->count + 1, sizeof(*listing->order));
	done = places && listing->order && sort_places(listing, places);
	for (uint32_t i = 0; done && i < listing->count; i++) {
		struct place *place = &places[i];

		if (i && !compare_names(place->row, places[i - 1].row))
			continue;
		listing->order[listing->names] = (uint32_t)((const char *)place->row - listing->rows);
		if (place->cookie <= last) {
			place->cookie = last + 1;
			moved = true;
		}
		last = places[listing->names++].cookie = place->cookie;
	}
	if (done && moved) {
		listing->cookies = malloc(listing->names * sizeof(*listing->cookies));
		for (uint32_t i = 0; listing->cookies && i < listing->names; i++)
			listing->cookies[i] = places[i].cookie;
		done = listing->cookies;
	}
	free(places);
	return done;
}

const struct row *listing_given(const struct listing *listing, uint32_t place, uint64_t *cookie)
{
	const struct row *row = (const struct row *)(listing->rows + listing->order[place]);

	*cookie = listing->cookies ? listing->cookies[place] : cookie_of(row);
	return row;
}

uint32_t listing_after(const struct listing *listing, uint64_t cookie)
{
	uint32_t begin = 0, end = listing->names;

	while (begin < end) {
		uint32_t middle = begin + (end - begin) / 2;
		uint64_t there;

		listing_given(listing, middle, &there);
		if (there <= cookie)
			begin = middle + 1;
		else
			end = middle;
	}
	return begin;
}
