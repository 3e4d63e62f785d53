package etcdlock

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// Examine asks how many members there are and what alarms they have raised, and whether the user may read
// and write the keys. It implements backend.Examiner. Members with known faults are reported to the logger when the backend is
// opened.
func (b *Backend) Examine(ctx context.Context) ([]backend.Finding, error) {
	ctx, leave, err := b.enter(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer leave()
	rctx, cancel := b.request(ctx)
	defer cancel()
	lacks, err := b.lacking(rctx)
	if err != nil {
		return nil, fail(ctx, "examine", err, false)
	}
	out := backend.Findings(false, lacks...)
	members, err := b.client.MemberList(rctx)
	if err != nil {
		return nil, fail(ctx, "examine", err, false)
	}
	if n := len(members.Members); n < 3 { //nolint:mnd // of which a majority survives the loss of one
		out = append(out, backend.Finding{Usual: true, Text: fmt.Sprintf("the cluster has %d members: it does not survive the loss of one", n)})
	}
	alarms, err := b.client.AlarmList(rctx)
	if err != nil {
		return append(out, backend.Finding{Usual: true, Text: "alarms of etcd were not looked at: the user may not see them"}), nil
	}
	for _, a := range alarms.Alarms {
		out = append(out, backend.Finding{Text: fmt.Sprintf("member %x has raised the alarm %s: no lock can be granted", a.MemberID, a.Alarm)})
	}
	return out, nil
}

// lacking returns a finding for each right that the user lacks. etcd checks the rights for a transaction
// before the condition, which is never true here.
func (b *Backend) lacking(ctx context.Context) ([]string, error) {
	var out []string
	for _, try := range []struct {
		right string
		op    clientv3.Op
	}{{"read", b.keys.all().get(clientv3.WithCountOnly())}, {"write", clientv3.OpPut(b.keys.prefix, "")}} {
		_, err := b.client.Txn(ctx).If(clientv3.Compare(clientv3.Version(b.keys.prefix), "<", 0)).Then(try.op).Commit()
		switch {
		case is(err, rpctypes.ErrPermissionDenied):
			out = append(out, connect.Lacks(name, try.right+" below "+b.keys.prefix, nil).Error())
		case err != nil:
			return nil, err //nolint:wrapcheck // see fail
		}
	}
	return out, nil
}
