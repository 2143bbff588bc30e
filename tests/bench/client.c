/*
 * The loops of the benchmarks that are too short to be timed from Python.
 *
 *   client stat PATH COUNT                 ns per stat()
 *   client open PATH COUNT                 ns per open + read 4 KiB + close
 *   client list PATH COUNT                 ns per whole readdir
 *   client getattr PATH COUNT              ns per statx that insists on asking the filesystem
 *   client lookup DIRECTORY NAME COUNT     ns per path lookup of NAME (which may be absent)
 *   client getattrs PREFIX CLIENTS SECONDS getattr per second of CLIENTS threads on PREFIX0, ...
 *   client read PATH                       bytes per second, in reads of 1 MiB
 *   client streams PREFIX CLIENTS          bytes per second of CLIENTS threads on PREFIX0, ...
 *
 * One number on standard output; exit status 1 and a sentence when anything went wrong.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20, SMALL_BYTES = 4096, CLIENTS_MAX = 256 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void stat_once(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        err(1, "stat %s", path);
}

static void open_once(const char *path)
{
    char data[SMALL_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        err(1, "open %s", path);
    if (read(fd, data, sizeof data) < 0)
        err(1, "read %s", path);
    close(fd);
}

static void list_once(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL)
        err(1, "opendir %s", path);
    errno = 0;
    while (readdir(directory) != NULL)
        ;
    if (errno != 0)
        err(1, "readdir %s", path);
    closedir(directory);
}

static void getattr_once(int fd)
{
    struct statx status;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &status) != 0)
        err(1, "statx");
}

/* O_PATH: only the path is walked. */
static int open_path(int directory, const char *path)
{
    int fd = openat(directory, path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        err(1, "open %s", path);
    return fd;
}

static void lookup_once(int directory, const char *name)
{
    int fd = open_path(directory, name);
    if (fd >= 0)
        close(fd);
}

static double time_paths(void (*once)(const char *), const char *path, long count)
{
    once(path); /* the first is not what is measured */
    double start = now_s();
    for (long i = 0; i < count; i++)
        once(path);
    return (now_s() - start) / (double)count * 1e9;
}

static double time_getattr(const char *path, long count)
{
    int fd = open_path(AT_FDCWD, path);
    if (fd < 0)
        err(1, "open %s", path);
    getattr_once(fd);
    double start = now_s();
    for (long i = 0; i < count; i++)
        getattr_once(fd);
    return (now_s() - start) / (double)count * 1e9;
}

static double time_lookup(const char *parent, const char *name, long count)
{
    int directory = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        err(1, "open %s", parent);
    lookup_once(directory, name);
    double start = now_s();
    for (long i = 0; i < count; i++)
        lookup_once(directory, name);
    return (now_s() - start) / (double)count * 1e9;
}

static uint64_t read_all(const char *path)
{
    /* An unaligned buffer would turn each direct read into two. */
    void *data = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t total = 0;
    if (data == MAP_FAILED || fd < 0)
        err(1, "open %s", path);
    for (;;) {
        ssize_t got = read(fd, data, READ_BYTES);
        if (got < 0)
            err(1, "read %s", path);
        if (got == 0)
            break;
        total += (uint64_t)got;
    }
    close(fd);
    munmap(data, READ_BYTES);
    return total;
}

struct worker {
    pthread_t thread;
    pthread_barrier_t *start;
    char path[4096];
    double seconds; /* of getattr; 0: read the file instead */
    uint64_t done;
};

static void *work(void *argument)
{
    struct worker *me = argument;
    int fd = open_path(AT_FDCWD, me->path);
    if (fd < 0)
        err(1, "open %s", me->path);
    pthread_barrier_wait(me->start);
    if (me->seconds <= 0) {
        me->done = read_all(me->path);
        return NULL;
    }
    double end_s = now_s() + me->seconds;
    do {
        /* Asked once in 64, the clock costs nothing. */
        for (int i = 0; i < 64; i++)
            getattr_once(fd);
        me->done += 64;
    } while (now_s() < end_s);
    return NULL;
}

/*
 * The threads' rate (getattr, or bytes) per second from start to last. An interrupted harness has
 * one process to kill.
 */
static double many(const char *prefix, int clients, double seconds)
{
    static struct worker workers[CLIENTS_MAX];
    pthread_barrier_t start;
    uint64_t total = 0;

    if (clients < 1 || clients > CLIENTS_MAX)
        errx(1, "1 to %d clients", CLIENTS_MAX);
    pthread_barrier_init(&start, NULL, (unsigned)clients + 1);
    for (int i = 0; i < clients; i++) {
        workers[i].start = &start;
        workers[i].seconds = seconds;
        snprintf(workers[i].path, sizeof workers[i].path, "%s%d", prefix, i);
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            errx(1, "cannot start a thread");
    }
    pthread_barrier_wait(&start);
    double start_s = now_s();
    for (int i = 0; i < clients; i++) {
        pthread_join(workers[i].thread, NULL);
        total += workers[i].done;
    }
    return (double)total / (now_s() - start_s);
}

static double read_rate(const char *path)
{
    double start = now_s();
    uint64_t total = read_all(path);
    return (double)total / (now_s() - start);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    double answer = -1;

    if (argc == 4 && strcmp(what, "stat") == 0)
        answer = time_paths(stat_once, argv[2], atol(argv[3]));
    else if (argc == 4 && strcmp(what, "open") == 0)
        answer = time_paths(open_once, argv[2], atol(argv[3]));
    else if (argc == 4 && strcmp(what, "list") == 0)
        answer = time_paths(list_once, argv[2], atol(argv[3]));
    else if (argc == 4 && strcmp(what, "getattr") == 0)
        answer = time_getattr(argv[2], atol(argv[3]));
    else if (argc == 5 && strcmp(what, "lookup") == 0)
        answer = time_lookup(argv[2], argv[3], atol(argv[4]));
    else if (argc == 5 && strcmp(what, "getattrs") == 0)
        answer = many(argv[2], atoi(argv[3]), atof(argv[4]));
    else if (argc == 3 && strcmp(what, "read") == 0)
        answer = read_rate(argv[2]);
    else if (argc == 4 && strcmp(what, "streams") == 0)
        answer = many(argv[2], atoi(argv[3]), 0);
    else
        errx(2, "see the head of client.c");
    printf("%.3f\n", answer);
    return 0;
}
