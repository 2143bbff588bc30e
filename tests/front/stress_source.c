/*
 * Stress test of the source's pool with all its threads, on a slow source.
 *
 *   stress_source DIRECTORY ROUNDS
 *
 * The stress fills the directory with directories of files and links, and sets how long a stat
 * takes. "-N" at the end of a name is the errno that its stat fails with. The results have to match
 * those of a single thread byte for byte.
 *
 * alone      one scan, slow and quick
 * rounds     many scans, lookups and reads at once, by the handlers' way and the front's
 * hung       names that hang: one thread each, and the listings arrive without them
 * closed     pools that are closed in the midst of scans
 * chunks     pieces of more files than are kept open, which are closed and replaced meanwhile
 * used up    memory runs out at the end of a scan; descriptors, while a file that is closed for
 *            that hangs
 */
#define _GNU_SOURCE
#include "../../copperfs/native/source/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK_FILES = 90, CHUNK_WORDS = 1024, CHUNKS_EACH = 3, CHUNK_JOBS = 200 };
enum { DIRECTORIES = 24, CONCURRENCY = 12, LISTING_MAX = 100, AT_ONCE = 16, HUNG = 5 };

static const int errors[] = { 0, 0, 0, EIO, EACCES, ENOENT, ELOOP };
static char root[4096];
static struct buffer expected[DIRECTORIES];
static int expected_error[DIRECTORIES];
static struct version versions[DIRECTORIES];
static _Atomic long stat_ns;
static _Atomic bool hang;
static _Atomic unsigned hanging, stats_now, stats_most;

#define CHECK(what) do { if (!(what)) { \
	printf("line %d: %s\n", __LINE__, #what); \
	fflush(stdout); _exit(1); } } while (0)

static void pause_ns(long ns)
{
	struct timespec wait = { 0, ns };

	nanosleep(&wait, NULL);
}

#undef close
#undef realloc
int close(int fd);
void *realloc(void *bytes, size_t size);

static _Atomic bool looked; /* since memory last ran out */
static _Atomic unsigned no_memory; /* how often a realloc fails, each time after a stat */
static _Atomic bool close_hangs; /* of the next file */
static _Atomic bool closing;

void *stressed_realloc(void *bytes, size_t size);
void *stressed_realloc(void *bytes, size_t size)
{
	if (no_memory && looked) {
		looked = false;
		no_memory--;
		return NULL;
	}
	return realloc(bytes, size);
}

int stressed_close(int fd);
int stressed_close(int fd)
{
	struct stat status;
	bool hangs = true;

	if (!fstat(fd, &status) && S_ISREG(status.st_mode) &&
	    atomic_compare_exchange_strong(&close_hangs, &hangs, false)) {
		closing = true;
		while (closing)
			pause_ns(100000);
	}
	return close(fd);
}

/* Replaces fstatat for the pool. */
int stressed_fstatat(int directory, const char *name, struct stat *status, int flags)
{
	const char *last = strrchr(name, '/'), *told = strrchr(last ? last : name, '-');
	unsigned now = ++stats_now, most = stats_most;

	while (now > most && !atomic_compare_exchange_weak(&stats_most, &most, now))
		;
	if (stat_ns)
		pause_ns(stat_ns);
	if (hang && strstr(name, "hung")) {
		hanging++;
		while (hang)
			pause_ns(100000);
		hanging--;
	}
	stats_now--;
	looked = true;
	if (told && atoi(told + 1)) {
		errno = atoi(told + 1);
		return -1;
	}
	return (int)syscall(SYS_newfstatat, directory, name, status, flags);
}

static void path_of(unsigned directory, char path[16]) { snprintf(path, 16, "d%u", directory); }

static struct filesystems *filesystems(void)
{
	static struct filesystems *made;

	if (!made)
		made = filesystems_new(root, 0);
	return made;
}

static int scan_alone(unsigned directory, struct buffer *packed)
{
	static const char *const untouchable[] = { "untouchable-5", NULL };
	struct fuse_attr attributes;
	_Atomic size_t at = 0;
	struct scan *scan;
	char path[16];
	int fd;

	path_of(directory, path);
	CHECK(!source_open_directory(root, path, filesystems(), &fd, &attributes));
	versions[directory] = (struct version){
		attributes.size, (int64_t)(attributes.mtime * 1000000000 + attributes.mtimensec),
		(int64_t)(attributes.ctime * 1000000000 + attributes.ctimensec), attributes.ino };
	CHECK(!scan_begin(fd, LISTING_MAX, filesystems(), untouchable, &scan));
	while (scan_look(scan, &at) == LOOKED)
		;
	return scan_end(scan, packed);
}

/* The first six are small, others have errors, links, and more names than the limit. */
static void fill(unsigned directory)
{
	unsigned files = directory < 6 ? directory : directory * 5;
	int fd, made;
	char name[64];

	snprintf(name, sizeof(name), "d%u", directory);
	fd = open(root, O_RDONLY | O_DIRECTORY);
	CHECK(!mkdirat(fd, name, 0700));
	made = openat(fd, name, O_RDONLY | O_DIRECTORY);
	close(fd);
	for (unsigned i = 0; i < files; i++) {
		unsigned each = directory % 3 ? i * 7 + directory : 0;
		int error = errors[each % 7];

		if (error && error != ENOENT && i % 13 != 3)
			error = 0;
		snprintf(name, sizeof(name), "%s%u-%d", i == 7 ? "hung" : "file", i, error);
		if (i % 4 == 1) {
			CHECK(!symlinkat("/target/of/a/link", made, name));
			continue;
		}
		fd = openat(made, name, O_CREAT | O_WRONLY, 0600);
		CHECK(fd >= 0 && write(fd, name, i % 20) == (ssize_t)(i % 20));
		close(fd);
	}
	if (directory % 2)
		CHECK(!mkdirat(made, "untouchable-5", 0700));
	close(made);
	scan_alone(directory, &expected[directory]); /* the first readlink changes the access time */
	free(expected[directory].bytes);
	expected[directory] = (struct buffer){ 0 };
	expected_error[directory] = scan_alone(directory, &expected[directory]);
}

static struct pool *new_pool(double deadline_s)
{
	struct pool *pool = pool_new(root, CONCURRENCY, 0, LISTING_MAX, deadline_s);

	CHECK(pool);
	pool_watch_mounts(pool);
	pool_trust_mounts(pool);
	return pool;
}

static void submit_scan(struct pool *pool, unsigned directory)
{
	struct version none = { 0 };
	char path[16];
	struct job *job;

	path_of(directory, path);
	job = pool_job(pool, SCAN, path, &none, directory);
	job->untouchable = calloc(2, sizeof(char *));
	job->untouchable[0] = strdup("untouchable-5");
	CHECK(pool_submit(pool, job));
}

static void check_listing(unsigned directory, int error, const char *packed, size_t size)
{
	CHECK(error == expected_error[directory]);
	if (error)
		return;
	CHECK(size == expected[directory].used);
	CHECK(!memcmp(packed, expected[directory].bytes, size));
}

/* Waits until this many outcomes have come. */
static void await(struct pool *pool, unsigned count)
{
	while (count) {
		struct pollfd polled = { .fd = pool->event_fd, .events = POLLIN };
		struct job *done;

		CHECK(poll(&polled, 1, 30000) == 1);
		done = pool_drain(pool);
		for (struct job *job = done; job; job = job->next) {
			if (job->kind == SCAN)
				check_listing((unsigned)job->id, job->error, job->buffer.bytes,
					      job->buffer.used);
			else
				CHECK(!job->error);
			CHECK(count-- > 0);
		}
		jobs_free(done);
	}
}

/* --- the front --- */

static _Atomic unsigned told;

static void names_told(void *context, uint64_t directory, char *packed, size_t size)
{
	(void)context;
	/* listings with untouchable names are others */
	if (packed && directory % 2 == 0)
		check_listing((unsigned)directory, 0, packed, size);
	free(packed);
	told++;
}

/* --- the cases --- */

static void play_round(struct pool *pool, unsigned round)
{
	struct version none = { 0 };
	unsigned asked = 0, awaited = told;
	char path[16];

	stat_ns = round % 3 ? 150000 : 0;
	for (unsigned i = 0; i < AT_ONCE; i++) {
		unsigned directory = (round * 7 + i * 5) % DIRECTORIES;

		submit_scan(pool, directory);
		path_of(directory, path);
		CHECK(pool_submit(pool, pool_job(pool, LOOK, path, &none, 0)));
		asked += 2;
		if (pool->reader.list(pool, path, &versions[directory], names_told, NULL,
				      directory))
			awaited++;
	}
	await(pool, asked);
	while (told != awaited)
		pause_ns(50000);
	pthread_mutex_lock(&pool->lock);
	while (pool->working) { /* they have reported, and are about to leave */
		pthread_mutex_unlock(&pool->lock);
		pause_ns(50000);
		pthread_mutex_lock(&pool->lock);
	}
	CHECK(!pool->stuck && !pool->busy);
	CHECK(!pool->shared && !pool->invited && !pool->helping && !pool->queued && pool->threads <= CONCURRENCY);
	pthread_mutex_unlock(&pool->lock);
}

/* Several threads make slow stats, one makes quick ones. */
static void play_alone(struct pool *pool)
{
	unsigned directory = 18; /* 90 names, no errors */

	for (unsigned i = 0; i < 4; i++) {
		stat_ns = i % 2 ? 2000000 : 0;
		stats_most = 0;
		submit_scan(pool, directory);
		await(pool, 1);
		CHECK(stats_most <= 8);
		CHECK(!stat_ns || stats_most > 4);
	}
}

/* --- names that hang --- */

/* All rows are there; only the hanging ones have no attributes. Returns their number. */
static unsigned check_rows(const struct job *job)
{
	const struct buffer *wanted = &expected[job->id];
	unsigned unknown = 0;
	size_t at = sizeof(struct listing_header);

	CHECK(!job->error && job->buffer.used == wanted->used);
	while (at < wanted->used) {
		const struct row *row = (const struct row *)(job->buffer.bytes + at);
		const struct row *same = (const struct row *)(wanted->bytes + at);

		CHECK((row->length & ~1u) == same->length);
		CHECK(!memcmp(row->name, same->name, same->name_length));
		if (row->length & ROW_UNKNOWN) {
			CHECK(row->attr.mode == (same->attr.mode & S_IFMT));
			CHECK(!row->attr.size && !row->target_length);
			unknown++;
		} else {
			CHECK(!memcmp(row, same, same->length));
			CHECK(!hang || memcmp(row->name, "hung", 4));
		}
		at += same->length;
	}
	return unknown;
}

static unsigned await_rows(struct pool *pool, unsigned count)
{
	unsigned unknown = 0;

	while (count) {
		struct pollfd polled = { .fd = pool->event_fd, .events = POLLIN };
		struct job *done;

		CHECK(poll(&polled, 1, 30000) == 1);
		done = pool_drain(pool);
		for (struct job *job = done; job; job = job->next, count--)
			unknown += check_rows(job);
		jobs_free(done);
	}
	return unknown;
}

static void submit_hung(struct pool *pool)
{
	for (unsigned i = 6; i < 6 + 3 * HUNG; i += 3) /* i % 3 == 0: without errors */
		submit_scan(pool, i);
}

static void await_stuck(struct pool *pool, unsigned wanted)
{
	for (unsigned tries = 0, left = 1; left; tries++) {
		CHECK(tries < 5000);
		pause_ns(2000000);
		pthread_mutex_lock(&pool->lock);
		left = pool->stuck != wanted || pool->busy || pool->helping || pool->shared;
		pthread_mutex_unlock(&pool->lock);
	}
}

/* The scans end without the thread that hangs. All rows are complete when nothing hangs any
 * more. On a busy machine another name may be left behind as well. */
static void play_hung(bool closes)
{
	struct pool *pool = new_pool(0.4);

	stat_ns = 150000;
	hang = true;
	submit_hung(pool);
	if (closes) {
		while (hanging < HUNG)
			pause_ns(100000);
		pool_close(pool);
		pool_unref(pool); /* the hanging threads and their scans have it now */
		hang = false;
		return;
	}
	CHECK(await_rows(pool, HUNG) >= HUNG);
	CHECK(hanging == HUNG);
	await_stuck(pool, HUNG);
	submit_hung(pool);
	CHECK(await_rows(pool, HUNG) >= HUNG);
	CHECK(hanging == HUNG);
	hang = false;
	await_stuck(pool, 0);
	submit_hung(pool);
	await_rows(pool, HUNG);
	pool_close(pool);
	pool_unref(pool);
}

static void play_closed(unsigned after)
{
	struct pool *pool = new_pool(60.0);

	stat_ns = 150000;
	for (unsigned i = 0; i < AT_ONCE; i++)
		submit_scan(pool, (after + i) % DIRECTORIES);
	pause_ns(after * 100000);
	pool_close(pool);
	pool_unref(pool); /* its threads have it now */
}

/* --- chunks --- */

static struct version chunked[CHUNK_FILES];

/* A file whose words hold their own positions. */
static void make_chunked(unsigned file)
{
	static uint64_t words[CHUNK_WORDS * CHUNKS_EACH];
	struct fuse_attr a;
	struct stat status;
	char name[5000], new[5000];
	int fd;

	snprintf(name, sizeof(name), "%sc%u", root, file);
	snprintf(new, sizeof(new), "%snew", root);
	for (unsigned i = 0; i < CHUNK_WORDS * CHUNKS_EACH; i++)
		words[i] = (uint64_t)file << 32 | i;
	fd = open(new, O_CREAT | O_WRONLY | O_TRUNC, 0600);
	CHECK(fd >= 0 && write(fd, words, sizeof(words)) == sizeof(words));
	close(fd);
	CHECK(!rename(new, name) && !stat(name, &status));
	CHECK(!fill_attributes(&a, &status, filesystems()));
	chunked[file] = (struct version){ a.size, (int64_t)(a.mtime * 1000000000 + a.mtimensec),
					  (int64_t)(a.ctime * 1000000000 + a.ctimensec), a.ino };
}

static void submit_chunk(struct pool *pool, unsigned file, unsigned chunk)
{
	char path[16];
	struct job *job;

	snprintf(path, sizeof(path), "c%u", file);
	job = pool_job(pool, CHUNK, path, &chunked[file], file * CHUNKS_EACH + chunk);
	job->length = CHUNK_WORDS * sizeof(uint64_t);
	job->offset = chunk * job->length;
	CHECK(pool_submit(pool, job));
}

static void check_chunk(const struct job *job, unsigned replaced)
{
	unsigned file = (unsigned)job->id / CHUNKS_EACH, chunk = (unsigned)job->id % CHUNKS_EACH;

	if (job->error) {
		CHECK(job->error == ESTALE && file == replaced);
		return;
	}
	for (unsigned i = 0; i < CHUNK_WORDS; i++)
		CHECK(((uint64_t *)job->blob->data)[i] ==
		      ((uint64_t)file << 32 | (chunk * CHUNK_WORDS + i)));
}

static void play_chunks(unsigned rounds)
{
	struct pool *pool = new_pool(60.0);

	for (unsigned i = 0; i < CHUNK_FILES; i++)
		make_chunked(i);
	for (unsigned round = 0; round < rounds; round++) {
		unsigned replaced = round * 7 % CHUNK_FILES, left = CHUNK_JOBS;

		for (unsigned i = 0; i < CHUNK_JOBS; i++) /* several of one file at once, too */
			submit_chunk(pool, (round * 13 + i / 2 * (i % 5 ? 1 : 11)) % CHUNK_FILES,
				     i % CHUNKS_EACH);
		make_chunked(replaced);
		while (left) {
			struct pollfd polled = { .fd = pool->event_fd, .events = POLLIN };
			struct job *done;

			pool_close_unused(pool, round % 2 ? 0 : 1000);
			CHECK(poll(&polled, 1, 30000) == 1);
			done = pool_drain(pool);
			for (struct job *job = done; job; job = job->next, left--)
				check_chunk(job, replaced);
			jobs_free(done);
		}
	}
	CHECK(pool->counts.open < (uint64_t)rounds * CHUNK_JOBS);
	pool_close(pool);
	pool_unref(pool);
}

/* --- exhausted limits of the daemon --- */

static void play_without_memory(void)
{
	struct pool *pool = pool_new(root, 1, 0, LISTING_MAX, 60.0);

	stat_ns = 0;
	looked = false;
	no_memory = 3;
	submit_scan(pool, 18);
	await(pool, 1);
	CHECK(!no_memory);
	pool_close(pool);
	pool_unref(pool);
}

/* The only working thread waits for descriptors, and the first that is closed for it hangs. */
static void play_without_descriptors(void)
{
	struct pool *pool = pool_new(root, 1, 0, LISTING_MAX, 60.0);
	struct rlimit limit, none;
	int taken[1024], last = 0, count = 0;

	for (unsigned i = 0; i < 3; i++) {
		submit_chunk(pool, i, 0);
		await(pool, 1);
	}
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	for (int fd = 0; fd < 1024; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			last = fd;
	none = (struct rlimit){ (rlim_t)last + 1, limit.rlim_max };
	CHECK(!setrlimit(RLIMIT_NOFILE, &none));
	while ((taken[count] = dup(0)) >= 0)
		CHECK(++count < 1024);
	close_hangs = true;
	CHECK(pool_submit(pool, pool_job(pool, READ, "c5", &chunked[5], 0)));
	await(pool, 1);
	CHECK(closing);
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	while (count)
		close(taken[--count]);
	closing = false;
	pool_close(pool);
	pool_unref(pool);
}

int main(int argc, char **argv)
{
	unsigned rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
	struct pool *pool;

	CHECK(argc > 1);
	snprintf(root, sizeof(root), "%s/", argv[1]);
	for (unsigned i = 0; i < DIRECTORIES; i++)
		fill(i);
	pool = new_pool(60.0);
	play_alone(pool);
	for (unsigned i = 0; i < rounds; i++)
		play_round(pool, i);
	pool_close(pool);
	pool_unref(pool);
	play_hung(false);
	play_hung(true);
	for (unsigned i = 0; i < 20; i++)
		play_closed(i);
	play_chunks(rounds);
	while (stats_now)
		pause_ns(1000000);
	play_without_memory();
	play_without_descriptors();
	while (stats_now)
		pause_ns(1000000);
	pause_ns(50000000); /* for the last threads to end */
	for (unsigned i = 0; i < DIRECTORIES; i++)
		free(expected[i].bytes);
	printf("%u rounds\n", rounds);
	return 0;
}
