/*
 * A resolver for daemons under test, by LD_PRELOAD. Names are files of one directory
 * ($COPPERFS_TEST_NAMES) with their address. While NAME.held exists no request for NAME is
 * answered; NAME.asked shows that one came. All else is left to the system.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
		struct addrinfo **found)
{
	lookup *next = (lookup *)dlsym(RTLD_NEXT, "getaddrinfo");
	const char *directory = getenv("COPPERFS_TEST_NAMES");
	char path[4096], address[64] = { 0 };
	FILE *file;

	if (!name || !directory)
		return next(name, service, hints, found);
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file = fopen(path, "r");
	if (!file)
		return next(name, service, hints, found);
	if (!fgets(address, sizeof(address), file))
		address[0] = 0;
	fclose(file);
	address[strcspn(address, "\n")] = 0;
	snprintf(path, sizeof(path), "%s/%s.asked", directory, name);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	snprintf(path, sizeof(path), "%s/%s.held", directory, name);
	while (!access(path, F_OK))
		usleep(1000);
	return next(address, service, hints, found);
}
