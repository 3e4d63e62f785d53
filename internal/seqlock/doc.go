// Package seqlock has the rules that stores with ordered keys share: ZooKeeper and Consul. The queue of
// a lock is its keys in order, and the holders are the front of it, as far as it fits
// (backend.Front). No key records them. An Engine answers the calls of backend.Backend with a Store,
// which makes, reads, watches and deletes entries. Here is what a session knows of its leases, whether the
// place of an acquire is granted, refused or waits (Stand), what a refused request leaves, and how locks
// are broken.
//
// How an entry is made and how a place waits differs between the two stores. ZooKeeper reports the
// number of entries with each create, and a waiter watches one node; in Consul a create reads the
// queue, and one query serves all waiters of a process. The transaction of a release checks the next
// entry in both, but the next waiter is known from links between leases in zklock, and from the
// queue as it was read in consullock. In consullock an abandoned lease has a key as well, because
// Consul may execute a request of an HTTP connection that has ended.
package seqlock
