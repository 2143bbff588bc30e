/*
 * INIT negotiation: libfuse answers INIT, and the front edits request and reply.
 *
 * libfuse 3.14 does not know all the kernel's features, and pyfuse3 switches some off. The front
 * sets no flag that the kernel did not offer.
 */
#include "front.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef FUSE_NO_OPENDIR_SUPPORT
#define FUSE_NO_OPENDIR_SUPPORT (1 << 24)
#endif

/* docs/kernels.md lists them. With AUTO_INVAL_DATA a directory's cached contents go when its mtime
 * changes. NO_OPEN(DIR)_SUPPORT only says that ENOSYS is understood. */
static const uint32_t wanted = FUSE_ASYNC_READ | FUSE_AUTO_INVAL_DATA | FUSE_DO_READDIRPLUS |
			       FUSE_READDIRPLUS_AUTO | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES |
			       FUSE_CACHE_SYMLINKS;

/* Of kernels newer than the headers. */
#define REQUEST_TIMEOUT (1u << 10) /* in flags2 */
#define HAS_RESEND (1u << 7)	     /* in flags2 */
enum { REQUEST_TIMEOUT_AT = 40 };  /* where struct fuse_init_out has the seconds, 16 bits */

enum {
	/* A daemon that is suspended for this long, or longer, loses its mount. */
	TIMEOUT_S = UINT16_MAX,
	/* No request of ours lasts twice as long as the source's deadline. */
	TIMEOUT_DEADLINES = 4,
	/* 32 slow streams with 12 outstanding went from 68 to 300 MiB/s with this */
	BACKGROUND_MAX = 512,
	READAHEAD_MAX = 1024 * 1024,
	PAGES_WITHOUT_MAX = 32, /* of kernels without FUSE_MAX_PAGES */
};

/* For large requests libfuse would allocate a megabyte for each of its tasks. */
void init_edit_request(struct front *f, char *request, size_t size)
{
	struct fuse_init_in *in = (struct fuse_init_in *)(request + sizeof(struct fuse_in_header));

	/* before 7.36 the request ends after `flags` */
	if (size < sizeof(struct fuse_in_header) + 16)
		return;
	connection_note_init(&f->tables.connection, request, (uint32_t)size);
	f->init_offered = in->flags;
	if ((in->flags & FUSE_INIT_EXT) && size >= sizeof(struct fuse_in_header) + sizeof(*in))
		f->init_offered |= (uint64_t)in->flags2 << 32;
	in->flags &= ~(uint32_t)(FUSE_MAX_PAGES | FUSE_WRITEBACK_CACHE | FUSE_POSIX_ACL |
				 FUSE_SPLICE_READ | FUSE_SPLICE_WRITE | FUSE_SPLICE_MOVE |
				 FUSE_INIT_EXT);
}

/* A larger reply of the handlers would be lost. */
static unsigned pages_that_fit(int miss_fd)
{
	int bytes = 0;
	socklen_t size = sizeof(bytes);
	unsigned pages = 256;

	if (getsockopt(miss_fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size) || bytes <= 0)
		bytes = 212992;
	while (pages > 1 && pages * 4096 + 8192 > (unsigned)bytes)
		pages /= 2;
	return pages;
}

/* The last resort: the kernel itself ends a connection that leaves a request unanswered. */
static void ask_for_timeout(struct front *f, struct fuse_init_out *out)
{
	uint16_t timeout = TIMEOUT_S;

	if (!(f->init_offered >> 32 & REQUEST_TIMEOUT) ||
	    f->deadline_ns / 1000000000 * TIMEOUT_DEADLINES > TIMEOUT_S)
		return;
	out->flags |= FUSE_INIT_EXT;
	out->flags2 |= REQUEST_TIMEOUT;
	memcpy((char *)out + REQUEST_TIMEOUT_AT, &timeout, sizeof(timeout));
}

static void note_agreed(struct front *f)
{
	struct connection_state *c = &f->tables.connection;

	if (!connection_is_kept(c))
		return;
	c->header->max_pages = f->max_pages;
	c->header->kernel_skips_opens = f->kernel_skips_opens;
	if (f->may_resend && f->init_offered >> 32 & HAS_RESEND)
		c->header->takeover_by = TAKEOVER_BY_RESEND;
	else
		c->header->takeover_by = f->may_record ? TAKEOVER_BY_MEMORY : NO_TAKEOVER;
	f->records_requests = c->header->takeover_by == TAKEOVER_BY_MEMORY;
}

bool init_edit_reply(struct front *f, char *reply, size_t size)
{
	struct fuse_out_header *header = (struct fuse_out_header *)reply;
	struct fuse_init_out *out = (struct fuse_init_out *)(header + 1);
	uint32_t offered = (uint32_t)f->init_offered;

	if (header->error)
		return true;
	/* 7.23 is from 2014; it has the fields below */
	if (size < sizeof(*header) + sizeof(*out) || out->major != 7 || out->minor < 23)
		return false;
	out->flags &= offered;
	out->flags &= ~(uint32_t)(FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS | FUSE_ATOMIC_O_TRUNC |
				  FUSE_WRITEBACK_CACHE | FUSE_POSIX_ACL | FUSE_EXPORT_SUPPORT |
				  FUSE_HANDLE_KILLPRIV | FUSE_INIT_EXT);
	out->flags |= wanted & offered;
	out->flags2 = 0;
	out->max_background = BACKGROUND_MAX;
	out->congestion_threshold = BACKGROUND_MAX * 3 / 4;
	out->max_readahead = READAHEAD_MAX;
	/* Nothing is written; but the kernel makes no folio larger than this. */
	out->max_write = PAGES_WITHOUT_MAX * 4096;
	out->time_gran = 1;
	out->max_pages = 0;
	if (out->flags & FUSE_MAX_PAGES) {
		f->max_pages = pages_that_fit(f->miss_fd);
		out->max_pages = (uint16_t)f->max_pages;
		out->max_write = f->max_pages * 4096;
	}
	ask_for_timeout(f, out);
	f->kernel_skips_opens = (offered & FUSE_NO_OPEN_SUPPORT) && (offered & FUSE_NO_OPENDIR_SUPPORT);
	note_agreed(f);
	return true;
}

enum takeover_by front_takeover_by(const struct front *f)
{
	const struct connection_header *header = f->tables.connection.header;

	return header ? header->takeover_by : TAKEOVER_UNDECIDED;
}

/* miss_forward() notes once more what the kernel has offered. */
bool init_replay(struct front *f)
{
	const struct connection_header *header = f->tables.connection.header;
	struct pending *pending;

	f->kernel_skips_opens = header->kernel_skips_opens;
	f->max_pages = header->max_pages;
	if (!header->init_size) {
		errno = EPROTO;
		return false;
	}
	pending = pending_new(header->init_request, header->init_size, now_ns());
	if (!pending)
		return false;
	pending->served_by = SERVED_MISS;
	miss_forward(f, pending);
	return true;
}
