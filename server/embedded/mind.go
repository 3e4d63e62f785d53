package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	mindEvery   = time.Second
	enlistEvery = time.Minute
)

// mind runs as long as the node. It keeps the record current, logs which members are gone and
// who leads, and ends the node when the cluster has removed it, or when another process runs
// from a copy of its folder.
func (e *Etcd) mind(ctx context.Context) error {
	t := time.NewTicker(mindEvery)
	defer t.Stop()
	again := time.NewTicker(enlistEvery)
	defer again.Stop()
	var leader uint64
	for {
		select {
		case <-e.node.Server.StopNotify():
			return e.stopped(ctx)
		case err := <-e.node.Err():
			return fmt.Errorf("embedded: %w", err)
		case <-ctx.Done():
			return e.learn(context.WithoutCancel(ctx)) // the next start depends on it
		case <-again.C:
			// Writing it again exposes an older copy of the folder.
			if !e.recorded().alone() {
				e.log().DebugContext(ctx, "start written again", slog.String("error", errText(e.enlist(ctx))))
			}
		case <-t.C:
			if err := e.learn(ctx); err != nil {
				return err
			}
			if now := e.node.Server.Lead(); now != leader {
				e.sayLeader(leader, now)
				leader = now
			}
			e.look(ctx)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// learn stores in the record what this node needs to know before etcd runs.
func (e *Etcd) learn(ctx context.Context) error {
	old := e.recorded()
	rec := old.clone()
	rec.Members = rec.Members[:0]
	for _, m := range e.node.Server.Cluster().Members() {
		id := hexID(uint64(m.ID))
		rec.Members = append(rec.Members, recordMember{ID: id, Name: m.Name, URL: strings.Join(m.PeerURLs, " ")})
		if id == rec.Member && len(m.PeerURLs) > 0 {
			rec.URL = m.PeerURLs[0]
		}
	}
	slices.SortFunc(rec.Members, func(a, b recordMember) int { return strings.Compare(a.ID, b.ID) })
	changed := rec.URL != old.URL || !slices.Equal(rec.Members, old.Members)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// Read from this node's own data: it must not need a majority.
	got, err := e.client.Get(ctx, keyBoots, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		got = new(clientv3.GetResponse) // what the cluster reported of its members is still known
	}
	for _, kv := range got.Kvs {
		id := strings.TrimPrefix(string(kv.Key), keyBoots)
		b, ok := decodeBoot(kv.Value)
		if !ok || b == rec.Boots[id] {
			continue
		}
		if id == rec.Member {
			if rec.isOld(b) {
				return fmt.Errorf("embedded: another process runs from a copy of the folder of %s: stop both, \"holdfast cluster remove %s\", then start it with an empty folder: %w", e.cfg.Name, e.cfg.Name, ErrRefused)
			}
			continue
		}
		rec.Boots[id], changed = b, true
	}
	if !changed {
		return nil
	}
	return e.keep(rec)
}

func (e *Etcd) sayLeader(before, now uint64) {
	switch {
	case now == 0:
		e.log().Warn("the cluster has no leader: nothing is granted until a majority has elected one")
	case before != 0 || e.peers != nil:
		e.log().Info("the leader changed", slog.String("leader", e.nameOf(now)))
	}
}

func (e *Etcd) nameOf(id uint64) string {
	for _, m := range e.node.Server.Cluster().Members() {
		if uint64(m.ID) == id && m.Name != "" {
			return m.Name
		}
	}
	return hexID(id)
}

// look checks which other members are reachable, and logs the changes.
func (e *Etcd) look(ctx context.Context) {
	if e.peers == nil {
		return
	}
	down := make(map[string]bool)
	for _, h := range e.peers.ask(ctx, e.members(), false) {
		if h.err != nil || h.info.State != nodeRunning {
			down[h.peer.Name] = true
		}
	}
	if ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	before := e.down
	e.down = down
	e.mu.Unlock()
	for name := range down {
		if !before[name] {
			e.log().WarnContext(ctx, "a node of the cluster is not reached", slog.String("node", name))
		}
	}
	for name := range before {
		if !down[name] {
			e.log().WarnContext(ctx, "a node of the cluster is reached again, or was removed", slog.String("node", name))
		}
	}
}
