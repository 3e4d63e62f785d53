// Package k8slock keeps locks in Kubernetes, in Leases of coordination.k8s.io/v1, and
// shares them with the leader election of client-go.
//
//	client, err := rest.HTTPClientFor(config) // of client-go, with the program's own config
//	b, err := k8slock.New(client, config.Host, k8slock.Config{Namespace: "team"})
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// C1 to C14 as far as they are declared: no leases with an end of their own, no re-entry
// across processes, no events. Leases live with their session, and that with the backend value
// that opened it (Capabilities.Bound): to every other value it is ErrSessionLost.
// Kubernetes ends nothing by itself: a session is over when some process of this package
// has seen it unrenewed for its TTL, by its own monotonic clock and from when it saw the
// newest renewal: no two clocks are compared. So a lock may stay with a process that died
// for twice the TTL. Who asks for it and does not wait, and may be a process of its own each
// time, does not see that: it goes by the API servers' clocks, and ends a session that they
// have not seen renewed for a minute more than its TTL. They have to agree to that minute.
//
// # How it works
//
// Each client has one session, a Lease that it writes again to renew: one request for
// everything that it holds.
//
//	holdfast-session-HASH   a session, as long as it lives
//	NAME                    a lock, if Kubernetes takes its name
//	holdfast-lock-HASH      a lock, if not
//
// A lock's Lease says in an annotation who is out and who waits, in order. Every change is
// one write of it, on condition that nobody has written in between (resourceVersion): who
// gives a lock back writes the next one in as its holder with the same write. What several
// callers of one process want of one lock travels together. A process has at most 32
// changes of locks and reads of them under way, and its renewals are sent beside those: an
// API server that is sent a thousand requests at the same time answers no renewal in time.
// Each process watches the Leases of this package in the namespace: the hand-over is one
// event. The watch is found dead when it is silent and has not told of the process's own
// renewals. Every half minute a waiter reads its lock, lest something was lost.
//
// The token is made of the resourceVersion that the granting write replaces, times 1024,
// and of its place among the grants of that write. Resource versions are the store's
// revisions and only grow, so tokens grow also when somebody deletes the Lease; a store
// that is restored from a backup may take them back, where the Lease is older too.
// leaseTransitions counts holders, for people and for client-go.
//
// Who has seen a session unrenewed for its TTL deletes it, on condition that it is still
// what was seen. A session that is not there is over: its renewal fails, and what it has in
// lines is taken out by whoever writes next.
//
// To client-go a lock that is held has a holderIdentity, and a leaseDurationSeconds of
// Config.Foreign, within a third of which the Lease is written again: candidates wait. A
// holder of client-go's is one that comes first: it is over when it gives the Lease back,
// or has not renewed it for its leaseDurationSeconds, as client-go itself counts.
//
// A lock's Lease stays for an hour after the lock was free last. Then a process that sees
// it deletes it, on condition that it is still as it was seen, and if this package made it.
//
// # Requires
//
// Kubernetes 1.20 or newer; tested with 1.36. The rights to get, list, watch, create,
// update and delete leases.coordination.k8s.io in the namespace. Many locks belong in a
// namespace of their own: each process hears of all that happens in it. A line takes
// 240 KiB, about a thousand waiters.
//
// # URL
//
//	kubernetes://[namespace][?kubeconfig=file&context=name&foreign=10m&skew=1m]
//
// As for kubectl: KUBECONFIG, in a pod the service account, ~/.kube/config.
//
// # When the lock is lost
//
// When the session was not renewed in time, or somebody deleted its Lease or the lock's;
// when an operator broke the lock; when the process ends. All of it is pushed.
//
// # Do not use when
//
// locks change hands hundreds of times a second: each change is a write of the cluster's
// own store; or leases have to outlive the process that took them.
package k8slock
