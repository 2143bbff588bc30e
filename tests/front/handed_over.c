/*
 * What a process leaves of the kernel's connection is whole whenever it is killed.
 *
 * A child does at random what requests do to the tables, and notes in shared memory what the kernel
 * would know by then. It is killed at a random moment. The next child goes on with what it left,
 * and first checks that each number the kernel may know is there: with its path, its attributes,
 * and at least as many references.
 *
 * handed_over ROUNDS SEED
 */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NUMBERS = 1 << 20, NAMES = 24, DEPTH = 3, KILLED_WITHIN_US = 3000, TOO_MANY_MAX = 2 };

/* What the kernel knows of a number. */
struct known {
	uint64_t nlookup;
	uint64_t parent;
	uint32_t version;
	uint16_t name;
	bool directory;
};

struct world {
	_Atomic uint64_t steps, taken_over;
	struct known known[NUMBERS];
	char was_denied[NAMES]; /* below the root */
};

static struct world *world;
static uint64_t state;

static uint32_t any(uint32_t below)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % below;
}

/* Some take two cells. */
static size_t name_of(uint16_t number, char *name)
{
	int length = sprintf(name, "name%u", number);

	if (number % 5 == 0) {
		memset(name + length, 'x', 200);
		length += 200;
	}
	name[length] = 0;
	return (size_t)length;
}

static struct fuse_attr attr_of(uint32_t version, bool directory)
{
	/* a directory changes and keeps its number */
	return (struct fuse_attr){ .ino = directory ? 7 : 1000 + version, .size = version,
				   .mode = directory ? S_IFDIR | 0755 : S_IFREG | 0644 };
}

static struct inode *any_directory(struct tables *t)
{
	struct inode *inode = t->root;

	for (unsigned i = any(DEPTH); i; i--) {
		char name[256];
		struct inode *below = inode_by_name(t, inode, name, name_of((uint16_t)any(NAMES), name));

		if (below && !below->negative && S_ISDIR(below->attr.mode))
			inode = below;
	}
	return inode;
}

static void look_up(struct tables *t)
{
	struct inode *parent = any_directory(t), *inode;
	uint16_t number = (uint16_t)any(NAMES);
	bool directory = number % 2;
	uint32_t version = any(3);
	struct fuse_attr attr = attr_of(version, directory);
	char name[256];
	size_t length = name_of(number, name);

	if (parent == t->root)
		world->was_denied[number] = 0;
	inode = inode_obtain(t, parent, name, length, &attr, NULL, 0, FRESH_FOREVER);
	CHECK(inode && inode->id < NUMBERS);
	world->known[inode->id].parent = inode->parent->id;
	world->known[inode->id].name = number;
	world->known[inode->id].directory = directory;
	world->known[inode->id].version = version;
	if (any(4) == 0)
		return; /* listed, and not told */
	inode_refer(t, inode);
	/* from here on the kernel may have it */
	atomic_signal_fence(memory_order_seq_cst);
	world->known[inode->id].nlookup++;
}

static void deny(struct tables *t)
{
	uint16_t number = (uint16_t)any(NAMES);
	char name[256];
	size_t length = name_of(number, name);

	if (inode_negative(t, t->root, name, length, FRESH_FOREVER))
		world->was_denied[number] = 1;
}

static void forget(struct tables *t)
{
	uint64_t id = 2 + any((uint32_t)(t->next_id - 1)), count;

	if (id >= t->next_id || !world->known[id].nlookup)
		return;
	count = 1 + any((uint32_t)world->known[id].nlookup);
	world->known[id].nlookup -= count;
	atomic_signal_fence(memory_order_seq_cst);
	inode_forget(t, id, count);
}

static void path_check(struct tables *t, uint64_t id)
{
	while (id != FUSE_ROOT_ID) {
		const struct inode *inode = inode_by_id(t, id);
		char name[256];

		CHECK(inode);
		CHECK(inode->name_length == name_of(world->known[id].name, name));
		CHECK(!memcmp(inode->name, name, inode->name_length));
		CHECK(inode->parent->id == world->known[id].parent);
		id = inode->parent->id;
	}
}

/* Each child may have counted one reference too many when it was killed, or lost a forget. */
static void adopted_check(struct tables *t, uint64_t too_many_max)
{
	uint64_t too_many = 0;

	tables_check(t);
	CHECK(t->epoch == world->taken_over + 1);
	for (uint64_t id = 2; id < NUMBERS; id++) {
		const struct known *known = &world->known[id];
		const struct inode *inode = inode_by_id(t, id);
		struct fuse_attr attr = attr_of(known->version, known->directory);

		if (inode && inode->nlookup > known->nlookup)
			too_many++;
		if (!known->nlookup)
			continue;
		CHECK(inode && inode->nlookup >= known->nlookup);
		CHECK(inode->attr.mode == attr.mode);
		CHECK(known->directory || same_version(&inode->attr, &attr));
		path_check(t, id);
	}
	CHECK(too_many <= too_many_max);
	for (uint16_t number = 0; number < NAMES; number++) {
		char name[256];

		/* the kernel may have it, and a clear has to name it */
		if (world->was_denied[number])
			CHECK(inode_by_name(t, t->root, name, name_of(number, name)));
	}
}

static void live(int fd, bool inherited)
{
	struct tables t;

	CHECK(!tables_init(&t, NUMBERS / 2, 16));
	CHECK(connection_open(&t.connection, fd, inherited));
	if (inherited) {
		CHECK(tables_adopt(&t));
		adopted_check(&t, world->taken_over * TOO_MANY_MAX);
		tables_lock(&t);
		tables_clear(&t, world->taken_over + 2);
		tables_unlock(&t);
		world->taken_over++;
	}
	while (t.next_id < NUMBERS - 1) {
		tables_lock(&t);
		switch (any(8)) {
		case 0:
			deny(&t);
			break;
		case 1: case 2:
			forget(&t);
			break;
		default:
			look_up(&t);
		}
		tables_unlock(&t);
		world->steps++;
	}
	pause();
}

int main(int count, char **words)
{
	unsigned rounds = count > 1 ? (unsigned)atoi(words[1]) : 100;
	int fd = memfd_create("handed-over", 0);

	state = count > 2 ? strtoull(words[2], NULL, 10) : 1;
	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(fd >= 0 && world != MAP_FAILED);
	for (unsigned round = 0; round < rounds; round++) {
		unsigned within = any(KILLED_WITHIN_US);
		uint64_t seen = world->taken_over;
		int status;
		pid_t child = fork();

		if (!child)
			live(fd, round > 0);
		CHECK(child > 0);
		/* killed at work, not while it checks */
		while (!(round ? world->taken_over != seen : world->steps)) {
			CHECK(!waitpid(child, &status, WNOHANG));
			usleep(100);
		}
		usleep(within);
		CHECK(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		state += child;
	}
	printf("%u processes, %llu steps\n", rounds, (unsigned long long)world->steps);
	return 0;
}
