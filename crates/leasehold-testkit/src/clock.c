/*
 * Moves the wall clock of a program that is started with this in LD_PRELOAD.
 *
 * LH_CLOCK_FILE names a file of 8 bytes: microseconds to add, an int64 of this machine. It is
 * mapped at the start, so that a write to the file moves the clock at once. Monotonic clocks
 * stay. Programs that ask the kernel without the C library, those in Go for instance, are not
 * reached.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t zero;
static const volatile int64_t *offset_us = &zero;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("LH_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof zero, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset_us = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t offset = *offset_us;
        now->tv_sec += offset / 1000000;
        now->tv_nsec += offset % 1000000 * 1000;
        if (now->tv_nsec < 0) {
            now->tv_nsec += 1000000000;
            now->tv_sec -= 1;
        } else if (now->tv_nsec >= 1000000000) {
            now->tv_nsec -= 1000000000;
            now->tv_sec += 1;
        }
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    (void)zone;
    if (result == 0) {
        now->tv_sec = exact.tv_sec;
        now->tv_usec = exact.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *out) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return (time_t)-1;
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
