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

static struct inode *a_inode(uint32_t type, uint64_t ino)
{
	struct fuse_attr attr = { .mode = type, .ino = ino, .size = LARGE };
	struct inode *inode = inode_obtain(&tables, tables.root, "name", 4, &attr, NULL, 0,
					   FRESH_FOREVER);

	CHECK(inode);
	return inode;
}

/* Another version of the file, or other times of the directory. */
static void withdraw(struct inode *inode) { inode_withdraw(&tables, inode); }
static void clear(struct inode *inode) { (void)inode; tables_clear(&tables, tables.epoch + 1); }
static void forget(struct inode *inode) { inode_forget(&tables, inode->id, 1); }
static void displace(struct inode *inode) { a_inode(inode->attr.mode ^ S_IFDIR ^ S_IFREG, 7); }
static void set_object(struct inode *inode) { inode_set_object(&tables, inode, blob_new(LARGE)); }
static void set_listing(struct inode *inode) { inode_set_listing(&tables, inode, a_listing()); }
static void outdate(struct inode *inode) { inode_outdate_listing(&tables, inode); }
static void set_attributes(struct inode *inode)
{
	struct fuse_attr attr = inode->attr;

	attr.mtime++;
	inode_set_attributes(&tables, inode, &attr);
}

typedef void act(struct inode *inode);

static void check(act *act, bool is_file)
{
	struct inode *inode;
	unsigned before = freed;

	CHECK(!tables_init(&tables, 16, 4));
	tables_lock(&tables);
	inode = a_inode(is_file ? S_IFREG : S_IFDIR, 1);
	if (act == forget)
		inode_refer(&tables, inode);
	if (is_file) {
		inode->object = blob_new(LARGE);
		watched = inode->object->data;
	} else {
		inode->listing = a_listing();
		watched = inode->listing->rows;
	}
	act(inode);
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
