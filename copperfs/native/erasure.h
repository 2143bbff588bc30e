/*
 * Reed-Solomon code over GF(2^8), by ISA-L: computes any chunks of a group from K others.
 *
 * A coding group has K data chunks at positions 0 to K-1 and M parity chunks at K to K+M-1. Each byte of a
 * parity chunk is a sum of the K data bytes at the same offset, each times a coefficient. So a range
 * of one chunk needs only the same range of K others, and a chunk that ends early counts as zeroes.
 *
 * The coefficients are a Cauchy matrix: 1 / (i ^ j) for parity position i and data position j. Each
 * of its square submatrices is invertible, so any K of the K+M chunks suffice. For the Vandermonde
 * matrix that ISA-L offers as well, this does not hold (docs/decisions/0100).
 */
#ifndef COPPERFS_ERASURE_H
#define COPPERFS_ERASURE_H

#include <stdbool.h>
#include <stddef.h>

/* The field allows K+M up to 256. A degraded read sends K requests, and the work for each byte grows
 * with K, so a larger K only makes repairs dearer. */
enum { DATA_MAX = 32, PARITY_MAX = 8, POSITIONS_MAX = DATA_MAX + PARITY_MAX };

/* A chunk of the group, or the same range of each. */
struct shard {
	unsigned position;
	unsigned char *bytes;
	size_t length; /* the bytes beyond are zeroes */
};

/* NULL once ISA-L is loaded; otherwise a sentence that says what is missing. The first call that
 * succeeds has to come before any other function here, and alone. */
const char *erasure_load(void);

/*
 * Fills the *lost* shards from *data* known ones. All positions differ, and there are at most
 * *parity* lost ones. No known shard may overlap a lost one. False: the matrix has no inverse, which
 * cannot be.
 */
bool erasure_rebuild(unsigned data, unsigned parity, const struct shard *known,
		     const struct shard *lost, unsigned lost_count);

#endif
