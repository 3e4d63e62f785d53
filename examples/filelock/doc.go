//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

// Package filelock keeps leases in plain files, in one directory of one machine. It shows how a store
// outside the repository is written: it uses packages backend and fence, and its tests use
// backend/backendtest. It uses nothing internal.
//
// # Guarantees
//
// All of C1 to C14 that the declared capabilities cover: exclusive timed leases. There are no
// sessions, no shared leases, no order of waiters and no notifications; waiters poll. Requests for
// what is not declared are refused with backend.ErrUnsupported.
//
// # How it works
//
// Each name has a folder, named by the SHA-256 of the name, so that no name can leave the directory
// or collide with another. The folder has one file, the record: a checksum and JSON. A call locks the
// folder with flock(2), reads the record, decides, writes the new record to a temporary file, syncs
// it, renames it over the old one, and syncs the folder. It answers after that. No folder is ever
// deleted, so all processes lock the same one, and tokens survive: they come from a counter in the
// record, which starts at the wall clock's microseconds.
//
//   - A process that is killed leaves the old record or the new one. The kernel releases its flock.
//   - A process that is stopped while it has the flock stops all calls for this name: they end with
//     their contexts. When it continues, its lease may have expired, so it reads the clock again
//     before it reports a grant.
//   - A process that is killed after the rename leaves a record that may not be on the disk yet. So a
//     call syncs the folder before each answer, also if it wrote nothing.
//   - A record that is damaged is an error, and never a grant.
//   - The end of a lease is an instant of CLOCK_BOOTTIME, which counts while the machine is suspended
//     and cannot be set, and belongs to a boot ID. A lease of an earlier boot gets its full TTL again
//     from the first call after the boot. So a reboot can make a lease longer, but never shorter.
//   - A directory that was removed or replaced is an error, also for values that have it open. Only
//     Create makes a store.
//
// # Requires
//
// A local file system with flock, atomic renames and syncs, which accepts no more writes after a sync of
// a directory failed, as ext4 and XFS do. On systems other than Linux leases end by the wall clock, which
// must not be set forward.
package filelock
