package consullock

import (
	"context"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// node is what sessions are tied to. Consul ends the sessions of a node immediately, whatever their
// TTL, when it leaves the cluster; and an agent that is restarted leaves, with the sessions of all
// clients that would have to be told of it through that agent. This node belongs to no agent, so it
// never leaves.
const node = "holdfast-sessions"

// onAgent is the warning for sessions that are tied to the agent's node after all.
const onAgent = "the token may not register the node \"" + node + "\", or may not write sessions on it: sessions are tied to the agent's node and end immediately when the agent leaves the cluster, which can happen at its restart; another client may then acquire a lock before its holder learns of the loss"

// create makes a session of Consul.
func (b *Backend) create(ctx context.Context, ttl time.Duration) (string, error) {
	entry := &api.SessionEntry{Name: b.cfg.Prefix, Node: node, TTL: ttl.String(), Behavior: api.SessionBehaviorDelete, LockDelay: leastDelay}
	ctx, cancel := answering(ctx)
	defer cancel()
	opts := (&api.WriteOptions{}).WithContext(ctx)
	uuid, _, err := b.client.Session().CreateNoChecks(entry, opts)
	if err != nil && strings.Contains(err.Error(), becauseNode) {
		// Several clients may register it at the same time.
		_, err = b.client.Catalog().Register(&api.CatalogRegistration{Node: node, Address: "127.0.0.1"}, opts)
		if err == nil {
			uuid, _, err = b.client.Session().CreateNoChecks(entry, opts)
		}
	}
	atAgent := denied(err)
	if atAgent {
		entry.Node = ""
		uuid, _, err = b.client.Session().CreateNoChecks(entry, opts)
	}
	if err == nil && atAgent && !b.onAgent.Swap(true) {
		b.cfg.Logger.WarnContext(ctx, onAgent)
	}
	return uuid, err
}
