package embedded

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// ErrRefused is in the error of a node that must not run with the folder that it has, or of a
// change that the cluster refuses. Retrying will not help.
var ErrRefused = errors.New("refused")

const askEvery = 500 * time.Millisecond // while waiting for the other nodes

// check compares the folder with the flags, before anything is started.
func (e *Etcd) check() error {
	rec, err := readRecord(e.cfg.DataDir)
	if err != nil {
		return fmt.Errorf("embedded: data folder %s: %w", e.cfg.DataDir, err)
	}
	data, err := hasData(e.cfg.DataDir)
	if err != nil {
		return fmt.Errorf("embedded: data folder: %w", err)
	}
	alone := len(e.cfg.Cluster) == 0
	switch {
	case rec == nil && data && !alone:
		return fmt.Errorf("embedded: %s has data, and no %s that says of which node and cluster: start it once without --cluster if it was alone: %w", e.cfg.DataDir, recordFile, ErrRefused)
	case rec == nil && data:
		rec = &record{State: stateStarted, Name: e.cfg.Name, URL: aloneURL} // written by an earlier version
	case rec == nil:
	case !data && rec.State == stateStarted:
		return fmt.Errorf("embedded: the data of %s in %s is gone: if the cluster has other nodes, \"holdfast cluster remove %s\", then start it with an empty folder: %w", rec.Name, e.cfg.DataDir, rec.Name, ErrRefused)
	case !data:
		rec = nil // an earlier start ended before anything was stored
	default:
		err = e.checkRecord(rec)
	}
	if err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	e.rec, e.state = rec, nodeWaiting
	if rec != nil {
		e.state = nodeStarting
	}
	return nil
}

// checkRecord refuses a folder that does not match the flags.
func (e *Etcd) checkRecord(rec *record) error {
	if err := rec.checkPlaces(e.cfg.DataDir); err != nil {
		return err
	}
	// A node that never chose a name takes one when its cluster begins to grow.
	if rec.Name != e.cfg.Name && (rec.Name != DefaultName || !rec.alone()) {
		return fmt.Errorf("%s is the folder of %s, and not of %s: %w", e.cfg.DataDir, rec.Name, e.cfg.Name, ErrRefused)
	}
	if len(e.cfg.Cluster) == 0 && !rec.alone() {
		return fmt.Errorf("%s is the folder of %s in a cluster with %s: start it with --cluster: %w", e.cfg.DataDir, rec.Name, rec.names(), ErrRefused)
	}
	for _, m := range rec.Members {
		for _, p := range e.cfg.Cluster {
			if m.ID != rec.Member && (m.Name == p.Name && m.URL != p.URL || m.URL == p.URL && m.Name != p.Name && m.Name != "") {
				return fmt.Errorf("--cluster has %s=%s, and the cluster has %s=%s: %w", p.Name, p.URL, m.Name, m.URL, ErrRefused)
			}
		}
	}
	return nil
}

// names lists the other members, for people.
func (r *record) names() string {
	var names []string
	for _, m := range r.Members {
		if m.ID != r.Member {
			names = append(names, m.Name)
		}
	}
	return strings.Join(names, ", ")
}

// run brings the node into a cluster and then watches it. again says that its folder is that of an
// earlier start. It returns why the node ended, or nil after Close.
func (e *Etcd) run(ctx context.Context, again bool) error {
	var err error
	switch {
	case again:
		err = e.startAgain(ctx)
	case len(e.cfg.Cluster) == 0:
		err = e.startNew()
	default:
		err = e.startEmpty(ctx)
	}
	if err == nil {
		err = e.settle(ctx)
	}
	if err == nil {
		err = e.learn(ctx) // a node that is killed now knows the other nodes when it restarts
	}
	if err == nil {
		close(e.ready)
		err = e.mind(ctx)
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // Close was called
	}
	return err
}

// wait records what the node waits for, and waits a while.
func (e *Etcd) wait(ctx context.Context, why string) error {
	e.say(why)
	return pause(ctx, askEvery)
}

// pause waits for d. Error: ctx's cause.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startEmpty waits until a cluster admits this node, or Init makes it form one.
func (e *Etcd) startEmpty(ctx context.Context) error {
	for {
		e.mu.Lock()
		formed := e.rec != nil
		e.mu.Unlock()
		if formed { // by Init
			return e.startFormed()
		}
		why, joined, err := e.tryJoin(ctx)
		if err != nil || joined {
			return err
		}
		if err := e.wait(ctx, why); err != nil {
			return err
		}
	}
}

// tryJoin asks every peer, and joins the cluster of one that runs. If it did not join, it
// returns why.
func (e *Etcd) tryJoin(ctx context.Context) (string, bool, error) {
	var silent, empty, stuck []string
	cluster := ""
	var running []heard
	for _, h := range e.peers.ask(ctx, e.others(), false) {
		switch {
		case h.err != nil:
			silent = append(silent, h.peer.Name)
		case h.info.Cluster != "" && cluster != "" && h.info.Cluster != cluster:
			return "", false, fmt.Errorf("embedded: the nodes on the list are of two clusters: %s is in %s, another in %s: %w", h.peer.Name, h.info.Cluster, cluster, ErrRefused)
		case h.info.State == nodeRunning && h.info.Leader != "":
			running, cluster = append(running, h), h.info.Cluster
		case h.info.Cluster != "":
			cluster = h.info.Cluster
			stuck = append(stuck, h.peer.Name)
			if slices.ContainsFunc(h.info.Members, func(m recordMember) bool { return m.Name == e.cfg.Name }) {
				stuck[len(stuck)-1] += ", which knows " + e.cfg.Name + " as a member that had data (this folder is empty),"
			}
		default:
			empty = append(empty, h.peer.Name)
		}
	}
	var why error
	for _, h := range running {
		joined, err := e.join(ctx, h)
		if joined || errors.Is(err, ErrRefused) || ctx.Err() != nil {
			return "", joined, err
		}
		why = errors.Join(why, err)
	}
	return waitsFor(e.cfg.Name, silent, empty, stuck, why), false, nil
}

// waitsFor describes why a node with an empty folder has not joined.
func waitsFor(name string, silent, empty, stuck []string, err error) string {
	var parts []string
	if len(stuck) > 0 {
		parts = append(parts, strings.Join(stuck, ", ")+" must have a majority again first")
	}
	if err != nil {
		parts = append(parts, err.Error())
	}
	if len(empty) > 0 {
		parts = append(parts, strings.Join(empty, ", ")+" wait as well")
	}
	if len(silent) > 0 {
		parts = append(parts, "no answer from "+strings.Join(silent, ", "))
	}
	why := "waiting for a cluster to let " + name + " in: " + strings.Join(parts, "; ")
	if len(stuck) == 0 && err == nil {
		why += "; to form a new cluster, once: \"holdfast cluster init\" on one node"
	}
	return why
}

// join asks a peer to admit this node, and starts etcd as the new member.
func (e *Etcd) join(ctx context.Context, h heard) (bool, error) {
	e.joining.Lock()
	defer e.joining.Unlock()
	e.mu.Lock()
	busy := e.state == nodeInitiating || e.rec != nil
	e.mu.Unlock()
	if busy {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	var in joinAnswer
	own := e.cfg.own()
	if err := e.peers.call(ctx, http.MethodPost, h.peer.URL, pathJoin, changeRequest{Name: own.Name, URL: own.URL}, &in); err != nil {
		return false, fmt.Errorf("embedded: %w", err)
	}
	rec := &record{State: stateJoining, Cluster: in.Cluster, Member: in.Member, Name: own.Name, URL: own.URL, Members: in.Members}
	if err := e.prepare(rec); err != nil {
		return false, err
	}
	initial := make([]string, 0, len(in.Members))
	for _, m := range in.Members {
		name := m.Name
		switch {
		case m.ID == in.Member:
			name = own.Name
		case name == "":
			name = "member-" + m.ID // it has not started yet, and etcd matches members by URL
		}
		initial = append(initial, name+"="+m.URL)
	}
	err := e.startEtcd(func(ec *embed.Config) {
		ec.ClusterState = embed.ClusterStateFlagExisting
		ec.InitialCluster = strings.Join(initial, ",")
	})
	if err != nil {
		if data, errData := hasData(e.cfg.DataDir); errData != nil || data {
			return false, errors.Join(err, errData)
		}
		e.mu.Lock()
		e.rec = nil
		e.mu.Unlock()
		if strings.Contains(err.Error(), "error validating peerURLs") { // another node was added at the same time
			err = nil
		}
		return false, err
	}
	return true, nil
}

// prepare prepares the folder, and its record, for the first start of etcd.
func (e *Etcd) prepare(rec *record) error {
	dir := e.cfg.DataDir
	// Without a log, the remains of an earlier attempt mean nothing.
	if err := os.RemoveAll(filepath.Join(dir, etcdDir)); err != nil {
		return fmt.Errorf("embedded: data folder: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, etcdDir, "member"), dirMode); err != nil {
		return fmt.Errorf("embedded: data folder: %w", err)
	}
	var err error
	if rec.Places, err = places(dir); err != nil {
		return fmt.Errorf("embedded: data folder: %w", err)
	}
	return e.keep(rec)
}

// keep writes the record to the disk and makes it the current one.
func (e *Etcd) keep(rec *record) error {
	if err := rec.write(e.cfg.DataDir); err != nil {
		return fmt.Errorf("embedded: data folder: %w", err)
	}
	e.mu.Lock()
	e.rec = rec
	e.mu.Unlock()
	return nil
}

// startNew forms a cluster of this node alone.
func (e *Etcd) startNew() error {
	if err := e.prepare(&record{State: stateForming, Token: randomMark(), Name: e.cfg.Name, URL: e.cfg.peerURL()}); err != nil {
		return err
	}
	return e.startFormed()
}

func (e *Etcd) startFormed() error {
	rec := e.recorded()
	return e.startEtcd(func(ec *embed.Config) {
		ec.ClusterState = embed.ClusterStateFlagNew
		ec.InitialClusterToken = rec.Token
		ec.InitialCluster = rec.Name + "=" + rec.URL
	})
}

// Init makes a waiting node form a new cluster, of itself alone. The other nodes on the list
// join it. Call it once in the life of a cluster, on one node.
//
// Every other node on the list must answer, and must have no data either: a cluster that is
// only unreachable must not get a second one beside it. On a node that has already formed its
// cluster, Init does nothing. Errors: ErrRefused; ctx's cause.
func (e *Etcd) Init(ctx context.Context) error {
	e.mu.Lock()
	if e.rec != nil && e.rec.Token != "" && e.peers != nil {
		e.mu.Unlock()
		return e.awaitReady(ctx) // it has formed its cluster already: the caller may not have received the answer
	}
	if e.rec != nil || e.peers == nil {
		e.mu.Unlock()
		return fmt.Errorf("embedded: %s is in a cluster already: %w", e.cfg.Name, ErrRefused)
	}
	if e.state == nodeInitiating {
		e.mu.Unlock()
		return fmt.Errorf("embedded: %s is forming a cluster already", e.cfg.Name)
	}
	// From here on the other nodes see this state, and refuse to form a cluster: the second
	// node to announce it hears of the first.
	e.state = nodeInitiating
	e.mu.Unlock()
	if err := e.init(ctx); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.state == nodeInitiating { // otherwise the node has joined a cluster meanwhile
			e.state = nodeWaiting
		}
		return err
	}
	return e.awaitReady(ctx)
}

func (e *Etcd) awaitReady(ctx context.Context) error {
	select {
	case <-e.ready:
		return nil
	case <-e.ended:
		return e.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (e *Etcd) init(ctx context.Context) error {
	for _, h := range e.peers.ask(ctx, e.others(), false) {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case h.err != nil:
			return fmt.Errorf("embedded: %s does not answer, and may have the data of a cluster: start it, or leave it out of --cluster: %w", h.peer.Name, ErrRefused)
		case h.info.Cluster != "":
			return fmt.Errorf("embedded: %s is in a cluster already (%s): %s joins that: %w", h.peer.Name, h.info.Cluster, e.cfg.Name, ErrRefused)
		case h.info.State != nodeWaiting:
			return fmt.Errorf("embedded: %s is forming a cluster at this moment: %w", h.peer.Name, ErrRefused)
		}
	}
	// The loop of startEmpty reads the record, and starts.
	e.joining.Lock()
	defer e.joining.Unlock()
	if e.recorded() != nil {
		return fmt.Errorf("embedded: %s has just joined a cluster: %w", e.cfg.Name, ErrRefused)
	}
	return e.prepare(&record{State: stateForming, Token: randomMark(), Name: e.cfg.Name, URL: e.cfg.peerURL()})
}

// startEtcd starts etcd, and checks that it is the member in the record.
func (e *Etcd) startEtcd(set func(*embed.Config)) error {
	ec, err := e.config()
	if err != nil {
		return err
	}
	set(ec)
	node, err := embed.StartEtcd(ec)
	if err != nil {
		return fmt.Errorf("embedded: start: %w", err)
	}
	rec := e.recorded().clone()
	cluster, member := hexID(uint64(node.Server.Cluster().ID())), hexID(uint64(node.Server.MemberID()))
	if rec.Cluster != "" && rec.Cluster != cluster || rec.Member != "" && rec.Member != member {
		node.Close()
		return fmt.Errorf("embedded: %s says member %s of cluster %s, and the data is of member %s of cluster %s: %w", recordFile, rec.Member, rec.Cluster, member, cluster, ErrRefused)
	}
	if n := len(node.Server.Cluster().Members()); len(e.cfg.Cluster) == 0 && n > 1 {
		node.Close()
		return fmt.Errorf("embedded: %s is the folder of a node in a cluster of %d: start it with --cluster: %w", e.cfg.DataDir, n, ErrRefused)
	}
	rec.State, rec.Cluster, rec.Member, rec.Name = stateStarted, cluster, member, e.cfg.Name
	if rec.Places, err = places(e.cfg.DataDir); err != nil {
		node.Close()
		return fmt.Errorf("embedded: data folder: %w", err)
	}
	if err := e.keep(rec); err != nil {
		node.Close()
		return err
	}
	h := etcdhttp.NewPeerHandler(node.GetLogger(), node.Server)
	client := v3client.New(node.Server)
	keys := newKeyspace(node.Server)
	client.KV, client.Watcher = clientv3.NewKVFromKVClient(keys, client), watcher(node.Server, client)
	e.mu.Lock()
	e.node, e.client, e.keys, e.state = node, client, keys, nodeRunning
	e.mu.Unlock()
	e.raft.Store(&h)
	return nil
}

func (r *record) clone() *record {
	c := *r
	c.Members, c.Places, c.Boots = slices.Clone(r.Members), nil, make(map[string]boot, len(r.Boots))
	maps.Copy(c.Boots, r.Boots)
	c.Places = r.Places // it is replaced as a whole
	return &c
}
