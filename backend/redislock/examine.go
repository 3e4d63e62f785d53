package redislock

import (
	"context"
	"strings"
)

// Quarantined asks the server whether it grants locks. It implements backend.Guarded.
func (b *Backend) Quarantined(ctx context.Context) error {
	const op = "ready"
	answer, _, err := b.engine.do(ctx, false, op)
	if err != nil {
		return readOnly(toKind(op, err))
	}
	if d := (decoder{list: answer}); d.text() == "OK" {
		return nil
	}
	return refusal(op, &decoder{list: answer}, "", 0)
}

// Examine asks the server for its part in replication. It implements backend.Examiner.
// A policy that evicts keys is told to the logger when the backend is opened, and whether
// grants are on disk is Capabilities.Durable.
func (b *Backend) Examine(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.RequestTimeout)
	defer cancel()
	text, err := b.link.info(ctx, "replication")
	if err != nil {
		return nil, toKind("examine", err)
	}
	facts := make(map[string]string)
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		facts[key] = value
	}
	var out []string
	if facts["role"] == "slave" {
		out = append(out, "this server is a replica: it takes no locks, and one that is made the primary may have lost some")
	}
	if n := facts["connected_slaves"]; n != "" && n != "0" {
		out = append(out, n+" replicas follow asynchronously: a fail-over can lose the newest grants, and a lock may then be granted twice")
	}
	return out, nil
}
