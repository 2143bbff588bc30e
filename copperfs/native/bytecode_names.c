/*
 * Bytecode scan: finds which names a compiled Python file mentions (decision 42), in the marshal
 * format of CPython 3.8 to 3.14. Malformed or newer content ends the walk, and no length is trusted
 * beyond the file's end. tests/unit/compiled.py does the same in Python.
 *
 * One walk serves all names: a walk for each took 0.8 ms in a file of 800 KB, and a package may
 * have thousands of directories. A string is compared once, and a binary search finds a name, so
 * the bytes of the file bound the steps.
 */
#include "bytecode_names.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
	COMPILED_HEADER = 16,
	/* the "magic number" from which code begins with five numbers, not six */
	CODE_OF_3_11 = 3450,
	WALK_DEPTH_MAX = 60,
	NO_TUPLE = 1000,
	MARSHAL_REF = 0x80,
};

struct marshal_string {
	const unsigned char *text; /* NULL: no string, or compared before */
	size_t length;
};

struct walk {
	const unsigned char *at, *end;
	unsigned depth, codes, tuples; /* nesting: in all, of code, of tuples in this code */
	enum { OTHER_PART, CONSTANTS, NAMES_USED } part;
	bool before_3_11;
	struct marshal_string *refs; /* objects that may be referred to */
	size_t refs_count, refs_room;
	const struct looked_for *names;
	size_t names_count;
	size_t left; /* names not found yet */
	size_t steps; /* bytes of strings, and names compared */
};

static bool walk_object(struct walk *w);

static bool is_of_a_name(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '.';
}

static int compare_names(const char *name, size_t length, const struct looked_for *other)
{
	size_t other_length = (unsigned char)*other->name;

	if (length != other_length)
		return length < other_length ? -1 : 1;
	return memcmp(name, other->name + 1, length);
}

int compare_looked_for(const void *one, const void *other)
{
	const char *name = ((const struct looked_for *)one)->name;

	return compare_names(name + 1, (unsigned char)*name, (const struct looked_for *)other);
}

size_t find_looked_for(const struct looked_for *sorted, size_t count, const char *name,
		       size_t length, size_t *steps)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		++*steps;
		if (compare_names(name, length, &sorted[middle]) > 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < count && !compare_names(name, length, &sorted[low]) ? low : count;
}

/* A name that is looked for several times is marked each time. */
static void walk_name(struct walk *w, const char *name, size_t length)
{
	size_t at = find_looked_for(w->names, w->names_count, name, length, &w->steps);

	for (; at < w->names_count && !*w->names[at].found &&
	       !compare_names(name, length, &w->names[at]);
	     at++, w->left--)
		*w->names[at].found = true;
}

static bool names_are_here(const struct walk *w)
{
	return w->codes == 1 &&
	       (w->part == NAMES_USED ? w->tuples == 1 : w->part == CONSTANTS && w->tuples == 2);
}

static void walk_string(struct walk *w, struct marshal_string string)
{
	size_t begin = 0;

	for (size_t i = 0; i < string.length; i++) {
		w->steps++;
		if (!is_of_a_name(string.text[i]))
			return;
	}
	for (size_t i = 0; i <= string.length; i++) {
		if (i < string.length && string.text[i] != '.')
			continue;
		walk_name(w, (const char *)string.text + begin, i - begin);
		begin = i + 1;
	}
}

static bool walk_skip(struct walk *w, uint64_t bytes)
{
	if ((uint64_t)(w->end - w->at) < bytes)
		return false;
	w->at += bytes;
	return true;
}

static bool walk_number(struct walk *w, unsigned bytes, uint32_t *number)
{
	const unsigned char *from = w->at;

	if (!walk_skip(w, bytes))
		return false;
	*number = 0;
	for (unsigned i = 0; i < bytes; i++)
		*number |= (uint32_t)from[i] << 8 * i;
	return true;
}

static bool walk_objects(struct walk *w, uint32_t count)
{
	while (count--)
		if (!walk_object(w))
			return false;
	return true;
}

static bool walk_sized(struct walk *w, unsigned bytes)
{
	uint32_t size;

	return walk_number(w, bytes, &size) && walk_skip(w, size);
}

static bool walk_counted(struct walk *w, unsigned bytes, unsigned tuples)
{
	uint32_t count;
	bool whole;

	w->tuples += tuples;
	whole = walk_number(w, bytes, &count) && walk_objects(w, count);
	w->tuples -= tuples;
	return whole;
}

/* Digits of two bytes each; the sign is that of their count. */
static bool walk_long(struct walk *w)
{
	uint32_t digits;

	if (!walk_number(w, 4, &digits))
		return false;
	return walk_skip(w, 2 * (uint64_t)(digits & 0x80000000u ? -digits : digits));
}

static bool walk_dict(struct walk *w)
{
	w->tuples += NO_TUPLE;
	while (w->at < w->end && *w->at != '0')
		if (!walk_objects(w, 2))
			return false;
	w->tuples -= NO_TUPLE;
	return walk_skip(w, 1);
}

static bool walk_part(struct walk *w, int part, unsigned objects)
{
	w->part = part;
	return walk_objects(w, objects);
}

/* Bytecode, constants, names, five more objects, and the line table. */
static bool walk_code(struct walk *w)
{
	unsigned tuples = w->tuples;
	int part = w->part;
	bool whole;

	w->codes++;
	w->tuples = 0;
	whole = walk_skip(w, w->before_3_11 ? 24 : 20) && walk_part(w, OTHER_PART, 1) &&
		walk_part(w, CONSTANTS, 1) && walk_part(w, NAMES_USED, 1) &&
		walk_part(w, OTHER_PART, 5) && walk_skip(w, 4) &&
		walk_objects(w, w->before_3_11 ? 1 : 2);
	w->codes--;
	w->tuples = tuples;
	w->part = part;
	return whole;
}

static bool walk_reference(struct walk *w)
{
	uint32_t index;

	if (!walk_number(w, 4, &index) || index >= w->refs_count)
		return false;
	if (w->refs[index].text && names_are_here(w)) {
		walk_string(w, w->refs[index]);
		w->refs[index].text = NULL;
	}
	return true;
}

static bool walk_remember(struct walk *w)
{
	if (w->refs_count == w->refs_room) {
		size_t room = w->refs_room ? 2 * w->refs_room : 256;
		struct marshal_string *grown = realloc(w->refs, room * sizeof(*grown));

		if (!grown)
			return false;
		w->refs = grown;
		w->refs_room = room;
	}
	w->refs[w->refs_count++] = (struct marshal_string){ NULL, 0 };
	return true;
}

static bool walk_text(struct walk *w, unsigned bytes, bool may_be_referred_to)
{
	struct marshal_string string;
	uint32_t length;

	if (!walk_number(w, bytes, &length))
		return false;
	string = (struct marshal_string){ w->at, length };
	if (!walk_skip(w, length))
		return false;
	if (names_are_here(w))
		walk_string(w, string);
	else if (may_be_referred_to)
		w->refs[w->refs_count - 1] = string;
	return true;
}

static bool walk_kind(struct walk *w, unsigned char kind, bool is_ref)
{
	switch (kind) {
	case 'N': case 'F': case 'T': case 'S': case '.': return true;
	case 'i': return walk_skip(w, 4);
	case 'I': case 'g': return walk_skip(w, 8);
	case 'y': return walk_skip(w, 16);
	case 'l': return walk_long(w);
	case 'f': return walk_sized(w, 1);
	case 'x': return walk_sized(w, 1) && walk_sized(w, 1);
	case 's': return walk_sized(w, 4);
	case 'u': case 't': case 'a': case 'A': return walk_text(w, 4, is_ref);
	case 'z': case 'Z': return walk_text(w, 1, is_ref);
	case ')': return walk_counted(w, 1, 1);
	case '(': return walk_counted(w, 4, 1);
	case '[': case '<': case '>': return walk_counted(w, 4, NO_TUPLE);
	case '{': return walk_dict(w);
	case ':': return walk_objects(w, 3);
	case 'c': return walk_code(w);
	case 'r': return walk_reference(w);
	default: return false;
	}
}

static bool walk_object(struct walk *w)
{
	unsigned char kind;
	bool whole;

	if (w->at == w->end || w->depth == WALK_DEPTH_MAX || !w->left)
		return false;
	kind = *w->at++;
	if (kind & MARSHAL_REF && !walk_remember(w))
		return false;
	w->depth++;
	whole = walk_kind(w, kind & ~MARSHAL_REF, kind & MARSHAL_REF);
	w->depth--;
	return whole;
}

size_t find_mentioned(const char *data, size_t size, const char *names, bool *found)
{
	const unsigned char *bytes = (const unsigned char *)data;
	struct walk w = { 0 };
	struct looked_for *sorted;

	for (const char *each = names; *each; each += 1 + (unsigned char)*each)
		w.names_count++;
	sorted = size < COMPILED_HEADER ? NULL : malloc((w.names_count + 1) * sizeof(*sorted));
	if (!sorted)
		return 0;
	for (const char *each = names; *each; each += 1 + (unsigned char)*each, w.left++)
		sorted[w.left] = (struct looked_for){ each, found + w.left };
	qsort(sorted, w.names_count, sizeof(*sorted), compare_looked_for);
	w.names = sorted;
	w.at = bytes + COMPILED_HEADER;
	w.end = bytes + size;
	w.before_3_11 = (bytes[0] | bytes[1] << 8) < CODE_OF_3_11;
	walk_object(&w);
	free(w.refs);
	free(sorted);
	return w.steps;
}
