/*
 * Without copies: ISA-L wants all chunks of one length, and ours differ. The range is cut where a
 * chunk ends, and in each piece only the chunks that reach into it take part.
 *
 * ISA-L is loaded when it is first needed, and not linked. A library that _native itself needed
 * would be read at each start of copperfs, and no mount would start where it is missing.
 */
#include "erasure.h"

#ifdef COPPERFS_ISAL

#include <dlfcn.h>
#include <isa-l/erasure_code.h>
#include <stdint.h>
#include <string.h>

/* All of ISA-L 2. */
#define LIBRARY "libisal.so.2"

enum {
	TABLE_BYTES = 32, /* for each coefficient; later versions of ISA-L use fewer on some CPUs */
	PIECE_MAX = 1 << 30, /* ISA-L takes an int */
};

static struct {
	__typeof__(ec_init_tables) *init_tables;
	__typeof__(ec_encode_data) *encode_data;
	__typeof__(gf_gen_cauchy1_matrix) *cauchy_matrix;
	__typeof__(gf_invert_matrix) *invert_matrix;
	__typeof__(gf_mul) *multiply;
} isal;

const char *erasure_load(void)
{
	void *library;

	if (isal.multiply)
		return NULL;
	library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return LIBRARY " of ISA-L cannot be loaded; install it on each node (Debian: libisal2)";
	isal.init_tables = dlsym(library, "ec_init_tables");
	isal.encode_data = dlsym(library, "ec_encode_data");
	isal.cauchy_matrix = dlsym(library, "gf_gen_cauchy1_matrix");
	isal.invert_matrix = dlsym(library, "gf_invert_matrix");
	if (isal.init_tables && isal.encode_data && isal.cauchy_matrix && isal.invert_matrix)
		isal.multiply = dlsym(library, "gf_mul");
	if (isal.multiply)
		return NULL;
	dlclose(library);
	return LIBRARY " lacks functions of ISA-L 2; install another one (Debian: libisal2)";
}

/* Coefficients of each known shard for each lost one, row by row. */
static bool find_rows(unsigned data, unsigned parity, const struct shard *known,
		      const struct shard *lost, unsigned lost_count, unsigned char *rows)
{
	unsigned char matrix[POSITIONS_MAX * DATA_MAX];
	unsigned char chosen[DATA_MAX * DATA_MAX], inverse[DATA_MAX * DATA_MAX];

	/* On top the identity: what each position is of the data chunks. */
	isal.cauchy_matrix(matrix, (int)(data + parity), (int)data);
	for (unsigned i = 0; i < data; i++)
		memcpy(chosen + i * data, matrix + known[i].position * data, data);
	/* What each data chunk is of the known ones. */
	if (isal.invert_matrix(chosen, inverse, (int)data))
		return false;
	for (unsigned i = 0; i < lost_count; i++) {
		const unsigned char *row = matrix + lost[i].position * data;

		for (unsigned j = 0; j < data; j++) {
			unsigned char sum = 0;

			for (unsigned k = 0; k < data; k++)
				sum ^= isal.multiply(row[k], inverse[k * data + j]);
			rows[i * data + j] = sum;
		}
	}
	return true;
}

/* Those shards that have bytes from *begin* on; lowers *end* to where the first of them ends. */
static unsigned choose(const struct shard *shards, unsigned count, size_t begin, size_t *end,
		       unsigned *chosen, unsigned char **bytes)
{
	unsigned found = 0;

	for (unsigned i = 0; i < count; i++) {
		if (shards[i].length <= begin)
			continue;
		if (shards[i].length < *end)
			*end = shards[i].length;
		chosen[found] = i;
		bytes[found++] = shards[i].bytes + begin;
	}
	return found;
}

bool erasure_rebuild(unsigned data, unsigned parity, const struct shard *known,
		     const struct shard *lost, unsigned lost_count)
{
	unsigned char rows[PARITY_MAX * DATA_MAX];
	size_t begin = 0, end;

	if (!find_rows(data, parity, known, lost, lost_count, rows))
		return false;
	for (;; begin = end) {
		unsigned char tables[TABLE_BYTES * PARITY_MAX * DATA_MAX];
		unsigned char coefficients[PARITY_MAX * DATA_MAX];
		unsigned char *from[DATA_MAX], *to[PARITY_MAX];
		unsigned columns[DATA_MAX], chosen[PARITY_MAX], sources, targets, at = 0;

		end = SIZE_MAX;
		targets = choose(lost, lost_count, begin, &end, chosen, to);
		if (!targets)
			return true;
		sources = choose(known, data, begin, &end, columns, from);
		if (end - begin > PIECE_MAX)
			end = begin + PIECE_MAX;
		if (!sources) {
			for (unsigned i = 0; i < targets; i++)
				memset(to[i], 0, end - begin);
			continue;
		}
		for (unsigned i = 0; i < targets; i++)
			for (unsigned j = 0; j < sources; j++)
				coefficients[at++] = rows[chosen[i] * data + columns[j]];
		isal.init_tables((int)sources, (int)targets, coefficients, tables);
		isal.encode_data((int)(end - begin), (int)sources, (int)targets, tables, from, to);
	}
}

#else /* without ISA-L */

const char *erasure_load(void)
{
	return "this copperfs was built without ISA-L; install its headers (Debian: libisal-dev) "
	       "and then copperfs again";
}

bool erasure_rebuild(unsigned data, unsigned parity, const struct shard *known,
		     const struct shard *lost, unsigned lost_count)
{
	(void)data, (void)parity, (void)known, (void)lost, (void)lost_count;
	return false;
}

#endif
