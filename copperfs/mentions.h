/*
 * Whether a compiled Python file mentions a name: a string of it is the name, or has it as a
 * part between dots.  Python writes a name as its length, in one byte, and its letters
 * (marshal's short strings).
 *
 * Where the length itself could be a letter of a name it is taken for one: names of 48 to 57
 * and of 65 letters and more are not found, nor of 46.  blob.py says the same in Python.
 *
 * Header only: the front asks for itself, and `copperfs._blob` for whoever has a Blob.
 */
#ifndef COPPERFS_MENTIONS_H
#define COPPERFS_MENTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { MENTIONED_NAME_MAX = 255 };

static inline bool is_of_a_name(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '.';
}

/* Whether these letters, which are there, are a name or a part of one. */
static inline bool is_mention(const char *data, size_t size, size_t at, size_t length)
{
	size_t start = at, end = at + length, string_end;

	while (start && at - start < MENTIONED_NAME_MAX &&
	       is_of_a_name((unsigned char)data[start - 1]))
		start--;
	if (!start || (start < at && data[at - 1] != '.'))
		return false;
	string_end = start + (unsigned char)data[start - 1];
	if (end == string_end)
		return true;
	if (end > string_end || string_end > size || data[end] != '.')
		return false;
	while (end < string_end && is_of_a_name((unsigned char)data[end]))
		end++;
	return end == string_end;
}

static inline bool mentions(const char *data, size_t size, const char *name, size_t length)
{
	const char *from = data, *found;

	if (!length || length > MENTIONED_NAME_MAX)
		return false;
	while ((found = memmem(from, size - (size_t)(from - data), name, length))) {
		if (is_mention(data, size, (size_t)(found - data), length))
			return true;
		from = found + 1;
	}
	return false;
}

#endif
