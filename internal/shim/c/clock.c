// A wall clock that is set from outside, for a server that takes its time from the C library: preloaded, see clock.go.
// The milliseconds to be added stand in the file that CLOCK_SHIM names, and are read anew each time. Other clocks, and
// how long something sleeps, are the kernel's.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

__attribute__((constructor)) static void begin(void) {
	const char *path = getenv("CLOCK_SHIM");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *page = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (page != MAP_FAILED)
		ahead = page;
}

int clock_gettime(clockid_t id, struct timespec *t) {
	int failed = syscall(SYS_clock_gettime, id, t);
	if (failed || !ahead || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
		return failed;
	int64_t ms = *ahead;
	int64_t ns = t->tv_nsec + ms % 1000 * 1000000;
	t->tv_sec += ms / 1000;
	if (ns < 0) {
		ns += 1000000000;
		t->tv_sec--;
	} else if (ns >= 1000000000) {
		ns -= 1000000000;
		t->tv_sec++;
	}
	t->tv_nsec = ns;
	return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
	(void)zone;
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	now->tv_sec = t.tv_sec;
	now->tv_usec = t.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *into) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	if (into)
		*into = t.tv_sec;
	return t.tv_sec;
}
