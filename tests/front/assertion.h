/* CHECK: an assertion that no compiler option leaves out. */
#ifndef ASSERTION_H
#define ASSERTION_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__,        \
				#condition);                                              \
			abort();                                                          \
		}                                                                         \
	} while (0)

#endif
