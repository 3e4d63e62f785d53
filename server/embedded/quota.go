package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
)

// Alarm is an alarm of etcd. While there is one, no node grants a lock. Leases are released as before, and
// those of sessions, and timed ones that were renewed at least once, are renewed.
type Alarm struct {
	// Node is the name of the member that raised it, or its ID if it is no member any more.
	Node string `json:"node"`
	// Kind is "nospace" if the data on that node has reached its quota, or "corrupt" if it differs from
	// that of the other nodes.
	Kind string `json:"kind"`
}

// The kinds of alarms.
const (
	AlarmNoSpace = "nospace"
	AlarmCorrupt = "corrupt"
)

// alarms returns the alarms that this node knows, by node and kind. It needs no majority.
func (e *Etcd) alarms(node *embed.Etcd) []Alarm {
	var all []Alarm
	for _, m := range node.Server.Alarms() {
		kind := AlarmCorrupt
		if m.GetAlarm() == pb.AlarmType_NOSPACE {
			kind = AlarmNoSpace
		}
		all = append(all, Alarm{e.nameOf(m.GetMemberID()), kind})
	}
	slices.SortFunc(all, func(a, b Alarm) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Kind, b.Kind)) })
	return all
}

// Compact makes room after the quota was reached. It drops all history, returns the free space to
// the file system, and clears this node's alarm about its quota, and those of nodes that are no
// members any more. The node answers no request while it defragments. In a cluster, call it on each
// node, one after the other: another node that is full raises the alarm again.
//
// Errors: ErrRefused if the data that is in use takes the quota; those of etcd.
func (e *Etcd) Compact(ctx context.Context) error {
	c, err := e.running()
	if err != nil {
		return err
	}
	status, err := c.Status(ctx, "")
	if err != nil {
		return fmt.Errorf("embedded: status: %w", err)
	}
	// History that is compacted already yields an error here, which does not matter.
	_, _ = c.Compact(ctx, status.Header.Revision, clientv3.WithCompactPhysical())
	before := e.node.Server.Backend().Size()
	if err := e.node.Server.Backend().Defrag(); err != nil {
		return fmt.Errorf("embedded: defragment: %w", err)
	}
	size := e.node.Server.Backend().Size()
	e.log().WarnContext(ctx, "the data was defragmented", slog.Int64("bytes_before", before), slog.Int64("bytes", size))
	if size >= e.cfg.Quota {
		return fmt.Errorf("embedded: the data of %s in use takes %d bytes, and its quota is %d: release or break locks, and compact again: %w", e.cfg.Name, size, e.cfg.Quota, ErrRefused)
	}
	return disarm(ctx, c, e.node.Server.Alarms(), func(member uint64) bool {
		return member == uint64(e.node.Server.MemberID()) || !e.isMember(member)
	})
}

// disarm clears the alarms about quotas of some members.
func disarm(ctx context.Context, c *clientv3.Client, alarms []*pb.AlarmMember, of func(member uint64) bool) error {
	for _, m := range alarms {
		if m.GetAlarm() != pb.AlarmType_NOSPACE || !of(m.GetMemberID()) {
			continue
		}
		if _, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: m.GetMemberID(), Alarm: pb.AlarmType_NOSPACE}); err != nil {
			return fmt.Errorf("clear the alarm: %w", err)
		}
	}
	return nil
}

// putOver writes a key if it still has the revision, also at the quota: a node that cannot start cannot be
// compacted, nor given a greater quota. If it returns false, the caller has to read whether it was written.
//
// While there is an alarm, etcd refuses the write. Without one it does what it is asked for, reports that there
// is no space, and raises the alarm again (etcd, server/etcdserver/apply/quota.go).
func (e *Etcd) putOver(ctx context.Context, key string, revision int64, value string) (bool, error) {
	// The client of the node checks the quota first, and does not ask.
	kv := clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(v3rpc.NewKVServer(e.node.Server)), e.client)
	res, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpPut(key, value)).Commit()
	if err == nil {
		return res.Succeeded, nil
	}
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		return false, err //nolint:wrapcheck // the caller says what it was for
	}
	return false, disarm(ctx, e.client, e.node.Server.Alarms(), func(uint64) bool { return true })
}

func (e *Etcd) isMember(id uint64) bool {
	for _, m := range e.node.Server.Cluster().Members() {
		if uint64(m.ID) == id {
			return true
		}
	}
	return false
}
