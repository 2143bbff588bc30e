/*
 * ISA-L called directly, with tables that were made before; and copies of the same chunks. A library
 * for bench_erasure.py, which measures both on the buffers that it gives to copperfs.
 */
#include <isa-l/erasure_code.h>
#include <string.h>

enum { CHUNKS_MAX = 64 };

/* For encoding. *tables* has 32 bytes for each coefficient. */
void isal_encode_tables(int data, int parity, unsigned char *tables)
{
    unsigned char matrix[CHUNKS_MAX * CHUNKS_MAX];

    gf_gen_cauchy1_matrix(matrix, data + parity, data);
    ec_init_tables(data, parity, matrix + data * data, tables);
}

/* For the first *lost* data chunks, from the others and as many parity chunks. Not 0: no inverse. */
int isal_decode_tables(int data, int parity, int lost, unsigned char *tables)
{
    unsigned char matrix[CHUNKS_MAX * CHUNKS_MAX], inverse[CHUNKS_MAX * CHUNKS_MAX];

    gf_gen_cauchy1_matrix(matrix, data + parity, data);
    if (gf_invert_matrix(matrix + lost * data, inverse, data))
        return 1;
    ec_init_tables(data, lost, inverse, tables);
    return 0;
}

void isal_code(int length, int sources, int targets, unsigned char *tables, unsigned char **from,
               unsigned char **to)
{
    ec_encode_data(length, sources, targets, tables, from, to);
}

void copy(int length, int chunks, unsigned char **from, unsigned char **to)
{
    for (int i = 0; i < chunks; i++)
        memcpy(to[i], from[i], (size_t)length);
}
