package etcdlock

import (
	"context"
	"fmt"
)

// Examine asks how many members there are and what alarms they have raised. It implements
// backend.Examiner. Members with known faults are reported to the logger when the backend is
// opened.
func (b *Backend) Examine(ctx context.Context) ([]string, error) {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var out []string
	rctx, cancel := b.request(ctx)
	defer cancel()
	members, err := b.client.MemberList(rctx)
	if err != nil {
		return nil, fail(ctx, "examine", err, false)
	}
	if n := len(members.Members); n < 3 { //nolint:mnd // of which a majority survives the loss of one
		out = append(out, fmt.Sprintf("the cluster has %d members: it does not survive the loss of one", n))
	}
	alarms, err := b.client.AlarmList(rctx)
	if err != nil {
		return append(out, "alarms of etcd were not looked at: the user may not see them"), nil
	}
	for _, a := range alarms.Alarms {
		out = append(out, fmt.Sprintf("member %x has raised the alarm %s: no lock can be granted", a.MemberID, a.Alarm))
	}
	return out, nil
}
