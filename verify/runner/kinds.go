//go:build unix

package runner

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/launch"
)

// placeTTL is server.Config.PlaceTTL: how long a place in the queue of our server may outlive the request.
const placeTTL = 15 * time.Second

// kind is what only this package has to know of a kind of servers.
type kind struct {
	jumps jumps
	// parameters are those of the URLs. A new Redis grants nothing for as long as the longest lease
	// that may be held: here that time is known.
	parameters string
	trace      time.Duration // see member
}

// kinds returns the clusters that can be started, with the names of package launch. The locks of
// postgres+advisory and mysql+getlock end with their connections: their server is stopped, and does
// not crash.
func kinds() map[string]kind {
	return map[string]kind{
		"redis":             {jumps: jumpsBack, parameters: "?quarantine=5s"},
		"redlock":           {jumps: jumpsBack, parameters: "?max_ttl=10s"}, // of five servers two may be down
		"etcd":              {},
		"zookeeper":         {jumps: jumpsFar, parameters: "?tick=" + launch.ZooKeeperTick.String()},
		"consul":            {parameters: "?min_ttl=" + launch.ConsulMinTTL.String()},
		"postgres":          {jumps: jumpsBack},
		"postgres+advisory": {jumps: jumpsBack},
		"mysql":             {jumps: jumpsBack},
		"mysql+getlock":     {jumps: jumpsFar},
		"kubernetes":        {},
		"holdfast":          {trace: placeTTL},
	}
}

// prepare adds the servers of a kind, which are not started yet.
func (c *cluster) prepare(ctx context.Context, name string) error {
	k, known := kinds()[name]
	if !known {
		return &backend.InvalidError{Field: "local-cluster", Value: fmt.Sprintf("%.20q", name), Bound: "one of " + strings.Join(Clusters(), ", ")}
	}
	const members = 3
	g, err := launch.Kinds()[name](ctx, launch.Options{Dir: c.dir, Members: members, Programs: c.programs})
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	c.url, c.inTurn, c.shims.jumps = g.URL+k.parameters, g.InTurn, k.jumps
	for _, s := range g.Servers {
		if s.URL != "" {
			s.URL += k.parameters
		}
		c.members = append(c.members, &member{Server: s, trace: k.trace})
	}
	return nil
}
