/* Preloaded into the processes of a test: their clock is wrong by the seconds in the file that WRONG_CLOCK names.

   Only CLOCK_REALTIME is changed. Waits with a deadline use the monotonic clock. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *wrong_by;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("WRONG_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *wrong_by, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) wrong_by = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long answer = syscall(SYS_clock_gettime, clock, now);
    if (answer == 0 && wrong_by && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *wrong_by;
    return (int)answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (seconds) *seconds = exact.tv_sec;
    return exact.tv_sec;
}
