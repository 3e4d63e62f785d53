// Runs a program whose calls to pwrite and to sync are decided elsewhere: every such call of it, and of the processes
// that it starts, waits for an answer from the one who has the listener, which this sends over the socket that
// DISK_SOCKET names. The program keeps the process ID. It may be written in any language: this is the kernel's seccomp,
// and not a library that is loaded into it. See disk_linux.go.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#if defined(__x86_64__)
#define HERE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define HERE AUDIT_ARCH_AARCH64
#else
#error "the filter does not know this architecture"
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ASK_FOR(call, to) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (call), (to), 0)

static int fail(const char *what) {
	fprintf(stderr, "slow disk: %s: %s\n", what, strerror(errno));
	return 125;
}

int main(int argc, char **argv) {
	const char *name = getenv("DISK_SOCKET");
	if (argc < 2 || !name) {
		fprintf(stderr, "slow disk: usage: DISK_SOCKET=name %s PROGRAM [ARGUMENT...]\n", argv[0]);
		return 125;
	}
	// An abstract address: no file, so that it does not matter which user the program runs as.
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t length = strlen(name);
	if (length + 1 > sizeof to.sun_path)
		return fail("DISK_SOCKET is too long");
	memcpy(to.sun_path + 1, name, length);
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s < 0 || connect(s, (struct sockaddr *)&to, offsetof(struct sockaddr_un, sun_path) + 1 + length))
		return fail("connect");

	struct sock_filter filter[] = {
		LOAD(arch),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, HERE, 0, 4),
		LOAD(nr),
		ASK_FOR(__NR_pwrite64, 3),
		ASK_FOR(__NR_fsync, 2),
		ASK_FOR(__NR_fdatasync, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return fail("no_new_privs");
	// A signal does not take a call back that was received: it would be done twice.
	int listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
		SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program);
	if (listener < 0)
		return fail("seccomp with a listener, which takes Linux 5.19");

	char one = 1, control[CMSG_SPACE(sizeof listener)] = {0};
	struct iovec data = {&one, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof listener);
	memcpy(CMSG_DATA(rights), &listener, sizeof listener);
	if (sendmsg(s, &message, 0) != 1)
		return fail("send the listener");
	close(s);
	close(listener);
	execvp(argv[1], argv + 1);
	return fail(argv[1]);
}
