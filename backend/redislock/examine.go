package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// Quarantined returns nil if the server grants locks, else an error. It implements
// backend.Guarded.
func (b *Backend) Quarantined(ctx context.Context) error {
	const op = "ready"
	answer, _, err := b.engine.do(ctx, false, op)
	if err != nil {
		return readOnly(toKind(op, err))
	}
	if d := decode(answer); d.Text() == "OK" {
		return nil
	}
	return refusal(op, new(decode(answer)), "", 0)
}

// Examine queries the server's role in replication, whether its answers are on disk, and whether the
// user lacks a right, and whether keys can be evicted. It implements backend.Examiner.
func (b *Backend) Examine(ctx context.Context) ([]backend.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.RequestTimeout)
	defer cancel()
	missing, err := b.engine.missing(ctx)
	if err != nil {
		return nil, toKind("examine", err)
	}
	var out []backend.Finding
	found := func(usual bool, text string) { out = append(out, backend.Finding{Text: text, Usual: usual}) }
	for _, right := range missing {
		found(false, connect.Lacks(backendName, right, nil).Error())
	}
	text, err := b.info(ctx, "replication")
	if err != nil {
		return out, toKind("examine", err)
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
	out = append(out, b.findings(run, settings)...)
	if facts["role"] == "slave" {
		found(false, "this server is a replica: it takes no locks, and one that is made the primary may have lost some")
	}
	if n, _ := strconv.Atoi(facts["connected_slaves"]); n > b.cfg.Replicas {
		found(false, fmt.Sprintf("%d replicas follow, and a grant waits for %d (replicas=): a fail-over can lose the newest grants, and a lock may then be granted twice", n, b.cfg.Replicas))
	}
	return out, nil
}

// findings returns which settings of the server end leases early. run is that of syncedRun. Behind Sentinel and in a
// Cluster the settings for the disk do not matter, and are not read.
func (b *Backend) findings(run string, settings map[string]string) []backend.Finding {
	var out []backend.Finding
	onDisk := ""
	if settings["appendonly"] != "" {
		onDisk = fmt.Sprintf(" (appendonly %s, appendfsync %s, no-appendfsync-on-rewrite %s)",
			settings["appendonly"], settings["appendfsync"], settings["no-appendfsync-on-rewrite"])
	}
	switch loses := "what this server answers may not be on its disk" + onDisk; {
	case run == "" && b.cfg.Quarantine < 0:
		out = backend.Findings(false, loses+": after a crash a lock may be granted while its holder works; set appendonly yes and appendfsync always, or leave the quarantine on")
	case run == "" && onDisk != "":
		out = backend.Findings(true, loses+": a restart ends all leases, and nothing is granted for the quarantine; with appendonly yes and appendfsync always leases survive it")
	}
	if program.Evicts(settings) {
		out = append(out, backend.Findings(false, "keys may be evicted when the memory is full, and leases and tokens be lost; set maxmemory-policy to noeviction (it is "+settings["maxmemory-policy"]+")")...)
	}
	return out
}

// rights returns what an ACL has to allow: see program.Rights. docs/backends/redis.md lists the same.
func rights() ([]string, error) {
	p, err := newProgram()
	return p.Rights("config|get", "ping", "subscribe", "zrem"), err
}

// missing returns the rights that the user lacks, as words of ACL SETUSER.
func (e *engine) missing(ctx context.Context) ([]string, error) {
	words, err := rights()
	if err != nil {
		return nil, err
	}
	return program.Missing(words, strings.TrimSuffix(e.key, "m"), func(load bool, args []string) ([]reply, error) {
		answer, err := e.runner.Run(ctx, e.link.send, load, "", e.key, args)
		return answer.List, err
	})
}

// named completes an error of the server about a right that it does not name.
func (e *engine) named(err error) error {
	server, ok := errors.AsType[*serverError](err)
	if !ok || server.Missing() != program.Unnamed {
		return err
	}
	ctx, cancel := context.WithTimeout(e.base, min(e.timeout, 5*time.Second))
	defer cancel()
	if all, failed := e.missing(ctx); failed == nil && len(all) > 0 {
		named := *server
		named.Right = strings.Join(all, " ")
		if sent, ok := errors.AsType[*sentError](err); ok {
			return &sentError{sent: sent.sent, err: &named}
		}
		return &named
	}
	return err
}
