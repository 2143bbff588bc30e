/*
 * Stress test of the erasure code, in several threads at once.
 *
 *   stress_erasure ROUNDS
 *
 * Each round encodes a group of random counts and sizes, and rebuilds a random range of random
 * chunks from random others. Results are compared with products of polynomials. ISA-L is assembly,
 * which sanitizers do not see into, so each buffer ends or begins at a page that faults.
 */
#define _GNU_SOURCE
#include "../../copperfs/native/erasure.h"
#include "assertion.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 4, PAGE = 4096, ROOM = 2 * PAGE, POLYNOMIAL = 0x11d };

struct worker {
	pthread_t thread;
	uint64_t random;
	long rounds;
	unsigned char *rooms[2 * POSITIONS_MAX]; /* the chunks, and what is rebuilt */
};

static unsigned char products[256][256], inverses[256];

static unsigned char product_of(unsigned a, unsigned b)
{
	unsigned sum = 0;

	for (unsigned bit = 0; bit < 8; bit++)
		if (b >> bit & 1)
			sum ^= a << bit;
	for (unsigned bit = 15; bit >= 8; bit--)
		if (sum >> bit & 1)
			sum ^= (unsigned)POLYNOMIAL << (bit - 8);
	return (unsigned char)sum;
}

static void make_field(void)
{
	for (unsigned a = 0; a < 256; a++)
		for (unsigned b = 0; b < 256; b++) {
			products[a][b] = product_of(a, b);
			if (products[a][b] == 1)
				inverses[a] = (unsigned char)b;
		}
}

static unsigned drawn(struct worker *w, unsigned below)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (unsigned)(w->random >> 33) % below;
}

static size_t drawn_size(struct worker *w)
{
	switch (drawn(w, 4)) {
	case 0:
		return drawn(w, 3);
	case 1:
		return drawn(w, 200);
	default:
		return drawn(w, ROOM + 1);
	}
}

static unsigned char *make_room(void)
{
	unsigned char *made = mmap(NULL, ROOM + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
				   -1, 0);

	CHECK(made != MAP_FAILED);
	CHECK(!mprotect(made + PAGE, ROOM, PROT_READ | PROT_WRITE));
	return made + PAGE;
}

/* At one of the two ends. */
static unsigned char *place(struct worker *w, unsigned room, size_t size)
{
	return w->rooms[room] + (drawn(w, 2) ? ROOM - size : 0);
}

static void check_parity(const struct shard *shards, unsigned data, unsigned position)
{
	const struct shard *parity = &shards[position];

	for (size_t at = 0; at < parity->length; at++) {
		unsigned char sum = 0;

		for (unsigned i = 0; i < data; i++)
			if (at < shards[i].length)
				sum ^= products[inverses[position ^ i]][shards[i].bytes[at]];
		CHECK(sum == parity->bytes[at]);
	}
}

static void shuffle(struct worker *w, unsigned *numbers, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		numbers[i] = i;
	for (unsigned i = count; i > 1; i--) {
		unsigned other = drawn(w, i), kept = numbers[i - 1];

		numbers[i - 1] = numbers[other];
		numbers[other] = kept;
	}
}

static struct shard range_of(const struct shard *shard, size_t begin, size_t end)
{
	size_t last = shard->length < end ? shard->length : end;

	return (struct shard){
		.position = shard->position,
		.bytes = shard->bytes + (begin < last ? begin : 0),
		.length = begin < last ? last - begin : 0,
	};
}

static void rebuild(struct worker *w, const struct shard *shards, unsigned data, unsigned parity,
		    size_t longest)
{
	size_t end = drawn(w, 3) ? drawn(w, (unsigned)longest + 1) : longest;
	size_t begin = drawn(w, (unsigned)end + 1);
	unsigned order[POSITIONS_MAX], lost_count = 1 + drawn(w, parity);
	struct shard known[DATA_MAX], lost[PARITY_MAX];

	shuffle(w, order, data + parity);
	for (unsigned i = 0; i < data; i++)
		known[i] = range_of(&shards[order[i]], begin, end);
	for (unsigned i = 0; i < lost_count; i++) {
		lost[i] = range_of(&shards[order[data + i]], begin, end);
		lost[i].bytes = place(w, POSITIONS_MAX + i, lost[i].length);
		memset(lost[i].bytes, 0xa5, lost[i].length);
	}
	CHECK(erasure_rebuild(data, parity, known, lost, lost_count));
	for (unsigned i = 0; i < lost_count; i++) {
		struct shard expected = range_of(&shards[lost[i].position], begin, end);

		CHECK(!memcmp(lost[i].bytes, expected.bytes, expected.length));
	}
}

static void play_round(struct worker *w)
{
	unsigned data = 1 + drawn(w, drawn(w, 4) ? 6 : DATA_MAX);
	unsigned parity = 1 + drawn(w, drawn(w, 4) ? 3 : PARITY_MAX);
	struct shard shards[POSITIONS_MAX];
	size_t longest = 0;

	for (unsigned i = 0; i < data; i++) {
		size_t size = i && !drawn(w, 3) ? shards[0].length : drawn_size(w);

		shards[i] = (struct shard){ i, place(w, i, size), size };
		for (size_t at = 0; at < size; at++)
			shards[i].bytes[at] = (unsigned char)drawn(w, 256);
		if (size > longest)
			longest = size;
	}
	for (unsigned i = data; i < data + parity; i++)
		shards[i] = (struct shard){ i, place(w, i, longest), longest };
	CHECK(erasure_rebuild(data, parity, shards, shards + data, parity));
	for (unsigned i = data; i < data + parity; i++)
		check_parity(shards, data, i);
	for (int i = 0; i < 3; i++)
		rebuild(w, shards, data, parity, longest);
}

static void *work(void *context)
{
	struct worker *w = context;

	for (long i = 0; i < w->rounds; i++)
		play_round(w);
	return NULL;
}

int main(int argc, char **argv)
{
	static struct worker workers[THREADS];
	long rounds = argc > 1 ? atol(argv[1]) : 0;
	const char *missing = erasure_load();

	if (missing) {
		fprintf(stderr, "%s\n", missing);
		return 1;
	}
	make_field();
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i].random = 0x9e3779b97f4a7c15u * (i + 1);
		workers[i].rounds = rounds;
		for (unsigned j = 0; j < 2 * POSITIONS_MAX; j++)
			workers[i].rooms[j] = make_room();
	}
	for (unsigned i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	for (unsigned i = 0; i < THREADS; i++)
		CHECK(!pthread_join(workers[i].thread, NULL));
	printf("%ld rounds\n", rounds);
	return 0;
}
