package embedded

import (
	"cmp"
	"context"
	"slices"
)

// Status is what a node knows of itself and of its cluster.
type Status struct {
	// Name of this node.
	Name string `json:"name"`
	// Cluster and Member are the IDs, or "" while the node waits to be admitted.
	Cluster string `json:"cluster,omitempty"`
	Member  string `json:"member,omitempty"`
	// Ready: the node serves locks, as far as it knows. Otherwise Waiting is what it waits for.
	Ready   bool   `json:"ready"`
	Waiting string `json:"waiting,omitempty"`
	// Leader is the name of the leader, or "" if this node follows none.
	Leader string `json:"leader,omitempty"`
	// Majority is how many of the voters must be up.
	Majority int `json:"majority,omitempty"`
	// Revision and Size are those of the data on this node, of which InUse is not free for reuse. At
	// Quota every new lock is refused. Sizes are in bytes.
	Revision int64 `json:"revision,omitempty"`
	Size     int64 `json:"size,omitempty"`
	InUse    int64 `json:"in_use,omitempty"`
	Quota    int64 `json:"quota,omitempty"`
	// Alarms of the cluster; while there is one, nothing is granted.
	Alarms []Alarm `json:"alarms,omitempty"`
	// Members of the cluster by name, or the nodes on the list if there is no cluster yet.
	Members []MemberStatus `json:"members"`
}

// MemberStatus is a member as another one sees it.
type MemberStatus struct {
	ID      string `json:"id,omitempty"`
	Name    string `json:"name"`
	URL     string `json:"url"`
	Learner bool   `json:"learner,omitempty"`
	Leader  bool   `json:"leader,omitempty"`
	// State is waiting, initiating, starting, running or unreachable.
	State string `json:"state"`
	// Error is why the node is unreachable.
	Error string `json:"error,omitempty"`
}

// Status asks the other nodes for their state, for two seconds at most. It needs no majority.
func (e *Etcd) Status(ctx context.Context) Status {
	own := e.tell(ctx, false)
	s := Status{Name: own.Name, Cluster: own.Cluster, Member: own.Member, Waiting: e.Waiting()}
	s.Ready = s.Waiting == ""
	e.mu.Lock()
	node := e.node
	e.mu.Unlock()
	peers := e.others()
	if node != nil {
		peers = e.members()
		s.Revision, s.Size, s.InUse = node.Server.KV().Rev(), node.Server.Backend().Size(), node.Server.Backend().SizeInUse()
		s.Quota, s.Alarms = e.cfg.Quota, e.alarms(node)
		if lead := node.Server.Lead(); lead != 0 {
			s.Leader = e.nameOf(lead)
		}
	}
	s.Members = []MemberStatus{{ID: own.Member, Name: own.Name, URL: own.URL, State: own.State}}
	if e.peers != nil {
		for _, h := range e.peers.ask(ctx, peers, false) {
			m := MemberStatus{ID: h.info.Member, Name: h.peer.Name, URL: h.peer.URL, State: h.info.State}
			if h.err != nil {
				m.State, m.Error = nodeUnreachable, h.err.Error()
			}
			s.Members = append(s.Members, m)
		}
	}
	if node != nil {
		voters := 0
		for _, m := range node.Server.Cluster().Members() {
			if !m.IsLearner {
				voters++
			}
			for i := range s.Members {
				if len(m.PeerURLs) > 0 && s.Members[i].URL == m.PeerURLs[0] {
					s.Members[i].ID, s.Members[i].Learner = hexID(uint64(m.ID)), m.IsLearner
					s.Members[i].Leader = uint64(m.ID) == node.Server.Lead()
				}
			}
		}
		s.Majority = voters/2 + 1
	}
	slices.SortFunc(s.Members, func(a, b MemberStatus) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// ID identifies the cluster among all clusters: etcd's ID of it, in hexadecimal digits. It is empty while the
// node waits.
func (e *Etcd) ID() string {
	select {
	case <-e.ready:
		return hexID(uint64(e.node.Server.Cluster().ID()))
	default:
		return ""
	}
}

// Waiting returns what the node waits for before it serves locks, or "" if it serves them.
func (e *Etcd) Waiting() string {
	select {
	case <-e.ready:
		if e.node.Server.Lead() == 0 {
			return "the cluster has no leader: a majority of its nodes must be there"
		}
		return ""
	default:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.why == "" {
		return "the node is starting"
	}
	return e.why
}

// Unreachable returns the names of the other members that did not answer recently.
func (e *Etcd) Unreachable() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := make([]string, 0, len(e.down))
	for name := range e.down {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// tell returns what this node reports of itself to the others. With confirm it asks a majority
// first.
func (e *Etcd) tell(ctx context.Context, confirm bool) nodeInfo {
	e.mu.Lock()
	rec, node, client := e.rec, e.node, e.client
	info := nodeInfo{Name: e.cfg.Name, URL: e.cfg.peerURL(), State: e.state}
	e.mu.Unlock()
	if rec == nil {
		return info
	}
	// The record of a cluster that does not run yet counts as none, except for nodes that would
	// form one.
	info.Cluster, info.Member, info.Members = rec.Cluster, rec.Member, rec.Members
	info.Boots = rec.clone().Boots
	if rec.Next != nil {
		info.Boots[rec.Member] = *rec.Next
	}
	if node == nil {
		return info
	}
	if lead := node.Server.Lead(); lead != 0 {
		info.Leader = hexID(lead)
	}
	info.Members = nil
	for _, m := range node.Server.Cluster().Members() {
		url := ""
		if len(m.PeerURLs) > 0 {
			url = m.PeerURLs[0]
		}
		info.Members = append(info.Members, recordMember{ID: hexID(uint64(m.ID)), Name: m.Name, URL: url})
	}
	if confirm && info.Leader != "" {
		ctx, cancel := context.WithTimeout(ctx, askTimeout/2)
		defer cancel()
		if list, err := client.MemberList(ctx); err == nil {
			info.Members, info.Confirmed = membersOf(list.Members), true
		}
	}
	return info
}
