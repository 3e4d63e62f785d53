// A slow disk for a server that asks the kernel itself, as what is written in Go does: "syncs PROGRAM ARGUMENTS..." runs
// the program so that each of its fsync and fdatasync waits before it is done, for so many microseconds as the number in
// the file that DISK_SHIM names says. The kernel hands these two calls, and no others, to a child of this process
// (seccomp), which lets them go on when their time has come. It needs Linux 5.5, and no privileges. A program that is
// started as another user later, by set-user-ID, is not: that is what no_new_privs forbids.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int calls;
static volatile int64_t *delay;

static void fail(const char *what) {
	perror(what);
	_exit(127);
}

// answer lets one call go on when its time has come.
static void *answer(void *id) {
	int64_t us = *delay;
	struct timespec left = {us / 1000000, us % 1000000 * 1000};
	while (us > 0 && nanosleep(&left, &left) && errno == EINTR)
		;
	struct seccomp_notif_resp go_on = {.id = (uintptr_t)id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
	ioctl(calls, SECCOMP_IOCTL_NOTIF_SEND, &go_on); // the caller may be gone
	return 0;
}

static void supervise(void) {
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (;;) {
		struct seccomp_notif call;
		memset(&call, 0, sizeof call);
		if (ioctl(calls, SECCOMP_IOCTL_NOTIF_RECV, &call)) {
			if (errno == EINTR || (errno == ENOENT && getppid() != 1))
				continue; // one caller went away
			_exit(0);
		}
		pthread_t each;
		if (*delay <= 0 || pthread_create(&each, &small, answer, (void *)(uintptr_t)call.id))
			answer((void *)(uintptr_t)call.id);
	}
}

int main(int argc, char **argv) {
	const char *path = getenv("DISK_SHIM");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (argc < 2 || file < 0)
		fail("syncs: a program, and DISK_SHIM, are needed");
	delay = mmap(0, sizeof *delay, PROT_READ, MAP_SHARED, file, 0);
	if (delay == MAP_FAILED)
		fail("syncs: mmap");
	struct sock_filter each[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof each / sizeof *each, each};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		fail("syncs: no_new_privs");
	calls = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
	if (calls < 0)
		fail("syncs: seccomp");
	pid_t program = getpid(), child = fork();
	if (child < 0)
		fail("syncs: fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != program)
			_exit(0);
		supervise();
	}
	execvp(argv[1], argv + 1); // the listener is closed by that
	fail(argv[1]);
}
