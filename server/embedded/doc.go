// Package embedded runs an etcd inside the process: the store of "holdfast serve"
// where no other is named. One node by default; three or five as a cluster.
//
// A node alone opens no port. Its client calls the server's functions directly, and
// its peer endpoint, which etcd insists on, is a socket in the data folder. A node of
// a cluster listens for its peers only.
//
// # What is kept
//
// Everything is written to the disk, and synced, before it is answered. After kill -9
// and a restart, leases and tokens are as they were; etcd then gives every lease its
// whole TTL again, so that none ends early because the server was away.
//
// The data folder and what is in it is readable by its owner only (mode 0700). A second
// process that is started on it is refused, and so is a folder with anything else in it:
// its mode would be changed.
//
// # How it is tuned
//
//	                  alone      in a cluster
//	heartbeat         10 ms      50 ms
//	election          100 ms     500 ms
//	shortest lease    1 s        1 s         (MinTTL)
//
// A node alone has nobody to mistake a pause for a death, so its short election makes
// the start fast and nothing else. History is compacted every minute, and at a start but
// for the last 10,000 changes: waiters and watchers that were away for longer read
// again. The log of etcd is quiet: errors go to Config.Logger.
//
// # When the disk quota is reached
//
// At Config.Quota (2 GiB by default; a lock that is held takes less than 1 KiB) etcd
// raises an alarm and refuses every write: nothing is granted, leases go on being
// renewed, and ending. Requests fail as unavailable, with "database space exceeded".
// Reclaim compacts, defragments and takes the alarm back. A full disk is worse: etcd
// ends the process of the node, and Err tells.
//
// # A cluster
//
// Every node is started with the same Cluster, and an own Name out of it. A node with an empty
// folder never forms a cluster by itself: it waits until a node on the list that is in a
// cluster lets it in, or until Init is called on it, once for all nodes. What joins has no vote
// before it has all the data. Two of three are enough to continue.
//
// The data folder has a file node.json beside etcd's data: which member of which cluster this
// is, and who the others are. Before etcd runs, and could vote, the folder is held against it,
// and the other nodes are asked what they know of this one. ErrRefused is for a folder of
// another node, one that lost its data, one that was copied or put back from a backup, and for
// a node that the cluster has removed or knows with data while its folder is empty. What cannot
// be told apart is a folder that was put back as a block device or a virtual machine's disk,
// while no other node is there that has heard of the minute before.
//
// The peer port is this package's own, and asks for a certificate: PeerTLS, or for the nodes
// of one user on the loopback of one host one of LocalCA. It serves what members need.
package embedded
