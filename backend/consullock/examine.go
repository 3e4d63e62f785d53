package consullock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// Examine asks how many servers there are, how the agent is configured, and whether the token lacks a
// right. It implements backend.Examiner.
func (b *Backend) Examine(ctx context.Context) ([]backend.Finding, error) {
	ctx, cancel := answering(ctx)
	defer cancel()
	opts := (&api.QueryOptions{}).WithContext(ctx)
	lacks, err := b.lacking(ctx)
	if err != nil {
		return nil, b.fail(ctx, "examine", err, false)
	}
	if b.onAgent.Load() {
		lacks = append(lacks, onAgent)
	}
	out := backend.Findings(false, lacks...)
	peers, err := b.client.Status().PeersWithQueryOptions(opts)
	if err != nil {
		return nil, b.fail(ctx, "examine", err, false)
	}
	if len(peers) < 3 { //nolint:mnd // of which a majority survives the loss of one
		out = append(out, backend.Finding{Usual: true, Text: fmt.Sprintf("the cluster has %d servers: it does not survive the loss of one", len(peers))})
	}
	var self struct {
		DebugConfig struct{ SessionTTLMin string }
	}
	if _, err := b.client.Raw().Query("/v1/agent/self", &self, opts); err != nil {
		if refused(err) {
			return append(out, backend.Finding{Usual: true, Text: "the settings of the agent were not looked at: the token has no agent:read"}), nil
		}
		return nil, b.fail(ctx, "examine", err, false)
	}
	if least, err := time.ParseDuration(self.DebugConfig.SessionTTLMin); err == nil && least > b.cfg.MinTTL {
		out = append(out, backend.Finding{Text: fmt.Sprintf("session_ttl_min of the agent is %s, and min_ttl here is %s: shorter sessions are refused", least, b.cfg.MinTTL)})
	}
	return out, nil
}

// rules returns what the token needs, as docs/backends/consul.md lists it: for keys, sessions and the node
// of sessions.
func (b *Backend) rules() [3]string {
	rule := func(kind, name string) string { return kind + " \"" + name + "\" { policy = \"write\" }" }
	return [3]string{rule("key_prefix", b.cfg.Prefix+"/"), rule("session", node), rule("node", node)}
}

// lacking returns a finding for each right that the token lacks. Nothing is changed: Consul checks the
// rights first, and then refuses a transaction because of its condition, and a session because of its
// behavior.
func (b *Backend) lacking(ctx context.Context) ([]string, error) {
	const never = 1 << 62 // the index of no key
	key := b.cfg.Prefix + "/rights"
	ok, res, _, err := b.client.Txn().Txn(api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: never}},
		{KV: &api.KVTxnOp{Verb: api.KVSet, Key: key}},
		{Node: &api.NodeTxnOp{Verb: api.NodeSet, Node: api.Node{Node: node, Address: "127.0.0.1"}}},
	}, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	rules := b.rules()
	lacks := [3]bool{}
	if !ok {
		for _, e := range res.Errors {
			if strings.Contains(e.What, becauseDenied) && e.OpIndex < len(lacks) {
				lacks[e.OpIndex/2*2] = true // the first two are about the key
			}
		}
	}
	entry := &api.SessionEntry{Name: b.cfg.Prefix, Node: node, Behavior: "none of Consul's"}
	_, _, err = b.client.Session().CreateNoChecks(entry, (&api.WriteOptions{}).WithContext(ctx))
	lacks[1] = denied(err)
	var out []string
	for i, rule := range rules {
		if lacks[i] {
			out = append(out, connect.Lacks(name, rule, nil).Error())
		}
	}
	return out, nil
}
