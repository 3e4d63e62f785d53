// Package memlock keeps leases in the memory of the process. It is for tests and
// development, and it is the reference: of all backends it is the one that reads
// like the specification.
//
// # Guarantees
//
// All of C1 to C14, as package backend has them. Every capability is claimed but
// Durable. A lease that nobody renews is free when its TTL is over, as late as the
// process is scheduled: ExpiryLag says one second. A loss is pushed when the lock
// is broken and also when a lease or a session expires.
//
// Released leases are not remembered. Abandoned leases, and sessions that have
// ended, are remembered for ten minutes, which is longer than a late request of the
// same process can be on its way. Tokens need no memory: they come from one counter
// for all locks of the store.
//
// # How it works
//
// A [Store] is the server: one mutex, a map of the locks that somebody holds or
// waits for, a map of the sessions, and a heap of what can expire. A [Backend] is a
// connection to it; [Store.Open] makes as many as there are processes to play.
//
// Every call enters the store by the same door (Store.enter). Whatever is over by
// then is ended first, and the locks that this freed are handed to their lines, so
// that no call sees, or is overtaken by, something that is over. When nobody calls,
// one timer opens the door at the next end. The store has no goroutine of its own,
// and the timer is stopped while no backend value is open.
//
// All time is that of package time, so that a whole store may live in a bubble of
// testing/synctest.
//
// # Requires
//
// Nothing.
//
// # URL
//
//	memory://
//
// Each time that the URL is opened it is a new, empty store.
//
// # When the lock is lost
//
// When its session, or a timed lease, is not renewed in time; when an operator
// breaks it; when the process ends.
//
// # Do not use when
//
// More than one process needs the lock, or a restart must not free it.
package memlock
