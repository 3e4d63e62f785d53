package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Our own keys in the keyspace, beside those of the locks.
const (
	keyBoots = "holdfast.nodes/boots/" // followed by the ID of the member; the value is a boot
	keyNames = "holdfast.nodes/names/" // followed by the ID of the member; the value is its name, before it has started
)

// running returns the client of a running node.
func (e *Etcd) running() (*clientv3.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client == nil {
		return nil, fmt.Errorf("%s is not in a cluster yet: %s", e.cfg.Name, e.why)
	}
	return e.client, nil
}

// list returns the members that the cluster has agreed on, and the client to change them.
func (e *Etcd) list(ctx context.Context) (*clientv3.Client, *clientv3.MemberListResponse, error) {
	c, err := e.running()
	if err != nil {
		return nil, nil, err
	}
	list, err := c.MemberList(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("the members of the cluster: %w", err)
	}
	return c, list, nil
}

// lostData returns the error for a node that the cluster knows with data, but whose folder is
// empty.
func lostData(name string) error {
	return fmt.Errorf("%s has lost its data: \"holdfast cluster remove %s\", then start it again: %w", name, name, ErrRefused)
}

// letIn adds a node with an empty folder as a learner, or finds that it was added before. The
// list that it decides by is confirmed by a majority.
func (e *Etcd) letIn(ctx context.Context, name, url string) (*joinAnswer, error) {
	c, list, err := e.list(ctx)
	if err != nil {
		return nil, err
	}
	member, err := e.find(ctx, c, list.Members, name, url)
	if err != nil {
		return nil, err
	}
	if member == nil {
		if !slices.Contains(e.cfg.Cluster, Peer{Name: name, URL: url}) {
			return nil, fmt.Errorf("%s=%s is not in --cluster of %s, and \"holdfast cluster add %s=%s\" was not called", name, url, e.cfg.Name, name, url)
		}
		if member, err = e.add(ctx, c, name, url); err != nil {
			return nil, err
		}
		if list, err = c.MemberList(ctx); err != nil {
			return nil, fmt.Errorf("the members of the cluster: %w", err)
		}
	}
	return &joinAnswer{Cluster: hexID(list.Header.ClusterId), Member: hexID(member.ID), Members: membersOf(list.Members)}, nil
}

// find looks up a joining node among the members. It returns nil if it is not a member, the
// member if it was added and has never started, or an error if the node must not join.
func (e *Etcd) find(ctx context.Context, c *clientv3.Client, members []*pb.Member, name, url string) (*pb.Member, error) {
	var added *pb.Member
	for _, m := range members {
		switch {
		case m.Name == name:
			return nil, lostData(name)
		case !slices.Contains(m.PeerURLs, url):
		case m.Name != "":
			return nil, fmt.Errorf("%s is the peer URL of %s, and %s must have another: %w", url, m.Name, name, ErrRefused)
		default:
			added = m
		}
	}
	if added == nil {
		return nil, nil //nolint:nilnil // no member, and no error
	}
	if as, err := addedAs(ctx, c, added.ID); err != nil || as != name && as != "" {
		return nil, errors.Join(err, fmt.Errorf("%s was added as %q, and not as %q: %w", url, as, name, ErrRefused))
	}
	return added, nil
}

func addedAs(ctx context.Context, c *clientv3.Client, id uint64) (string, error) {
	got, err := c.Get(ctx, keyNames+hexID(id))
	if err != nil {
		return "", fmt.Errorf("the name of a member: %w", err)
	}
	if len(got.Kvs) == 0 {
		return "", nil
	}
	return string(got.Kvs[0].Value), nil
}

// add makes a node a member, as a learner: it has no vote before it has all the data.
func (e *Etcd) add(ctx context.Context, c *clientv3.Client, name, url string) (*pb.Member, error) {
	res, err := c.MemberAddAsLearner(ctx, []string{url})
	if err != nil {
		return nil, fmt.Errorf("add %s: %w", name, err)
	}
	if _, err := c.Put(ctx, keyNames+hexID(res.Member.ID), name); err != nil {
		return nil, fmt.Errorf("add %s: write its name: %w", name, err)
	}
	e.log().WarnContext(ctx, "a node was added to the cluster", slog.String("node", name), slog.String("url", url))
	return res.Member, nil
}

// promote gives a learner its vote. A member that has not reported its name yet is not
// promoted. Therefore a member without a name has never voted, and may start without data.
func (e *Etcd) promote(ctx context.Context, id uint64) error {
	c, list, err := e.list(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list.Members, func(m *pb.Member) bool { return m.ID == id })
	switch {
	case i < 0:
		return fmt.Errorf("there is no member %s: %w", hexID(id), ErrRefused)
	case !list.Members[i].IsLearner:
		return nil
	case list.Members[i].Name == "":
		return errors.New("the node has not started yet")
	}
	if _, err := c.MemberPromote(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrMemberNotLearner) {
		return fmt.Errorf("promote %s: %w", list.Members[i].Name, err)
	}
	e.log().WarnContext(ctx, "a node has its vote", slog.String("node", list.Members[i].Name))
	return nil
}

// move changes the peer URL of a member.
func (e *Etcd) move(ctx context.Context, id uint64, url string) error {
	c, list, err := e.list(ctx)
	if err != nil {
		return err
	}
	for _, m := range list.Members {
		if m.ID != id && slices.Contains(m.PeerURLs, url) {
			return fmt.Errorf("%s is the peer URL of %s: %w", url, m.Name, ErrRefused)
		}
		if m.ID == id && slices.Equal(m.PeerURLs, []string{url}) {
			return nil
		}
	}
	if _, err := c.MemberUpdate(ctx, id, []string{url}); err != nil {
		return fmt.Errorf("change the peer URL: %w", err)
	}
	e.log().WarnContext(ctx, "the peer URL of a node was changed", slog.String("member", hexID(id)), slog.String("url", url))
	return nil
}

func membersOf(members []*pb.Member) []recordMember {
	all := make([]recordMember, len(members))
	for i, m := range members {
		all[i] = recordMember{ID: hexID(m.ID), Name: m.Name, URL: strings.Join(m.PeerURLs, " ")}
	}
	return all
}

// Add makes a member of a node that is not on the list of this one. The node is started
// afterwards, with an empty folder and a list that has this node. It is a learner until it has
// all the data, and is then promoted.
//
// Errors: ErrInvalid; ErrRefused if the name or the URL is taken; those of etcd.
func (e *Etcd) Add(ctx context.Context, name, url string) error {
	if e.peers == nil {
		return fmt.Errorf("embedded: %s runs without a list of nodes, so no other node could reach it: start it again with --cluster: %w", e.cfg.Name, ErrRefused)
	}
	cfg := Config{Name: name, Cluster: []Peer{{Name: name, URL: url}}, PeerTLS: e.cfg.PeerTLS, LocalCA: e.cfg.LocalCA}
	if err := cfg.checkCluster(); err != nil {
		return err
	}
	url = cfg.Cluster[0].URL
	c, err := e.running()
	if err != nil {
		return err
	}
	list, err := c.MemberList(ctx)
	if err != nil {
		return fmt.Errorf("embedded: the members of the cluster: %w", err)
	}
	for _, m := range list.Members {
		if m.Name == name || slices.Contains(m.PeerURLs, url) {
			return fmt.Errorf("embedded: %s with %s is a member already: %w", m.Name, strings.Join(m.PeerURLs, " "), ErrRefused)
		}
	}
	// etcd adds no member while one is down, or has been connected for less than five seconds.
	const enough = 10 * time.Second
	for end := time.Now().Add(enough); ; {
		_, err := e.add(ctx, c, name, url)
		if !errors.Is(err, rpctypes.ErrUnhealthy) {
			return err
		}
		pause := time.NewTimer(askEvery)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			end = time.Now()
		}
		if !time.Now().Before(end) {
			return fmt.Errorf("embedded: every member has to be running: %w", err)
		}
	}
}

// Remove removes a node from the cluster for good. Its data is refused from then on; with an
// empty folder it is admitted as a new member. The node may be this one.
//
// Errors: ErrRefused if there is no such member; those of etcd, such as that the others would
// have no majority.
func (e *Etcd) Remove(ctx context.Context, name string) error {
	id, err := e.idOf(ctx, name)
	if err != nil {
		return err
	}
	if _, err := e.client.MemberRemove(ctx, id); err != nil {
		return fmt.Errorf("embedded: remove %s: %w", name, err)
	}
	_, _ = e.client.Delete(ctx, keyNames+hexID(id)) // a remaining key does no harm: the ID is never used again
	_, _ = e.client.Delete(ctx, keyBoots+hexID(id))
	e.log().WarnContext(ctx, "a node was removed from the cluster", slog.String("node", name))
	return nil
}

// Promote gives a learner its vote, which also happens by itself when the node has caught up.
//
// Errors: ErrRefused if there is no such member; those of etcd, such as that it has not caught
// up.
func (e *Etcd) Promote(ctx context.Context, name string) error {
	id, err := e.idOf(ctx, name)
	if err != nil {
		return err
	}
	return e.promote(ctx, id)
}

// idOf finds a member by its name, or by its ID in hexadecimal.
func (e *Etcd) idOf(ctx context.Context, name string) (uint64, error) {
	c, err := e.running()
	if err != nil {
		return 0, err
	}
	list, err := c.MemberList(ctx)
	if err != nil {
		return 0, fmt.Errorf("embedded: the members of the cluster: %w", err)
	}
	for _, m := range list.Members {
		as := m.Name
		if as == "" {
			if as, err = addedAs(ctx, c, m.ID); err != nil {
				return 0, err
			}
		}
		if as == name || hexID(m.ID) == name {
			return m.ID, nil
		}
	}
	return 0, fmt.Errorf("embedded: there is no member %q: %w", name, ErrRefused)
}

// Snapshot writes the current data of the whole cluster to w, for Restore.
func (e *Etcd) Snapshot(ctx context.Context, w io.Writer) error {
	c, err := e.running()
	if err != nil {
		return err
	}
	if _, err := c.Get(ctx, keyBoots); err != nil { // linearizable: the data is no older than this
		return fmt.Errorf("embedded: snapshot: %w", err)
	}
	r, err := c.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("embedded: snapshot: %w", err)
	}
	defer func() { _ = r.Close() }()
	if _, err := io.Copy(w, r); err != nil {
		return fmt.Errorf("embedded: snapshot: %w", err)
	}
	return nil
}

// encodeBoot encodes a boot as a value.
func encodeBoot(b boot) string {
	data, _ := json.Marshal(b) // it never fails
	return string(data)
}

func decodeBoot(data []byte) (boot, bool) {
	var b boot
	return b, json.Unmarshal(data, &b) == nil
}
