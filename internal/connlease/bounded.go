package connlease

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

const (
	// askTime bounds one call of the database. A call that takes longer is on a connection that
	// is dead without any report of that, and the caller may have no time limit.
	askTime = 10 * time.Second
	// setupTime bounds the creation of the tables.
	setupTime = time.Minute
)

// bounded is a store whose calls end.
type bounded struct{ Store }

func (b bounded) Setup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	return b.Store.Setup(ctx)
}

func (b bounded) Connect(ctx context.Context, id backend.SessionID, ttl time.Duration, hear func(Note)) (Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return b.Store.Connect(ctx, id, ttl, hear)
}

func (b bounded) Look(ctx context.Context, names []string) (map[string]backend.LockInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return b.Store.Look(ctx, names)
}

func (b bounded) Names(ctx context.Context, req backend.ListRequest, limit int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return b.Store.Names(ctx, req, limit)
}

func (b bounded) Mark(ctx context.Context, m Mark) (fence.Token, []Marked, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return b.Store.Mark(ctx, m)
}

func (b bounded) Terminate(ctx context.Context, conns []string) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return b.Store.Terminate(ctx, conns)
}
