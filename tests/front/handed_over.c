/*
 * What a process leaves of the kernel's connection is whole whenever it is killed.
 *
 * A child does at random what requests do to the tables, and notes in shared memory what the kernel
 * would know by then. It is killed at a random moment. The next child goes on with what it left,
 * and first checks that each number the kernel may know is there: with its path, its attributes,
 * and at least as many references. Requests that were read and not answered are there, too, as whole
 * as they came, each once, and marked if they were interrupted.
 *
 * handed_over ROUNDS SEED
 */
#define _GNU_SOURCE
#include "check.h"
#include "../../copperfs/native/front/requests_in_hand.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NUMBERS = 1 << 20, NAMES = 24, DEPTH = 3, KILLED_WITHIN_US = 3000, EARLY_WITHIN_US = 50000,
       TOO_MANY_MAX = 2, REQUESTS = 1 << 20, READERS = 3, WAITING_MAX = 200 };

/* What the kernel knows of a number. */
struct known {
	uint64_t nlookup;
	uint64_t parent;
	uint32_t version;
	uint16_t name;
	bool directory;
};

/* What the kernel knows of a request: it was read, was interrupted, has its reply. */
struct sent {
	bool read, interrupted, answered;
};

struct world {
	_Atomic uint64_t steps, taken_over, found;
	uint64_t processes;
	uint64_t last_unique;
	struct sent sent[REQUESTS];
	struct known known[NUMBERS];
	char was_denied[NAMES]; /* below the root */
};

static struct world *world;
static uint64_t state;
static struct request_record *waiting[WAITING_MAX];
static unsigned waiting_count;
static bool is_late[READERS];

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

/* The kernel's copy is one instruction to a killed process. */
static void read_into(char *place, const char *request)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)request;

	place_empty(place);
	memcpy(place + sizeof(in->len), request + sizeof(in->len), in->len - sizeof(in->len));
	atomic_signal_fence(memory_order_seq_cst);
	((struct fuse_in_header *)place)->len = in->len;
	atomic_signal_fence(memory_order_seq_cst);
}

static void forget_now(const char *request, size_t size, void *context)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)request;

	CHECK(size == sizeof(*in) + sizeof(struct fuse_forget_in) && in->opcode == FUSE_FORGET);
	inode_forget(context, in->nodeid, ((const struct fuse_forget_in *)(in + 1))->nlookup);
}

static void note_interrupt(uint64_t unique)
{
	for (unsigned i = 0; i < waiting_count; i++)
		if (waiting[i]->head.id == unique)
			waiting[i]->head.interrupted = true;
}

static void conclude(struct tables *t, char *place)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)place;
	_Alignas(8) char request[sizeof(*in) + sizeof(struct fuse_forget_in)];

	if (in->len && is_forget(place)) {
		memcpy(request, place, sizeof(request));
		place_empty(place);
		forget_now(request, sizeof(request), t);
	} else if (in->opcode == FUSE_INTERRUPT) {
		note_interrupt(((const struct fuse_interrupt_in *)(in + 1))->unique);
	} else if (any(3)) {
		waiting[waiting_count] = request_record_new(&t->connection, place, in->len);
		CHECK(waiting[waiting_count++]);
	} else {
		world->sent[in->unique].answered = true;
	}
}

/* Its thread has done all that came into it before. */
static char *any_place(struct tables *t)
{
	unsigned reader = any(READERS);
	char *place = reading_place(&t->connection, reader);

	if (is_late[reader])
		conclude(t, place);
	is_late[reader] = false;
	return place;
}

/* Now, or before the next one comes. */
static void conclude_soon(struct tables *t, char *place)
{
	unsigned reader = (unsigned)((place - t->connection.reading) / READING_ROOM);

	is_late[reader] = any(4);
	if (!is_late[reader])
		conclude(t, place);
}

static void forget(struct tables *t)
{
	uint64_t id = 2 + any((uint32_t)(t->next_id - 1));
	struct {
		struct fuse_in_header in;
		struct fuse_forget_in forget;
	} request = { .in = { .len = sizeof(request), .opcode = FUSE_FORGET, .unique = 1,
			      .nodeid = id } };
	char *place = any_place(t);

	if (id >= t->next_id || !world->known[id].nlookup)
		return;
	request.forget.nlookup = 1 + any((uint32_t)world->known[id].nlookup);
	world->known[id].nlookup -= request.forget.nlookup;
	atomic_signal_fence(memory_order_seq_cst);
	read_into(place, (char *)&request);
	conclude_soon(t, place);
}

/* --- requests that wait --- */

static size_t request_of(uint64_t unique, char *request)
{
	static const size_t sizes[] = { 41, 80, 176, 177, 300, 8264, 16455, READING_ROOM };
	size_t size = sizes[unique / 2 % (sizeof(sizes) / sizeof(*sizes))];

	memset(request, (int)(unique / 2 % 251), size);
	*(struct fuse_in_header *)request = (struct fuse_in_header){
		.len = (uint32_t)size, .opcode = FUSE_IOCTL, .unique = unique, .nodeid = unique,
	};
	return size;
}

static void ask(struct tables *t)
{
	static _Alignas(8) char request[READING_ROOM];
	uint64_t unique = world->last_unique + 2;
	char *place = any_place(t);

	if (unique >= REQUESTS || waiting_count >= WAITING_MAX - READERS)
		return;
	request_of(unique, request);
	world->last_unique = unique;
	read_into(place, request);
	world->sent[unique].read = true;
	atomic_signal_fence(memory_order_seq_cst);
	conclude_soon(t, place);
}

static void interrupt(struct tables *t)
{
	struct {
		struct fuse_in_header in;
		struct fuse_interrupt_in interrupt;
	} request = { .in = { .len = sizeof(request), .opcode = FUSE_INTERRUPT } };
	char *place = any_place(t);

	if (!waiting_count)
		return;
	request.interrupt.unique = waiting[any(waiting_count)]->head.id;
	request.in.unique = request.interrupt.unique | 1;
	read_into(place, (char *)&request);
	world->sent[request.interrupt.unique].interrupted = true;
	atomic_signal_fence(memory_order_seq_cst);
	conclude_soon(t, place);
}

static void answer(struct tables *t)
{
	struct request_record *record;
	unsigned which;

	if (!waiting_count)
		return;
	which = any(waiting_count);
	record = waiting[which];
	waiting[which] = waiting[--waiting_count];
	world->sent[record->head.id].answered = true;
	atomic_signal_fence(memory_order_seq_cst);
	record_free(&t->connection, &record->head);
}

static bool take_up(struct request_record *record, void *context)
{
	static _Alignas(8) char request[READING_ROOM];
	uint64_t unique = record->head.id;
	struct sent *sent = &world->sent[unique];
	struct tables *t = context;

	CHECK(unique && unique <= world->last_unique && unique % 2 == 0);
	CHECK(record->head.length == request_of(unique, request));
	CHECK(!memcmp(record->request, request, record->head.length));
	for (unsigned i = 0; i < waiting_count; i++)
		CHECK(waiting[i]->head.id != unique);
	if (sent->answered || !sent->read) { /* the kernel would refuse a second reply */
		record_free(&t->connection, &record->head);
		return true;
	}
	CHECK(!sent->interrupted || record->head.interrupted);
	CHECK(waiting_count < WAITING_MAX);
	waiting[waiting_count++] = record;
	world->found++;
	return true;
}

static void take_up_all(struct tables *t)
{
	uint64_t unanswered = 0;

	tables_lock(t);
	CHECK(requests_gather(&t->connection, forget_now, t));
	CHECK(requests_each(&t->connection, take_up, t));
	tables_unlock(t);
	for (uint64_t unique = 0; unique <= world->last_unique; unique++)
		unanswered += world->sent[unique].read && !world->sent[unique].answered;
	CHECK(unanswered == waiting_count);
}

/* --- */

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
	/* more if it was killed while it took over */
	CHECK(t->epoch - world->taken_over - 1 <= 1);
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
	t.connection.header->readers = READERS;
	if (inherited) {
		CHECK(tables_adopt(&t));
		take_up_all(&t);
		adopted_check(&t, world->processes * TOO_MANY_MAX);
		tables_lock(&t);
		tables_clear(&t, world->taken_over + 2);
		tables_unlock(&t);
		world->taken_over++;
	}
	while (t.next_id < NUMBERS - 1) {
		tables_lock(&t);
		switch (any(12)) {
		case 0:
			deny(&t);
			break;
		case 1: case 2:
			forget(&t);
			break;
		case 3:
			ask(&t);
			break;
		case 4:
			answer(&t);
			break;
		case 5:
			interrupt(&t);
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
		bool early = round && any(3) == 0;
		unsigned within = any(early ? EARLY_WITHIN_US : KILLED_WITHIN_US);
		uint64_t seen = world->taken_over;
		int status;
		pid_t child = fork();

		if (!child)
			live(fd, round > 0);
		CHECK(child > 0);
		world->processes++;
		/* Most are killed at work, and some while they take over. */
		while (!early && !(round ? world->taken_over != seen : world->steps)) {
			CHECK(!waitpid(child, &status, WNOHANG));
			usleep(100);
		}
		usleep(within);
		CHECK(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		state += child;
	}
	printf("%u processes, %llu steps, %llu requests taken up\n", rounds,
	       (unsigned long long)world->steps, (unsigned long long)world->found);
	return 0;
}
