// Package k8slock keeps locks in Kubernetes, in Leases of coordination.k8s.io/v1, and
// shares them with the leader election of client-go.
//
//	b, err := k8slock.NewForConfig(config, k8slock.Config{Namespace: "team"}) // a rest.Config of client-go
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// C1 to C14, except for what Capabilities does not claim: no timed leases and no events. Leases end
// with their session, and the session with the backend value that opened it (Capabilities.Bound): for every other value it is ErrSessionLost. Kubernetes ends
// nothing by itself. A session has ended when some process of this package has seen it unrenewed
// for its TTL, by that process's own monotonic clock and from when it saw the newest renewal: no
// two clocks are compared. So a lock may stay with a process that died for twice the TTL. An
// acquire that does not wait, perhaps from a new process each time, cannot observe that alone. If the
// session has not been renewed for its TTL and a minute, by the clocks of the API servers, such an
// acquire observes it for up to five seconds, and adds that to what those before it have observed. The
// session has ended when the sum exceeds its TTL.
//
// # How it works
//
// Each client has one session, a Lease that it writes again to renew: one request for everything
// that it holds.
//
//	holdfast-session-HASH   a session, as long as it lives
//	NAME                    a lock, if Kubernetes accepts its name
//	holdfast-lock-HASH      a lock, if not
//
// A lock's Lease lists the holders and the waiters, in order, in an annotation. Every change is one
// write of the Lease, on condition that it was not written in between (resourceVersion). A release
// makes the next waiter the holder with the same write. Changes that several callers of one process
// request for one lock travel together. A process has at most 32 changes and reads of locks under
// way, and its renewals are sent in addition to those: an API server that is sent a thousand
// requests at the same time answers no renewal in time. Each process watches the Leases of this
// package in the namespace: a hand-over is one event. The watch is considered dead when it is
// silent and has not reported the process's own renewals. Every half minute a waiter reads its
// lock, in case an event was lost.
//
// The token is made of the resourceVersion that the granting write replaces, times 1024, and of its
// place among the grants of that write. Resource versions are the store's revisions and only grow,
// so tokens grow even if the Lease is deleted; a store that is restored from a backup may set them
// back, where the Lease is older too. leaseTransitions counts holders, for people and for
// client-go.
//
// A process that has seen a session unrenewed for its TTL deletes it, on condition that it is still
// as it was seen. A session that does not exist has ended: its renewal fails, and the next write of
// a lock removes its entries from the queue.
//
// For client-go a held lock has a holderIdentity, and a leaseDurationSeconds of Config.Foreign,
// within a third of which the Lease is written again: candidates wait. A holder of client-go's
// ranks first. It has ended when it releases the Lease, or has not renewed it for its
// leaseDurationSeconds, as client-go itself counts.
//
// A lock's Lease stays for an hour after the lock became free. Then a process that sees it deletes
// it, on condition that it is still as it was seen, and only if this package made it.
//
// # Requires
//
// Kubernetes 1.20 or newer; tested with 1.36. The rights to get, list, watch, create, update and
// delete leases.coordination.k8s.io in the namespace. Many locks belong in a namespace of their
// own: each process receives everything that happens in it. A queue has room for 240 KiB, about
// a thousand waiters.
//
// # URL
//
//	kubernetes://[namespace][?kubeconfig=file&context=name&foreign=10m]
//
// Without kubeconfig: the files of KUBECONFIG, merged as kubectl does; in a pod the service account;
// ~/.kube/config. client-go reads the files: login programs, token files and client certificates
// that rotate, and proxies work as in kubectl.
//
// # When the lock is lost
//
// When the session was not renewed in time, or its Lease or the lock's was deleted; when an
// operator broke the lock; when the process ends. All of these are pushed.
//
// # Do not use when
//
// locks are handed over hundreds of times a second, because each change is a write of the cluster's
// own store, or leases must outlive the process that acquired them.
package k8slock
