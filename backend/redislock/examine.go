package redislock

import (
	"context"
	"errors"
	"strings"
)

// Quarantined returns nil if the server grants locks, else an error. It implements
// backend.Guarded.
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

// Examine queries the server's role in replication, and whether its answers are on disk. It
// implements backend.Examiner. An eviction policy that can delete keys is logged when the
// Backend is opened, not here.
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
	run, settings, err := b.syncedRun(ctx)
	if _, refused := errors.AsType[*serverError](err); err != nil && !refused {
		return nil, toKind("examine", err)
	}
	var out []string
	// Behind Sentinel and in a Cluster the settings for the disk do not matter, and are not
	// read.
	if settings["appendonly"] != "" && run == "" {
		loses := "what this server answers may not be on its disk (appendonly " + settings["appendonly"] + ", appendfsync " +
			settings["appendfsync"] + ", no-appendfsync-on-rewrite " + settings["no-appendfsync-on-rewrite"] + "): "
		if b.cfg.Quarantine < 0 {
			out = append(out, loses+"after a crash a lock may be granted while its holder works; set appendonly yes and appendfsync always, or leave the quarantine on")
		} else {
			out = append(out, loses+"a restart ends all leases, and nothing is granted for the quarantine; with appendonly yes and appendfsync always leases survive it")
		}
	}
	if facts["role"] == "slave" {
		out = append(out, "this server is a replica: it takes no locks, and one that is made the primary may have lost some")
	}
	if n := facts["connected_slaves"]; n != "" && n != "0" {
		out = append(out, n+" replicas follow asynchronously: a fail-over can lose the newest grants, and a lock may then be granted twice")
	}
	return out, nil
}
