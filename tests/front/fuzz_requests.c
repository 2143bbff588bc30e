/* Fuzzer of sequences of requests from the kernel, between publishing, withdrawing and answers. */
#include "world.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	static const unsigned limits[] = { 1, 4, 12, 100 };
	struct input in = { bytes, size };

	world_begin(limits[take_byte(&in) % 4]);
	for (int steps = 0; in.size && steps < 200; steps++) {
		world_step(&in);
		world_check();
	}
	world_end();
	return 0;
}
