// Package embedded runs an etcd inside the process: the store of "holdfast serve" if no other
// store is configured. It runs one node by default, and three or five as a cluster.
//
// A single node opens no port. Its client calls the server's functions directly, and its peer
// endpoint, which etcd requires, is a socket in the data folder. A node of a cluster listens
// for its peers only.
//
// # What is stored
//
// Every change is written to the disk, and synced, before it is answered. After kill -9 and a
// restart, leases and tokens are as they were. etcd then gives every lease its whole TTL again,
// so that none ends early because the server was down.
//
// The data folder and its contents are readable by their owner only (mode 0700). A second
// process that is started on the folder is refused. A folder with anything else in it is
// refused too, because its mode would be changed.
//
// # How it is tuned
//
//	                  alone      in a cluster
//	heartbeat         10 ms      50 ms
//	election          100 ms     500 ms
//	shortest lease    1 s        1 s         (MinTTL)
//
// A single node has no peer that could mistake a pause for a death, so its short election
// time-out makes the start fast and has no other effect. History is compacted every minute. A
// start compacts all but the last 10,000 changes: waiters and watchers that were disconnected
// for longer read the state again. The log of etcd is quiet: errors go to Config.Logger.
//
// # When the disk quota is reached
//
// At Config.Quota (2 GiB by default; a held lock takes less than 1 KiB) etcd raises an alarm and
// refuses every write. Nothing is granted. Leases of sessions, and timed ones that were renewed at
// least once, are still renewed, until the leader changes; all still end. Requests fail as
// unavailable, with "database space exceeded". Status has the alarms. Compact, on each node, drops
// the history, defragments, and clears the alarm of the node. Space that was in use at a peak counts
// for the quota too. A start returns it to the file system if it is a tenth of the quota or more. A
// full disk is worse: etcd logs the error to Config.Logger and ends the whole process.
//
// # A cluster
//
// Every node is started with the same Cluster, and with its own Name out of it. A node with an
// empty folder never forms a cluster by itself. It waits until a node on the list that is in a
// cluster admits it, or until Init is called on it, once for all nodes. A node that joins has
// no vote before it has all the data. Two of three are enough to continue.
//
// The data folder has a file node.json beside etcd's data. The file records which member of
// which cluster this is, and who the others are. Before etcd runs, and could vote, the folder
// is checked against this file, and the other nodes are asked what they know of this one. The
// start is refused with ErrRefused for a folder of another node, a folder that lost its data,
// one that was copied or restored from a backup, and for a node that the cluster has removed or
// knows with data while its folder is empty. One case cannot be detected: a folder that was
// restored as a block device or a virtual machine's disk, while no other node is up that has
// heard of the minute before.
//
// The peer port is this package's own, and requires a certificate: PeerTLS, or LocalCA for the
// nodes of one user on the loopback of one host. It serves only what members need.
package embedded
