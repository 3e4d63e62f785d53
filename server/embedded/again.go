package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"
)

// startAgain starts a node that has data. Before etcd runs, and could vote on the basis of an
// old copy of a folder, it asks the peers what they know of this node.
func (e *Etcd) startAgain(ctx context.Context) error {
	if e.peers != nil {
		for {
			again, err := e.checkPeers(ctx)
			if err != nil {
				return err
			}
			if again == "" {
				break
			}
			if err := e.wait(ctx, again); err != nil {
				return err
			}
		}
	}
	rec := e.recorded().clone()
	next := boot{Number: max(rec.Boots[rec.Member].Number, rec.next().Number) + 1, Mark: randomMark()}
	rec.Next = &next
	if err := e.keep(rec); err != nil {
		return err
	}
	return e.startEtcd(func(ec *embed.Config) { ec.ClusterState = embed.ClusterStateFlagExisting })
}

func (r *record) next() boot {
	if r.Next == nil {
		return boot{}
	}
	return *r.Next
}

// checkPeers asks the peers of the cluster what they know of this node. Peers that do not
// answer are skipped: a cluster that was stopped as a whole has to be able to start again. It
// returns what to wait for.
func (e *Etcd) checkPeers(ctx context.Context) (string, error) {
	rec := e.recorded()
	var movers []Peer
	for _, h := range e.peers.ask(ctx, e.others(), true) {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if h.err != nil || h.info.Cluster == "" {
			continue
		}
		if h.info.Cluster != rec.Cluster {
			return "", fmt.Errorf("embedded: %s is in the cluster %s, and %s has the data of another one, %q: only one of them may run: %w", h.peer.Name, h.info.Cluster, e.cfg.Name, rec.Cluster, ErrRefused)
		}
		own := slices.IndexFunc(h.info.Members, func(m recordMember) bool { return m.ID == rec.Member })
		if h.info.Confirmed && own < 0 {
			return "", fmt.Errorf("embedded: %s was removed from the cluster: to let it join again, start it with an empty folder: %w", e.cfg.Name, ErrRefused)
		}
		if err := rec.compare(e.cfg.Name, h); err != nil {
			return "", err
		}
		if h.info.State == nodeRunning {
			movers = append(movers, h.peer)
		}
	}
	if rec.URL == e.cfg.peerURL() || rec.alone() {
		return "", nil
	}
	return e.moveBy(ctx, rec, movers)
}

// moveBy has a peer change this node's peer URL, which no longer is that of the list.
func (e *Etcd) moveBy(ctx context.Context, rec *record, movers []Peer) (string, error) {
	own := e.cfg.peerURL()
	if own == aloneURL {
		return "", nil // it was the last of its cluster: settle changes it
	}
	why := []string{fmt.Sprintf("waiting for the cluster to change the peer URL of %s from %s to %s", e.cfg.Name, rec.URL, own)}
	for _, p := range movers {
		ctx, cancel := context.WithTimeout(ctx, actTimeout)
		var done struct{}
		err := e.peers.call(ctx, http.MethodPost, p.URL, pathMove, changeRequest{Member: rec.Member, URL: own}, &done)
		cancel()
		if errors.Is(err, ErrRefused) {
			return "", fmt.Errorf("embedded: %w", err)
		}
		if err != nil {
			why = append(why, err.Error())
			continue
		}
		moved := rec.clone()
		moved.URL = own
		for i, m := range moved.Members {
			if m.ID == rec.Member {
				moved.Members[i].URL = own
			}
		}
		return "", e.keep(moved)
	}
	return strings.Join(why, ": "), nil
}

// compare checks what the peer knows of this node's starts against this node's record, and what
// this node knows of the peer's starts against what the peer reports of itself. The number of
// starts never goes back unless a folder was replaced.
func (r *record) compare(name string, h heard) error {
	known, ok := h.info.Boots[r.Member]
	if ok && r.isOld(known) {
		return fmt.Errorf("embedded: %s runs or has run from another copy of this folder, which %s knows: this one is older, or a clone. "+
			"\"holdfast cluster remove %s\", then start it with an empty folder: %w", name, h.peer.Name, name, ErrRefused)
	}
	known, ok = r.Boots[h.info.Member]
	theirs, said := h.info.Boots[h.info.Member]
	if ok && said && known.isAfter(theirs) {
		return fmt.Errorf("embedded: %s runs from an old copy of its folder: stop it, and \"holdfast cluster remove %s\": %w", h.peer.Name, h.peer.Name, ErrRefused)
	}
	return nil
}

// isAfter reports whether b is a start that can neither have come before other nor be other.
func (b boot) isAfter(other boot) bool {
	return b.Number > other.Number || b.Number == other.Number && b.Mark != other.Mark
}

// isOld reports whether the cluster knows of a start of this member that its folder does not.
func (r *record) isOld(known boot) bool {
	return known.isAfter(r.Boots[r.Member]) && known.isAfter(r.next())
}

// settle waits until the node is a member with a vote and the cluster answers. Then it records
// this start in the cluster.
func (e *Etcd) settle(ctx context.Context) error {
	if err := e.awaitMajority(ctx); err != nil {
		return err
	}
	for e.node.Server.IsLearner() {
		if err := e.askForVote(ctx); err != nil {
			return err
		}
	}
	if own := e.cfg.peerURL(); e.recorded().URL != own { // the node is alone
		if err := e.move(ctx, uint64(e.node.Server.MemberID()), own); err != nil {
			return fmt.Errorf("embedded: %w", err)
		}
	}
	for {
		err := e.enlist(ctx)
		if err == nil {
			break
		}
		if !isElection(err) {
			return err
		}
		if err := e.wait(ctx, "waiting for a leader: "+err.Error()); err != nil {
			return err
		}
	}
	e.forget(ctx)
	e.say("")
	return nil
}

// awaitMajority waits until a leader has confirmed that it reaches this node.
func (e *Etcd) awaitMajority(ctx context.Context) error {
	t := time.NewTicker(askEvery)
	defer t.Stop()
	for {
		select {
		case <-e.node.Server.ReadyNotify():
			return nil
		case <-e.node.Server.StopNotify():
			return e.stopped(ctx)
		case err := <-e.node.Err():
			return fmt.Errorf("embedded: start: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
			if e.peers != nil {
				e.say(e.missing(ctx))
			}
		}
	}
}

// missing describes how many nodes answer, and which do not.
func (e *Etcd) missing(ctx context.Context) string {
	there, all := 1, 1
	var silent []string
	for _, h := range e.peers.ask(ctx, e.members(), false) {
		all++
		if h.err == nil && h.info.State == nodeRunning {
			there++
			continue
		}
		silent = append(silent, h.peer.Name)
	}
	if len(silent) == 0 {
		return "waiting for the nodes to elect a leader"
	}
	return fmt.Sprintf("waiting for a majority: %d of %d nodes are running, not %s", there, all, strings.Join(silent, ", "))
}

// members returns the other members of the cluster, as etcd knows them.
func (e *Etcd) members() []Peer {
	var all []Peer
	for _, m := range e.node.Server.Cluster().Members() {
		if m.ID == e.node.Server.MemberID() || len(m.PeerURLs) == 0 {
			continue
		}
		name := m.Name
		if name == "" {
			name = "a node at " + m.PeerURLs[0]
		}
		all = append(all, Peer{Name: name, URL: m.PeerURLs[0]})
	}
	slices.SortFunc(all, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// askForVote asks the members once to promote this learner. They do when it has caught up.
func (e *Etcd) askForVote(ctx context.Context) error {
	err := errors.New("no other member answers")
	for _, p := range e.members() {
		ctx, cancel := context.WithTimeout(ctx, actTimeout)
		var done struct{}
		err = e.peers.call(ctx, http.MethodPost, p.URL, pathPromote, changeRequest{Member: e.recorded().Member}, &done)
		cancel()
		if err == nil || errors.Is(err, ErrRefused) {
			break
		}
	}
	if errors.Is(err, ErrRefused) {
		return fmt.Errorf("embedded: %w", err)
	}
	select {
	case <-e.node.Server.StopNotify():
		return e.stopped(ctx)
	default:
	}
	if err != nil {
		return e.wait(ctx, "waiting for a vote in the cluster: "+err.Error())
	}
	return pause(ctx, askEvery/50) // it has the vote, and is about to learn of it
}

// stopped returns why etcd stopped by itself. A member that was down while it was removed
// learns of the removal only from the other members.
func (e *Etcd) stopped(ctx context.Context) error {
	removed := !e.node.Server.IsMemberExist(e.node.Server.MemberID())
	if !removed && e.peers != nil {
		for _, h := range e.peers.ask(ctx, e.members(), true) {
			here := slices.ContainsFunc(h.info.Members, func(m recordMember) bool { return m.ID == e.recorded().Member })
			removed = removed || h.err == nil && h.info.Confirmed && !here
		}
	}
	if removed {
		return fmt.Errorf("embedded: %s was removed from the cluster: to let it join again, start it with an empty folder: %w", e.cfg.Name, ErrRefused)
	}
	return errors.New("embedded: the node stopped by itself; the log says why")
}

// isElection reports whether a request failed because the cluster had no leader, or got another one.
// What was asked may have been done.
func isElection(err error) bool {
	return slices.ContainsFunc([]error{
		rpctypes.ErrLeaderChanged, rpctypes.ErrNoLeader, rpctypes.ErrTimeout, rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost,
	}, func(of error) bool { return errors.Is(err, of) })
}

// enlist writes this start into the keyspace, so that every member knows the last start of this
// one.
func (e *Etcd) enlist(ctx context.Context) error {
	rec := e.recorded().clone()
	if rec.Next == nil {
		rec.Next = &boot{Number: rec.Boots[rec.Member].Number + 1, Mark: randomMark()}
		if err := e.keep(rec); err != nil {
			return err
		}
		rec = rec.clone()
	}
	key := keyBoots + rec.Member
	for {
		got, err := e.client.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("embedded: read the last start: %w", err)
		}
		var revision int64
		if len(got.Kvs) > 0 {
			revision = got.Kvs[0].ModRevision
			known, ok := decodeBoot(got.Kvs[0].Value)
			if ok && rec.isOld(known) {
				return fmt.Errorf("embedded: %s runs or has run from another copy of this folder: \"holdfast cluster remove %s\", then start it with an empty folder: %w", e.cfg.Name, e.cfg.Name, ErrRefused)
			}
			if ok && known == *rec.Next {
				break
			}
		}
		written, err := e.putOver(ctx, key, revision, encodeBoot(*rec.Next))
		if err != nil {
			return fmt.Errorf("embedded: write the start: %w", err)
		}
		if written {
			break
		}
	}
	rec.Boots[rec.Member], rec.Next = *rec.Next, nil
	return e.keep(rec)
}
