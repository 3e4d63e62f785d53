// A slow disk, for a server that goes through the C library: preloaded into it, see slowdisk.go. While the number in the
// file that DISK_SHIM names is not 0, each sync, and each write to the log of a database, waits for so many microseconds
// before it is done. The kernel keeps what was written when a process is killed: what such a server loses by that is what
// it has committed in its own memory and not written yet, which is why the writes are slow, too.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *delay;

__attribute__((constructor)) static void begin(void) {
	const char *path = getenv("DISK_SHIM");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *page = mmap(0, sizeof *delay, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (page != MAP_FAILED)
		delay = page;
}

static void rest(void) {
	int64_t us = delay ? *delay : 0;
	if (us <= 0)
		return;
	int before = errno;
	struct timespec left = {us / 1000000, us % 1000000 * 1000};
	while (nanosleep(&left, &left) && errno == EINTR)
		;
	errno = before;
}

// The logs of MariaDB, MySQL, PostgreSQL, Redis and ZooKeeper.
static void rest_if_log(int fd) {
	static const char *const logs[] = {"/ib_logfile", "/#ib_redo", "/pg_wal/", "/appendonly", "/version-2/log."};
	char link[32], path[4096];
	if (!delay || *delay <= 0)
		return;
	int before = errno;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	errno = before;
	if (n <= 0 || path[0] != '/')
		return; // a socket, a pipe
	path[n] = 0;
	for (size_t i = 0; i < sizeof logs / sizeof *logs; i++)
		if (strstr(path, logs[i])) {
			rest();
			return;
		}
}

// slow puts a function in place of the one of that name: it waits, and calls that one.
#define slow(type, name, wait, params, args) \
	type name params { \
		static type(*real) params; \
		if (!real) \
			real = (type(*) params)dlsym(RTLD_NEXT, #name); \
		wait; \
		return real args; \
	}

slow(int, fsync, rest(), (int fd), (fd))
slow(int, fdatasync, rest(), (int fd), (fd))
slow(int, sync_file_range, rest(), (int fd, off64_t at, off64_t n, unsigned flags), (fd, at, n, flags))
slow(int, msync, rest(), (void *at, size_t n, int flags), (at, n, flags))
slow(ssize_t, write, rest_if_log(fd), (int fd, const void *from, size_t n), (fd, from, n))
slow(ssize_t, writev, rest_if_log(fd), (int fd, const struct iovec *from, int n), (fd, from, n))
slow(ssize_t, pwrite, rest_if_log(fd), (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
slow(ssize_t, pwrite64, rest_if_log(fd), (int fd, const void *from, size_t n, off64_t at), (fd, from, n, at))
slow(ssize_t, pwritev, rest_if_log(fd), (int fd, const struct iovec *from, int n, off_t at), (fd, from, n, at))
slow(ssize_t, pwritev64, rest_if_log(fd), (int fd, const struct iovec *from, int n, off64_t at), (fd, from, n, at))
