/*
 * Moves or stops the wall clock of a program that is started with this in LD_PRELOAD.
 *
 * LH_CLOCK_FILE names a file of 8 bytes, an int64 of this machine: twice a number of microseconds,
 * plus one when the clock stands still. A clock that runs shows the true time plus that number; one
 * that stands shows that number since 1970. Mode and number are in one word, so that a reader never
 * gets the mode of one setting with the number of another.
 *
 * The library maps the file at the start, so that a write to it moves the clock at once. Monotonic
 * clocks stay as they are. The library does not reach programs that ask the kernel without the C
 * library, for example those in Go.
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

static const int64_t true_time;
static const int64_t *word = &true_time;

__attribute__((constructor)) static void map_word(void) {
    const char *path = getenv("LH_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof true_time, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) word = mapped;
    close(file);
}

static void add(struct timespec *time, int64_t us) {
    time->tv_sec += us / 1000000;
    time->tv_nsec += us % 1000000 * 1000;
    if (time->tv_nsec < 0) {
        time->tv_nsec += 1000000000;
        time->tv_sec -= 1;
    } else if (time->tv_nsec >= 1000000000) {
        time->tv_nsec -= 1000000000;
        time->tv_sec += 1;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t setting = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if (setting & 1) *now = (struct timespec){0};
        /* gcc shifts the sign in, which a clock that is behind needs. */
        add(now, setting >> 1);
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
