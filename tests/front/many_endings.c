/*
 * Cost of read-ahead in a directory with very many endings: counts the names that are examined.
 *
 *   many_endings NAMES FILES
 *
 * Each ending has FILES files. Prints how many read-aheads were begun, and the steps.
 */
#include "check.h"

uint64_t ahead_steps;

static struct front front;
static struct {
	uint64_t id;
	struct version version;
	reader_done *done;
} begun[8];
static unsigned begun_count, reads;

static bool begin_read(void *pool, const char *path, const struct version *version,
		       reader_done *done, void *context, uint64_t id)
{
	(void)pool, (void)path, (void)context;
	CHECK(begun_count < 8);
	begun[begun_count].id = id;
	begun[begun_count].done = done;
	begun[begun_count++].version = *version;
	reads++;
	return true;
}

static void end_reads(void)
{
	while (begun_count) {
		begun_count--;
		begun[begun_count].done(&front, begun[begun_count].id, &begun[begun_count].version,
					NULL);
	}
}

static struct listing *listing_of(unsigned names, unsigned files)
{
	size_t size = sizeof(struct listing_header);
	char *packed = calloc(names, sizeof(struct row) + 32);
	struct listing *listing;

	CHECK(packed);
	*(struct listing_header *)packed = (struct listing_header){ LISTING_MAGIC, names, 0, 0 };
	for (unsigned i = 0; i < names; i++) {
		struct row *row = (struct row *)(packed + size);

		row->name_length = (uint16_t)sprintf(row->name, "%u.%u", i % files,
						     i / files);
		row->attr = (struct fuse_attr){ .mode = S_IFREG | 0644, .size = 10, .ino = i + 2 };
		row->length = (uint32_t)((sizeof(*row) + row->name_length + 7) & ~(size_t)7);
		size += row->length;
	}
	listing = listing_open(&front.tables, packed, size, FRESH_FOREVER);
	CHECK(listing);
	listing->granted = listing->read_ahead = true;
	free(packed);
	return listing;
}

int main(int argc, char **argv)
{
	static const struct reader reader = { .read = begin_read };
	unsigned names = argc == 3 ? (unsigned)atoi(argv[1]) : 0;
	unsigned files = argc == 3 ? (unsigned)atoi(argv[2]) : 0;
	struct tables *t = &front.tables;

	CHECK(names && files && !front_init(&front, 4 * names));
	front.reader = &reader;
	front.whole_max = 200000;
	front.allowance = front.allowance_max = 100000;
	front.ahead_max = 8;
	t->root->attr.mode = S_IFDIR | 0755;
	inode_set_listing(t, t->root, listing_of(names, files));
	for (unsigned i = 0; i < names; i++) {
		const struct row *row = listing_row(t->root->listing, i);

		tables_lock(t);
		ahead_note(&front, inode_obtain(t, t->root, row->name, row->name_length, &row->attr,
						NULL, 0, FRESH_FOREVER));
		tables_unlock(t);
		ahead_start(&front);
		end_reads();
	}
	CHECK(!front.ahead_files.count && !front.ahead_files.first && !front.ahead_files.running);
	printf("%u %llu\n", reads, (unsigned long long)ahead_steps);
	front_destroy(&front);
	return 0;
}
