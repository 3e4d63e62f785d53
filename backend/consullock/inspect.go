package consullock

import (
	"context"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// Inspect reads the queue. Holder.Left is 0, because Consul does not report it.
func (st store) Inspect(ctx context.Context, lock string) (backend.LockInfo, error) {
	q, err := st.look(ctx, lock)
	if err != nil {
		return backend.LockInfo{}, err
	}
	return describe(lock, q), nil
}

func describe(lock string, q queue) backend.LockInfo {
	return q.Describe(lock, func(i int) (backend.Holder, bool) {
		e := &q.All[i]
		return backend.Holder{
			Session: e.Session, Owner: e.Owner, Note: e.Note, Token: fence.Token(e.created), Since: time.Unix(0, e.Since),
		}, true
	})
}

// List reads the names of all locks that begin with the prefix.
func (st store) List(ctx context.Context, req *backend.ListRequest) (backend.ListPage, error) {
	asking, cancel := answering(ctx)
	defer cancel()
	keys, _, err := st.client.KV().Keys(st.locksKey()+backend.EscapeSegment(req.Prefix), "", consistent(asking))
	if err != nil {
		return backend.ListPage{}, err
	}
	var segments []string
	for _, k := range keys {
		segment, _, _ := strings.Cut(strings.TrimPrefix(k, st.locksKey()), "/")
		segments = append(segments, segment)
	}
	return seqlock.Page(ctx, req, segments, st.Inspect)
}
