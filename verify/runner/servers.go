//go:build unix

package runner

import "context"

// Servers are servers that this process started, and that runs may stop and crash, like those
// of [Config.Cluster]: with them many runs use the same servers, one run after the other.
type Servers struct{ cluster *cluster }

// StartServers starts servers of a kind, one of [Clusters], and waits until they serve.
// programs is like [Config.Programs]. Servers that this process does not end itself end with it
// if the system supports that; their folder then remains.
//
// Errors: *backend.InvalidError for an unknown kind; programs that are not installed, or did
// not serve.
func StartServers(ctx context.Context, kind string, programs map[string][]string) (*Servers, error) {
	c, err := startCluster(ctx, kind, programs)
	if err != nil {
		return nil, err
	}
	return &Servers{c}, nil
}

// URL returns the URL of the servers as a backend.
func (s *Servers) URL() string { return s.cluster.url }

// Pids returns the processes of the servers at the moment. A server that crashed is another
// process afterwards.
func (s *Servers) Pids() []int {
	var pids []int
	for _, m := range s.cluster.members {
		pids = append(pids, m.Process().Pid())
	}
	return pids
}

// End kills the servers and deletes their data. No run may be in progress.
func (s *Servers) End() error { return s.cluster.end() }
