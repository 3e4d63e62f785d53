package embedded

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// Metrics returns the metrics of the node and of its cluster as this node sees it. They exist
// from the start, with the value 0 until the node runs. No label names a member.
//
//	holdfast_cluster_waiting                    1 while the node waits and grants nothing
//	holdfast_cluster_has_leader                 1 if this node follows a leader, or leads
//	holdfast_cluster_is_leader                  1 if this node leads
//	holdfast_cluster_leader_changes_total       changes of the leader that this process saw
//	holdfast_cluster_members{role}              members: voter or learner
//	holdfast_cluster_unreachable_members        other members that did not answer a moment ago
//	holdfast_cluster_quorum                     voters that must run for a lock to be granted
//	holdfast_cluster_database_bytes             size of the data on this node
//	holdfast_cluster_database_in_use_bytes      of that, what is not free for reuse
//	holdfast_cluster_database_quota_bytes       the size at which etcd refuses every write
//	holdfast_cluster_alarms                     alarms of the cluster: while there is one, nothing is granted
//	holdfast_cluster_fsync_seconds              time to sync the log of this node to its disk
//
// etcd keeps the changes of the leader and the times of the disk for the process: two nodes in
// one process report their sum.
func (e *Etcd) Metrics() prometheus.Collector { return newCollector(e) }

// The metrics of etcd in the registry of the process that are exported under a name of ours.
const (
	etcdFsync   = "etcd_disk_wal_fsync_duration_seconds"
	etcdChanges = "etcd_server_leader_changes_seen_total"
)

// collector reads the state of a node at each scrape.
type collector struct {
	e *Etcd

	waiting, hasLeader, isLeader, changes, members, unreachable, quorum, size, used, quota, alarms, fsync *prometheus.Desc
}

func newCollector(e *Etcd) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_cluster_"+name, help, labels, nil)
	}
	return &collector{
		e:           e,
		waiting:     desc("waiting", "1 while this node waits for its cluster and grants nothing: no majority, or not admitted."),
		hasLeader:   desc("has_leader", "1 if this node follows a leader, or leads."),
		isLeader:    desc("is_leader", "1 if this node is the leader."),
		changes:     desc("leader_changes_total", "Changes of the leader that this process saw."),
		members:     desc("members", "Members of the cluster, by role.", "role"),
		unreachable: desc("unreachable_members", "Members of the cluster that did not answer this node a moment ago."),
		quorum:      desc("quorum", "Voting members that must run for a lock to be granted."),
		size:        desc("database_bytes", "Size of the data on this node."),
		used:        desc("database_in_use_bytes", "Size of the data on this node without the space that is free for reuse."),
		quota:       desc("database_quota_bytes", "Size of the data at which every write is refused."),
		alarms:      desc("alarms", "Alarms of the cluster, such as that the quota was reached on a node. While there is one, nothing is granted."),
		fsync:       desc("fsync_seconds", "Time to sync the log of this node to its disk."),
	}
}

// Describe sends the descriptions.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.waiting, c.hasLeader, c.isLeader, c.changes, c.members, c.unreachable, c.quorum, c.size, c.used, c.quota, c.alarms, c.fsync,
	} {
		ch <- d
	}
}

// nodeMetrics is what a running node knows. The zero value is that of a node that does not run.
type nodeMetrics struct {
	hasLeader, isLeader bool
	voters, learners    int
	quorum              int
	size, used          int64
	alarms              int
}

func readNode(s *etcdserver.EtcdServer) nodeMetrics {
	m := nodeMetrics{
		hasLeader: s.Lead() != 0, isLeader: s.Lead() == uint64(s.MemberID()),
		size: s.Backend().Size(), used: s.Backend().SizeInUse(), alarms: len(s.Alarms()),
	}
	for _, member := range s.Cluster().Members() {
		if member.IsLearner {
			m.learners++
		} else {
			m.voters++
		}
	}
	m.quorum = m.voters/2 + 1
	return m
}

// Collect sends the values.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.e.mu.Lock()
	node := c.e.node
	c.e.mu.Unlock()
	var m nodeMetrics
	if node != nil {
		m = readNode(node.Server)
	}
	gauge(c.waiting, number(c.e.Waiting() != ""))
	gauge(c.hasLeader, number(m.hasLeader))
	gauge(c.isLeader, number(m.isLeader))
	gauge(c.members, float64(m.voters), "voter")
	gauge(c.members, float64(m.learners), "learner")
	gauge(c.unreachable, float64(len(c.e.Unreachable())))
	gauge(c.quorum, float64(m.quorum))
	gauge(c.size, float64(m.size))
	gauge(c.used, float64(m.used))
	gauge(c.quota, float64(c.e.cfg.Quota))
	gauge(c.alarms, float64(m.alarms))
	c.collectProcess(ch)
}

// collectProcess sends what etcd counts for the whole process, in the registry that every program
// has. Nothing is sent of a metric that this version of etcd does not have.
func (c *collector) collectProcess(ch chan<- prometheus.Metric) {
	families, _ := prometheus.DefaultGatherer.Gather() // what failed to be gathered is not ours
	for _, f := range families {
		switch {
		case len(f.GetMetric()) != 1:
		case f.GetName() == etcdChanges:
			ch <- prometheus.MustNewConstMetric(c.changes, prometheus.CounterValue, f.GetMetric()[0].GetCounter().GetValue())
		case f.GetName() == etcdFsync:
			h := f.GetMetric()[0].GetHistogram()
			buckets := make(map[float64]uint64, len(h.GetBucket()))
			for _, b := range h.GetBucket() {
				buckets[b.GetUpperBound()] = b.GetCumulativeCount()
			}
			ch <- prometheus.MustNewConstHistogram(c.fsync, h.GetSampleCount(), h.GetSampleSum(), buckets)
		}
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
