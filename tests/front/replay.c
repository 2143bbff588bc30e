/* Runs a fuzzer without libFuzzer: on files, then on RUNS pseudo-random inputs.
 *
 *   replay RUNS FILE... */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static uint64_t state = 88172645463325252u;

static uint8_t random_byte(void) /* xorshift64 */
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint8_t)(state >> 24);
}

int main(int argc, char **argv)
{
	static uint8_t bytes[65536];
	long runs = argc > 1 ? atol(argv[1]) : 0;

	for (int i = 2; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");
		size_t size;

		if (!file) {
			perror(argv[i]);
			return 1;
		}
		size = fread(bytes, 1, sizeof(bytes), file);
		fclose(file);
		LLVMFuzzerTestOneInput(bytes, size);
	}
	for (long run = 0; run < runs; run++) {
		size_t size = (size_t)random_byte() * 4;

		for (size_t i = 0; i < size; i++)
			bytes[i] = random_byte();
		LLVMFuzzerTestOneInput(bytes, size);
	}
	printf("%d files, %ld runs\n", argc - 2, runs);
	return 0;
}
