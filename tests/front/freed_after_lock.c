/* The tables free contents after their lock is released: munmap() of many pages takes as long as
 * thousands of lookups. free() and munmap() are checked. */
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

#undef free
#undef munmap
void free(void *data);
int munmap(void *data, size_t size);

enum { LARGE = 1 << 20 };

static struct tables tables;
static const void *watched; /* the bytes that each action has to free */
static unsigned freed;

static void lock_check(void)
{
	CHECK(!pthread_mutex_trylock(&tables.lock));
	pthread_mutex_unlock(&tables.lock);
	freed++;
}

void checked_free(void *data);
void checked_free(void *data)
{
	if (data && data == watched)
		lock_check();
	free(data);
}

int checked_munmap(void *data, size_t size);
int checked_munmap(void *data, size_t size)
{
	if (data == watched)
		lock_check();
	return munmap(data, size);
}

static struct listing *a_listing(void)
{
	struct listing_header header = { .magic = LISTING_MAGIC };
	struct listing *listing = listing_open(&tables, (const char *)&header, sizeof(header),
					       FRESH_FOREVER);

	CHECK(listing);
	return listing;
}

static struct node *a_node(uint32_t type, uint64_t ino)
{
	struct fuse_attr attr = { .mode = type, .ino = ino, .size = LARGE };
	struct node *node = node_obtain(&tables, tables.root, "name", 4, &attr, NULL, 0,
					FRESH_FOREVER);

	CHECK(node);
	return node;
}

/* Another version of the file, or other times of the directory. */
static void withdraw(struct node *node) { node_withdraw(&tables, node); }
static void clear(struct node *node) { (void)node; tables_clear(&tables); }
static void forget(struct node *node) { node_forget(&tables, node->id, 1); }
static void displace(struct node *node) { a_node(node->attr.mode ^ S_IFDIR ^ S_IFREG, 7); }
static void set_object(struct node *node) { node_set_object(&tables, node, blob_new(LARGE)); }
static void set_listing(struct node *node) { node_set_listing(&tables, node, a_listing()); }
static void outdate(struct node *node) { node_outdate_listing(&tables, node); }
static void set_attributes(struct node *node)
{
	struct fuse_attr attr = node->attr;

	attr.mtime++;
	node_set_attributes(&tables, node, &attr);
}

typedef void act(struct node *node);

static void check(act *act, bool is_file)
{
	struct node *node;
	unsigned before = freed;

	CHECK(!tables_init(&tables, 16, 4));
	tables_lock(&tables);
	node = a_node(is_file ? S_IFREG : S_IFDIR, 1);
	if (act == forget)
		node_refer(&tables, node);
	if (is_file) {
		node->object = blob_new(LARGE);
		watched = node->object->data;
	} else {
		node->listing = a_listing();
		watched = node->listing->rows;
	}
	act(node);
	tables_unlock(&tables);
	CHECK(freed == before + 1);
	watched = NULL;
	tables_destroy(&tables);
}

int main(void)
{
	act *const of_files[] = { withdraw, clear, forget, displace, set_object };
	act *const of_directories[] = { withdraw, clear, forget, displace, set_listing, outdate,
					set_attributes };

	for (unsigned i = 0; i < sizeof(of_files) / sizeof(*of_files); i++)
		check(of_files[i], true);
	for (unsigned i = 0; i < sizeof(of_directories) / sizeof(*of_directories); i++)
		check(of_directories[i], false);
	printf("%u freed\n", freed);
	return 0;
}
