/*
 * A signal that there are too many names is never lost: a lookup may give one while the handlers
 * take the one before. Our read() lets it come right before the signal is taken, or right after.
 */
#include "check.h"

#include <poll.h>
#include <unistd.h>

#undef read
ssize_t read(int fd, void *data, size_t size);

static struct front front;
static bool before, after;

ssize_t crowding_read(int fd, void *data, size_t size);
ssize_t crowding_read(int fd, void *data, size_t size)
{
	ssize_t got;

	if (before)
		front_tell_crowded(&front);
	got = read(fd, data, size);
	if (after)
		front_tell_crowded(&front);
	return got;
}

static bool is_signalled(void)
{
	struct pollfd polled = { .fd = front.crowded_fd, .events = POLLIN };

	return poll(&polled, 1, 0) == 1;
}

int main(void)
{
	CHECK(!front_init(&front, 10));
	for (int i = 0; i < 4; i++) {
		before = i & 1;
		after = i & 2;
		front_tell_crowded(&front);
		CHECK(is_signalled());
		CHECK(!front_take_crowded(&front));
		before = after = false;
		front_tell_crowded(&front); /* the next lookup */
		CHECK(is_signalled());
		front_take_crowded(&front);
	}
	front_destroy(&front);
	return 0;
}
