//go:build unix

package play

import "context"

// Servers are servers that this process started, and that runs may hurt, as those of
// [Config.Cluster]: with them many runs play on the same servers, one run after the other.
type Servers struct{ cluster *cluster }

// StartServers starts servers of a kind, one of [Clusters], and waits until they serve.
// Programs is what it is for [Config.Programs]. Servers that this process leaves behind end
// with it where the system can do that; their folder stays then.
//
// Errors: *backend.InvalidError for a kind that there is not; programs that are not
// installed, or did not serve.
func StartServers(ctx context.Context, kind string, programs map[string][]string) (*Servers, error) {
	c, err := startCluster(ctx, kind, programs)
	if err != nil {
		return nil, err
	}
	return &Servers{c}, nil
}

// URL is that of the backend which the servers are.
func (s *Servers) URL() string { return s.cluster.url }

// Pids are the processes that the servers are at the moment: one that crashed is another
// process after that.
func (s *Servers) Pids() []int {
	var pids []int
	for _, m := range s.cluster.members {
		m.mu.Lock()
		pids = append(pids, m.cmd.Process.Pid)
		m.mu.Unlock()
	}
	return pids
}

// End kills the servers and removes what they kept. No run may be under way.
func (s *Servers) End() error { return s.cluster.end() }
