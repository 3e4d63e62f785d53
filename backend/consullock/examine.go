package consullock

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"
)

// Examine asks how many servers there are, and how the agent is configured. It implements
// backend.Examiner.
func (b *Backend) Examine(ctx context.Context) ([]string, error) {
	ctx, cancel := answering(ctx)
	defer cancel()
	opts := (&api.QueryOptions{}).WithContext(ctx)
	var out []string
	if b.onAgent.Load() {
		out = append(out, onAgent)
	}
	peers, err := b.client.Status().PeersWithQueryOptions(opts)
	if err != nil {
		return nil, b.fail(ctx, "examine", err, false)
	}
	if len(peers) < 3 { //nolint:mnd // of which a majority survives the loss of one
		out = append(out, fmt.Sprintf("the cluster has %d servers: it does not survive the loss of one", len(peers)))
	}
	var self struct {
		DebugConfig struct{ SessionTTLMin string }
	}
	if _, err := b.client.Raw().Query("/v1/agent/self", &self, opts); err != nil {
		if refused(err) {
			return append(out, "the settings of the agent were not looked at: the token has no agent:read"), nil
		}
		return nil, b.fail(ctx, "examine", err, false)
	}
	if least, err := time.ParseDuration(self.DebugConfig.SessionTTLMin); err == nil && least > b.cfg.MinTTL {
		out = append(out, fmt.Sprintf("session_ttl_min of the agent is %s, and min_ttl here is %s: shorter sessions are refused", least, b.cfg.MinTTL))
	}
	return out, nil
}
