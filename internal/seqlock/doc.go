// Package seqlock has the rules that stores with ordered keys share: ZooKeeper and Consul. The queue of
// a lock is its keys in order, and the holders are the front of it, as far as it fits
// (backend.Front). No key records them. Here is what a session knows of its leases, which of them may
// be granted, and how locks are broken.
//
// What follows differs between the two stores, and stays in their packages. ZooKeeper reports the
// number of entries with each create, and a waiter watches one node; in Consul a create reads the
// queue, and one query serves all waiters of a process. The transaction of a release checks the next
// entry in both, but the next waiter is known from links between leases in zklock, and from the
// queue as it was read in consullock. In consullock an abandoned lease has a key as well, because
// Consul may execute a request of an HTTP connection that has ended.
package seqlock
