// Package sqlitelock keeps leases in a file that many processes of one host share, without a
// server. It uses modernc.org/sqlite, which is SQLite in Go: no C compiler is needed. It is
// the default backend of the holdfast command.
//
// # Guarantees
//
// All of C1 to C14, as package backend defines them, between the processes of one host that use
// the file through one kernel. Every capability is claimed. A lease that is not renewed is free
// when its TTL has passed, as late as a process that waits for it is scheduled: ExpiryLag is one
// second.
//
// Timed leases survive the death of all processes, a reboot and a power failure. Sessions survive
// no reboot: all their processes are dead, so they end with it. Tokens grow through all of that.
// A token is not less than the microseconds of the host's wall clock, so tokens also grow when the
// file was deleted or restored from an old copy, unless that clock is behind the last token.
//
// Released leases are not remembered. Abandoned leases, and sessions that have ended, are
// remembered for ten minutes. When no process has the file open, there are two files, the
// database and an empty one beside it with the suffix -turn.
//
// A transaction of SQLite cannot be taken from a process. A process that is stopped (SIGSTOP, a
// frozen container) in the middle of a transaction, which takes about 0.1 ms, stops the others
// until it continues or dies. Their calls end with their contexts, and C4 does not hold for that
// time. C1 does.
//
// # How it works
//
// One goroutine of each backend value, the writer, has the only connection. Each verb is a
// request to it. It waits for its turn first, and then executes all requests that arrived during
// the wait in one transaction (BEGIN IMMEDIATE). A caller that gives up before that has changed
// nothing. What the previous transaction read is cached, and used as long as SQLite's
// data_version shows no other write.
//
//	callers ──► requests ──► turn (flock) ──► transaction ──► commit ──► answers
//	                                                             │    └► notifications to other processes
//	                                                             └► syncer ──► answers that must
//	                                                                           survive a power failure
//
// Turns. Processes queue up with an flock on the -turn file, in which the kernel keeps the order,
// and none of them polls. Opening and closing the file takes a turn as well, so that no process
// of ours ever finds the file busy. For programs that take no turns, such as the sqlite3 shell,
// it waits with growing pauses.
//
// Time. Ends are kept on CLOCK_BOOTTIME, which cannot be set, which advances while a machine is
// suspended, and which all processes of the host share; the offset of a time namespace is
// subtracted. The file has the ID of the boot that its times belong to. The first process to open
// it in another boot ends the sessions, and gives timed leases the time that they have left by
// the wall clock, but never more than they had when the file was last written. While processes of
// a boot have the file open those of another are refused (ErrOtherBoot): containers of LXC and
// systemd-nspawn see a boot ID of their own, and cannot share a file with their host or with each
// other. A process that finds another boot in the file while it has it open (two machines share
// the file in spite of this) stops using it.
//
// Expiry. The first transaction after an end ends what has expired, and hands over what that
// freed, before it does anything else. So no client sees, or is overtaken by, what has expired.
// The file has a lower bound of the next end, so that the check is one comparison.
//
// Hand-over. The transaction that frees a lock grants it to the next waiters in the queue, drops
// those whose sessions have ended, and notifies the processes that wait, by a datagram to a Unix
// socket of each, in the directory with the suffix -wake. A datagram names what to read, and
// carries no authority: the receiver reads the file. Where many are unread, others may not
// have fitted into the inbox, so the receiver reads all that concerns it. In the same way holders are
// notified of a break, and watchers of events, which are rows that are written only while there are
// watchers.
//
// Lost datagrams cost a timer. A backend value with a waiter or a watcher has one timer for all
// of them, to the next end in the file, or to a second from now where that is sooner, for the case
// that the process that granted, or was granted, died. That is 0.1 ms of work. Where the file system
// has no sockets the timer is all there is. A value without waiters has no timer except for the ends
// of its own sessions.
//
// The disk. The log is synced after the transaction, outside of the turn, and only where an answer
// must survive a power failure: grants, renewals and releases of timed leases, breaks, what is
// abandoned, tokens, and that a timed lease is lost, also if another request ended it. Leases
// under a session need not survive: after a power failure their holders are gone. When a sync
// fails, it is not retried, and the backend value refuses all further work (ErrSync). Memory then
// has data that the disk does not have, so the next process that opens the file writes the log
// again and syncs it. Tokens are reserved for a minute of the wall clock, and again when half of
// that has passed. A token is returned only when a reservation that has it is on the disk: only the
// first one after a pause waits for that. If the wall clock is behind the reservation after a reboot,
// the rest of it is skipped, and tokens are ahead of the clock for at most that minute. What SQLite
// itself must sync to keep the file sound it does sync (synchronous=NORMAL).
//
// # Requires
//
// Linux, macOS or FreeBSD; elsewhere Open returns backend.ErrUnsupported. A local file system
// that maps memory: NFS, SMB, 9p, Ceph, Lustre, other cluster file systems and everything in user
// space (FUSE) are refused with a *FileSystemError, since their locks and maps are not those of
// one kernel. The directory of the file must be shared as a whole: containers that mount the file
// alone do not see its log, and destroy it.
//
// No other program may write, rename, link or replace the file while it is in use, nor remove
// those with the suffixes -wal and -shm. The next call detects that a file was replaced, or has
// lost one of those, and the backend value refuses all further work (ErrReplaced). Until then the
// holders of the old file do not know what is in the new one. A file with triggers, or with another
// encoding than UTF-8, is refused.
//
// The files are created for their owner only. In a directory with the setgid bit, in which the group
// may write, they are created for that group, whatever the umask: so several users share a file. The
// directory must not have the sticky bit, since the last process removes what others have made.
//
// On systems other than Linux the clock is the wall clock: setting it ahead ends leases early,
// and a reboot ends nothing.
//
// # URL
//
//	sqlite:///var/lib/app/locks.db     an absolute path
//	sqlite:locks.db                    a path from the working directory
//	/var/lib/app/locks.db              a path, taken as it is
//
// The path of a URL is percent-encoded. There is no host and there are no parameters; anything
// unknown is an error. For the default without a path see [DefaultPath].
//
// # When the lock is lost
//
// When its session, or a timed lease, is not renewed in time; when an operator breaks it; with
// the boot, for leases under a session. The holder is notified of a break immediately, also in
// another process. A full disk, or a damaged file, loses nothing by itself, but nothing can be
// renewed or released either, so the lock is lost when its time has passed: see [ErrFull] and
// [ErrCorrupt].
//
// # Do not use when
//
// Processes on more than one machine need the lock, or in virtual machines that share a
// directory. When thousands of grants a second are needed from many processes: the transactions
// of all locks of a file run one after the other. One process achieves more of them than many,
// since it has one transaction for many requests. Use a second file, or a server.
package sqlitelock
