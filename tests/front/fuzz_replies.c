/* Fuzzer of the handlers' replies: any bytes, while one request of each kind waits. */
#include "world.h"

#include <linux/ioctl.h>

static void ask_one_of_each(void)
{
	struct fuse_init_in init = { .major = 7, .minor = 38, .flags = ~0u };
	struct fuse_read_in read = { .size = 200 };
	struct fuse_ioctl_in ioctl = { .cmd = FRONT_IOCTL_TYPE << 8, .out_size = 30 };

	world_ask(FUSE_INIT, 0, &init, sizeof(init));
	world_ask(FUSE_LOOKUP, 1, "x", 2);
	world_ask(FUSE_GETATTR, 1, &(struct fuse_getattr_in){ 0 }, sizeof(struct fuse_getattr_in));
	world_ask(FUSE_READDIRPLUS, 1, &read, sizeof(read));
	world_ask(FUSE_READDIR, 1, &read, sizeof(read));
	world_ask(FUSE_READ, 1, &read, sizeof(read));
	world_ask(FUSE_STATFS, 1, NULL, 0);
	world_ask(FUSE_IOCTL, 1, &ioctl, sizeof(ioctl));
	world_ask(FUSE_READLINK, 1, NULL, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct input in = { bytes, size };
	char reply[600];

	world_begin(100);
	ask_one_of_each();
	while (in.size) {
		/* the first byte may turn raw bytes into input that gets further */
		uint8_t how = take_byte(&in), length = take_byte(&in);
		size_t taken = take_bytes(&in, reply, 16 + (how & 32 ? 2 : 1) * (size_t)length);
		struct fuse_out_header *out = (struct fuse_out_header *)reply;
		struct fuse_out_header header = { 0 };

		memcpy(&header, reply, sizeof(header));
		if (how & 1)
			header.unique = 2 * (1 + header.unique % 10);
		if (how & 2)
			header.len = (uint32_t)taken;
		if (how & 4)
			header.error = 0;
		if (how & 8)
			header.error = -FRONT_RETRY;
		if (how & 16)
			header.error = header.error & 1 ? INT32_MIN : -511 - header.error % 3;
		memcpy(out, &header, sizeof(header));
		world_reply(reply, taken);
		world_check();
	}
	world_end();
	return 0;
}
