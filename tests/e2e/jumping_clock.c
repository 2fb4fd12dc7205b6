/* The wall clock of the processes that preload this, moved by the seconds in the file that JUMPING_CLOCK names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *moved_by;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("JUMPING_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *moved_by, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) moved_by = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (!status && moved_by && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *moved_by;
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
